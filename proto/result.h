/* The result of one step: a row for each plan row with PLAN_ROW_SAMPLE, in the order of the plan.
 * On the wire: a map with one `bin` column for each member of a row (see worker_messages.h). */
#ifndef TANDEM_PROTO_RESULT_H
#define TANDEM_PROTO_RESULT_H

#include "common/id128.h"
#include "common/status.h"
#include "common/text.h"
#include "proto/envelope.h"
#include "proto/limits.h"
#include "proto/plan.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum result_row_flags {
    RESULT_ROW_NUMERIC_ERROR = 1 << 0, /* a logit was not finite; token and logprob are 0 */
    RESULT_ROW_FLAGS_ALL = RESULT_ROW_NUMERIC_ERROR,
};

struct result_row {
    uint32_t slot;
    uint32_t generation;
    uint32_t position; /* absolute index of the sampled token */
    uint32_t token;
    float logprob;        /* log-softmax of the raw logits at the token; finite, <= 0 */
    uint32_t flags;       /* enum result_row_flags */
    uint64_t logits_hash; /* XXH3-64 of the row's fp32 logits; meaningful with has_logits_hash */
};

/* Fields of the message: X(T, key, name, TYPE, of, PRESENCE, minimum, maximum, text). */
/* clang-format off */
#define WORKER_TIMINGS_FIELDS(X, T) \
    X(T, 1, wait_ns, U64, none, DEFAULT, 0, UINT64_MAX, "plan received to step begun") \
    X(T, 2, check_ns, U64, none, DEFAULT, 0, UINT64_MAX, "validation and copies") \
    X(T, 3, compute_ns, U64, none, DEFAULT, 0, UINT64_MAX, "forward pass") \
    X(T, 4, sample_ns, U64, none, DEFAULT, 0, UINT64_MAX, "sampling")

#define WORKER_RESULT_FIELDS(X, T) \
    ENVELOPE_FIELDS(X, T) \
    X(T, 4, step, U64, none, REQUIRED, 1, UINT64_MAX, "of the plan") \
    ROWS_FIELDS(X, T) \
    X(T, 7, slot, COLUMN_U32, none, REQUIRED, 0, LIMIT_SLOTS, "of the plan's row") \
    X(T, 8, generation, COLUMN_U32, none, REQUIRED, 0, LIMIT_SLOTS, "of the plan's row") \
    X(T, 9, position, COLUMN_U32, none, REQUIRED, 0, LIMIT_SLOTS, "absolute index of the sampled token") \
    X(T, 10, token, COLUMN_U32, none, REQUIRED, 0, LIMIT_SLOTS, "sampled") \
    X(T, 11, logprob, COLUMN_F32, none, REQUIRED, 0, LIMIT_SLOTS, "log-softmax of the raw logits") \
    X(T, 12, flags, COLUMN_U32, none, REQUIRED, 0, LIMIT_SLOTS, "1: a logit was not finite") \
    X(T, 13, logits_hash, COLUMN_U64, none, OPTIONAL, 0, LIMIT_SLOTS, "XXH3-64 of the row's fp32 logits, for debugging") \
    X(T, 14, timings, GROUP, worker_timings, REQUIRED, 0, 0, "of the step")

/* X(number, struct, member, name, FIELDS, text) */
#define WORKER_RESULT_MESSAGE(X) \
    X(17, worker_result, result, "result", WORKER_RESULT_FIELDS, "Worker: one step is done.")

struct worker_timings { WORKER_TIMINGS_FIELDS(WIRE_MEMBER, worker_timings) };
struct worker_result { WORKER_RESULT_FIELDS(WIRE_MEMBER, worker_result) };
/* clang-format on */
extern const struct wire_table worker_timings_table, worker_result_table;

/* About 32 KiB: embed or allocate once. */
struct result {
    struct id128 instance;
    uint64_t epoch;
    uint64_t step;
    struct worker_timings timings; /* durations of the step on the worker */
    bool has_logits_hash;          /* of all rows */
    uint32_t row_count;            /* may be 0: no row of the plan samples */
    struct result_row rows[LIMIT_SLOTS];
};

/* Extents against which a result is judged. */
struct result_bounds {
    uint32_t slots;
    uint32_t context;
    uint32_t vocabulary; /* tokens of the tokenizer: ids from here on are never sampled */
};

/* All that can be said of a result alone: slots in range and at most once, generation not 0,
 * position 1 .. context - 1, token below the vocabulary, logprob finite and <= 0, flags known.
 * STATUS_OK, or STATUS_BAD_MESSAGE with a sentence in `why` (may be NULL). What the plan asked for
 * is compared by the coordinator, which remembers it. */
MUST_USE enum status result_judge(const struct result *result, const struct result_bounds *bounds,
                                  struct text *why);

/* Bytes that a result of `rows` rows never exceeds. */
size_t result_encoded_bytes_max(uint32_t rows);

/* STATUS_OK, or STATUS_FULL when `capacity` is too small. */
MUST_USE enum status result_encode(const struct result *result, uint8_t *out, size_t capacity,
                                   size_t *out_bytes);

/* Copies a decoded message into a result. STATUS_OK, or STATUS_BAD_MESSAGE with `out_error` filled
 * when a column has another length than `rows`. Rows are not judged. */
MUST_USE enum status result_from_message(const struct worker_result *message,
                                         struct result *out_result, struct wire_error *out_error);

#endif
