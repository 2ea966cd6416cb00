#include "common/options.h"

#include "common/check.h"
#include "common/exit_codes.h"

#include <ctype.h>
#include <errno.h>
#include <ini.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64 };

/* What every program has besides its own table. */
static const struct common_option {
    const char *name;
    enum options_action action; /* 0 = takes a value */
    const char *help;
} COMMON_OPTIONS[] = {
    {"config", 0, "Read options from this file"},
    {"check", OPTIONS_CHECK, "Print the effective options and what they lead to, then leave"},
    {"print-config", OPTIONS_PRINT_CONFIG, "Print a sample configuration file, then leave"},
    {"version", OPTIONS_VERSION, "Print the version, then leave"},
    {"help", OPTIONS_HELP, "Print this help, then leave"},
};
enum { COMMON_OPTION_COUNT = sizeof COMMON_OPTIONS / sizeof COMMON_OPTIONS[0] };

static const char *const SOURCE_NAMES[] = {
    [OPTION_FROM_DEFAULT] = "default",
    [OPTION_FROM_ENVIRONMENT] = "environment",
    [OPTION_FROM_FILE] = "file",
    [OPTION_FROM_COMMAND] = "command line",
};

struct unit {
    const char *suffix;
    uint64_t factor;
};

static const struct unit BYTE_UNITS[] = {
    {"", 1},
    {"K", UINT64_C(1) << 10},
    {"KiB", UINT64_C(1) << 10},
    {"M", UINT64_C(1) << 20},
    {"MiB", UINT64_C(1) << 20},
    {"G", UINT64_C(1) << 30},
    {"GiB", UINT64_C(1) << 30},
    {NULL, 0},
};
static const struct unit TIME_UNITS[] = {
    {"", 1}, {"ms", 1}, {"s", 1000}, {"min", 60000}, {NULL, 0},
};
static const struct unit NO_UNITS[] = {{"", 1}, {NULL, 0}};

/* One run of options_read. */
struct reader {
    const struct option_program *program;
    void *config;
    struct options_result *result;
    struct text *why;
    const char *path; /* of the configuration file being read */
    FILE *file;
    int line;
    enum status status; /* of the configuration file */
};

static const struct unit *units_of(enum option_kind kind)
{
    if (kind == OPTION_BYTES)
        return BYTE_UNITS;
    return kind == OPTION_MILLISECONDS ? TIME_UNITS : NO_UNITS;
}

static void *field_of(const struct option *option, void *config)
{
    return (uint8_t *)config + option->offset;
}

static const void *field_of_const(const struct option *option, const void *config)
{
    return (const uint8_t *)config + option->offset;
}

static size_t option_index(const struct option_program *program, const char *name, size_t length)
{
    for (size_t i = 0; i < program->count; i++)
        if (strlen(program->options[i].name) == length &&
            memcmp(program->options[i].name, name, length) == 0)
            return i;
    return program->count;
}

/* "kv-pool-bytes" -> "TANDEM_KV_POOL_BYTES" */
static void environment_name(const struct option *option, char *out_name)
{
    struct text name;
    text_init(&name, out_name, NAME_BYTES);
    text_append(&name, "TANDEM_", 7);
    for (const char *c = option->name; *c != '\0'; c++) {
        char upper = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
        text_append(&name, &upper, 1);
    }
    CHECK(!name.truncated);
}

/* A number in the largest unit that keeps it exact: 2147483648 -> "2G". */
static void format_number(enum option_kind kind, uint64_t value, struct text *text)
{
    const struct unit *best = &units_of(kind)[0];
    for (const struct unit *unit = best; unit->suffix != NULL; unit++)
        if (value != 0 && value % unit->factor == 0 && unit->factor > best->factor)
            best = unit;
    text_format(text, "%" PRIu64 "%s", value / best->factor, best->suffix);
}

