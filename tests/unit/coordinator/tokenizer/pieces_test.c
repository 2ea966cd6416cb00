#include "coordinator/tokenizer/pieces.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* Only what merging gives back counts as a piece: "xy" is a token that no merge makes, and "az"
 * loses its z, which has no token, so that it becomes "a". */
static void pieces_are_what_merging_reaches(void **state)
{
    (void)state;
    static struct bpe_scratch scratch;
    static const char *const texts[] = {"a", "b", "c", "ab", "bc", "abc", "xy", "az", "<|end|>"};
    struct byte_view tokens[9], merges[] = {{"a b", 3}, {"b c", 3}, {"a bc", 4}};
    uint8_t types[9];
    for (size_t i = 0; i < 9; i++) {
        tokens[i] = (struct byte_view){texts[i], strlen(texts[i])};
        types[i] = i == 8 ? TOKEN_TYPE_CONTROL : TOKEN_TYPE_NORMAL;
    }
    struct vocabulary_source source = {.tokens = tokens,
                                       .types = types,
                                       .merges = merges,
                                       .token_count = 9,
                                       .merge_count = 3,
                                       .begin_token = VOCABULARY_NO_TOKEN,
                                       .end_token = VOCABULARY_NO_TOKEN,
                                       .end_of_turn_token = VOCABULARY_NO_TOKEN,
                                       .end_of_message_token = VOCABULARY_NO_TOKEN};
    struct vocabulary vocabulary;
    struct pieces pieces;
    assert_int_equal(vocabulary_init(&vocabulary, &source, NULL), STATUS_OK);
    assert_int_equal(pieces_init(&pieces, &vocabulary, &scratch), STATUS_OK);
    static const bool whole[] = {true, true, true, true, true, false, false, false, false};
    for (uint32_t i = 0; i < 9; i++)
        assert_int_equal(pieces_find(&pieces, tokens[i]), whole[i] ? i : VOCABULARY_NO_TOKEN);
    pieces_free(&pieces);
    pieces_free(&pieces);
    vocabulary_free(&vocabulary);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(pieces_are_what_merging_reaches)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
