#include "proto/plan.h"

#include "common/check.h"
#include "proto/error_codes.h"
#include "proto/wire_reasons.h"
#include "proto/wire_table.h"

#include <inttypes.h>
#include <string.h>

WIRE_DEFINE_ENUM(plan_refusal, PLAN_REFUSAL_LIST)
WORKER_PLAN_MESSAGE(WIRE_DEFINE_TABLE)

static enum plan_refusal judge_row(const struct plan_row *row, const struct plan_bounds *bounds)
{
    if (row->slot >= bounds->slots || row->slot >= LIMIT_SLOTS)
        return PLAN_REFUSAL_SLOT_RANGE;
    if (row->generation == 0)
        return PLAN_REFUSAL_GENERATION;
    if (row->count == 0)
        return PLAN_REFUSAL_COUNT;
    if ((row->flags & ~(uint32_t)PLAN_ROW_FLAGS_ALL) != 0)
        return PLAN_REFUSAL_FLAGS;
    bool samples = (row->flags & PLAN_ROW_SAMPLE) != 0;
    uint64_t end = (uint64_t)row->first_position + row->count + (samples ? 1 : 0);
    if (end > bounds->context)
        return PLAN_REFUSAL_CONTEXT;
    bool from_sample = (row->flags & PLAN_ROW_FROM_LAST_SAMPLE) != 0;
    if (from_sample && (row->count != 1 || row->first_position == 0))
        return PLAN_REFUSAL_LAST_SAMPLE;
    return PLAN_REFUSAL_NONE;
}

struct plan_verdict plan_judge(const struct plan *plan, const struct plan_bounds *bounds)
{
    struct plan_verdict verdict = {.refusal = PLAN_REFUSAL_NONE};
    uint64_t taken[LIMIT_SLOTS / 64] = {0};
    uint64_t tokens = 0;
    if (plan->row_count == 0 || plan->row_count > LIMIT_SLOTS) {
        verdict.refusal = plan->row_count == 0 ? PLAN_REFUSAL_NO_ROWS : PLAN_REFUSAL_MALFORMED;
        return verdict;
    }
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const struct plan_row *row = &plan->rows[i];
        verdict = (struct plan_verdict){judge_row(row, bounds), true, i};
        if (verdict.refusal != PLAN_REFUSAL_NONE)
            return verdict;
        uint64_t bit = UINT64_C(1) << (row->slot % 64);
        if ((taken[row->slot / 64] & bit) != 0)
            verdict.refusal = PLAN_REFUSAL_SLOT_REPEATED;
        taken[row->slot / 64] |= bit;
        tokens += row->count;
        if (verdict.refusal == PLAN_REFUSAL_NONE && tokens > bounds->step_tokens)
            verdict.refusal = PLAN_REFUSAL_BUDGET;
        if (verdict.refusal != PLAN_REFUSAL_NONE)
            return verdict;
    }
    return (struct plan_verdict){.refusal = PLAN_REFUSAL_NONE};
}

uint32_t plan_sample_count(const struct plan *plan)
{
    uint32_t count = 0;
    for (uint32_t i = 0; i < plan->row_count; i++)
        count += (plan->rows[i].flags & PLAN_ROW_SAMPLE) != 0 ? 1 : 0;
    return count;
}

uint64_t plan_token_count(const struct plan *plan)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < plan->row_count; i++)
        count += plan->rows[i].count;
    return count;
}

size_t plan_encoded_bytes_max(uint32_t rows)
{
    return 128 + sizeof(struct plan_row) * rows;
}

enum status plan_encode(const struct plan *plan, uint8_t *out, size_t capacity, size_t *out_bytes)
{
    uint32_t rows = plan->row_count;
    CHECK(rows <= LIMIT_SLOTS);
    uint32_t slot[LIMIT_SLOTS], generation[LIMIT_SLOTS], first_position[LIMIT_SLOTS];
    uint32_t count[LIMIT_SLOTS], flags[LIMIT_SLOTS];
    for (uint32_t i = 0; i < rows; i++) {
        const struct plan_row *row = &plan->rows[i];
        slot[i] = row->slot;
        generation[i] = row->generation;
        first_position[i] = row->first_position;
        count[i] = row->count;
        flags[i] = row->flags;
    }
    struct worker_plan message = {
        .instance = plan->instance,
        .epoch = plan->epoch,
        .step = plan->step,
        .layout = ROWS_LAYOUT,
        .rows = rows,
        .slot = {(const uint8_t *)slot, rows},
        .generation = {(const uint8_t *)generation, rows},
        .first_position = {(const uint8_t *)first_position, rows},
        .count = {(const uint8_t *)count, rows},
        .flags = {(const uint8_t *)flags, rows},
    };
    return wire_encode(&worker_plan_table, WIRE_NUMBERED, &message, out, capacity, out_bytes);
}

static uint32_t value_of(const struct wire_column *column, uint32_t row)
{
    uint32_t value;
    memcpy(&value, column->bytes + (size_t)row * sizeof value, sizeof value);
    return value;
}

enum status plan_from_message(const struct worker_plan *message, struct plan *out_plan,
                              struct wire_error *out_error)
{
    uint32_t rows = message->rows;
    CHECK(rows <= LIMIT_SLOTS); /* a bound of the field */
    if (message->slot.count != rows || message->generation.count != rows ||
        message->first_position.count != rows || message->count.count != rows ||
        message->flags.count != rows) {
        wire_refuse(out_error, ERROR_CODE_INVALID_REQUEST, "rows",
                    "a column has another length than `rows`, which is %" PRIu32, rows);
        return STATUS_BAD_MESSAGE;
    }
    out_plan->instance = message->instance;
    out_plan->epoch = message->epoch;
    out_plan->step = message->step;
    out_plan->row_count = rows;
    for (uint32_t i = 0; i < rows; i++)
        out_plan->rows[i] = (struct plan_row){
            .slot = value_of(&message->slot, i),
            .generation = value_of(&message->generation, i),
            .first_position = value_of(&message->first_position, i),
            .count = value_of(&message->count, i),
            .flags = value_of(&message->flags, i),
        };
    return STATUS_OK;
}