static void append_bounds(const struct option *option, struct text *text)
{
    format_number(option->kind, option->minimum, text);
    if (option->maximum == UINT64_MAX) {
        text_format(text, " or more");
        return;
    }
    text_format(text, " to ");
    format_number(option->kind, option->maximum, text);
}

static bool equal_ignoring_case(const char *a, const char *b)
{
    while (*a != '\0' && tolower((unsigned char)*a) == tolower((unsigned char)*b)) {
        a++;
        b++;
    }
    return *a == *b;
}

static enum status set_number(const struct option *option, const char *value, void *config,
                              struct text *why)
{
    uint64_t number = 0, scaled = 0;
    const char *c = value;
    bool overflow = false;
    for (; *c >= '0' && *c <= '9'; c++) {
        overflow |= __builtin_mul_overflow(number, UINT64_C(10), &number);
        overflow |= __builtin_add_overflow(number, (uint64_t)(*c - '0'), &number);
    }
    const struct unit *unit = units_of(option->kind);
    while (unit->suffix != NULL && !equal_ignoring_case(unit->suffix, c))
        unit++;
    bool readable = c != value && unit->suffix != NULL;
    if (readable)
        overflow |= __builtin_mul_overflow(number, unit->factor, &scaled);
    if (readable && !overflow && scaled >= option->minimum && scaled <= option->maximum) {
        memcpy(field_of(option, config), &scaled, sizeof scaled);
        return STATUS_OK;
    }
    const char *form = option->kind == OPTION_BYTES ? " (suffixes K, M, G)"
                       : option->kind == OPTION_MILLISECONDS
                           ? " (milliseconds, or a number with s or min)"
                           : "";
    text_format(why, "%s; give a whole number from ",
                readable ? "is out of range" : "is not a whole number");
    append_bounds(option, why);
    text_format(why, "%s", form);
    return STATUS_INVALID;
}

static enum status set_flag(const struct option *option, const char *value, void *config,
                            struct text *why)
{
    static const char *const WORDS[][2] = {
        {"no", "yes"}, {"false", "true"}, {"off", "on"}, {"0", "1"}};
    for (size_t i = 0; i < sizeof WORDS / sizeof WORDS[0]; i++)
        for (int j = 0; j < 2; j++)
            if (equal_ignoring_case(WORDS[i][j], value)) {
                *(bool *)field_of(option, config) = j == 1;
                return STATUS_OK;
            }
    text_format(why, "is not a flag; give yes or no");
    return STATUS_INVALID;
}

static enum status set_choice(const struct option *option, const char *value, void *config,
                              struct text *why)
{
    for (const struct option_choice *choice = option->choices; choice->name != NULL; choice++)
        if (strcmp(choice->name, value) == 0) {
            memcpy(field_of(option, config), &choice->value, sizeof choice->value);
            return STATUS_OK;
        }
    text_format(why, "is unknown; choose one of");
    for (const struct option_choice *choice = option->choices; choice->name != NULL; choice++)
        text_format(why, " %s", choice->name);
    return STATUS_INVALID;
}

static bool has_control_character(const char *text)
{
    for (; *text != '\0'; text++)
        if (iscntrl((unsigned char)*text))
            return true;
    return false;
}

static enum status set_text(const struct option *option, const char *value, void *config,
                            struct text *why)
{
    size_t length = strlen(value);
    if (length >= OPTION_TEXT_BYTES) {
        text_format(why, "has %zu bytes; give at most %d", length, OPTION_TEXT_BYTES - 1);
        return STATUS_INVALID;
    }
    if (has_control_character(value)) {
        text_format(why,
                    "holds a control character, which would break lines of the log; rename it");
        return STATUS_INVALID;
    }
    memcpy(field_of(option, config), value, length + 1);
    return STATUS_OK;
}

