#include "proto/plan.h"

#include "common/random.h"
#include "proto/worker_messages.h"

#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct plan_bounds bounds = {.slots = 64, .context = 100, .step_tokens = 120};
static struct plan plan;
static struct worker_order order;
static uint8_t frame[LIMIT_WORKER_FRAME_BYTES];

static void set_rows(uint32_t count)
{
    memset(&plan, 0, sizeof plan);
    plan.epoch = 3;
    plan.step = 9;
    memset(plan.instance.bytes, 0x5a, sizeof plan.instance.bytes);
    plan.row_count = count;
    for (uint32_t i = 0; i < count; i++)
        plan.rows[i] = (struct plan_row){i, i + 1, 10, 1, PLAN_ROW_SAMPLE};
}

static void assert_verdict(enum plan_refusal refusal, bool has_row, uint32_t row)
{
    struct plan_verdict verdict = plan_judge(&plan, &bounds);
    assert_int_equal(verdict.refusal, refusal);
    assert_int_equal(verdict.has_row, has_row);
    if (has_row)
        assert_int_equal(verdict.row, row);
}

static void a_good_plan_is_accepted(void **state)
{
    (void)state;
    set_rows(64);
    assert_verdict(PLAN_REFUSAL_NONE, false, 0);
    set_rows(2);
    plan.rows[0] = (struct plan_row){63, 1, 0, 99, PLAN_ROW_SAMPLE};
    plan.rows[1] =
        (struct plan_row){0, UINT32_MAX, 98, 1, PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE};
    assert_verdict(PLAN_REFUSAL_NONE, false, 0);
    assert_int_equal(plan_token_count(&plan), 100);
    assert_int_equal(plan_sample_count(&plan), 2);
    plan.rows[0].flags = 0;
    plan.rows[0].count = 100; /* a chunk that does not sample may fill the context */
    assert_verdict(PLAN_REFUSAL_NONE, false, 0);
    assert_int_equal(plan_sample_count(&plan), 1);
}

static void every_flaw_is_named_with_its_row(void **state)
{
    (void)state;
    static const struct {
        struct plan_row row;
        enum plan_refusal refusal;
    } cases[] = {
        {{64, 1, 10, 1, 0}, PLAN_REFUSAL_SLOT_RANGE},
        {{UINT32_MAX, 1, 10, 1, 0}, PLAN_REFUSAL_SLOT_RANGE},
        {{0, 1, 10, 1, 0}, PLAN_REFUSAL_SLOT_REPEATED},
        {{9, 0, 10, 1, 0}, PLAN_REFUSAL_GENERATION},
        {{9, 1, 10, 0, 0}, PLAN_REFUSAL_COUNT},
        {{9, 1, 10, 1, 4}, PLAN_REFUSAL_FLAGS},
        {{9, 1, 10, 1, UINT32_MAX}, PLAN_REFUSAL_FLAGS},
        {{9, 1, 0, 101, 0}, PLAN_REFUSAL_CONTEXT},
        {{9, 1, 0, 100, PLAN_ROW_SAMPLE}, PLAN_REFUSAL_CONTEXT},
        {{9, 1, 99, 1, PLAN_ROW_SAMPLE}, PLAN_REFUSAL_CONTEXT},
        {{9, 1, UINT32_MAX, UINT32_MAX, 0}, PLAN_REFUSAL_CONTEXT},
        {{9, 1, 100, 1, 0}, PLAN_REFUSAL_CONTEXT},
        {{9, 1, 10, 2, PLAN_ROW_FROM_LAST_SAMPLE}, PLAN_REFUSAL_LAST_SAMPLE},
        {{9, 1, 0, 1, PLAN_ROW_FROM_LAST_SAMPLE}, PLAN_REFUSAL_LAST_SAMPLE},
        {{9, 1, 0, 100, 0}, PLAN_REFUSAL_BUDGET},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        set_rows(4);
        plan.rows[0].first_position = 0;
        plan.rows[0].count = 20;
        plan.rows[2] = cases[i].row;
        struct plan_verdict verdict = plan_judge(&plan, &bounds);
        if (verdict.refusal != cases[i].refusal || !verdict.has_row || verdict.row != 2)
            fail_msg("case %zu: %s row %u", i, wire_enum_name(&plan_refusal_enum, verdict.refusal),
                     verdict.row);
    }
    set_rows(0);
    assert_verdict(PLAN_REFUSAL_NO_ROWS, false, 0);
    plan.row_count = LIMIT_SLOTS + 1;
    assert_verdict(PLAN_REFUSAL_MALFORMED, false, 0);
}

