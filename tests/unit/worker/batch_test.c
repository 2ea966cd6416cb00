#include "worker/batch.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

static void rows_stand_in_the_order_they_are_added(void **state)
{
    (void)state;
    struct batch batch;
    const struct sampling warm = {.seed = 3, .temperature = 1, .top_p = 1}, greedy = {.top_p = 1};
    assert_int_equal(batch_init(&batch, 5, 2), STATUS_OK);
    batch_add_rows(&batch, 7, 10, (const uint32_t[]){1, 2, 3}, 3);
    batch_add_sample(&batch, &warm);
    batch_add_rows(&batch, 4, 0, (const uint32_t[]){9}, 1);
    batch_add_rows(&batch, 2, 99, (const uint32_t[]){8}, 1);
    batch_add_sample(&batch, &greedy);
    assert_int_equal(batch.row_count, 5);
    const uint32_t tokens[] = {1, 2, 3, 9, 8}, positions[] = {10, 11, 12, 0, 99};
    const uint32_t slots[] = {7, 7, 7, 4, 2};
    assert_memory_equal(batch.tokens, tokens, sizeof tokens);
    assert_memory_equal(batch.positions, positions, sizeof positions);
    assert_memory_equal(batch.slots, slots, sizeof slots);
    assert_int_equal(batch.sample_count, 2);
    assert_int_equal(batch.sample_rows[0], 2);
    assert_int_equal(batch.sample_positions[0], 13);
    assert_int_equal(batch.sampling[0].seed, 3);
    assert_int_equal(batch.sample_rows[1], 4);
    assert_int_equal(batch.sample_positions[1], 100);
    batch_clear(&batch);
    assert_int_equal(batch.row_count, 0);
    assert_int_equal(batch.sample_count, 0);
    batch_add_rows(&batch, 1, 5, (const uint32_t[]){6}, 1);
    assert_int_equal(batch.tokens[0], 6);
    batch_free(&batch);
}

static void a_zeroed_batch_may_be_freed(void **state)
{
    (void)state;
    struct batch batch = {0};
    batch_free(&batch);
    assert_null(batch.tokens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_stand_in_the_order_they_are_added),
        cmocka_unit_test(a_zeroed_batch_may_be_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
