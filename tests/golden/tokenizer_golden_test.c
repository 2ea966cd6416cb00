/* Tokenizes every case of tokenizer.golden with the default model and compares with the committed
 * answers. usage: tokenizer_golden_test TOKENIZER.golden The model is $TANDEM_TEST_MODEL or
 * ~/.cache/tandem/SmolLM2-135M-Instruct.Q4_1.gguf; without it the test fails. */
#include "coordinator/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES_MAX = 1 << 16, TEXT_BYTES_MAX = 8 << 20, FRAGMENTS_MAX = 512, TURNS_MAX = 16 };

struct golden {
    struct tokenizer tokenizer;
    struct tokenizer_scratch scratch;
    char *text; /* TEXT_BYTES_MAX */
    size_t text_length;
    struct token_list tokens;
    struct byte_view fragments[FRAGMENTS_MAX];
    size_t fragment_count;
    char *fragment_bytes; /* where the next fragment goes */
    const char *line;     /* the case that runs */
    uint32_t cases, failures;
};

static void report(struct golden *golden, const char *problem)
{
    enum { SHOWN_BYTES = 120 };
    golden->failures++;
    (void)fprintf(stderr, "%s: %.*s\n", problem, SHOWN_BYTES, golden->line);
}

/* Next word of a line, cut out in place; NULL at the end. */
static char *next_word(char **at)
{
    char *word = *at + strspn(*at, " \n");
    if (*word == '\0')
        return NULL;
    *at = word + strcspn(word, " \n");
    if (**at != '\0')
        *(*at)++ = '\0';
    return word;
}

static uint64_t number_of(const char *word, int base)
{
    return word == NULL ? 0 : strtoull(word, NULL, base);
}

/* Bytes of a hexadecimal word ("-" for none) in out; returns how many. */
static size_t from_hex(const char *word, char *out)
{
    size_t length = 0;
    for (; word != NULL && word[0] != '-' && word[0] != '\0' && word[1] != '\0'; word += 2) {
        const char pair[] = {word[0], word[1], '\0'};
        out[length++] = (char)strtoul(pair, NULL, 16);
    }
    return length;
}

static enum special_tokens_use use_of(const char *word)
{
    return word != NULL && strcmp(word, "parsed") == 0 ? SPECIAL_TOKENS_PARSED
                                                       : SPECIAL_TOKENS_AS_TEXT;
}

static bool encode(struct golden *golden, enum special_tokens_use use)
{
    struct reason reason;
    struct byte_view text = {golden->text, golden->text_length};
    golden->tokens.count = 0;
    if (tokenizer_encode(&golden->tokenizer, &golden->scratch, text, use, &golden->tokens,
                         reason_init(&reason)) == STATUS_OK)
        return true;
    report(golden, reason.storage);
    return false;
}

static void compare_ids(struct golden *golden, const char *ids)
{
    size_t count = 0;
    bool equal = ids != NULL;
    for (const char *at = ids; equal && *at != '\0' && *at != '-'; count++) {
        char *end;
        equal =
            count < golden->tokens.count && strtoul(at, &end, 10) == golden->tokens.tokens[count];
        at = equal && *end == ',' ? end + 1 : equal ? end : at;
    }
    if (!equal || count != golden->tokens.count)
        report(golden, "other tokens than the reference");
}

static void compare_hash(struct golden *golden, uint64_t count, uint64_t expected)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (size_t i = 0; i < golden->tokens.count; i++)
        hash = (hash ^ golden->tokens.tokens[i]) * UINT64_C(0x100000001b3);
    if (golden->tokens.count != count || hash != expected)
        report(golden, "other tokens than the reference");
}

static void run_text(struct golden *golden, char *rest)
{
    enum special_tokens_use use = use_of(next_word(&rest));
    golden->text_length = from_hex(next_word(&rest), golden->text);
    if (encode(golden, use))
        compare_ids(golden, next_word(&rest));
}

static void run_fragment(struct golden *golden, char *rest)
{
    if (golden->fragment_count == FRAGMENTS_MAX) {
        report(golden, "too many fragments");
        return;
    }
    size_t length = from_hex(next_word(&rest), golden->fragment_bytes);
    golden->fragments[golden->fragment_count++] =
        (struct byte_view){golden->fragment_bytes, length};
    golden->fragment_bytes += length;
}

/* The same generator as in tokenizer_oracle.py. */
static void run_mix(struct golden *golden, char *rest)
{
    enum special_tokens_use use = use_of(next_word(&rest));
    uint64_t state = number_of(next_word(&rest), 10), parts = number_of(next_word(&rest), 10);
    uint64_t count = number_of(next_word(&rest), 10), hash = number_of(next_word(&rest), 16);
    golden->text_length = 0;
    for (uint64_t i = 0; i < parts && golden->fragment_count > 0; i++) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        struct byte_view part = golden->fragments[state % golden->fragment_count];
        if (part.length > TEXT_BYTES_MAX - golden->text_length)
            break;
        memcpy(golden->text + golden->text_length, part.bytes, part.length);
        golden->text_length += part.length;
    }
    if (encode(golden, use))
        compare_hash(golden, count, hash);
}

