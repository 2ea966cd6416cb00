/* Hyperparameters of a llama-architecture model, read from its file or directory and checked
 * against every tensor. Both processes build it from the same files with this code: the coordinator
 * sizes blocks and limits with it, the worker its weights; equal `metadata_hash` means that they
 * speak of the same model. What this version cannot compute exactly (another architecture, experts,
 * biases, sliding windows, partial rotation, an unknown scaling, an unknown tensor) is refused by
 * name, never ignored. */
#ifndef TANDEM_COMMON_MODEL_SHAPE_H
#define TANDEM_COMMON_MODEL_SHAPE_H

#include "common/geometry.h"
#include "common/model_sizes.h"
#include "common/status.h"
#include "common/text.h"

struct model_file; /* common/model_file.h */

/* Reads and checks. STATUS_OK, STATUS_BAD_FILE or STATUS_UNSUPPORTED; `why` names the key or
 * tensor, what it holds and what was expected. */
MUST_USE enum status model_shape_read(const struct model_file *file, struct model_shape *out_shape,
                                      struct text *why);

/* KV cache of this model with the given settings. */
struct kv_geometry model_shape_geometry(const struct model_shape *shape, uint32_t block_tokens,
                                        enum kv_type type, enum kv_order order);

#endif
