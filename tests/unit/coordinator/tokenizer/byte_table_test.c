#include "coordinator/tokenizer/byte_table.h"

#include "common/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

enum { STRINGS = 20000, STRING_BYTES = 12 };

/* String number `index`: its length goes from 1 to 12, so both kinds of slots are met; all differ.
 */
static uint32_t make_string(uint32_t index, char out[STRING_BYTES])
{
    uint32_t length = 4 + index % (STRING_BYTES - 3);
    if (index < 256) {
        out[0] = (char)index;
        return 1;
    }
    struct random random = {index};
    for (uint32_t i = 0; i < length; i++)
        out[i] = (char)random_next(&random);
    memcpy(out, &index, 3);
    return length;
}

static void finds_what_was_added_and_nothing_else(void **state)
{
    (void)state;
    static char strings[STRINGS][STRING_BYTES];
    struct arena arena;
    struct byte_table table;
    assert_int_equal(arena_init(&arena, byte_table_bytes(STRINGS)), STATUS_OK);
    assert_int_equal(byte_table_init(&table, &arena, STRINGS), STATUS_OK);
    for (uint32_t i = 0; i < STRINGS; i++) {
        uint32_t length = make_string(i, strings[i]);
        assert_int_equal(byte_table_find(&table, strings[i], length), BYTE_TABLE_NONE);
        assert_int_equal(byte_table_add(&table, strings[i], length, i), STATUS_OK);
    }
    for (uint32_t i = 0; i < STRINGS; i++) {
        char copy[STRING_BYTES];
        uint32_t length = make_string(i, copy);
        assert_int_equal(byte_table_find(&table, copy, length), i);
        assert_int_equal(byte_table_add(&table, copy, length, 0), STATUS_EXISTS);
        if (length > 4)
            assert_int_equal(byte_table_find(&table, copy, length - 1), BYTE_TABLE_NONE);
    }
    assert_int_equal(byte_table_find(&table, "", 0), BYTE_TABLE_NONE);
    assert_int_equal(byte_table_add(&table, "one more than fits", 18, 0), STATUS_FULL);
    arena_free(&arena);
}

/* Zero bytes count: a string and the same string with zeros behind it differ. */
static void zeros_are_bytes(void **state)
{
    (void)state;
    static const char zeros[STRING_BYTES];
    struct arena arena;
    struct byte_table table;
    assert_int_equal(arena_init(&arena, byte_table_bytes(STRING_BYTES)), STATUS_OK);
    assert_int_equal(byte_table_init(&table, &arena, STRING_BYTES), STATUS_OK);
    for (uint32_t length = 1; length <= STRING_BYTES; length += 2)
        assert_int_equal(byte_table_add(&table, zeros, length, length), STATUS_OK);
    for (uint32_t length = 1; length <= STRING_BYTES; length++)
        assert_int_equal(byte_table_find(&table, zeros, length),
                         length % 2 == 1 ? length : BYTE_TABLE_NONE);
    arena_free(&arena);
}

static void an_arena_too_small_is_said(void **state)
{
    (void)state;
    struct arena arena;
    struct byte_table table;
    assert_int_equal(arena_init(&arena, byte_table_bytes(100) / 2), STATUS_OK);
    assert_int_equal(byte_table_init(&table, &arena, 100), STATUS_OUT_OF_MEMORY);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_what_was_added_and_nothing_else),
        cmocka_unit_test(zeros_are_bytes),
        cmocka_unit_test(an_arena_too_small_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
