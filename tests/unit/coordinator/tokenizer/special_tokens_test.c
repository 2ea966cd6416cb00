#include "coordinator/tokenizer/special_tokens.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

enum { TOKENS = 7 };

/* Three control tokens that begin alike, a fourth inside them, two user-defined ones, and a control
 * token that holds one of those. */
static const char *const texts[TOKENS] = {"<|a|>", "<|a|>b", "<|ab", "a|", "<t>", "z", "<z>"};

static void open_vocabulary(struct vocabulary *vocabulary)
{
    struct byte_view tokens[TOKENS];
    uint8_t types[TOKENS];
    for (size_t i = 0; i < TOKENS; i++) {
        tokens[i] = (struct byte_view){texts[i], strlen(texts[i])};
        types[i] = i < 4 || i == 6 ? TOKEN_TYPE_CONTROL : TOKEN_TYPE_USER_DEFINED;
    }
    struct vocabulary_source source = {.tokens = tokens,
                                       .types = types,
                                       .token_count = TOKENS,
                                       .begin_token = VOCABULARY_NO_TOKEN,
                                       .end_token = VOCABULARY_NO_TOKEN,
                                       .end_of_turn_token = VOCABULARY_NO_TOKEN,
                                       .end_of_message_token = VOCABULARY_NO_TOKEN};
    assert_int_equal(vocabulary_init(vocabulary, &source, NULL), STATUS_OK);
}

/* "begin-end=token " for each match. */
static void list_matches(const struct special_tokens *specials, const char *text,
                         enum special_tokens_use use, char *out, size_t capacity)
{
    struct byte_view view = {text, strlen(text)};
    size_t at = 0, length = 0;
    out[0] = '\0';
    for (;;) {
        struct special_match match = special_tokens_next(specials, view, at, use);
        if (match.token == VOCABULARY_NO_TOKEN) {
            assert_int_equal(match.begin, view.length);
            assert_int_equal(match.end, view.length);
            return;
        }
        length += (size_t)snprintf(out + length, capacity - length, "%zu-%zu=%u ", match.begin,
                                   match.end, match.token);
        at = match.end;
    }
}

static void leftmost_and_longest_wins(void **state)
{
    (void)state;
    static const struct {
        const char *text, *parsed, *as_text;
    } cases[] = {
        {"", "", ""},
        {"plain", "", ""},
        {"<|a|>", "0-5=0 ", ""},
        {"x<|a|>y", "1-6=0 ", ""},
        {"<|a|>b", "0-6=1 ", ""},
        {"<|a|><|a|>b", "0-5=0 5-11=1 ", ""},
        {"<|ab|>", "0-4=2 ", ""},
        {"<|a|", "2-4=3 ", ""},
        {"<<|a|>", "1-6=0 ", ""},
        {"<t>z", "0-3=4 3-4=5 ", "0-3=4 3-4=5 "},
        {"<|a|>z<t>", "0-5=0 5-6=5 6-9=4 ", "5-6=5 6-9=4 "},
        {"<|a|>bz", "0-6=1 6-7=5 ", "6-7=5 "},
        {"<t", "", ""},
        {"<z>z", "0-3=6 3-4=5 ", "3-4=5 "}, /* passed over whole, with the z inside */
    };
    struct vocabulary vocabulary;
    struct special_tokens specials;
    open_vocabulary(&vocabulary);
    assert_int_equal(special_tokens_init(&specials, &vocabulary), STATUS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char matches[128];
        list_matches(&specials, cases[i].text, SPECIAL_TOKENS_PARSED, matches, sizeof matches);
        assert_string_equal(matches, cases[i].parsed);
        list_matches(&specials, cases[i].text, SPECIAL_TOKENS_AS_TEXT, matches, sizeof matches);
        assert_string_equal(matches, cases[i].as_text);
    }
    special_tokens_free(&specials);
    special_tokens_free(&specials);
    vocabulary_free(&vocabulary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(leftmost_and_longest_wins)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