/* `origin` opens the sentence of an error: `--slots`, `file.conf:3: slots`, `TANDEM_SLOTS`. */
static enum status set_value(struct reader *reader, size_t index, const char *value,
                             enum option_source source, const char *origin)
{
    const struct option *option = &reader->program->options[index];
    static enum status (*const SETTERS[])(const struct option *, const char *, void *,
                                          struct text *) = {
        [OPTION_FLAG] = set_flag,     [OPTION_TEXT] = set_text,
        [OPTION_CHOICE] = set_choice, [OPTION_COUNT] = set_number,
        [OPTION_BYTES] = set_number,  [OPTION_MILLISECONDS] = set_number,
    };
    struct reason detail;
    enum status status = SETTERS[option->kind](option, value, reader->config, reason_init(&detail));
    if (status != STATUS_OK) {
        text_set(reader->why, "%s: value ", origin);
        text_append_quoted(reader->why, value, strlen(value), 80);
        text_format(reader->why, " %s", detail.storage);
        return status;
    }
    reader->result->source[index] = (uint8_t)source;
    return STATUS_OK;
}

static void set_defaults(struct reader *reader)
{
    for (size_t i = 0; i < reader->program->count; i++) {
        const struct option *option = &reader->program->options[i];
        if (option->standard != NULL) {
            enum status status =
                set_value(reader, i, option->standard, OPTION_FROM_DEFAULT, option->name);
            CHECK(status == STATUS_OK); /* a default of our own table */
        }
    }
}

static enum status read_environment(struct reader *reader)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < reader->program->count && status == STATUS_OK; i++) {
        char name[NAME_BYTES];
        environment_name(&reader->program->options[i], name);
        const char *value = getenv(name);
        if (value != NULL)
            status = set_value(reader, i, value, OPTION_FROM_ENVIRONMENT, name);
    }
    return status;
}

/* fgets for inih that counts lines and refuses one that does not fit (inih would cut it in two) or
 * holds a zero byte (the rest of it would be lost, and a device of zeros would never end).
 * Indentation is dropped: inih would take an indented line for more of the value before it. */
static char *read_line(char *line, int capacity, void *context)
{
    struct reader *reader = context;
    size_t length = 0, room = (size_t)capacity - 1;
    int byte = 0;
    if (reader->status != STATUS_OK)
        return NULL;
    while (length < room && byte != '\n' && (byte = getc(reader->file)) != EOF && byte != '\0')
        line[length++] = (char)byte;
    line[length] = '\0';
    if (byte == EOF && length == 0)
        return NULL;
    reader->line++;
    if (byte == '\0')
        text_set(reader->why, "%s:%d: a zero byte; give a text file", reader->path, reader->line);
    else if (length == room && byte != '\n')
        text_set(reader->why, "%s:%d: the line is longer than %zu bytes; shorten the value",
                 reader->path, reader->line, room - 1);
    if (byte == '\0' || (length == room && byte != '\n')) {
        reader->status = STATUS_INVALID;
        return NULL;
    }
    size_t indent = strspn(line, " \t");
    memmove(line, line + indent, length + 1 - indent);
    return line;
}

static int take_file_value(void *context, const char *section, const char *name, const char *value)
{
    struct reader *reader = context;
    char origin[OPTION_TEXT_BYTES + NAME_BYTES];
    size_t index = option_index(reader->program, name, strlen(name));
    if (reader->status != STATUS_OK)
        return 0;
    if (section[0] != '\0') {
        text_set(reader->why, "%s:%d: sections are not used; remove the line [%s]", reader->path,
                 reader->line, section);
        reader->status = STATUS_INVALID;
    } else if (index == reader->program->count) {
        text_set(reader->why, "%s:%d: unknown option ", reader->path, reader->line);
        text_append_quoted(reader->why, name, strlen(name), 40);
        text_format(reader->why, "; %s --print-config lists them all", reader->program->name);
        reader->status = STATUS_INVALID;
    } else {
        snprintf(origin, sizeof origin, "%s:%d: %.40s", reader->path, reader->line, name);
        reader->status = set_value(reader, index, value, OPTION_FROM_FILE, origin);
    }
    return reader->status == STATUS_OK;
}

