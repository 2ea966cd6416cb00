#include "coordinator/tokenizer/detokenizer.h"

#include "common/random.h"
#include "support/naive_detokenizer.h"
#include "support/token_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

enum { TOKENS_MAX = 256 };

/* One request: what is pushed, what came out, what the judge says. */
struct stream {
    const struct token_set *set;
    struct naive_stops stop_strings;
    struct stop_set stops;
    uint8_t raw[NAIVE_RAW_MAX]; /* the tail of the prompt, then the tokens' bytes */
    size_t tail_length;
    size_t token_ends[TOKENS_MAX];
    uint32_t tokens[TOKENS_MAX];
    uint32_t token_count;
    struct detokenizer detokenizer;
    char text[NAIVE_TEXT_MAX];
    size_t text_length;
    struct naive_state judge;
};

static void stream_open(struct stream *stream, const struct token_set *set,
                        const struct naive_stops *stops, const char *tail)
{
    struct reason reason;
    memset(stream, 0, sizeof *stream);
    stream->set = set;
    stream->stop_strings = *stops;
    stream->tail_length = strlen(tail);
    memcpy(stream->raw, tail, stream->tail_length);
    assert_int_equal(
        stop_set_init(&stream->stops, stops->strings, stops->count, reason_init(&reason)),
        STATUS_OK);
    detokenizer_init(&stream->detokenizer, (struct byte_view){tail, stream->tail_length});
}

static const struct stop_set *stops_of(const struct stream *stream)
{
    return stream->stops.count > 0 ? &stream->stops : NULL;
}

static void stream_check(struct stream *stream, bool ended)
{
    const struct detokenizer *detokenizer = &stream->detokenizer;
    struct naive_input input = {.raw = stream->raw,
                                .tail_length = stream->tail_length,
                                .token_ends = stream->token_ends,
                                .token_count = stream->token_count,
                                .ended = ended};
    naive_run(&input, &stream->stop_strings, &stream->judge);
    assert_int_equal(detokenizer->released_bytes, stream->text_length);
    assert_int_equal(stream->text_length, stream->judge.shown);
    assert_memory_equal(stream->text, stream->judge.text.bytes, stream->text_length);
    assert_int_equal(detokenizer->pushed_tokens, stream->token_count);
    assert_int_equal(detokenizer->released_tokens, stream->judge.released_tokens);
    bool stopped = stream->judge.stop != NAIVE_STOPPED_NOWHERE;
    assert_int_equal(detokenizer->ended, stopped || ended);
    assert_int_equal(detokenizer->matched_stop, stopped ? stream->judge.stop : STOP_STRINGS_MAX);
    assert_true(utf8_valid(stream->text, stream->text_length));
}

static void stream_push(struct stream *stream, uint32_t token)
{
    struct byte_view bytes = vocabulary_token_bytes(&stream->set->vocabulary, token);
    size_t before = stream->token_count > 0 ? stream->token_ends[stream->token_count - 1] : 0;
    memcpy(stream->raw + stream->tail_length + before, bytes.bytes, bytes.length);
    stream->token_ends[stream->token_count] = before + bytes.length;
    stream->tokens[stream->token_count++] = token;
    char out[DETOKENIZER_OUTPUT_BYTES_MAX];
    size_t length = detokenizer_push(&stream->detokenizer, &stream->set->vocabulary,
                                     stops_of(stream), token, out);
    assert_true(length <= sizeof out);
    memcpy(stream->text + stream->text_length, out, length);
    stream->text_length += length;
    stream_check(stream, false);
}

static void stream_finish(struct stream *stream)
{
    char out[DETOKENIZER_OUTPUT_BYTES_MAX];
    size_t length = detokenizer_finish(&stream->detokenizer, stops_of(stream), out);
    memcpy(stream->text + stream->text_length, out, length);
    stream->text_length += length;
    stream_check(stream, true);
}

/* The same tokens again give the same bytes of state and of text. */
static void stream_replay(const struct stream *stream)
{
    struct detokenizer again;
    char text[NAIVE_TEXT_MAX + DETOKENIZER_OUTPUT_BYTES_MAX];
    size_t length = 0;
    detokenizer_init(&again, (struct byte_view){(const char *)stream->raw, stream->tail_length});
    for (uint32_t i = 0; i < stream->token_count; i++)
        length += detokenizer_push(&again, &stream->set->vocabulary, stops_of(stream),
                                   stream->tokens[i], text + length);
    assert_memory_equal(&again, &stream->detokenizer, sizeof again);
    assert_int_equal(length, stream->text_length);
    assert_memory_equal(text, stream->text, length);
}

