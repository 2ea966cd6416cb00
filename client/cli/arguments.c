#include "client/cli/arguments.h"

#include "proto/limits.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum argument_kind {
    ARGUMENT_FLAG = 1, /* bool, without a value */
    ARGUMENT_WORD,     /* const char * */
    ARGUMENT_STOP,     /* appended to stops */
    ARGUMENT_COUNT,    /* uint64_t within the bounds */
    ARGUMENT_SEED,     /* any uint64_t; sets has_seed */
    ARGUMENT_REAL,     /* double within the bounds */
    ARGUMENT_SHARE,    /* double, above 0 and at most 1 */
};

#define FOR(name) (1u << COMMAND_##name)

enum {
    FOR_ALL = (1 << COMMAND_COUNT) - 1,
    FOR_REQUEST = FOR(GENERATE) | FOR(CHAT),
    FOR_TEXT = FOR_REQUEST | FOR(TOKENIZE) | FOR(DETOKENIZE),
};

struct argument {
    const char *name;
    enum argument_kind kind;
    unsigned commands; /* bits of enum command */
    size_t offset;     /* in struct arguments */
    uint32_t minimum;  /* both included */
    uint32_t maximum;
    const char *value; /* placeholder of --help */
    const char *help;
};

#define AT(field) offsetof(struct arguments, field)

/* clang-format off */
static const struct argument table[] = {
    {"run-dir", ARGUMENT_WORD, FOR_ALL, AT(run_dir), 0, 0, "DIR",
     "run directory of the coordinator (TANDEM_RUN_DIR; $XDG_RUNTIME_DIR/tandem, /run/tandem)"},
    {"json", ARGUMENT_FLAG, FOR_ALL, AT(json), 0, 0, NULL, "one JSON object on standard output"},
    {"patience-ms", ARGUMENT_COUNT, FOR_ALL, AT(patience_ms), 1, 3600000, "MS",
     "how long to look for a coordinator that went away (15000)"},
    {"quiet", ARGUMENT_FLAG, FOR_REQUEST, AT(quiet), 0, 0, NULL,
     "no progress and no figures on standard error"},
    {"file", ARGUMENT_WORD, FOR_TEXT, AT(file), 0, 0, "FILE",
     "read the text from a file; - is standard input"},
    {"ids", ARGUMENT_WORD, FOR(GENERATE), AT(ids), 0, 0, "IDS",
     "token ids instead of a text: 1,2,3, or a file of them, or -; the answer is ids too"},
    {"system", ARGUMENT_WORD, FOR(CHAT) | FOR(TOKENIZE), AT(system), 0, 0, "TEXT",
     "system message of the conversation"},
    {"max-tokens", ARGUMENT_COUNT, FOR_REQUEST, AT(max_tokens), 1, LIMIT_CONTEXT_TOKENS, "N",
     "at most this many new tokens (what the context leaves)"},
    {"temperature", ARGUMENT_REAL, FOR_REQUEST, AT(temperature), 0, LIMIT_TEMPERATURE, "X",
     "0 takes the most likely token each time (0)"},
    {"top-k", ARGUMENT_COUNT, FOR_REQUEST, AT(top_k), 0, LIMIT_VOCABULARY, "N",
     "draw among the N most likely tokens; 0 is off (0)"},
    {"top-p", ARGUMENT_SHARE, FOR_REQUEST, AT(top_p), 0, 1, "X",
     "draw among the most likely tokens of this probability together (1)"},
    {"min-p", ARGUMENT_REAL, FOR_REQUEST, AT(min_p), 0, 1, "X",
     "drop tokens below this share of the most likely one (0)"},
    {"seed", ARGUMENT_SEED, FOR_REQUEST, AT(seed), 0, 0, "N",
     "the same seed gives the same text (drawn at random)"},
    {"stop", ARGUMENT_STOP, FOR_REQUEST, AT(stops), 1, LIMIT_STOP_BYTES, "TEXT",
     "end before this text; may be given up to 16 times"},
    {"deadline-ms", ARGUMENT_COUNT, FOR_REQUEST, AT(deadline_ms), 1, LIMIT_DEADLINE_MS, "MS",
     "give up after this time (none)"},
    {"ignore-eos", ARGUMENT_FLAG, FOR_REQUEST, AT(ignore_eos), 0, 0, NULL,
     "go on after the end-of-sequence token"},
    {"plain-text", ARGUMENT_FLAG, FOR(GENERATE) | FOR(TOKENIZE), AT(plain_text), 0, 0, NULL,
     "special tokens written out in the text are ordinary text"},
    {"chat", ARGUMENT_FLAG, FOR(TOKENIZE), AT(chat), 0, 0, NULL,
     "the text is a message of a user, put into the chat template"},
    {"id", ARGUMENT_WORD, FOR_REQUEST, AT(id), 0, 0, "ID",
     "name of the request for `tandem status` and `tandem cancel` (random)"},
    {"help", ARGUMENT_FLAG, FOR_ALL, AT(help), 0, 0, NULL, "this text"},
    {"version", ARGUMENT_FLAG, FOR_ALL, AT(version), 0, 0, NULL, "version of this program"},
};
/* clang-format on */