static enum status read_file(struct reader *reader)
{
    if (reader->path[0] == '\0')
        return STATUS_OK;
    reader->file = fopen(reader->path, "re");
    if (reader->file == NULL) {
        text_set(reader->why, "--config: cannot read \"%s\": %s; give a readable file",
                 reader->path, strerror(errno));
        return STATUS_INVALID;
    }
    int bad_line = ini_parse_stream(read_line, reader, take_file_value, reader);
    if (reader->status == STATUS_OK && bad_line != 0) {
        text_set(reader->why, "%s:%d: expected \"name = value\"", reader->path, bad_line);
        reader->status = STATUS_INVALID;
    }
    if (reader->status == STATUS_OK && ferror(reader->file)) { /* of a folder, for one */
        text_set(reader->why, "--config: cannot read \"%s\": give a readable file", reader->path);
        reader->status = STATUS_INVALID;
    }
    fclose(reader->file);
    return reader->status;
}

static const struct common_option *common_option_find(const char *name, size_t length)
{
    for (size_t i = 0; i < COMMON_OPTION_COUNT; i++)
        if (strlen(COMMON_OPTIONS[i].name) == length &&
            memcmp(COMMON_OPTIONS[i].name, name, length) == 0)
            return &COMMON_OPTIONS[i];
    return NULL;
}

/* One argument of the command line, taken apart. */
struct argument {
    const char *name; /* without the dashes, not terminated */
    size_t length;
    const char *value;                  /* after '=', or the next argument, or NULL */
    size_t index;                       /* in the program's table, or its count */
    const struct common_option *common; /* or NULL */
    int used;                           /* arguments consumed: 1 or 2 */
};

static enum status parse_argument(struct reader *reader, int argc, char *const *argv, int at,
                                  struct argument *out)
{
    const char *word = argv[at];
    if (strncmp(word, "--", 2) != 0 || word[2] == '\0') {
        text_set(reader->why, "unexpected argument ");
        text_append_quoted(reader->why, word, strlen(word), 80);
        text_format(reader->why, "; options begin with --, see --help");
        return STATUS_INVALID;
    }
    const char *equals = strchr(word, '=');
    struct argument argument = {.name = word + 2, .used = 1};
    argument.length = equals != NULL ? (size_t)(equals - argument.name) : strlen(argument.name);
    argument.value = equals != NULL ? equals + 1 : NULL;
    argument.index = option_index(reader->program, argument.name, argument.length);
    argument.common = common_option_find(argument.name, argument.length);
    if (argument.index == reader->program->count && argument.common == NULL) {
        text_set(reader->why, "unknown option --%.*s; see --help",
                 (int)(argument.length < 40 ? argument.length : 40), argument.name);
        return STATUS_INVALID;
    }
    bool is_switch = argument.common != NULL
                         ? argument.common->action != 0
                         : reader->program->options[argument.index].kind == OPTION_FLAG;
    if (argument.common != NULL && is_switch && equals != NULL) {
        text_set(reader->why, "--%s takes no value", argument.common->name);
        return STATUS_INVALID;
    }
    const bool next_is_value = at + 1 < argc && strncmp(argv[at + 1], "--", 2) != 0;
    if (equals == NULL && is_switch && (argument.common != NULL || !next_is_value)) {
        argument.value = "yes";
    } else if (equals == NULL) {
        if (at + 1 >= argc) {
            text_set(reader->why, "--%.*s needs a value", (int)argument.length, argument.name);
            return STATUS_INVALID;
        }
        argument.value = argv[at + 1];
        argument.used = 2;
    }
    *out = argument;
    return STATUS_OK;
}

