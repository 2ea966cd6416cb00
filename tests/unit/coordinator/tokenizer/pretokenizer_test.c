#include "coordinator/tokenizer/pretokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* Pieces of a text, joined by '|'. */
static void split(const char *text, char *out)
{
    const struct pretokenizer *pretokenizer = NULL;
    assert_int_equal(pretokenizer_find("smollm", 6, &pretokenizer, NULL), STATUS_OK);
    size_t length = strlen(text);
    while (length > 0) {
        size_t piece = pretokenizer->first_piece(text, length);
        assert_in_range(piece, 1, length);
        memcpy(out, text, piece);
        out += piece;
        *out++ = '|';
        text += piece;
        length -= piece;
    }
    *out = '\0';
}

static void splits_like_the_rule(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"Hello, world!", "Hello|,| world|!|"},
        {"I'm sure they'll", "I|'m| sure| they|'ll|"},
        {"it's 'S 'LL 'x", "it|'s| '|S| '|LL| '|x|"},
        {"we'd've don't 're", "we|'d|'ve| don|'t| '|re|"},
        {"'", "'|"},
        {"'l 'r 'v", "'|l| '|r| '|v|"},
        {"a  b   c", "a| | b|  | c|"},
        {"  x", " | x|"},
        {"x  ", "x|  |"},
        {" \n x", " \n| x|"},
        {"\n\nx", "\n|\n|x|"},
        {"\tx\t\ty", "\t|x|\t|\t|y|"},
        {"a 1", "a| |1|"},
        {"a  1", "a|  |1|"},
        {"12 3.4", "1|2| |3|.|4|"},
        {"x1y", "x|1|y|"},
        {" ...!? ", " ...!?| |"},
        {"a_b-c", "a|_|b|-|c|"},
        {"\xc2\xa0x", "\xc2\xa0|x|"},
        {"\xc2\xa0\xc2\xa0x", "\xc2\xa0|\xc2\xa0|x|"},
        {" \xe2\x85\xa7!", " |\xe2\x85\xa7|!|"},         /* a Roman numeral is a digit */
        {" \xf0\x91\xb7\xa3x", " |\xf0\x91\xb7\xa3|x|"}, /* a digit of Unicode 17 alone */
        {"\xe4\xbd\xa0\xe5\xa5\xbd \xe4\xb8\x96", "\xe4\xbd\xa0\xe5\xa5\xbd| \xe4\xb8\x96|"},
        {"e\xcc\x81t", "e|\xcc\x81|t|"},        /* a combining mark is no letter */
        {"'\xc5\xbf", "'|\xc5\xbf|"},           /* no folding in this rule */
        {"\xe1\xa0\x8e x", "\xe1\xa0\x8e| x|"}, /* U+180E is no space */
        {"\xf0\x9f\x98\x80\xf0\x9f\x98\x80", "\xf0\x9f\x98\x80\xf0\x9f\x98\x80|"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char pieces[256];
        split(cases[i][0], pieces);
        assert_string_equal(pieces, cases[i][1]);
    }
}

static void unknown_rules_are_refused_by_name(void **state)
{
    (void)state;
    const struct pretokenizer *pretokenizer = NULL;
    struct reason reason;
    static const char *const names[] = {"llama-bpe", "", "smoll", "smollm2", "default"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        assert_int_equal(
            pretokenizer_find(names[i], strlen(names[i]), &pretokenizer, reason_init(&reason)),
            STATUS_UNSUPPORTED);
    assert_string_equal(
        reason.storage,
        "the splitting rule \"default\" of the model is not supported; known: smollm");
    assert_null(pretokenizer);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(splits_like_the_rule),
        cmocka_unit_test(unknown_rules_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
