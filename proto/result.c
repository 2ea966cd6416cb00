#include "proto/result.h"

#include "common/check.h"
#include "proto/error_codes.h"
#include "proto/wire_reasons.h"
#include "proto/wire_table.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

WIRE_DEFINE_GROUP(worker_timings, WORKER_TIMINGS_FIELDS, "Durations of a step on the worker.")
WORKER_RESULT_MESSAGE(WIRE_DEFINE_TABLE)

/* The sentence about one row, or NULL. */
static const char *flaw_of(const struct result_row *row, const struct result_bounds *bounds)
{
    if (row->slot >= bounds->slots || row->slot >= LIMIT_SLOTS)
        return "a slot beyond the slots";
    if (row->generation == 0)
        return "generation 0";
    if (row->position == 0 || row->position >= bounds->context)
        return "a position beyond the context";
    if (row->token >= bounds->vocabulary)
        return "a token beyond the vocabulary";
    if ((row->flags & ~(uint32_t)RESULT_ROW_FLAGS_ALL) != 0)
        return "an unknown flag";
    if (!isfinite(row->logprob) || !(row->logprob <= 0))
        return "a logprob that is no logarithm of a probability";
    return NULL;
}

enum status result_judge(const struct result *result, const struct result_bounds *bounds,
                         struct text *why)
{
    uint64_t taken[LIMIT_SLOTS / 64] = {0};
    if (result->row_count > LIMIT_SLOTS) {
        text_set(why, "a result of %" PRIu32 " rows", result->row_count);
        return STATUS_BAD_MESSAGE;
    }
    for (uint32_t i = 0; i < result->row_count; i++) {
        const struct result_row *row = &result->rows[i];
        const char *flaw = flaw_of(row, bounds);
        if (flaw == NULL) {
            uint64_t bit = UINT64_C(1) << (row->slot % 64);
            if ((taken[row->slot / 64] & bit) != 0)
                flaw = "a slot for the second time";
            taken[row->slot / 64] |= bit;
        }
        if (flaw != NULL) {
            text_set(why,
                     "row %" PRIu32 " has %s: slot=%" PRIu32 " generation=%" PRIu32
                     " position=%" PRIu32 " token=%" PRIu32 " logprob=%g flags=%" PRIu32,
                     i, flaw, row->slot, row->generation, row->position, row->token,
                     (double)row->logprob, row->flags);
            return STATUS_BAD_MESSAGE;
        }
    }
    return STATUS_OK;
}

size_t result_encoded_bytes_max(uint32_t rows)
{
    return 192 + sizeof(struct result_row) * rows;
}

/* The columns of a result, side by side as they go on the wire. */
struct columns {
    uint32_t slot[LIMIT_SLOTS], generation[LIMIT_SLOTS], position[LIMIT_SLOTS];
    uint32_t token[LIMIT_SLOTS], flags[LIMIT_SLOTS];
    float logprob[LIMIT_SLOTS];
    uint64_t logits_hash[LIMIT_SLOTS];
};

enum status result_encode(const struct result *result, uint8_t *out, size_t capacity,
                          size_t *out_bytes)
{
    uint32_t rows = result->row_count;
    CHECK(rows <= LIMIT_SLOTS);
    struct columns columns;
    for (uint32_t i = 0; i < rows; i++) {
        const struct result_row *row = &result->rows[i];
        columns.slot[i] = row->slot;
        columns.generation[i] = row->generation;
        columns.position[i] = row->position;
        columns.token[i] = row->token;
        columns.flags[i] = row->flags;
        columns.logprob[i] = row->logprob;
    }
    for (uint32_t i = 0; result->has_logits_hash && i < rows; i++)
        columns.logits_hash[i] = result->rows[i].logits_hash;
    struct worker_result message = {
        .instance = result->instance,
        .epoch = result->epoch,
        .step = result->step,
        .layout = ROWS_LAYOUT,
        .rows = rows,
        .slot = {(const uint8_t *)columns.slot, rows},
        .generation = {(const uint8_t *)columns.generation, rows},
        .position = {(const uint8_t *)columns.position, rows},
        .token = {(const uint8_t *)columns.token, rows},
        .logprob = {(const uint8_t *)columns.logprob, rows},
        .flags = {(const uint8_t *)columns.flags, rows},
        .has_logits_hash = result->has_logits_hash,
        .logits_hash = {(const uint8_t *)columns.logits_hash, rows},
        .timings = result->timings,
    };
    return wire_encode(&worker_result_table, WIRE_NUMBERED, &message, out, capacity, out_bytes);
}

static void read_row(const struct worker_result *message, uint32_t row, struct result_row *out_row)
{
    size_t offset = (size_t)row * sizeof(uint32_t);
    memcpy(&out_row->slot, message->slot.bytes + offset, sizeof out_row->slot);
    memcpy(&out_row->generation, message->generation.bytes + offset, sizeof out_row->generation);
    memcpy(&out_row->position, message->position.bytes + offset, sizeof out_row->position);
    memcpy(&out_row->token, message->token.bytes + offset, sizeof out_row->token);
    memcpy(&out_row->logprob, message->logprob.bytes + offset, sizeof out_row->logprob);
    memcpy(&out_row->flags, message->flags.bytes + offset, sizeof out_row->flags);
    out_row->logits_hash = 0;
    if (message->has_logits_hash)
        memcpy(&out_row->logits_hash, message->logits_hash.bytes + 2 * offset,
               sizeof out_row->logits_hash);
}

enum status result_from_message(const struct worker_result *message, struct result *out_result,
                                struct wire_error *out_error)
{
    uint32_t rows = message->rows;
    CHECK(rows <= LIMIT_SLOTS); /* a bound of the field */
    if (message->slot.count != rows || message->generation.count != rows ||
        message->position.count != rows || message->token.count != rows ||
        message->logprob.count != rows || message->flags.count != rows ||
        (message->has_logits_hash && message->logits_hash.count != rows)) {
        wire_refuse(out_error, ERROR_CODE_INVALID_REQUEST, "rows",
                    "a column has another length than `rows`, which is %" PRIu32, rows);
        return STATUS_BAD_MESSAGE;
    }
    out_result->instance = message->instance;
    out_result->epoch = message->epoch;
    out_result->step = message->step;
    out_result->timings = message->timings;
    out_result->has_logits_hash = message->has_logits_hash;
    out_result->row_count = rows;
    for (uint32_t i = 0; i < rows; i++)
        read_row(message, i, &out_result->rows[i]);
    return STATUS_OK;
}