static enum status set_config_path(struct reader *reader, const char *path)
{
    size_t length = strlen(path);
    if (length == 0 || length >= OPTION_TEXT_BYTES) {
        text_set(reader->why, "--config: the path has %zu bytes; give 1 to %d", length,
                 OPTION_TEXT_BYTES - 1);
        return STATUS_INVALID;
    }
    if (has_control_character(path)) {
        text_set(reader->why, "--config: the path holds a control character; rename the file");
        return STATUS_INVALID;
    }
    memcpy(reader->result->config_path, path, length + 1);
    return STATUS_OK;
}

/* First pass: the action and the configuration file, so that --help answers whatever else is wrong.
 */
static enum status find_action(struct reader *reader, int argc, char *const *argv)
{
    struct argument argument;
    enum status status = STATUS_OK;
    for (int at = 1; at < argc; at += status == STATUS_OK ? argument.used : 1) {
        struct reason unused;
        struct reader probe = *reader;
        probe.why = status == STATUS_OK ? reader->why : reason_init(&unused);
        enum status parsed = parse_argument(&probe, argc, argv, at, &argument);
        if (parsed != STATUS_OK) {
            status = parsed;
            continue;
        }
        if (argument.common == NULL)
            continue;
        if (argument.common->action > reader->result->action)
            reader->result->action = argument.common->action;
        if (argument.common->action == 0)
            status = set_config_path(&probe, argument.value);
    }
    return reader->result->action > OPTIONS_CHECK ? STATUS_OK : status;
}

static enum status read_command(struct reader *reader, int argc, char *const *argv)
{
    struct argument argument = {0};
    enum status status = STATUS_OK;
    for (int at = 1; at < argc && status == STATUS_OK; at += argument.used) {
        status = parse_argument(reader, argc, argv, at, &argument);
        if (status == STATUS_OK && argument.common == NULL) {
            char origin[NAME_BYTES];
            snprintf(origin, sizeof origin, "--%s", reader->program->options[argument.index].name);
            status = set_value(reader, argument.index, argument.value, OPTION_FROM_COMMAND, origin);
        }
    }
    return status;
}

static void append_value(const struct option *option, const void *config, struct text *text)
{
    const void *field = field_of_const(option, config);
    uint64_t number;
    uint32_t chosen;
    switch (option->kind) {
    case OPTION_FLAG:
        text_format(text, "%s", *(const bool *)field ? "yes" : "no");
        break;
    case OPTION_TEXT:
        text_format(text, "%s", (const char *)field);
        break;
    case OPTION_CHOICE:
        memcpy(&chosen, field, sizeof chosen);
        for (const struct option_choice *choice = option->choices; choice->name != NULL; choice++)
            if (choice->value == chosen)
                text_format(text, "%s", choice->name);
        break;
    case OPTION_COUNT:
    case OPTION_BYTES:
    case OPTION_MILLISECONDS:
        memcpy(&number, field, sizeof number);
        format_number(option->kind, number, text);
        break;
    }
}

/* What a value may look like: "1 to 4096", "f16 | f32", "yes | no", "text". */
static void append_form(const struct option *option, struct text *text)
{
    const char *separator = "";
    switch (option->kind) {
    case OPTION_FLAG:
        text_format(text, "yes | no");
        break;
    case OPTION_TEXT:
        text_format(text, "text");
        break;
    case OPTION_CHOICE:
        for (const struct option_choice *choice = option->choices; choice->name != NULL; choice++) {
            text_format(text, "%s%s", separator, choice->name);
            separator = " | ";
        }
        break;
    case OPTION_COUNT:
    case OPTION_BYTES:
    case OPTION_MILLISECONDS:
        append_bounds(option, text);
        break;
    }
}

static const char *standard_of(const struct option *option)
{
    if (option->standard != NULL)
        return option->standard;
    return option->kind == OPTION_FLAG ? "no" : option->kind == OPTION_TEXT ? "" : "0";
}

