/* A frame of the worker link, as an order at the worker and as a report at the coordinator:
 * decoded, judged, encoded again. */
#include "proto/worker_messages.h"

#include "common/check.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

static uint8_t frame[LIMIT_WORKER_FRAME_BYTES];
static struct worker_order order, order_again;
static struct worker_report report, report_again;

static void try_order(const uint8_t *bytes, size_t length)
{
    const struct plan_bounds bounds = {64, 4096, 512};
    struct wire_error error;
    if (worker_order_decode(bytes, length, &order, &error) != STATUS_OK) {
        CHECK(error.message[0] != '\0');
        return;
    }
    size_t encoded;
    CHECK(worker_order_encode(&order, frame, sizeof frame, &encoded) == STATUS_OK);
    CHECK(worker_order_decode(frame, encoded, &order_again, &error) == STATUS_OK);
    if (order.type != WORKER_PLAN)
        return;
    CHECK(encoded <= plan_encoded_bytes_max(order.plan.row_count));
    CHECK(memcmp(order.plan.rows, order_again.plan.rows,
                 order.plan.row_count * sizeof order.plan.rows[0]) == 0);
    struct plan_verdict verdict = plan_judge(&order.plan, &bounds);
    if (verdict.refusal != PLAN_REFUSAL_NONE)
        return;
    CHECK(plan_token_count(&order.plan) <= bounds.step_tokens);
    for (uint32_t i = 0; i < order.plan.row_count; i++) {
        const struct plan_row *row = &order.plan.rows[i];
        CHECK(row->slot < bounds.slots && row->count >= 1 && row->generation != 0);
        CHECK((uint64_t)row->first_position + row->count <= bounds.context);
    }
}

static void try_report(const uint8_t *bytes, size_t length)
{
    const struct result_bounds bounds = {64, 4096, 1000};
    struct wire_error error;
    if (worker_report_decode(bytes, length, &report, &error) != STATUS_OK) {
        CHECK(error.message[0] != '\0');
        return;
    }
    size_t encoded;
    CHECK(worker_report_encode(&report, frame, sizeof frame, &encoded) == STATUS_OK);
    CHECK(worker_report_decode(frame, encoded, &report_again, &error) == STATUS_OK);
    CHECK(report.type == report_again.type);
    if (report.type != WORKER_RESULT)
        return;
    CHECK(encoded <= result_encoded_bytes_max(report.result.row_count));
    CHECK(memcmp(report.result.rows, report_again.result.rows,
                 report.result.row_count * sizeof report.result.rows[0]) == 0);
    struct reason reason;
    if (result_judge(&report.result, &bounds, reason_init(&reason)) == STATUS_OK)
        for (uint32_t i = 0; i < report.result.row_count; i++)
            CHECK(report.result.rows[i].token < bounds.vocabulary);
    else
        CHECK(reason.text.length > 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    try_order(bytes, length);
    try_report(bytes, length);
    return 0;
}
