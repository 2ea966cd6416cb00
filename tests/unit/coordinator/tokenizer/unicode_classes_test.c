#include "coordinator/tokenizer/unicode_classes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static uint32_t count_of(uint8_t class)
{
    uint32_t count = 0;
    for (uint32_t code_point = 0; code_point < UNICODE_CODE_POINTS; code_point++)
        count += (unicode_classes(code_point) & class) != 0;
    return count;
}

/* Unicode 16 for the regex engine, a later one for the digits; 25 spaces, without U+180E. */
static void classes_have_their_sizes(void **state)
{
    (void)state;
    assert_int_equal(count_of(UNICODE_CLASS_LETTER), 141028);
    assert_int_equal(count_of(UNICODE_CLASS_NUMBER), 1911);
    assert_int_equal(count_of(UNICODE_CLASS_SPACE), 25);
    assert_int_equal(count_of(UNICODE_CLASS_DIGIT), 1924);
}

static void characters_have_their_classes(void **state)
{
    (void)state;
    enum {
        LETTER = UNICODE_CLASS_LETTER,
        SPACE = UNICODE_CLASS_SPACE,
        NUMERIC = UNICODE_CLASS_NUMBER | UNICODE_CLASS_DIGIT
    };
    static const struct {
        uint32_t code_point;
        uint8_t classes;
    } cases[] = {
        {'a', LETTER},     {'Z', LETTER},   {'0', NUMERIC},     {'_', 0},
        {' ', SPACE},      {'\n', SPACE},   {'\v', SPACE},      {0, 0},
        {0x1c, 0},         {0x85, SPACE},   {0xa0, SPACE},      {0xaa, LETTER},
        {0xb2, NUMERIC},   {0xbd, NUMERIC}, {0x17f, LETTER},    {0x180e, 0},
        {0x200b, 0},       {0x2028, SPACE}, {0x3000, SPACE},    {0x3007, NUMERIC},
        {0x4e09, LETTER},  {0xfeff, 0},     {0x1d7d8, NUMERIC}, {0x1f600, 0},
        {0x31350, LETTER}, {0xe000, 0},     {0x10ffff, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (unicode_classes(cases[i].code_point) != cases[i].classes)
            fail_msg("U+%04X has classes %d", cases[i].code_point,
                     unicode_classes(cases[i].code_point));
}

/* Splitting asks the first row directly for ASCII. */
static void first_row_is_that_of_ascii(void **state)
{
    (void)state;
    assert_int_equal(unicode_block_rows[0], 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(classes_have_their_sizes),
        cmocka_unit_test(characters_have_their_classes),
        cmocka_unit_test(first_row_is_that_of_ascii),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
