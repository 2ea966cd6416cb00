/* A model as it lies on disk: a GGUF file, or a directory of Hugging Face with config.json,
 * generation_config.json (optional) and the tensors in model.safetensors or in the shards that
 * model.safetensors.index.json lists. Behind one view of its tensors; what they mean is
 * model_shape_read()'s business. Immutable after opening, so any number of threads may read it. */
#ifndef TANDEM_COMMON_MODEL_FILE_H
#define TANDEM_COMMON_MODEL_FILE_H

#include "common/gguf.h"
#include "common/model_config.h"
#include "common/model_tensor.h"
#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { MODEL_FILE_SHARDS_MAX = 1024 };

/* Type number of a tensor that is none of enum gguf_tensor_type. */
#define MODEL_FILE_TYPE_OTHER UINT32_MAX

struct model_file_tensor {
    const char *name;                     /* as in the file; borrowed */
    const char *type_name;                /* static */
    uint32_t type;                        /* a number of GGUF, or MODEL_FILE_TYPE_OTHER */
    uint64_t extent[GGUF_DIMENSIONS_MAX]; /* extent[0] is contiguous; 1 beyond the dimensions */
    uint64_t bytes;
    const uint8_t *content; /* borrowed from the file; of any alignment */
    uint32_t shard;         /* of a directory */
    uint32_t index;         /* in its shard or GGUF file */
};

struct model_file; /* opaque */

/* Opens and checks every file. STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_SYSTEM,
 * STATUS_OUT_OF_MEMORY, STATUS_BAD_FILE, STATUS_TOO_LARGE or STATUS_UNSUPPORTED; `why` says what is
 * wrong in which file of a directory. Close with model_file_close(). */
MUST_USE enum status model_file_open(const char *path, struct model_file **out_file,
                                     struct text *why);

/* A GGUF file in memory, which the result borrows. */
MUST_USE enum status model_file_open_memory(const void *bytes, size_t length,
                                            struct model_file **out_file, struct text *why);

/* A directory in memory: the configuration is borrowed for the call, the one file of tensors by the
 * result. */
struct model_file_parts {
    struct model_config_source config;
    const void *tensors;
    size_t tensors_bytes;
};
MUST_USE enum status model_file_open_parts(const struct model_file_parts *parts,
                                           struct model_file **out_file, struct text *why);

/* Accepts NULL. */
void model_file_close(struct model_file *file);

enum model_file_kind model_file_kind_of(const struct model_file *file);
/* NULL for the other kind. */
const struct gguf *model_file_gguf(const struct model_file *file);
const struct model_config *model_file_config(const struct model_file *file);
/* Whether a directory has a tokenizer.json. */
bool model_file_has_tokenizer_json(const struct model_file *file);

/* Tensors in the order in which they lie, shard after shard. */
uint32_t model_file_tensor_count(const struct model_file *file);
const struct model_file_tensor *model_file_tensor_at(const struct model_file *file, uint32_t index);

/* NULL where there is no such tensor. After model_shape_read only the optional ones may be absent.
 */
const struct model_file_tensor *model_file_find(const struct model_file *file,
                                                enum model_tensor tensor, uint32_t layer);

/* Tells the system that the pages of a tensor are not needed any more; reading them again still
 * works. */
void model_file_drop(const struct model_file *file, const struct model_file_tensor *tensor);

#endif