enum { TABLE_COUNT = sizeof table / sizeof table[0] };

static const struct {
    const char *word;
    const char *arguments;
    const char *help;
} commands[COMMAND_COUNT] = {
#define COMMAND_ROW(name, word, arguments, help) [COMMAND_##name] = {word, arguments, help},
    COMMAND_LIST(COMMAND_ROW)
#undef COMMAND_ROW
};

const char *command_word(enum command command)
{
    return commands[command].word;
}

static const struct argument *find_argument(const char *name, size_t length)
{
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        if (strlen(table[i].name) == length && memcmp(table[i].name, name, length) == 0)
            return &table[i];
    }
    return NULL;
}

static enum command find_command(const char *word)
{
    for (int i = COMMAND_NONE + 1; i < COMMAND_COUNT; i++) {
        if (strcmp(commands[i].word, word) == 0)
            return (enum command)i;
    }
    return COMMAND_NONE;
}

/* Decimal digits only: strtoull alone would accept a sign and leading blanks. */
static bool parse_count(const char *value, uint64_t *out_count)
{
    size_t digits = strspn(value, "0123456789");
    if (digits == 0 || value[digits] != '\0')
        return false;
    errno = 0;
    unsigned long long count = strtoull(value, NULL, 10);
    if (errno == ERANGE)
        return false;
    *out_count = count;
    return true;
}

static bool parse_real(const char *value, double *out_real)
{
    char *end = NULL;
    double real = strtod(value, &end);
    if (end == value || *end != '\0' || !isfinite(real))
        return false;
    *out_real = real;
    return true;
}

/* `--name must be <expected>, not "value"` */
static enum status refuse(struct text *why, const struct argument *argument, const char *expected,
                          const char *value)
{
    text_set(why, "--%s must be %s, not ", argument->name, expected);
    text_append_quoted(why, value, strlen(value), 40);
    return STATUS_INVALID;
}

static enum status refuse_range(struct text *why, const struct argument *argument, const char *what,
                                const char *value)
{
    char expected[64];
    (void)snprintf(expected, sizeof expected, "%s from %u to %u", what, argument->minimum,
                   argument->maximum);
    return refuse(why, argument, expected, value);
}

static enum status read_stop(const struct argument *argument, const char *value,
                             struct arguments *arguments, struct text *why)
{
    if (arguments->stop_count == TANDEM_STOPS_MAX) {
        text_set(why, "--%s may be given at most %d times", argument->name, TANDEM_STOPS_MAX);
        return STATUS_INVALID;
    }
    if (strlen(value) < argument->minimum || strlen(value) > argument->maximum)
        return refuse_range(why, argument, "text of a length in bytes", value);
    arguments->stops[arguments->stop_count++] = value;
    return STATUS_OK;
}

static enum status read_value(const struct argument *argument, const char *value,
                              struct arguments *arguments, struct text *why)
{
    void *field = (char *)arguments + argument->offset;
    uint64_t count = 0;
    double real = 0;
    switch (argument->kind) {
    case ARGUMENT_FLAG:
        *(bool *)field = true;
        return STATUS_OK;
    case ARGUMENT_WORD:
        if (value[0] == '\0')
            return refuse(why, argument, "a text that is not empty", value);
        *(const char **)field = value;
        return STATUS_OK;
    case ARGUMENT_STOP:
        return read_stop(argument, value, arguments, why);
    case ARGUMENT_COUNT:
        if (!parse_count(value, &count) || count < argument->minimum || count > argument->maximum)
            return refuse_range(why, argument, "a whole number", value);
        *(uint64_t *)field = count;
        return STATUS_OK;
    case ARGUMENT_SEED:
        if (!parse_count(value, &count))
            return refuse(why, argument, "a whole number below 2^64", value);
        *(uint64_t *)field = count;
        arguments->has_seed = true;
        return STATUS_OK;
    case ARGUMENT_REAL:
        if (!parse_real(value, &real) || real < argument->minimum || real > argument->maximum)
            return refuse_range(why, argument, "a number", value);
        *(double *)field = real;
        return STATUS_OK;
    case ARGUMENT_SHARE:
        if (!parse_real(value, &real) || real <= 0 || real > 1)
            return refuse(why, argument, "a number above 0 and at most 1", value);
        *(double *)field = real;
        return STATUS_OK;
    }
    return STATUS_INTERNAL;
}

/* One pass over argv. */
struct reader {
    char **argv;
    int argc;
    int next;
    const char **words;
    bool seen[TABLE_COUNT]; /* for the check against the command, which may come later */
    struct arguments arguments;
    struct text *why;
};

