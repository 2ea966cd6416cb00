/* Waiting calls: lists of requests, age of polls, bounds. */
#include "coordinator/calls.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { CAPACITY = 4 };

static struct arena arena;
static struct calls calls;

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(arena_init(&arena, 1 << 14), STATUS_OK);
    assert_int_equal(calls_init(&calls, &arena, CAPACITY), STATUS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_free(&arena);
    return 0;
}

static uint32_t add(enum call_kind kind, uint64_t handle, uint32_t *first)
{
    const struct call call = {.kind = kind, .handle = handle};
    uint32_t index = CALL_NONE;
    assert_int_equal(calls_add(&calls, &call, first, &index), STATUS_OK);
    return index;
}

static void a_full_table_is_an_answer(void **state)
{
    (void)state;
    uint32_t first = CALL_NONE, index = 77;
    for (uint64_t handle = 1; handle <= CAPACITY; handle++)
        add(CALL_NEXT, handle, &first);
    const struct call call = {.kind = CALL_NEXT, .handle = 9};
    assert_int_equal(calls_add(&calls, &call, &first, &index), STATUS_FULL);
    assert_int_equal(index, 77);
    calls_remove(&calls, calls_find(&calls, 2), &first);
    assert_int_equal(calls_add(&calls, &call, &first, &index), STATUS_OK);
    assert_int_equal(calls_find(&calls, 9), index);
    assert_int_equal(calls_find(&calls, 2), CALL_NONE);
}

static void polls_are_known_by_age_whoever_goes_first(void **state)
{
    (void)state;
    uint32_t a = CALL_NONE, b = CALL_NONE;
    uint32_t first = add(CALL_NEXT, 1, &a);
    add(CALL_SUBMIT, 2, &a);
    uint32_t second = add(CALL_NEXT, 3, &b);
    uint32_t third = add(CALL_NEXT, 4, &a);
    assert_int_equal(calls.polls, 3);
    assert_int_equal(calls.oldest, first);
    calls_remove(&calls, second, &b);
    assert_int_equal(b, CALL_NONE);
    assert_int_equal(calls.oldest, first);
    assert_int_equal(calls.newest, third);
    calls_remove(&calls, first, &a);
    assert_int_equal(calls.oldest, third);
    calls_remove(&calls, third, &a);
    assert_int_equal(calls.oldest, CALL_NONE);
    assert_int_equal(calls.newest, CALL_NONE);
    assert_int_equal(calls.polls, 0);
    assert_int_equal(calls.count, 1);
    assert_int_equal(calls.rows[a].handle, 2);
}

static void the_list_of_a_request_survives_removals_anywhere(void **state)
{
    (void)state;
    uint32_t first = CALL_NONE;
    for (uint64_t handle = 1; handle <= 4; handle++)
        add(CALL_NEXT, handle, &first);
    calls_remove(&calls, calls_find(&calls, 3), &first); /* in the middle */
    calls_remove(&calls, calls_find(&calls, 4), &first); /* the head */
    assert_int_equal(calls.rows[first].handle, 2);
    assert_int_equal(calls.rows[calls.rows[first].next].handle, 1);
    calls_remove(&calls, calls_find(&calls, 1), &first); /* the tail */
    assert_int_equal(calls.rows[first].next, CALL_NONE);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(a_full_table_is_an_answer),
        CASE(polls_are_known_by_age_whoever_goes_first),
        CASE(the_list_of_a_request_survives_removals_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
