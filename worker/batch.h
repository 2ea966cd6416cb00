/* One step as flat arrays: a row per input token, in the order of the plan. Memory is the owner's,
 * taken once. */
#ifndef TANDEM_WORKER_BATCH_H
#define TANDEM_WORKER_BATCH_H

#include "common/status.h"
#include "kernels/ops.h"
#include "proto/plan.h"
#include "worker/plan_check.h"

#include <stdint.h>

struct batch {
    uint32_t row_capacity;
    uint32_t sample_capacity;
    uint32_t row_count;
    uint32_t sample_count;
    uint32_t *tokens;    /* owned [row] */
    uint32_t *positions; /* owned [row] absolute */
    uint32_t *slots;     /* owned [row] */
    /* Rows after which a token is sampled. */
    uint32_t *sample_rows;      /* owned [sample] index of the row */
    uint32_t *sample_positions; /* owned [sample] absolute position of the sampled token */
    struct sampling *sampling;  /* owned [sample] */
};

/* STATUS_OUT_OF_MEMORY. Free with batch_free(). */
MUST_USE enum status batch_init(struct batch *batch, uint32_t row_capacity,
                                uint32_t sample_capacity);

/* Accepts a zeroed object. */
void batch_free(struct batch *batch);

void batch_clear(struct batch *batch);

/* Appends `count` rows of one slot from `first_position` on. The capacity must suffice. */
void batch_add_rows(struct batch *batch, uint32_t slot, uint32_t first_position,
                    const uint32_t *tokens, uint32_t count);

/* Samples after the row added last. */
void batch_add_sample(struct batch *batch, const struct sampling *sampling);

/* The plan that `check` accepted last. */
void batch_from_plan(struct batch *batch, const struct plan *plan, const struct plan_check *check);

#endif