static enum status read_option(struct reader *reader, const char *token)
{
    const char *name = token + 2;
    size_t length = strcspn(name, "=");
    const char *value = name[length] == '=' ? name + length + 1 : NULL;
    const struct argument *argument = find_argument(name, length);
    if (argument == NULL) {
        text_set(reader->why, "there is no option --%.*s", (int)length, name);
        return STATUS_INVALID;
    }
    if (argument->kind == ARGUMENT_FLAG && value != NULL) {
        text_set(reader->why, "--%s takes no value", argument->name);
        return STATUS_INVALID;
    }
    if (argument->kind != ARGUMENT_FLAG && value == NULL) {
        if (reader->next == reader->argc) {
            text_set(reader->why, "--%s needs a value (%s)", argument->name, argument->value);
            return STATUS_INVALID;
        }
        value = reader->argv[reader->next++];
    }
    reader->seen[argument - table] = true;
    return read_value(argument, value, &reader->arguments, reader->why);
}

/* The first word is the command. A lone "-" is a word. */
static enum status read_word(struct reader *reader, const char *token)
{
    struct arguments *arguments = &reader->arguments;
    if (arguments->command != COMMAND_NONE) {
        reader->words[arguments->word_count++] = token;
        return STATUS_OK;
    }
    arguments->command = find_command(token);
    if (arguments->command != COMMAND_NONE)
        return STATUS_OK;
    text_set(reader->why, "there is no command ");
    text_append_quoted(reader->why, token, strlen(token), 40);
    return STATUS_INVALID;
}

static enum status read_tokens(struct reader *reader)
{
    bool options = true; /* until "--" */
    while (reader->next < reader->argc) {
        const char *token = reader->argv[reader->next++];
        enum status status = STATUS_OK;
        if (options && strcmp(token, "--") == 0) {
            options = false;
        } else if (options && strcmp(token, "-h") == 0) {
            reader->arguments.help = true;
        } else if (options && token[0] == '-' && token[1] == '-') {
            status = read_option(reader, token);
        } else if (options && token[0] == '-' && token[1] != '\0') {
            text_set(reader->why, "there is no option %s (a text that begins with - goes after --)",
                     token);
            status = STATUS_INVALID;
        } else {
            status = read_word(reader, token);
        }
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

static enum status check_commands(const struct reader *reader)
{
    enum command command = reader->arguments.command;
    if (command == COMMAND_NONE) {
        text_set(reader->why, "a command is missing");
        return STATUS_INVALID;
    }
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        if (reader->seen[i] && (table[i].commands & (1u << command)) == 0) {
            text_set(reader->why, "--%s does not belong to `tandem %s`", table[i].name,
                     command_word(command));
            return STATUS_INVALID;
        }
    }
    return STATUS_OK;
}

enum status arguments_read(int argc, char **argv, const char **words,
                           struct arguments *out_arguments, struct text *why)
{
    struct reader reader = {
        .argv = argv,
        .argc = argc,
        .next = 1,
        .words = words,
        .why = why,
    };
    enum status status = read_tokens(&reader);
    for (int i = 1; i < argc && !reader.arguments.help; i++) {
        if (strcmp(argv[i], "--") == 0)
            break;
        reader.arguments.help = strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0;
    }
    if (status == STATUS_OK && !reader.arguments.help && !reader.arguments.version)
        status = check_commands(&reader);
    if (status != STATUS_OK && !reader.arguments.help) {
        out_arguments->command = reader.arguments.command;
        return status;
    }
    reader.arguments.words = words;
    *out_arguments = reader.arguments;
    return STATUS_OK;
}

static void print_options(enum command command, FILE *file)
{
    (void)fprintf(file, "\nOptions (default):\n");
    for (size_t i = 0; i < TABLE_COUNT; i++) {
        if ((table[i].commands & (1u << command)) == 0)
            continue;
        char left[40];
        (void)snprintf(left, sizeof left, "--%s %s", table[i].name,
                       table[i].value != NULL ? table[i].value : "");
        (void)fprintf(file, "  %-20s %s\n", left, table[i].help);
    }
}

void arguments_print_help(enum command command, FILE *file)
{
    if (command != COMMAND_NONE) {
        (void)fprintf(file, "Usage: tandem %s [OPTION]... %s\n%s\n", commands[command].word,
                      commands[command].arguments, commands[command].help);
        if ((FOR_TEXT & (1u << command)) != 0)
            (void)fprintf(file, "The text comes from the command line, from --file or from "
                                "standard input.\n");
        print_options(command, file);
        return;
    }
    (void)fprintf(file, "Usage: tandem COMMAND [OPTION]... [TEXT]\n"
                        "Asks the language model that tandem-coordinator serves on this host.\n\n");
    for (int i = COMMAND_NONE + 1; i < COMMAND_COUNT; i++)
        (void)fprintf(file, "  %-11s %-10s %s\n", commands[i].word, commands[i].arguments,
                      commands[i].help);
    (void)fprintf(file, "\n`tandem COMMAND --help` lists the options of a command.\n"
                        "Exit codes: 0 done, 1 the request failed, 64 command line, 69 no "
                        "coordinator answers,\n74 output cannot be written, 77 not permitted, "
                        "130 interrupted.\n");
}
