#include "proto/result.h"

#include "common/random.h"
#include "proto/worker_messages.h"

#include <math.h>
#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct result_bounds bounds = {.slots = 64, .context = 100, .vocabulary = 1000};
static struct result result;
static struct worker_report report;
static uint8_t frame[LIMIT_WORKER_FRAME_BYTES];

static void set_rows(uint32_t count)
{
    memset(&result, 0, sizeof result);
    result.epoch = 2;
    result.step = 5;
    result.row_count = count;
    for (uint32_t i = 0; i < count; i++)
        result.rows[i] = (struct result_row){i, 1, 17, i, -0.5F, 0, 0};
}

static void a_good_result_is_accepted(void **state)
{
    (void)state;
    set_rows(0);
    assert_int_equal(result_judge(&result, &bounds, NULL), STATUS_OK);
    set_rows(64);
    result.rows[3] = (struct result_row){3, 1, 99, 999, 0, RESULT_ROW_NUMERIC_ERROR, 0};
    assert_int_equal(result_judge(&result, &bounds, NULL), STATUS_OK);
}

static void every_flaw_is_told(void **state)
{
    (void)state;
    const struct {
        struct result_row row;
        const char *word;
    } cases[] = {
        {{64, 1, 17, 0, -1, 0, 0}, "beyond the slots"},
        {{0, 1, 17, 0, -1, 0, 0}, "second time"},
        {{9, 0, 17, 0, -1, 0, 0}, "generation 0"},
        {{9, 1, 0, 0, -1, 0, 0}, "beyond the context"},
        {{9, 1, 100, 0, -1, 0, 0}, "beyond the context"},
        {{9, 1, 17, 1000, -1, 0, 0}, "beyond the vocabulary"},
        {{9, 1, 17, UINT32_MAX, -1, 0, 0}, "beyond the vocabulary"},
        {{9, 1, 17, 0, -1, 2, 0}, "unknown flag"},
        {{9, 1, 17, 0, 0.1F, 0, 0}, "logprob"},
        {{9, 1, 17, 0, NAN, 0, 0}, "logprob"},
        {{9, 1, 17, 0, -INFINITY, 0, 0}, "logprob"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct reason reason;
        set_rows(3);
        result.rows[2] = cases[i].row;
        assert_int_equal(result_judge(&result, &bounds, reason_init(&reason)), STATUS_BAD_MESSAGE);
        if (strstr(reason.storage, cases[i].word) == NULL ||
            strstr(reason.storage, "row 2") == NULL)
            fail_msg("case %zu: %s", i, reason.storage);
        assert_int_equal(result_judge(&result, &bounds, NULL), STATUS_BAD_MESSAGE);
    }
    result.row_count = LIMIT_SLOTS + 1;
    assert_int_equal(result_judge(&result, &bounds, NULL), STATUS_BAD_MESSAGE);
}

static void assert_same_rows(void)
{
    for (uint32_t i = 0; i < result.row_count; i++) {
        const struct result_row *made = &result.rows[i], *read = &report.result.rows[i];
        assert_int_equal(read->slot, made->slot);
        assert_int_equal(read->generation, made->generation);
        assert_int_equal(read->position, made->position);
        assert_int_equal(read->token, made->token);
        assert_memory_equal(&read->logprob, &made->logprob, sizeof made->logprob);
        assert_int_equal(read->flags, made->flags);
        assert_true(read->logits_hash == (result.has_logits_hash ? made->logits_hash : 0));
    }
}

static void results_come_back_as_they_were(void **state)
{
    (void)state;
    struct random random = {32};
    static const uint32_t sizes[] = {0, 1, 64, 256, LIMIT_SLOTS};
    for (size_t s = 0; s < 2 * sizeof sizes / sizeof sizes[0]; s++) {
        set_rows(sizes[s / 2]);
        result.has_logits_hash = s % 2 == 1;
        result.timings = (struct worker_timings){1, 2, UINT64_MAX, 4};
        for (uint32_t i = 0; i < result.row_count; i++)
            result.rows[i] = (struct result_row){(uint32_t)random_next(&random),
                                                 (uint32_t)random_next(&random),
                                                 (uint32_t)random_next(&random),
                                                 (uint32_t)random_next(&random),
                                                 -(float)random_below(&random, 1000) / 7,
                                                 (uint32_t)random_next(&random),
                                                 random_next(&random)};
        size_t length = 0;
        assert_int_equal(result_encode(&result, frame, sizeof frame, &length), STATUS_OK);
        assert_true(length <= result_encoded_bytes_max(result.row_count));
        size_t untouched = 4;
        assert_int_equal(result_encode(&result, frame, length - 1, &untouched), STATUS_FULL);
        assert_int_equal(untouched, 4);
        assert_int_equal(result_encode(&result, frame, length, &length), STATUS_OK);
        static uint8_t moved[LIMIT_WORKER_FRAME_BYTES + 3];
        memcpy(moved + 3, frame, length);
        struct wire_error error;
        assert_int_equal(worker_report_decode(moved + 3, length, &report, &error), STATUS_OK);
        assert_int_equal(report.type, WORKER_RESULT);
        assert_int_equal(report.result.has_logits_hash, result.has_logits_hash);
        assert_int_equal(report.result.row_count, result.row_count);
        assert_true(report.result.timings.compute_ns == UINT64_MAX);
        assert_true(report.result.step == 5 && report.result.epoch == 2);
        assert_same_rows();
    }
}

static void columns_must_agree(void **state)
{
    (void)state;
    static const uint64_t zeros[8];
    for (int short_column = 0; short_column < 7; short_column++) {
        struct wire_column columns[7];
        for (int i = 0; i < 7; i++)
            columns[i] = (struct wire_column){(const uint8_t *)zeros, i == short_column ? 3u : 4u};
        struct worker_result message = {.epoch = 1,
                                        .step = 1,
                                        .layout = ROWS_LAYOUT,
                                        .rows = 4,
                                        .slot = columns[0],
                                        .generation = columns[1],
                                        .position = columns[2],
                                        .token = columns[3],
                                        .logprob = columns[4],
                                        .flags = columns[5],
                                        .has_logits_hash = true,
                                        .logits_hash = columns[6]};
        size_t length;
        struct wire_error error;
        assert_int_equal(wire_encode(&worker_result_table, WIRE_NUMBERED, &message, frame,
                                     sizeof frame, &length),
                         STATUS_OK);
        assert_int_equal(worker_report_decode(frame, length, &report, &error), STATUS_BAD_MESSAGE);
        assert_string_equal(error.field, "rows");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_good_result_is_accepted),
        cmocka_unit_test(every_flaw_is_told),
        cmocka_unit_test(results_come_back_as_they_were),
        cmocka_unit_test(columns_must_agree),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
