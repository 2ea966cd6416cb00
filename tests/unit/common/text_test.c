#include "common/text.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void appends_until_full(void **state)
{
    (void)state;
    char storage[8];
    struct text text;
    text_init(&text, storage, sizeof storage);
    text_append(&text, "abc", 3);
    text_format(&text, "%d", 42);
    assert_string_equal(storage, "abc42");
    assert_int_equal(text.length, 5);
    assert_false(text.truncated);
    text_append(&text, "xyz", 3);
    assert_string_equal(storage, "abc42xy");
    assert_int_equal(text.length, 7);
    assert_true(text.truncated);
    text_append(&text, "more", 4);
    text_format(&text, "%s", "more");
    assert_string_equal(storage, "abc42xy");
}

static void a_format_that_does_not_fit_is_cut(void **state)
{
    (void)state;
    char storage[6];
    struct text text;
    text_init(&text, storage, sizeof storage);
    text_format(&text, "%s", "123456789");
    assert_string_equal(storage, "12345");
    assert_int_equal(text.length, 5);
    assert_true(text.truncated);
}

static void a_format_that_just_fits_is_whole(void **state)
{
    (void)state;
    char storage[6];
    struct text text;
    text_init(&text, storage, sizeof storage);
    text_format(&text, "%s", "12345");
    assert_string_equal(storage, "12345");
    assert_false(text.truncated);
}

static void set_begins_anew(void **state)
{
    (void)state;
    char storage[4];
    struct text text;
    text_init(&text, storage, sizeof storage);
    text_append(&text, "abcdef", 6);
    text_set(&text, "%c", 'z');
    assert_string_equal(storage, "z");
    assert_int_equal(text.length, 1);
    assert_false(text.truncated);
}

static void one_byte_of_storage_holds_nothing(void **state)
{
    (void)state;
    char storage[1] = {'x'};
    struct text text;
    text_init(&text, storage, sizeof storage);
    text_append(&text, "a", 1);
    text_format(&text, "b");
    assert_string_equal(storage, "");
    assert_true(text.truncated);
}

static void no_text_is_accepted(void **state)
{
    (void)state;
    text_append(NULL, "a", 1);
    text_format(NULL, "%d", 1);
    text_set(NULL, "%d", 1);
    text_append_quoted(NULL, "a", 1, 1);
}

static void quoting_shows_no_raw_bytes(void **state)
{
    (void)state;
    struct reason reason;
    struct text *text = reason_init(&reason);
    text_append_quoted(text, "a\"\\\n\0\x7f\xc3z", 8, 100);
    assert_string_equal(reason.storage, "\"a\\x22\\x5c\\x0a\\x00\\x7f\\xc3z\"");
    text_set(text, "%s", "");
    text_append_quoted(text, "abcdef", 6, 3);
    assert_string_equal(reason.storage, "\"abc\"...");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_until_full),
        cmocka_unit_test(a_format_that_does_not_fit_is_cut),
        cmocka_unit_test(a_format_that_just_fits_is_whole),
        cmocka_unit_test(set_begins_anew),
        cmocka_unit_test(one_byte_of_storage_holds_nothing),
        cmocka_unit_test(no_text_is_accepted),
        cmocka_unit_test(quoting_shows_no_raw_bytes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