/* The sum is 64-bit: counts that wrap a u32 do not slip through. */
static void the_budget_is_summed_without_wrapping(void **state)
{
    (void)state;
    const struct plan_bounds wide = {LIMIT_SLOTS, UINT32_MAX, LIMIT_STEP_TOKENS};
    set_rows(3);
    plan.rows[0] = (struct plan_row){0, 1, 0, 3, 0};
    plan.rows[1] = (struct plan_row){1, 1, 0, UINT32_MAX - 1, 0}; /* 1 as a u32 sum */
    plan.rows[2] = (struct plan_row){2, 1, 0, 3, 0};
    struct plan_verdict verdict = plan_judge(&plan, &wide);
    assert_int_equal(verdict.refusal, PLAN_REFUSAL_BUDGET);
    assert_int_equal(verdict.row, 1);
}

/* s22: a row names its slot; the place of a row in the plan means nothing. */
static void s22_rows_carry_their_slot(void **state)
{
    (void)state;
    set_rows(3);
    static const uint32_t slots[] = {41, 0, 7};
    for (uint32_t i = 0; i < 3; i++)
        plan.rows[i].slot = slots[i];
    size_t length;
    struct wire_error error;
    assert_int_equal(plan_encode(&plan, frame, sizeof frame, &length), STATUS_OK);
    assert_int_equal(worker_order_decode(frame, length, &order, &error), STATUS_OK);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(order.plan.rows[i].slot, slots[i]);
}

static void plans_come_back_as_they_were(void **state)
{
    (void)state;
    struct random random = {31};
    static const uint32_t sizes[] = {0, 1, 2, 64, 256, LIMIT_SLOTS};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        memset(&plan, 0, sizeof plan);
        plan.row_count = sizes[s];
        plan.epoch = 1 + random_next(&random) / 2;
        plan.step = 1 + random_next(&random) / 2;
        for (uint32_t i = 0; i < sizes[s]; i++)
            plan.rows[i] =
                (struct plan_row){(uint32_t)random_next(&random), (uint32_t)random_next(&random),
                                  (uint32_t)random_next(&random), (uint32_t)random_next(&random),
                                  (uint32_t)random_next(&random)};
        size_t length = 0;
        assert_int_equal(plan_encode(&plan, frame, sizeof frame, &length), STATUS_OK);
        assert_true(length <= plan_encoded_bytes_max(sizes[s]));
        size_t untouched = 4;
        assert_int_equal(plan_encode(&plan, frame, length - 1, &untouched), STATUS_FULL);
        assert_int_equal(untouched, 4);
        assert_int_equal(plan_encode(&plan, frame, length, &length), STATUS_OK);
        /* An odd address: columns are unaligned in any case, here surely. */
        static uint8_t moved[LIMIT_WORKER_FRAME_BYTES + 1];
        memcpy(moved + 1, frame, length);
        struct wire_error error;
        assert_int_equal(worker_order_decode(moved + 1, length, &order, &error), STATUS_OK);
        assert_int_equal(order.type, WORKER_PLAN);
        assert_true(order.plan.epoch == plan.epoch && order.plan.step == plan.step);
        assert_true(id128_equal(&order.plan.instance, &plan.instance));
        assert_int_equal(order.plan.row_count, sizes[s]);
        assert_memory_equal(order.plan.rows, plan.rows, sizes[s] * sizeof plan.rows[0]);
    }
}

static void columns_must_agree(void **state)
{
    (void)state;
    static const uint32_t zeros[8];
    for (int short_column = 0; short_column < 5; short_column++) {
        struct wire_column columns[5];
        for (int i = 0; i < 5; i++)
            columns[i] = (struct wire_column){(const uint8_t *)zeros, i == short_column ? 3u : 4u};
        struct worker_plan message = {.epoch = 1,
                                      .step = 1,
                                      .layout = ROWS_LAYOUT,
                                      .rows = 4,
                                      .slot = columns[0],
                                      .generation = columns[1],
                                      .first_position = columns[2],
                                      .count = columns[3],
                                      .flags = columns[4]};
        size_t length;
        struct wire_error error;
        assert_int_equal(
            wire_encode(&worker_plan_table, WIRE_NUMBERED, &message, frame, sizeof frame, &length),
            STATUS_OK);
        assert_int_equal(worker_order_decode(frame, length, &order, &error), STATUS_BAD_MESSAGE);
        assert_string_equal(error.field, "rows");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_plan_is_accepted),
        cmocka_unit_test(every_flaw_is_named_with_its_row),
        cmocka_unit_test(the_budget_is_summed_without_wrapping),
        cmocka_unit_test(s22_rows_carry_their_slot),
        cmocka_unit_test(plans_come_back_as_they_were),
        cmocka_unit_test(columns_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
