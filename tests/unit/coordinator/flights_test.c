/* The mirror of plans in flight: a result is believed only where it is what was asked for. */
#include "coordinator/flights.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static struct arena arena;
static struct flights flights;
static struct result result;

static void begin(uint32_t slot, uint32_t first)
{
    struct flight *flight = flights_begin(&flights);
    flights_add(flight, &(struct flight_row){.slot = 9, .generation = 1, .first = 0, .count = 4});
    flights_add(flight,
                &(struct flight_row){
                    .slot = slot, .generation = 3, .first = first, .count = 2, .samples = true});
    flights_add(
        flight,
        &(struct flight_row){
            .slot = slot + 1, .generation = 4, .first = first, .count = 1, .samples = true});
    flights_sent(&flights);
}

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(arena_init(&arena, 1 << 16), STATUS_OK);
    assert_int_equal(flights_init(&flights, &arena, 10), STATUS_OK);
    begin(1, 10);
    result = (struct result){.step = 1, .row_count = 2};
    result.rows[0] = (struct result_row){.slot = 1, .generation = 3, .position = 12};
    result.rows[1] = (struct result_row){.slot = 2, .generation = 4, .position = 11};
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_free(&arena);
    return 0;
}

static enum status compare(void)
{
    struct reason why;
    return flight_compare(flights_oldest(&flights), &result, reason_init(&why));
}

static void steps_are_answered_in_order_two_at_most(void **state)
{
    (void)state;
    assert_int_equal(flights_count(&flights), 1);
    begin(3, 20);
    assert_true(flights_is_full(&flights));
    assert_int_equal(flights_oldest(&flights)->step, 1);
    assert_int_equal(flights_newest(&flights)->step, 2);
    flights_answered(&flights);
    assert_int_equal(flights_oldest(&flights)->step, 2);
    assert_int_equal(flights_oldest(&flights)->rows[1].slot, 3);
    begin(5, 30);
    assert_int_equal(flights_oldest(&flights)->step, 2);
    flights_clear(&flights);
    assert_null(flights_oldest(&flights));
    assert_null(flights_newest(&flights));
}

static void s22_rows_follow_the_plan_and_name_real_slots(void **state)
{
    (void)state;
    assert_int_equal(flights_oldest(&flights)->sample_count, 2);
    assert_int_equal(compare(), STATUS_OK);
    struct result_row first = result.rows[0];
    result.rows[0] = result.rows[1];
    result.rows[1] = first;
    assert_int_equal(compare(), STATUS_MISMATCH);
}

static void any_difference_is_a_mismatch(void **state)
{
    (void)state;
    result.step = 2;
    assert_int_equal(compare(), STATUS_MISMATCH);
    result.step = 1;
    result.row_count = 1;
    assert_int_equal(compare(), STATUS_MISMATCH);
    result.row_count = 3;
    assert_int_equal(compare(), STATUS_MISMATCH);
    result.row_count = 2;
    result.rows[1].slot++;
    assert_int_equal(compare(), STATUS_MISMATCH);
    result.rows[1].slot--;
    result.rows[1].generation++;
    assert_int_equal(compare(), STATUS_MISMATCH);
    result.rows[1].generation--;
    result.rows[1].position--;
    assert_int_equal(compare(), STATUS_MISMATCH);
    result.rows[1].position++;
    assert_int_equal(compare(), STATUS_OK);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(steps_are_answered_in_order_two_at_most),
        CASE(s22_rows_follow_the_plan_and_name_real_slots),
        CASE(any_difference_is_a_mismatch),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
