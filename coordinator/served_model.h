/* What the coordinator knows of the model: shape, tokenizer, and the sizes that follow from them
 * and the options. A Hugging Face directory is served without a tokenizer: ids in, ids out. The
 * weights are the worker's business; the files are closed again. */
#ifndef TANDEM_COORDINATOR_SERVED_MODEL_H
#define TANDEM_COORDINATOR_SERVED_MODEL_H

#include "common/model_shape.h"
#include "common/status.h"
#include "common/text.h"
#include "coordinator/config.h"
#include "coordinator/core.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "proto/segment.h"

struct served_model {
    char name[LIMIT_NAME_BYTES + 1];
    char architecture[LIMIT_NAME_BYTES + 1];
    struct model_shape shape;
    struct tokenizer tokenizer; /* owned; if `ids_only` its vocabulary alone */
    bool ids_only;
    bool tokenizer_json; /* the directory has one, which is not read */
    struct segment_extents extents;
};

/* The statuses of model_file_open(), model_shape_read() and tokenizer_open(), or STATUS_INVALID for
 * options that do not fit the model; `why` says which. */
MUST_USE enum status served_model_open(const struct coordinator_config *config,
                                       struct served_model *out_model, struct text *why);
void served_model_close(struct served_model *model);

/* The part of the core's configuration that comes from options and model. */
struct core_config served_model_core_config(const struct served_model *model,
                                            const struct coordinator_config *config);

#endif
