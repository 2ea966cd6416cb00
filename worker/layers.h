/* The layers of a step, composed out of a backend's operations, in buffers that forward.c reserves.
 */
#ifndef TANDEM_WORKER_LAYERS_H
#define TANDEM_WORKER_LAYERS_H

#include "common/status.h"
#include "kernels/backend.h"
#include "kernels/step.h"
#include "worker/batch.h"
#include "worker/kv_pool.h"
#include "worker/model.h"

#include <stdint.h>

/* All pointers are backend memory inside one reservation. */
struct buffers {
    uint32_t *tokens; /* [row] */
    uint32_t *positions;
    uint32_t *slots;
    uint32_t *row_errors;
    float *hidden; /* [row][width] the residual stream */
    float *addend; /* [row][width] what the last products add to it */
    /* Of one turn of rows. */
    float *normed; /* [row][width] */
    float *q;      /* [row][heads * head_dim]; attention writes in place */
    float *k;      /* [row][kv_dim] */
    float *v;
    float *gate; /* [row][ffn_width] */
    float *up;
    void *prepared;
    void *attention_scratch;
    int32_t *table;    /* [slot][layer][logical] */
    float *rope_table; /* [position][cos, sin][head_dim / 2] */
    /* Of one turn of samples. */
    uint32_t *sample_rows;
    uint32_t *sample_positions;
    struct sampling *sampling;
    float *sample_hidden; /* [sample][width] */
    float *logits;        /* [sample][vocabulary] */
    uint32_t *sampled;
    float *logprobs;
    uint32_t *sample_errors;
    uint64_t *hashes;
};

/* Everything is borrowed. */
struct layers {
    const struct model *model;
    struct backend *backend;
    const struct kv_pool *pool;
    uint32_t logical_blocks; /* of a slot */
    uint32_t rows;           /* of a batch, at most */
    uint32_t turn_rows;      /* that go through a layer together, at most */
    uint64_t attention_scratch_bytes;
    step_progress progress; /* or NULL */
    void *progress_context;
    struct buffers at;
};

/* Norm of `rows` rows of the model's width. */
void layers_norm(const struct layers *layers, const float *input, const float *weight,
                 uint32_t rows, float *output);

/* Rounds `input` and multiplies it with one matrix. */
void layers_multiply(const struct layers *layers, const float *input, uint32_t rows,
                     const struct matmul_part *part);

/* Computes the rows of a batch through all layers: keys and values to the pool, the residual stream
 * to at.hidden, the rows' errors to out_errors. STATUS_DEVICE_LOST. */
MUST_USE enum status layers_compute(const struct layers *layers, const struct batch *batch,
                                    uint32_t *out_errors);

#endif
