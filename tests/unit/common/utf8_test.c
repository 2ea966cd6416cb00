#include "common/utf8.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { CODE_POINTS = 0x110000, SURROGATES_BEGIN = 0xd800, SURROGATES_END = 0xe000 };

/* One bit for each string of three bytes: whether it is a character. */
struct well_formed {
    uint8_t one[256];
    uint8_t two[65536];
    uint8_t three[(1 << 24) / 8];
};

static uint32_t number_of(const uint8_t *bytes, size_t length)
{
    uint32_t number = 0;
    for (size_t i = 0; i < length; i++)
        number = number << 8 | bytes[i];
    return number;
}

static void every_scalar_round_trips(void **state)
{
    (void)state;
    for (uint32_t code_point = 0; code_point < CODE_POINTS; code_point++) {
        if (code_point >= SURROGATES_BEGIN && code_point < SURROGATES_END)
            continue;
        char bytes[UTF8_BYTES_MAX];
        size_t length = utf8_encode(code_point, bytes), decoded_length;
        assert_true(utf8_valid(bytes, length));
        assert_int_equal(utf8_decode(bytes, &decoded_length), code_point);
        assert_int_equal(decoded_length, length);
        for (size_t cut = 1; cut < length; cut++)
            assert_int_equal(utf8_valid_prefix(bytes, cut), 0);
    }
}

/* All 2^24 strings of three bytes against the set of characters that exist. */
static void strings_of_three_bytes_are_judged_right(void **state)
{
    (void)state;
    struct well_formed *sets = calloc(1, sizeof *sets);
    assert_non_null(sets);
    for (uint32_t code_point = 0; code_point < 0x10000; code_point++) {
        if (code_point >= SURROGATES_BEGIN && code_point < SURROGATES_END)
            continue;
        uint8_t bytes[UTF8_BYTES_MAX];
        size_t length = utf8_encode(code_point, (char *)bytes);
        uint32_t number = number_of(bytes, length);
        if (length == 1)
            sets->one[number] = 1;
        else if (length == 2)
            sets->two[number] = 1;
        else
            sets->three[number / 8] |= (uint8_t)(1 << number % 8);
    }
    for (uint32_t number = 0; number < 1 << 24; number++) {
        char bytes[] = {(char)(number >> 16), (char)(number >> 8), (char)number};
        uint32_t first = number >> 16, middle = number >> 8 & 0xff, last = number & 0xff;
        int expected = (sets->three[number / 8] >> number % 8 & 1) ||
                       (sets->one[first] && sets->two[number & 0xffff]) ||
                       (sets->two[number >> 8] && sets->one[last]) ||
                       (sets->one[first] && sets->one[middle] && sets->one[last]);
        if (utf8_valid(bytes, sizeof bytes) != expected)
            fail_msg("%06x", number);
    }
    free(sets);
}

static void four_bytes_stay_inside_the_code_space(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        bool valid;
    } cases[] = {
        {"\xf0\x90\x80\x80", true},  {"\xf0\x8f\xbf\xbf", false}, {"\xf4\x8f\xbf\xbf", true},
        {"\xf4\x90\x80\x80", false}, {"\xf1\x80\x80\x80", true},  {"\xf3\xbf\xbf\xbf", true},
        {"\xf5\x80\x80\x80", false}, {"\xf1\x7f\x80\x80", false}, {"\xf1\x80\xc0\x80", false},
        {"\xf1\x80\x80\x41", false}, {"\xf0\x90\x80\x7f", false}, {"\xff\x80\x80\x80", false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        assert_int_equal(utf8_valid(cases[i].bytes, 4), cases[i].valid);
}

static void prefix_ends_before_the_first_bad_byte(void **state)
{
    (void)state;
    for (size_t good = 0; good < 40; good++) {
        char text[48];
        memset(text, 'a', sizeof text);
        text[good] = '\xff';
        assert_int_equal(utf8_valid_prefix(text, sizeof text), good);
        memcpy(text + good, "\xe2\x82\xac", 3);
        assert_int_equal(utf8_valid_prefix(text, good + 2), good);
        assert_int_equal(utf8_valid_prefix(text, sizeof text), sizeof text);
    }
}

/* Stepping agrees with the judge of whole strings: a character is complete exactly where one ends.
 */
static void steps_find_the_same_characters(void **state)
{
    (void)state;
    for (uint32_t code_point = 0; code_point < CODE_POINTS; code_point += 7) {
        if (code_point >= SURROGATES_BEGIN && code_point < SURROGATES_END)
            continue;
        uint8_t bytes[UTF8_BYTES_MAX];
        size_t length = utf8_encode(code_point, (char *)bytes);
        for (size_t i = 0; i < length; i++)
            assert_int_equal(utf8_step(bytes, i, bytes[i]),
                             i + 1 == length ? UTF8_COMPLETE : UTF8_PENDING);
        if (length > 1)
            assert_int_equal(utf8_step(bytes, 1, 'a'), UTF8_BROKEN);
    }
    static const uint8_t surrogate[] = {0xed}, overlong[] = {0xe0}, beyond[] = {0xf4};
    assert_int_equal(utf8_step(surrogate, 1, 0xa0), UTF8_BROKEN);
    assert_int_equal(utf8_step(overlong, 1, 0x9f), UTF8_BROKEN);
    assert_int_equal(utf8_step(beyond, 1, 0x90), UTF8_BROKEN);
    assert_int_equal(utf8_step(NULL, 0, 0x80), UTF8_BROKEN);
    assert_int_equal(utf8_step(NULL, 0, 0xc1), UTF8_BROKEN);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_scalar_round_trips),
        cmocka_unit_test(strings_of_three_bytes_are_judged_right),
        cmocka_unit_test(four_bytes_stay_inside_the_code_space),
        cmocka_unit_test(prefix_ends_before_the_first_bad_byte),
        cmocka_unit_test(steps_find_the_same_characters),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
