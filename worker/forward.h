/* The model over one batch: from token ids to logits and samples. Knows no plan and no segment.
 * What the backend does as a whole (kernels/step.h) is left to it; otherwise the operations are
 * called one after another. Everything is reserved when it is opened; a step takes no memory. */
#ifndef TANDEM_WORKER_FORWARD_H
#define TANDEM_WORKER_FORWARD_H

#include "common/status.h"
#include "common/text.h"
#include "kernels/backend.h"
#include "kernels/step.h"
#include "worker/batch.h"
#include "worker/kv_pool.h"
#include "worker/model.h"

#include <stdbool.h>
#include <stdint.h>

struct forward; /* opaque; used by one thread */

typedef step_progress forward_progress;

struct forward_options {
    const struct model *model; /* borrowed, as the next three */
    struct backend *backend;
    struct kv_pool *pool;
    uint32_t slots;
    uint32_t context;        /* positions of a slot; <= the model's */
    uint32_t logical_blocks; /* of a slot */
    uint32_t rows;           /* of a batch, at most */
    uint32_t samples;        /* of a batch, at most */
    bool hash_logits;
    bool poison_blocks;        /* fill a block with NaN before its first position is written */
    forward_progress progress; /* or NULL */
    void *progress_context;
};

/* STATUS_OUT_OF_MEMORY or STATUS_INVALID (pool of another model) with the reason in `why`. Close
 * with forward_close(). */
MUST_USE enum status forward_open(const struct forward_options *options,
                                  struct forward **out_forward, struct text *why);

/* Accepts NULL. */
void forward_close(struct forward *forward);

/* Enters blocks into the table; they must be below the pool's. */
void forward_map_blocks(struct forward *forward, const struct block_run *run);

/* Batches that may have begun and not been collected. */
uint32_t forward_depth(const struct forward *forward);

/* Begins to compute all rows through all layers, which leaves their keys and values in the pool,
 * and the samples. A token STEP_TOKEN_LAST_SAMPLE is the slot's last sample: where more than one
 * batch may be in flight. STATUS_DEVICE_LOST. */
MUST_USE enum status forward_begin(struct forward *forward, const struct batch *batch);

/* Whether forward_collect() would not wait; one must be in flight. */
bool forward_ready(struct forward *forward);

/* The batch that began first. out_errors[row] gets the row_error bits. STATUS_DEVICE_LOST. */
MUST_USE enum status forward_collect(struct forward *forward, struct step_sample *out_samples,
                                     uint32_t *out_errors);

/* When a device began and ended the batch collected last, on its own clock; zeros where the
 * operations are called one after another. */
void forward_span(const struct forward *forward, struct step_span *out_span);

/* The logits of sample `first` and following of the batch collected last, for comparisons with an
 * oracle: [count][vocabulary]. */
MUST_USE enum status forward_logits(struct forward *forward, const struct batch *batch,
                                    uint32_t first, uint32_t count, float *out_logits);

#endif
