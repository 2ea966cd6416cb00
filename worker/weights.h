/* The tensors of a model in backend memory, packed as the backend wants them.
 * Rows of Q and K of a llama GGUF stand interleaved (pairs side by side); here they are in
 * half-split order, as the rotation expects them and a Hugging Face directory has them. Only whole
 * rows move, so nothing is rounded. */
#ifndef TANDEM_WORKER_WEIGHTS_H
#define TANDEM_WORKER_WEIGHTS_H

#include "common/id128.h"
#include "common/model_file.h"
#include "common/model_shape.h"
#include "common/status.h"
#include "common/text.h"
#include "kernels/backend.h"
#include "kernels/step.h"

#include <stdint.h>

/* All pointers are owned; free with weights_free(). */
struct weights {
    struct backend *backend; /* borrowed */
    uint32_t layers;
    struct step_layer *layer; /* [layers] */
    const float *output_norm; /* [width] */
    struct matrix *embedding; /* [vocabulary][width] */
    struct matrix *output;    /* the same matrix as `embedding` if the model ties them */
    float *vectors;           /* backend memory that holds all norms */
    uint64_t vectors_bytes;
    uint64_t bytes; /* backend memory of everything */
    struct id128
        tensor_hash; /* XXH3-128, canonical, of all tensor bytes in the order in which they lie */
};

/* Called after every tensor with bytes of the file; on the loading thread. */
typedef void (*weights_progress)(void *context, uint64_t bytes_done, uint64_t bytes_total);

struct weights_source {
    const struct model_file *file;
    const struct model_shape *shape; /* read from the same file */
    weights_progress progress;       /* or NULL */
    void *progress_context;
};

/* Packs every tensor and lets go of its pages. STATUS_OUT_OF_MEMORY, STATUS_UNSUPPORTED
 * (the backend has no kernel for a type) or STATUS_BAD_FILE (a norm that is not finite); `why`
 * names the tensor. */
MUST_USE enum status weights_load(const struct weights_source *source, struct backend *backend,
                                  struct weights *out_weights, struct text *why);

/* Accepts a zeroed object. */
void weights_free(struct weights *weights);

/* Row order that undoes the interleaving of `heads` heads: row r of the matrix is row order[r] of
 * the file. */
void weights_half_split_order(uint32_t heads, uint32_t head_dim, uint32_t *out_order);

#endif
