/* A plan: what the worker computes in one step. Rows are prefill chunks and decode rows together,
 * each slot at most once. Tokens, block table rows and sampling parameters are in the coordinator's
 * segment (proto/segment.h) before the plan is sent. On the wire: a map with one `bin` column for
 * each member of a row (see worker_messages.h). */
#ifndef TANDEM_PROTO_PLAN_H
#define TANDEM_PROTO_PLAN_H

#include "common/id128.h"
#include "common/status.h"
#include "proto/envelope.h"
#include "proto/limits.h"
#include "proto/wire.h"

#include <stddef.h>
#include <stdint.h>

enum plan_row_flags {
    PLAN_ROW_SAMPLE = 1 << 0, /* sample after the row's last token */
    PLAN_ROW_FROM_LAST_SAMPLE =
        1 << 1, /* count 1: the input token is the worker's last sample of the slot */
    PLAN_ROW_FLAGS_ALL = PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE,
};

struct plan_row {
    uint32_t slot;
    uint32_t generation;
    uint32_t first_position; /* absolute index of the first input token */
    uint32_t count; /* input tokens; positions first_position .. first_position + count - 1 */
    uint32_t flags; /* enum plan_row_flags */
};

/* About 20 KiB: embed or allocate once, not on small stacks. */
struct plan {
    struct id128 instance;
    uint64_t epoch;
    uint64_t step; /* 1 for the first plan of an epoch, no gaps */
    uint32_t row_count;
    struct plan_row rows[LIMIT_SLOTS];
};

/* Fields of the message: X(T, key, name, TYPE, of, PRESENCE, minimum, maximum, text). */
/* clang-format off */
#define WORKER_PLAN_FIELDS(X, T) \
    ENVELOPE_FIELDS(X, T) \
    X(T, 4, step, U64, none, REQUIRED, 1, UINT64_MAX, "1, 2, 3 ... of the epoch") \
    ROWS_FIELDS(X, T) \
    X(T, 7, slot, COLUMN_U32, none, REQUIRED, 0, LIMIT_SLOTS, "row of the block table") \
    X(T, 8, generation, COLUMN_U32, none, REQUIRED, 0, LIMIT_SLOTS, "of the slot") \
    X(T, 9, first_position, COLUMN_U32, none, REQUIRED, 0, LIMIT_SLOTS, "absolute index of the first input token") \
    X(T, 10, count, COLUMN_U32, none, REQUIRED, 0, LIMIT_SLOTS, "input tokens") \
    X(T, 11, flags, COLUMN_U32, none, REQUIRED, 0, LIMIT_SLOTS, "1: sample; 2: the input is the last sample of the slot")

/* X(number, struct, member, name, FIELDS, text) */
#define WORKER_PLAN_MESSAGE(X) \
    X(1, worker_plan, plan, "plan", WORKER_PLAN_FIELDS, "Coordinator: compute one step.")

struct worker_plan { WORKER_PLAN_FIELDS(WIRE_MEMBER, worker_plan) };
/* clang-format on */
extern const struct wire_table worker_plan_table;

/* Why a worker refuses a plan. The first group can be seen in the plan alone; the rest needs the
 * worker's state or the segment. */
/* clang-format off */
#define PLAN_REFUSAL_LIST(X) \
    X(PLAN_REFUSAL_MALFORMED, 1, "malformed", "the message is not a plan") \
    X(PLAN_REFUSAL_NO_ROWS, 2, "no_rows", "a plan without rows") \
    X(PLAN_REFUSAL_SLOT_RANGE, 3, "slot_range", "slot beyond the slots of the segment") \
    X(PLAN_REFUSAL_SLOT_REPEATED, 4, "slot_repeated", "the slot is in an earlier row of the plan") \
    X(PLAN_REFUSAL_GENERATION, 5, "generation", "generation 0, or another one than the slot row, or an older one") \
    X(PLAN_REFUSAL_COUNT, 6, "count", "count 0") \
    X(PLAN_REFUSAL_CONTEXT, 7, "context", "positions beyond the context") \
    X(PLAN_REFUSAL_FLAGS, 8, "flags", "an unknown flag") \
    X(PLAN_REFUSAL_LAST_SAMPLE, 9, "last_sample", "FROM_LAST_SAMPLE with another count than 1, or no sample at that position") \
    X(PLAN_REFUSAL_BUDGET, 10, "budget", "more tokens than the budget of one step") \
    X(PLAN_REFUSAL_STEP, 11, "step", "not the next step; no row is to blame") \
    X(PLAN_REFUSAL_UNPUBLISHED, 12, "unpublished", "published_step is below the plan's step") \
    X(PLAN_REFUSAL_POSITION, 13, "position", "first_position is not the cached length of the slot") \
    X(PLAN_REFUSAL_TOKEN, 14, "token", "an input token beyond the vocabulary") \
    X(PLAN_REFUSAL_BLOCK, 15, "block", "an unmapped or impossible block, or one that another row holds") \
    X(PLAN_REFUSAL_PARAMETERS, 16, "parameters", "sampling parameters out of their bounds") \
    X(PLAN_REFUSAL_FENCED, 17, "fenced", "the segment is fenced")
/* clang-format on */

enum plan_refusal { PLAN_REFUSAL_NONE = 0, PLAN_REFUSAL_LIST(WIRE_ENUM_MEMBER) };
extern const struct wire_enum plan_refusal_enum;

/* Extents against which a plan is judged; both sides take them from the segment header. */
struct plan_bounds {
    uint32_t slots;
    uint32_t context;     /* positions of a slot */
    uint32_t step_tokens; /* input tokens of one plan */
};

/* Where and why a plan is refused; row is meaningless when `has_row` is false. */
struct plan_verdict {
    enum plan_refusal refusal; /* PLAN_REFUSAL_NONE: accepted */
    bool has_row;
    uint32_t row;
};

/* All that can be said of a plan alone: rows, slots (range, once), generations, counts, positions,
 * flags, sum of tokens. The writer CHECKs its own plan with it before sending, the worker refuses
 * with it. O(rows), no allocation. */
struct plan_verdict plan_judge(const struct plan *plan, const struct plan_bounds *bounds);

/* Rows of the result: those with PLAN_ROW_SAMPLE. */
uint32_t plan_sample_count(const struct plan *plan);

/* Input tokens of all rows. */
uint64_t plan_token_count(const struct plan *plan);

/* Bytes that a plan of `rows` rows never exceeds. */
size_t plan_encoded_bytes_max(uint32_t rows);

/* STATUS_OK, or STATUS_FULL when `capacity` is too small. */
MUST_USE enum status plan_encode(const struct plan *plan, uint8_t *out, size_t capacity,
                                 size_t *out_bytes);

/* Copies a decoded message into a plan. STATUS_OK, or STATUS_BAD_MESSAGE with `out_error` filled
 * when a column has another length than `rows`. Rows are not judged. */
MUST_USE enum status plan_from_message(const struct worker_plan *message, struct plan *out_plan,
                                       struct wire_error *out_error);

#endif
