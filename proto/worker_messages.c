#include "proto/worker_messages.h"

#include "common/check.h"
#include "proto/wire_table.h"

_Static_assert(2 * LIMIT_SLOTS * sizeof(struct result_row) < LIMIT_WORKER_FRAME_BYTES &&
                   2 * LIMIT_SLOTS * sizeof(struct plan_row) < LIMIT_WORKER_FRAME_BYTES,
               "plan and result of all slots fit a frame, with room for more columns");

WIRE_DEFINE_ENUM(attach_refusal, ATTACH_REFUSAL_LIST)
WIRE_DEFINE_ENUM(worker_fatal_reason, WORKER_FATAL_LIST)

WIRE_DEFINE_GROUP(attach_geometry, ATTACH_GEOMETRY_FIELDS, "Shape of the KV cache.")
ATTACH_REQUEST_LIST(WIRE_DEFINE_TABLE)
ATTACH_ANSWER_LIST(WIRE_DEFINE_TABLE)
WORKER_DRAIN_MESSAGE(WIRE_DEFINE_TABLE)
WORKER_READY_MESSAGE(WIRE_DEFINE_TABLE)
WORKER_END_MESSAGES(WIRE_DEFINE_TABLE)

static const struct wire_table *const hello_tables[] = {ATTACH_REQUEST_LIST(WIRE_TABLE_ADDRESS)};
static const struct wire_table *const answer_tables[] = {ATTACH_ANSWER_LIST(WIRE_TABLE_ADDRESS)};
static const struct wire_table *const order_tables[] = {WORKER_ORDER_LIST(WIRE_TABLE_ADDRESS)};
static const struct wire_table *const report_tables[] = {WORKER_REPORT_LIST(WIRE_TABLE_ADDRESS)};

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

const struct wire_family attach_request_family = {
    .name = "packet of a worker", .tables = hello_tables, .count = COUNT_OF(hello_tables)};
const struct wire_family attach_answer_family = {
    .name = "answer to a worker", .tables = answer_tables, .count = COUNT_OF(answer_tables)};
const struct wire_family worker_order_family = {
    .name = "order to a worker", .tables = order_tables, .count = COUNT_OF(order_tables)};
const struct wire_family worker_report_family = {
    .name = "report of a worker", .tables = report_tables, .count = COUNT_OF(report_tables)};

/* ---- Attach ---- */

enum status attach_hello_decode(const uint8_t *packet, size_t length,
                                struct attach_hello *out_hello, struct wire_error *out_error)
{
    struct wire_decoding decoding = {&attach_request_family, WIRE_LENIENT, packet, length};
    const struct wire_table *table;
    return wire_decode(&decoding, out_hello, &table, NULL, out_error);
}

enum status attach_answer_decode(const uint8_t *packet, size_t length,
                                 struct attach_answer *out_answer, struct wire_error *out_error)
{
    struct wire_decoding decoding = {&attach_answer_family, WIRE_LENIENT, packet, length};
    const struct wire_table *table;
    enum status status = wire_decode(&decoding, &out_answer->attach, &table, NULL, out_error);
    if (status == STATUS_OK)
        out_answer->type = (enum attach_answer_type)table->number;
    return status;
}

enum status attach_hello_encode(const struct attach_hello *hello, uint8_t *out, size_t capacity,
                                size_t *out_bytes)
{
    return wire_encode(&attach_hello_table, WIRE_NUMBERED, hello, out, capacity, out_bytes);
}

enum status attach_answer_encode(const struct attach_answer *answer, uint8_t *out, size_t capacity,
                                 size_t *out_bytes)
{
    return wire_encode(wire_family_table(&attach_answer_family, answer->type), WIRE_NUMBERED,
                       &answer->attach, out, capacity, out_bytes);
}

/* ---- Worker link: plan and result are copied from their columns ---- */

enum status worker_order_decode(const uint8_t *frame, size_t length, struct worker_order *out_order,
                                struct wire_error *out_error)
{
    union {
        WORKER_ORDER_LIST(WIRE_UNION_MEMBER)
    } message;
    struct wire_decoding decoding = {&worker_order_family, WIRE_LENIENT, frame, length};
    const struct wire_table *table;
    enum status status = wire_decode(&decoding, &message, &table, NULL, out_error);
    if (status != STATUS_OK)
        return status;
    out_order->type = (enum worker_order_type)table->number;
    if (out_order->type == WORKER_PLAN)
        return plan_from_message(&message.plan, &out_order->plan, out_error);
    out_order->drain = message.drain;
    return STATUS_OK;
}

enum status worker_report_decode(const uint8_t *frame, size_t length,
                                 struct worker_report *out_report, struct wire_error *out_error)
{
    union {
        WORKER_REPORT_LIST(WIRE_UNION_MEMBER)
    } message;
    struct wire_decoding decoding = {&worker_report_family, WIRE_LENIENT, frame, length};
    const struct wire_table *table;
    enum status status = wire_decode(&decoding, &message, &table, NULL, out_error);
    if (status != STATUS_OK)
        return status;
    out_report->type = (enum worker_report_type)table->number;
    switch (out_report->type) {
    case WORKER_RESULT:
        return result_from_message(&message.result, &out_report->result, out_error);
    case WORKER_READY:
        out_report->ready = message.ready;
        break;
    case WORKER_REFUSED:
        out_report->refused = message.refused;
        break;
    case WORKER_DRAINED:
        out_report->drained = message.drained;
        break;
    case WORKER_FATAL:
        out_report->fatal = message.fatal;
        break;
    default:
        CHECK(!"a table outside its family");
    }
    return STATUS_OK;
}

enum status worker_order_encode(const struct worker_order *order, uint8_t *out, size_t capacity,
                                size_t *out_bytes)
{
    if (order->type == WORKER_PLAN)
        return plan_encode(&order->plan, out, capacity, out_bytes);
    return wire_encode(wire_family_table(&worker_order_family, order->type), WIRE_NUMBERED,
                       &order->drain, out, capacity, out_bytes);
}

enum status worker_report_encode(const struct worker_report *report, uint8_t *out, size_t capacity,
                                 size_t *out_bytes)
{
    if (report->type == WORKER_RESULT)
        return result_encode(&report->result, out, capacity, out_bytes);
    return wire_encode(wire_family_table(&worker_report_family, report->type), WIRE_NUMBERED,
                       &report->ready, out, capacity, out_bytes);
}
