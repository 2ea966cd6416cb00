#include "coordinator/tokenizer/stop_set.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static struct byte_view view_of(const char *text)
{
    return (struct byte_view){text, strlen(text)};
}

/* Advances over `text`; returns what the last byte returned, the stop in out_stop. */
static uint32_t advance_over(const struct stop_set *stops, const char *text, uint32_t *out_stop)
{
    struct stop_progress progress = {{0}};
    uint32_t uncertain = 0;
    for (const char *at = text; *at != '\0'; at++) {
        uncertain = stop_set_advance(stops, &progress, (uint8_t)*at, out_stop);
        if (*out_stop != STOP_STRINGS_MAX)
            assert_int_equal(at[1], '\0');
    }
    return uncertain;
}

static void holds_the_longest_beginning(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint32_t uncertain;
    } cases[] = {
        {"x", 0},    {"a", 1},     {"aa", 2},     {"aaa", 2},    {"aab", 3},
        {"aabx", 0}, {"aabaa", 5}, {"aabaaa", 2}, {"aabaab", 3}, {"zab", 0},
    };
    struct byte_view strings[] = {view_of("aabaac")};
    struct stop_set stops;
    assert_int_equal(stop_set_init(&stops, strings, 1, NULL), STATUS_OK);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint32_t stop;
        assert_int_equal(advance_over(&stops, cases[i].text, &stop), cases[i].uncertain);
        assert_int_equal(stop, STOP_STRINGS_MAX);
    }
}

static void finds_the_longest_of_those_that_end(void **state)
{
    (void)state;
    struct byte_view strings[] = {view_of("c"), view_of("abc"), view_of("bc"), view_of("abc")};
    struct stop_set stops;
    uint32_t stop;
    assert_int_equal(stop_set_init(&stops, strings, 4, NULL), STATUS_OK);
    assert_int_equal(advance_over(&stops, "xabc", &stop), 3);
    assert_int_equal(stop, 1);
    assert_int_equal(advance_over(&stops, "xbc", &stop), 2);
    assert_int_equal(stop, 2);
    assert_int_equal(advance_over(&stops, "xc", &stop), 1);
    assert_int_equal(stop, 0);
}

static void knows_the_bytes_that_begin_a_stop(void **state)
{
    (void)state;
    struct byte_view strings[] = {view_of("a"), view_of("\xc3\xa9"), view_of("~b")};
    struct stop_set stops, none = {0};
    assert_int_equal(stop_set_init(&stops, strings, 3, NULL), STATUS_OK);
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool begins = byte == 'a' || byte == 0xc3 || byte == '~';
        assert_int_equal(stop_set_may_begin(&stops, (uint8_t)byte), begins);
        assert_false(stop_set_may_begin(&none, (uint8_t)byte));
    }
}

static void refuses_by_name(void **state)
{
    (void)state;
    char longest[STOP_STRING_BYTES_MAX + 1];
    memset(longest, 'x', sizeof longest);
    struct byte_view many[STOP_STRINGS_MAX + 1];
    for (size_t i = 0; i <= STOP_STRINGS_MAX; i++)
        many[i] = view_of("x");
    struct byte_view empty[] = {view_of("a"), view_of("")}, broken[] = {view_of("\xc3")};
    struct byte_view long_one = {longest, STOP_STRING_BYTES_MAX},
                     too_long = {longest, STOP_STRING_BYTES_MAX + 1};
    struct stop_set stops;
    struct reason reason;
    struct text *why = reason_init(&reason);
    assert_int_equal(stop_set_init(&stops, many, STOP_STRINGS_MAX + 1, why), STATUS_INVALID);
    assert_string_equal(reason.storage, "17 stop strings; up to 16 are allowed");
    assert_int_equal(stop_set_init(&stops, empty, 2, why), STATUS_INVALID);
    assert_string_equal(reason.storage, "stop string 1 has 0 bytes; 1 to 64 are allowed");
    assert_int_equal(stop_set_init(&stops, &too_long, 1, why), STATUS_INVALID);
    assert_string_equal(reason.storage, "stop string 0 has 65 bytes; 1 to 64 are allowed");
    assert_int_equal(stop_set_init(&stops, broken, 1, why), STATUS_INVALID);
    assert_string_equal(reason.storage, "stop string 0 is not UTF-8");
    assert_int_equal(stop_set_init(&stops, &long_one, 1, why), STATUS_OK);
    assert_int_equal(stop_set_init(&stops, many, STOP_STRINGS_MAX, why), STATUS_OK);
    assert_int_equal(stop_set_init(&stops, NULL, 0, why), STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(holds_the_longest_beginning),
        cmocka_unit_test(finds_the_longest_of_those_that_end),
        cmocka_unit_test(knows_the_bytes_that_begin_a_stop),
        cmocka_unit_test(refuses_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