static void run_repeat(struct golden *golden, char *rest)
{
    char unit[64];
    size_t length = from_hex(next_word(&rest), unit);
    uint64_t times = number_of(next_word(&rest), 10), count = number_of(next_word(&rest), 10);
    uint64_t hash = number_of(next_word(&rest), 16);
    golden->text_length = 0;
    for (uint64_t i = 0; i < times && length <= TEXT_BYTES_MAX - golden->text_length; i++) {
        memcpy(golden->text + golden->text_length, unit, length);
        golden->text_length += length;
    }
    if (encode(golden, SPECIAL_TOKENS_AS_TEXT))
        compare_hash(golden, count, hash);
}

/* Words with a colon are turns, then come the rendered text and the ids. */
static void run_chat(struct golden *golden, char *rest)
{
    struct chat_turn turns[TURNS_MAX];
    size_t count = 0, used = 0;
    char *word = next_word(&rest);
    for (; word != NULL && strchr(word, ':') != NULL && count < TURNS_MAX;
         word = next_word(&rest)) {
        char *colon = strchr(word, ':');
        char *content = golden->text + used;
        size_t length = from_hex(colon + 1, content);
        used += length;
        turns[count++] = (struct chat_turn){{word, (size_t)(colon - word)}, {content, length}};
    }
    char *expected = golden->text + used;
    size_t expected_length = from_hex(word, expected);
    char *rendered = expected + expected_length;
    struct chat_segment segments[5 * (TURNS_MAX + 2)];
    struct chat_rendering rendering = {.bytes = rendered,
                                       .capacity = expected_length,
                                       .segments = segments,
                                       .segment_capacity = sizeof segments / sizeof segments[0]};
    struct reason reason;
    struct text *why = reason_init(&reason);
    golden->tokens.count = 0;
    if (chat_template_render(&golden->tokenizer.chat_template, turns, count,
                             CHAT_ENDS_WITH_ANSWER_BEGUN, &rendering, why) != STATUS_OK ||
        tokenizer_encode_chat(&golden->tokenizer, &golden->scratch, turns, count, &golden->tokens,
                              why) != STATUS_OK) {
        report(golden, reason.storage);
        return;
    }
    if (rendering.length != expected_length || memcmp(rendered, expected, expected_length) != 0)
        report(golden, "rendered otherwise than the reference");
    compare_ids(golden, next_word(&rest));
}

static void run_line(struct golden *golden, char *line)
{
    static const struct {
        const char *word;
        void (*run)(struct golden *golden, char *rest);
    } kinds[] = {{"text", run_text},
                 {"fragment", run_fragment},
                 {"mix", run_mix},
                 {"repeat", run_repeat},
                 {"chat", run_chat}};
    static char copy[LINE_BYTES_MAX];
    memcpy(copy, line, strlen(line) + 1);
    golden->line = copy;
    char *rest = line;
    char *word = next_word(&rest);
    if (word == NULL || word[0] == '#')
        return;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++) {
        if (strcmp(kinds[i].word, word) == 0) {
            kinds[i].run(golden, rest);
            golden->cases++;
            return;
        }
    }
    report(golden, "unknown kind of case");
}

static bool open_model(struct golden *golden)
{
    char path[4096];
    const char *named = getenv("TANDEM_TEST_MODEL"), *home = getenv("HOME");
    (void)snprintf(path, sizeof path, "%s%s",
                   named != NULL  ? named
                   : home != NULL ? home
                                  : "",
                   named != NULL ? "" : "/.cache/tandem/SmolLM2-135M-Instruct.Q4_1.gguf");
    struct reason reason;
    struct text *why = reason_init(&reason);
    struct gguf *gguf = NULL;
    enum status status = gguf_open(path, &gguf, why);
    if (status == STATUS_OK)
        status = tokenizer_open(&golden->tokenizer, gguf, why);
    gguf_close(gguf);
    if (status == STATUS_OK)
        return true;
    (void)fprintf(
        stderr,
        "the default model is needed (set TANDEM_TEST_MODEL, or run deploy/test.sh, which "
        "fetches it): %s: %s\n",
        path, reason.storage);
    return false;
}

int main(int argument_count, char **arguments)
{
    static struct golden golden;
    static char line[LINE_BYTES_MAX], fragment_bytes[LINE_BYTES_MAX];
    FILE *file = argument_count == 2 ? fopen(arguments[1], "r") : NULL;
    if (file == NULL) {
        (void)fprintf(stderr, "usage: tokenizer_golden_test TOKENIZER.golden\n");
        return EXIT_FAILURE;
    }
    golden.fragment_bytes = fragment_bytes;
    golden.text = malloc(TEXT_BYTES_MAX);
    golden.tokens.capacity = TEXT_BYTES_MAX;
    golden.tokens.tokens = malloc(TEXT_BYTES_MAX * sizeof(uint32_t));
    bool ready = golden.text != NULL && golden.tokens.tokens != NULL && open_model(&golden);
    while (ready && fgets(line, sizeof line, file) != NULL)
        run_line(&golden, line);
    (void)printf("%u cases, %u failures\n", golden.cases, golden.failures);
    bool passed = ready && golden.cases > 0 && golden.failures == 0;
    tokenizer_free(&golden.tokenizer);
    free(golden.tokens.tokens);
    free(golden.text);
    (void)fclose(file);
    return passed ? EXIT_SUCCESS : EXIT_FAILURE;
}