/* Every way to cut `raw` into tokens: bit i of the mask says that a token ends after byte i. */
static void push_every_split(const struct token_set *set, const struct naive_stops *stops,
                             const char *raw)
{
    size_t length = strlen(raw);
    struct stream *stream = malloc(sizeof *stream);
    assert_non_null(stream);
    for (uint32_t mask = 0; mask < 1u << (length - 1); mask++) {
        stream_open(stream, set, stops, "");
        size_t begin = 0;
        for (size_t end = 1; end <= length && !stream->detokenizer.ended; end++) {
            if (end < length && (mask >> (end - 1) & 1) == 0)
                continue;
            uint32_t token = token_set_find(set, raw + begin, end - begin);
            assert_int_not_equal(token, VOCABULARY_NO_TOKEN);
            stream_push(stream, token);
            begin = end;
        }
        stream_replay(stream);
        if (!stream->detokenizer.ended)
            stream_finish(stream);
    }
    free(stream);
}

static void every_split_of_every_stop(void **state)
{
    (void)state;
    static const struct {
        const char *raw;
        const char *stops[4];
    } cases[] = {
        {"abcENDxyz", {"END"}},
        {"aaaaaaab", {"aaab", "ab"}},
        {"ababababc", {"ababc", "babc"}},
        {"abcdefgh", {"abcdeX", "cdX", "defg", "efg"}},
        {"abcd", {"abcd", "bc"}},
        {"xabcabcd!", {"abcd"}},
        {"\xe4\xbd\xa0\xe5\xa5\xbd!", {"\xe5\xa5\xbd"}},
        {"\xc3\xa8\xc3\xa9!", {"\xc3\xa9!"}},
        {"a\xff\xe4\xbd z", {"\xef\xbf\xbd z"}},
        {"\xf0\x9f\x98\x80\xf0\x9f\x98", {"\xf0\x9f\x98\x81"}},
        {"\xed\xa0\x80\xc1\xbf\xf4\x90", {"nothing"}},
        {"ab\n\nUser", {"\n\nUser:", "\n\n\n"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct token_set *set = calloc(1, sizeof *set);
        assert_non_null(set);
        size_t length = strlen(cases[i].raw);
        for (size_t begin = 0; begin < length; begin++)
            for (size_t end = begin + 1; end <= length; end++)
                token_set_add(set, cases[i].raw + begin, end - begin);
        token_set_build(set);
        struct naive_stops stops = {.count = 0};
        push_every_split(set, &stops, cases[i].raw);
        for (size_t s = 0; s < 4 && cases[i].stops[s] != NULL; s++)
            stops.strings[stops.count++] =
                (struct byte_view){cases[i].stops[s], strlen(cases[i].stops[s])};
        push_every_split(set, &stops, cases[i].raw);
        vocabulary_free(&set->vocabulary);
        free(set);
    }
}

static const char *const fragments[] = {
    "a",
    "b",
    "ab",
    "ba",
    "aab",
    " ",
    "\n",
    "\n\n",
    "END",
    "EN",
    "E",
    "N",
    "D",
    "\xe4",
    "\xbd",
    "\xa0",
    "\xe4\xbd",
    "\xbd\xa0",
    "\xe4\xbd\xa0",
    "\xc3",
    "\xa9",
    "\xc3\xa9",
    "\xf0",
    "\x9f",
    "\x98",
    "\x80",
    "\xf0\x9f",
    "\x98\x80",
    "\xf0\x9f\x98\x80",
    "\xed",
    "\xed\xa0",
    "\xef\xbf\xbd",
    "\xef",
    "\xbf",
    "\xff",
    "\xc0",
    "a\xf4",
    "\x90z",
    "hello world",
};

enum { FRAGMENT_COUNT = sizeof fragments / sizeof fragments[0] };

static struct token_set *make_fragment_set(void)
{
    struct token_set *set = calloc(1, sizeof *set);
    assert_non_null(set);
    for (size_t i = 0; i < FRAGMENT_COUNT; i++)
        token_set_add(set, fragments[i], strlen(fragments[i]));
    for (uint32_t byte = 0; byte < 256; byte++) {
        char raw = (char)byte;
        token_set_add(set, &raw, 1);
    }
    (void)token_set_add_control(set, "<|end|>");
    token_set_build(set);
    return set;
}

/* Up to three stops, each a few fragments that are UTF-8. */
static void draw_stops(struct random *random, struct naive_stops *stops,
                       char texts[STOP_STRINGS_MAX][STOP_STRING_BYTES_MAX + 1])
{
    stops->count = random_below(random, 4);
    for (size_t i = 0; i < stops->count; i++) {
        do {
            size_t length = 0;
            for (uint32_t parts = 1 + random_below(random, 5); parts > 0; parts--) {
                const char *fragment = fragments[random_below(random, FRAGMENT_COUNT)];
                memcpy(texts[i] + length, fragment, strlen(fragment));
                length += strlen(fragment);
            }
            stops->strings[i] = (struct byte_view){texts[i], length};
        } while (!utf8_valid(texts[i], stops->strings[i].length));
    }
}

/* Released text is the lossy decoding of the whole, cut before the first stop, after every token.
 */
static void random_tokens_agree_with_the_judge(void **state)
{
    (void)state;
    static const char *const tails[] = {"", "", "\xe4", "\xe4\xbd", "\xf0\x9f\x98", "\xc3"};
    struct token_set *set = make_fragment_set();
    struct stream *stream = malloc(sizeof *stream);
    assert_non_null(stream);
    enum { ROUNDS = 6000, TOKENS = 40 };
    for (uint64_t seed = 0; seed < ROUNDS; seed++) {
        struct random random = {seed};
        struct naive_stops stops;
        char texts[STOP_STRINGS_MAX][STOP_STRING_BYTES_MAX + 1];
        draw_stops(&random, &stops, texts);
        stream_open(stream, set, &stops, tails[random_below(&random, 6)]);
        uint32_t any_byte = random_below(&random, 3);
        while (stream->token_count < TOKENS && !stream->detokenizer.ended)
            stream_push(stream, any_byte == 0 ? random_below(&random, set->count)
                                              : random_below(&random, FRAGMENT_COUNT));
        stream_replay(stream);
        if (!stream->detokenizer.ended)
            stream_finish(stream);
    }
    free(stream);
    vocabulary_free(&set->vocabulary);
    free(set);
}

/* Control tokens show nothing and wait in line, however many there are. */
static void control_tokens_wait_in_line(void **state)
{
    (void)state;
    struct token_set *set = make_fragment_set();
    uint32_t control = set->count - 1;
    struct naive_stops stops = {.strings = {{"END", 3}}, .count = 1};
    struct stream *stream = malloc(sizeof *stream);
    assert_non_null(stream);
    stream_open(stream, set, &stops, "");
    stream_push(stream, control);
    assert_int_equal(stream->detokenizer.released_tokens, 1);
    stream_push(stream, token_set_find(set, "EN", 2));
    for (int i = 0; i < 100; i++)
        stream_push(stream, control);
    assert_int_equal(stream->detokenizer.released_tokens, 1);
    stream_push(stream, token_set_find(set, "\xe4\xbd", 2));
    for (int i = 0; i < 100; i++)
        stream_push(stream, control);
    assert_int_equal(stream->text_length, 0);
    stream_push(stream, token_set_find(set, "\xa0", 1));
    assert_int_equal(stream->detokenizer.released_tokens, stream->token_count);
    assert_string_equal(stream->text, "EN\xe4\xbd\xa0");
    stream_finish(stream);
    free(stream);
    vocabulary_free(&set->vocabulary);
    free(set);
}

/* A character that the prompt began is shown once the generation completes it; what the prompt
 * alone left unfinished is never shown, neither broken nor at the end. */
static void prompt_bytes_alone_are_never_shown(void **state)
{
    (void)state;
    struct token_set *set = make_fragment_set();
    static const struct {
        const char *tail, *generated, *text;
    } cases[] = {
        {"\xe4\xbd", "\xa0!", "\xe4\xbd\xa0!"},
        {"\xe4", "a", "a"},
        {"\xe4", "\xbd", "\xef\xbf\xbd"},
        {"\xf0\x9f",
         "\x98"
         "a",
         "\xef\xbf\xbd"
         "a"},
        {"\xe4", "", ""},
        {"\xc3", "\xff", "\xef\xbf\xbd"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct detokenizer detokenizer;
        char out[4 * DETOKENIZER_OUTPUT_BYTES_MAX];
        size_t length = 0;
        detokenizer_init(&detokenizer, (struct byte_view){cases[i].tail, strlen(cases[i].tail)});
        for (const char *byte = cases[i].generated; *byte != '\0'; byte++)
            length += detokenizer_push(&detokenizer, &set->vocabulary, NULL,
                                       token_set_find(set, byte, 1), out + length);
        length += detokenizer_finish(&detokenizer, NULL, out + length);
        assert_int_equal(length, strlen(cases[i].text));
        assert_memory_equal(out, cases[i].text, length);
    }
    vocabulary_free(&set->vocabulary);
    free(set);
}

static void prompt_tail_is_the_unfinished_character(void **state)
{
    (void)state;
    struct token_set *set = make_fragment_set();
    static const struct {
        const char *tokens[4], *tail;
    } cases[] = {
        {{"a"}, ""},
        {{NULL}, ""},
        {{"\xe4\xbd\xa0"}, ""},
        {{"a", "\xe4"}, "\xe4"},
        {{"\xe4", "\xbd"}, "\xe4\xbd"},
        {{"\xf0\x9f", "\x98"}, "\xf0\x9f\x98"},
        {{"\xf0\x9f", "\x98\x80"}, ""},
        {{"\xf0\x9f", "\x98", "a"}, ""},
        {{"\xbd", "\xa0"}, ""},
        {{"\xed\xa0"}, ""},
        {{"\xff", "\xc3"}, "\xc3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t prompt[5];
        size_t count = 0;
        for (; count < 4 && cases[i].tokens[count] != NULL; count++)
            prompt[count] =
                token_set_find(set, cases[i].tokens[count], strlen(cases[i].tokens[count]));
        prompt[count++] = set->count - 1; /* a control token does not hide what lies before it */
        char tail[DETOKENIZER_TAIL_BYTES_MAX];
        size_t length = detokenizer_prompt_tail(&set->vocabulary, prompt, count, tail);
        assert_int_equal(length, strlen(cases[i].tail));
        assert_memory_equal(tail, cases[i].tail, length);
    }
    vocabulary_free(&set->vocabulary);
    free(set);
}

/* The longest token of the worst bytes, behind the longest possible hold, fits into the promised
 * room. */
static void output_room_is_enough(void **state)
{
    (void)state;
    static char text[2 * VOCABULARY_TOKEN_BYTES_MAX];
    size_t text_length = 0;
    while (text_length + 2 <= VOCABULARY_TOKEN_BYTES_MAX)
        text_length += small_alphabet(0xff, text + text_length);
    char stop[STOP_STRING_BYTES_MAX];
    memset(stop, 's', sizeof stop);
    struct byte_view views[] = {{text, text_length}, {"s", 1}};
    uint8_t types[] = {TOKEN_TYPE_NORMAL, TOKEN_TYPE_NORMAL};
    struct vocabulary_source source = {.tokens = views, .types = types, .token_count = 2};
    source.begin_token = source.end_token = VOCABULARY_NO_TOKEN;
    source.end_of_turn_token = source.end_of_message_token = VOCABULARY_NO_TOKEN;
    struct vocabulary vocabulary;
    struct stop_set stops;
    struct byte_view stop_view = {stop, sizeof stop};
    struct reason reason;
    assert_int_equal(vocabulary_init(&vocabulary, &source, reason_init(&reason)), STATUS_OK);
    assert_int_equal(stop_set_init(&stops, &stop_view, 1, NULL), STATUS_OK);
    struct detokenizer detokenizer;
    detokenizer_init(&detokenizer, (struct byte_view){"", 0});
    char *out = malloc(DETOKENIZER_OUTPUT_BYTES_MAX); /* the sanitizer guards its end */
    assert_non_null(out);
    for (size_t i = 0; i + 1 < sizeof stop; i++)
        assert_int_equal(detokenizer_push(&detokenizer, &vocabulary, &stops, 1, out), 0);
    assert_int_equal(detokenizer_push(&detokenizer, &vocabulary, &stops, 0, out),
                     sizeof stop - 1 + UTF8_REPLACEMENT_BYTES * text_length / 2);
    free(out);
    vocabulary_free(&vocabulary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_of_every_stop),
        cmocka_unit_test(random_tokens_agree_with_the_judge),
        cmocka_unit_test(control_tokens_wait_in_line),
        cmocka_unit_test(prompt_bytes_alone_are_never_shown),
        cmocka_unit_test(prompt_tail_is_the_unfinished_character),
        cmocka_unit_test(output_room_is_enough),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
