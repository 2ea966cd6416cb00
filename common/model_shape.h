/* Hyperparameters of a llama-architecture model, read from a GGUF header and checked against every
 * tensor, and the names of its tensors. Both processes build it from the same file with this code:
 * the coordinator sizes blocks and limits with it, the worker its weights; equal `metadata_hash`
 * means that they speak of the same model. What this version cannot compute exactly (another
 * architecture, experts, biases, sliding windows, partial rotation, an unknown scaling, an unknown
 * tensor) is refused by name, never ignored. */
#ifndef TANDEM_COMMON_MODEL_SHAPE_H
#define TANDEM_COMMON_MODEL_SHAPE_H

#include "common/geometry.h"
#include "common/gguf.h"
#include "common/id128.h"
#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    MODEL_LAYERS_MAX = 512,
    MODEL_WIDTH_MAX = 65536,
    MODEL_FFN_WIDTH_MAX = 1 << 20,
    MODEL_HEADS_MAX = 1024,
    MODEL_HEAD_DIM_MAX = 256,
    MODEL_HEAD_DIM_MULTIPLE = 8,
    MODEL_VOCABULARY_MAX = 1 << 20,
    MODEL_CONTEXT_MAX = 1 << 24,
};

struct model_shape {
    uint32_t layers;
    uint32_t width; /* of the residual stream */
    uint32_t ffn_width;
    uint32_t heads; /* query heads; a multiple of kv_heads */
    uint32_t kv_heads;
    uint32_t head_dim;   /* a multiple of MODEL_HEAD_DIM_MULTIPLE; heads * head_dim may differ from
                            width */
    uint32_t vocabulary; /* rows of the embedding and of the logits; not less than the tokenizer's
                            tokens */
    uint32_t tokens;     /* of the tokenizer; ids from here on are never sampled */
    uint32_t context;    /* positions the model was made for */
    bool tied_output;    /* the output matrix is the embedding */
    float norm_epsilon;
    double rope_base;
    /* Frequency i is rope_base^(-2i/head_dim) / rope_factor[i], i < head_dim/2; 1.0 without
     * scaling. */
    float rope_factor[MODEL_HEAD_DIM_MAX / 2];
    struct id128 metadata_hash; /* XXH3-128, canonical, of the above, the vocabulary
                                                and the tensor directory */
};

/* Reads and checks. STATUS_OK, STATUS_BAD_FILE or STATUS_UNSUPPORTED; `why` names the key or
 * tensor, what it holds and what was expected. */
MUST_USE enum status model_shape_read(const struct gguf *gguf, struct model_shape *out_shape,
                                      struct text *why);

/* KV cache of this model with the given settings. */
struct kv_geometry model_shape_geometry(const struct model_shape *shape, uint32_t block_tokens,
                                        enum kv_type type, enum kv_order order);

/* Tensors of the model by role. `layer` is ignored for those that the model has once. */
enum model_tensor {
    MODEL_TENSOR_EMBEDDING = 1,
    MODEL_TENSOR_OUTPUT_NORM,
    MODEL_TENSOR_OUTPUT,       /* absent if tied */
    MODEL_TENSOR_ROPE_FACTORS, /* optional; already in rope_factor */
    MODEL_TENSOR_ATTENTION_NORM,
    MODEL_TENSOR_ATTENTION_Q,
    MODEL_TENSOR_ATTENTION_K,
    MODEL_TENSOR_ATTENTION_V,
    MODEL_TENSOR_ATTENTION_OUTPUT,
    MODEL_TENSOR_FFN_NORM,
    MODEL_TENSOR_FFN_GATE,
    MODEL_TENSOR_FFN_UP,
    MODEL_TENSOR_FFN_DOWN,
    MODEL_TENSOR_COUNT
};

/* NULL where the file has no such tensor. After model_shape_read only the two optional ones may be
 * absent. */
const struct gguf_tensor *model_tensor_find(const struct gguf *gguf, enum model_tensor tensor,
                                            uint32_t layer);

#endif
