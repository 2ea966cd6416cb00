/* A model that is ready to compute: shape and weights. */
#ifndef TANDEM_WORKER_MODEL_H
#define TANDEM_WORKER_MODEL_H

#include "common/model_shape.h"
#include "worker/weights.h"

struct model {
    struct model_shape shape;
    struct weights weights; /* owned */
};

/* Reads `path` (a GGUF file or a Hugging Face directory), packs the weights and closes it: nothing
 * of it stays mapped. `progress` may be NULL. The statuses of model_file_open(), model_shape_read()
 * and weights_load(). Close with model_close(). */
MUST_USE enum status model_open(const char *path, struct backend *backend,
                                weights_progress progress, void *progress_context,
                                struct model *out_model, struct text *why);

/* Accepts a zeroed object. */
void model_close(struct model *model);

#endif
