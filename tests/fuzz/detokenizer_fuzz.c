/* The detokenizer with stop strings against the slow judge, after every token.
 * Input: number of stops, for each its length and bytes, length of the prompt's tail and its bytes;
 * then tokens, each a length (0 to 7; 8 and more: a control token) and so many bytes. */
#include "coordinator/tokenizer/detokenizer.h"

#include "support/naive_detokenizer.h"
#include "support/token_set.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { STEPS_MAX = 200, TOKEN_BYTES_MAX = 7, STOPS_MAX = 4 };

struct reader {
    const uint8_t *at, *end;
};

static uint8_t next_byte(struct reader *reader)
{
    return reader->at < reader->end ? *reader->at++ : 0;
}

static size_t next_bytes(struct reader *reader, size_t wanted, char *out)
{
    size_t rest = (size_t)(reader->end - reader->at);
    size_t taken = wanted < rest ? wanted : rest;
    if (taken > 0)
        memcpy(out, reader->at, taken);
    reader->at += taken;
    return taken;
}

/* Everything of one run; too large for the stack. */
struct run {
    struct token_set set;
    uint32_t tokens[STEPS_MAX];
    uint32_t token_count;
    struct naive_stops strings;
    char stop_bytes[STOPS_MAX][STOP_STRING_BYTES_MAX];
    struct stop_set stops;
    uint8_t raw[NAIVE_RAW_MAX];
    size_t tail_length;
    size_t token_ends[STEPS_MAX];
    char text[NAIVE_TEXT_MAX + DETOKENIZER_OUTPUT_BYTES_MAX];
    size_t text_length;
    struct naive_state judge;
};

static bool read_stops(struct reader *reader, struct run *run)
{
    run->strings.count = next_byte(reader) % (STOPS_MAX + 1);
    for (size_t i = 0; i < run->strings.count; i++) {
        size_t length =
            next_bytes(reader, next_byte(reader) % (STOP_STRING_BYTES_MAX + 1), run->stop_bytes[i]);
        run->strings.strings[i] = (struct byte_view){run->stop_bytes[i], length};
    }
    return stop_set_init(&run->stops, run->strings.strings, run->strings.count, NULL) == STATUS_OK;
}

/* Only what detokenizer_prompt_tail() could have found. */
static void read_tail(struct reader *reader, struct run *run)
{
    char tail[DETOKENIZER_TAIL_BYTES_MAX];
    size_t length = next_bytes(reader, next_byte(reader) % (DETOKENIZER_TAIL_BYTES_MAX + 1), tail);
    for (size_t i = 0; i < length; i++)
        if (utf8_step((const uint8_t *)tail, i, (uint8_t)tail[i]) != UTF8_PENDING)
            return;
    memcpy(run->raw, tail, length);
    run->tail_length = length;
}

static void read_tokens(struct reader *reader, struct run *run)
{
    uint32_t control = token_set_add_control(&run->set, "<|end|>");
    while (reader->at < reader->end && run->token_count < STEPS_MAX) {
        char bytes[TOKEN_BYTES_MAX];
        uint8_t wanted = next_byte(reader);
        size_t length = next_bytes(reader, wanted <= TOKEN_BYTES_MAX ? wanted : 0, bytes);
        uint32_t token = control;
        if (length > 0) {
            token_set_add(&run->set, bytes, length);
            token = token_set_find(&run->set, bytes, length);
        }
        run->tokens[run->token_count++] = token;
    }
    token_set_build(&run->set);
}

static void judge(struct run *run, const struct detokenizer *detokenizer, uint32_t token_count,
                  bool ended)
{
    struct naive_input input = {.raw = run->raw,
                                .tail_length = run->tail_length,
                                .token_ends = run->token_ends,
                                .token_count = token_count,
                                .ended = ended};
    naive_run(&input, &run->strings, &run->judge);
    CHECK(detokenizer->released_bytes == run->text_length && run->text_length == run->judge.shown);
    CHECK(memcmp(run->text, run->judge.text.bytes, run->text_length) == 0);
    CHECK(detokenizer->released_tokens == run->judge.released_tokens);
    CHECK(detokenizer->ended == (ended || run->judge.stop != NAIVE_STOPPED_NOWHERE));
}

static void push_all(struct run *run)
{
    struct detokenizer detokenizer;
    detokenizer_init(&detokenizer, (struct byte_view){(const char *)run->raw, run->tail_length});
    size_t raw = 0;
    uint32_t pushed = 0;
    for (; pushed < run->token_count && !detokenizer.ended; pushed++) {
        struct byte_view bytes = vocabulary_token_bytes(&run->set.vocabulary, run->tokens[pushed]);
        memcpy(run->raw + run->tail_length + raw, bytes.bytes, bytes.length);
        raw += bytes.length;
        run->token_ends[pushed] = raw;
        run->text_length += detokenizer_push(&detokenizer, &run->set.vocabulary, &run->stops,
                                             run->tokens[pushed], run->text + run->text_length);
        judge(run, &detokenizer, pushed + 1, false);
    }
    run->text_length += detokenizer_finish(&detokenizer, &run->stops, run->text + run->text_length);
    judge(run, &detokenizer, pushed, true);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct reader reader = {bytes, bytes + length};
    struct run *run = calloc(1, sizeof *run);
    CHECK(run != NULL);
    if (read_stops(&reader, run)) {
        read_tail(&reader, run);
        read_tokens(&reader, run);
        push_all(run);
        vocabulary_free(&run->set.vocabulary);
    }
    free(run);
    return 0;
}