void options_print_help(const struct option_program *program, FILE *file)
{
    fprintf(file, "%s: %s\n\nUsage: %s [--option value]...\n\n", program->name, program->summary,
            program->name);
    for (size_t i = 0; i < program->count; i++) {
        const struct option *option = &program->options[i];
        struct reason form;
        append_form(option, reason_init(&form));
        const char *standard = standard_of(option);
        fprintf(file, "  --%s\n      %s (%s%s%s)\n", option->name, option->help, form.storage,
                standard[0] != '\0' ? "; default " : "", standard);
    }
    fprintf(file, "\n");
    for (size_t i = 0; i < COMMON_OPTION_COUNT; i++)
        fprintf(file, "  --%s%s\n      %s\n", COMMON_OPTIONS[i].name,
                COMMON_OPTIONS[i].action == 0 ? " FILE" : "", COMMON_OPTIONS[i].help);
    fprintf(file, "\nA value comes from the command line, else the configuration file, else the "
                  "environment\n(--x-y is TANDEM_X_Y there), else the default.\n");
}

void options_print_sample(const struct option_program *program, FILE *file)
{
    fprintf(file, "# Options of %s; the values shown are the defaults.\n", program->name);
    for (size_t i = 0; i < program->count; i++) {
        const struct option *option = &program->options[i];
        struct reason form;
        append_form(option, reason_init(&form));
        const char *standard = standard_of(option);
        fprintf(file, "\n# %s (%s).\n#%s =%s%s\n", option->help, form.storage, option->name,
                standard[0] != '\0' ? " " : "", standard);
    }
}

void options_print_effective(const struct option_program *program, const void *config,
                             const struct options_result *result, FILE *file)
{
    for (size_t i = 0; i < program->count; i++) {
        char storage[OPTION_TEXT_BYTES + 1];
        struct text value;
        text_init(&value, storage, sizeof storage);
        append_value(&program->options[i], config, &value);
        fprintf(file, "%s = %s  (%s)\n", program->options[i].name, storage,
                SOURCE_NAMES[result->source[i]]);
    }
}

void options_print_markdown(const struct option_program *program, FILE *file)
{
    fprintf(file, "| option | default | values | meaning |\n|---|---|---|---|\n");
    for (size_t i = 0; i < program->count; i++) {
        const struct option *option = &program->options[i];
        struct reason form;
        append_form(option, reason_init(&form));
        for (char *c = form.storage; *c != '\0'; c++)
            if (*c == '|')
                *c = ','; /* would end the cell */
        fprintf(file, "| `--%s` | %s | %s | %s |\n", option->name, standard_of(option),
                form.storage, option->help);
    }
}

enum status options_read(const struct options_input *input, struct options_result *out_result,
                         struct text *why)
{
    CHECK(input->program->count <= OPTIONS_MAX);
    memset(input->config, 0, input->config_bytes);
    *out_result = (struct options_result){.action = OPTIONS_RUN};
    struct reader reader = {
        .program = input->program, .config = input->config, .result = out_result, .why = why};
    set_defaults(&reader);
    enum status status = find_action(&reader, input->argc, input->argv);
    if (status != STATUS_OK || out_result->action > OPTIONS_CHECK)
        return status;
    reader.path = out_result->config_path;
    status = read_environment(&reader);
    if (status == STATUS_OK)
        status = read_file(&reader);
    if (status == STATUS_OK)
        status = read_command(&reader, input->argc, input->argv);
    return status;
}

bool options_start(const struct options_input *input, struct options_result *out_result,
                   int *out_exit_code)
{
    const struct option_program *program = input->program;
    struct reason why;
    if (options_read(input, out_result, reason_init(&why)) != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", program->name, why.storage);
        *out_exit_code = EXIT_CODE_USAGE;
        return false;
    }
    *out_exit_code = EXIT_CODE_OK;
    switch (out_result->action) {
    case OPTIONS_HELP:
        options_print_help(program, stdout);
        return false;
    case OPTIONS_VERSION:
        printf("%s %s\n", program->name, TANDEM_VERSION);
        return false;
    case OPTIONS_PRINT_CONFIG:
        options_print_sample(program, stdout);
        return false;
    default:
        return true;
    }
}
