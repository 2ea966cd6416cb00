/* The layers of the model over one batch: from token ids to logits and samples. Knows no plan and
 * no segment. Everything is reserved when it is opened; a step takes no memory. */
#ifndef TANDEM_WORKER_FORWARD_H
#define TANDEM_WORKER_FORWARD_H

#include "common/status.h"
#include "common/text.h"
#include "kernels/backend.h"
#include "worker/batch.h"
#include "worker/kv_pool.h"
#include "worker/model.h"

#include <stdbool.h>
#include <stdint.h>

struct forward; /* opaque; used by one thread */

/* After each layer, 1 to layers, on the thread of forward_layers(). */
typedef void (*forward_progress)(void *context, uint32_t layers_done);

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

struct forward_sample {
    uint32_t token;
    float logprob;
    uint32_t errors; /* enum row_error */
    uint64_t logits_hash;
};

/* STATUS_OUT_OF_MEMORY or STATUS_INVALID (pool of another model) with the reason in `why`. Close
 * with forward_close(). */
MUST_USE enum status forward_open(const struct forward_options *options,
                                  struct forward **out_forward, struct text *why);

/* Accepts NULL. */
void forward_close(struct forward *forward);

/* Enters blocks into the table; they must be below the pool's. */
void forward_map_blocks(struct forward *forward, const struct block_run *run);

/* Computes all rows through all layers and leaves their keys and values in the pool.
 * out_errors[row] gets the row_error bits. STATUS_DEVICE_LOST. */
MUST_USE enum status forward_layers(struct forward *forward, const struct batch *batch,
                                    uint32_t *out_errors);

/* Logits and samples of the batch's sample rows; after forward_layers() of the same batch.
 * STATUS_DEVICE_LOST. */
MUST_USE enum status forward_samples(struct forward *forward, const struct batch *batch,
                                     struct forward_sample *out_samples);

/* The logits of sample `first` and following instead of samples, for comparisons with an oracle:
 * [count][vocabulary]. */
MUST_USE enum status forward_logits(struct forward *forward, const struct batch *batch,
                                    uint32_t first, uint32_t count, float *out_logits);

#endif
