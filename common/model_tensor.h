/* The tensors of a llama model by role, and their names in each kind of model file. */
#ifndef TANDEM_COMMON_MODEL_TENSOR_H
#define TANDEM_COMMON_MODEL_TENSOR_H

#include <stdbool.h>
#include <stdint.h>

/* `layer` is ignored for those that the model has once. */
enum model_tensor {
    MODEL_TENSOR_EMBEDDING = 1,
    MODEL_TENSOR_OUTPUT_NORM,
    MODEL_TENSOR_OUTPUT,             /* absent if tied */
    MODEL_TENSOR_ROPE_FACTORS,       /* optional, GGUF only; already in rope_factor */
    MODEL_TENSOR_ROTARY_FREQUENCIES, /* optional, of old checkpoints; follows from the base */
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

enum model_file_kind {
    MODEL_FILE_GGUF = 1,
    MODEL_FILE_DIRECTORY, /* of Hugging Face: config.json and safetensors */
    MODEL_FILE_KIND_COUNT
};

/* Extents of a tensor as a function of the shape. */
enum model_extent {
    MODEL_EXTENT_NONE,
    MODEL_EXTENT_WIDTH,
    MODEL_EXTENT_FFN,
    MODEL_EXTENT_Q,
    MODEL_EXTENT_KV,
    MODEL_EXTENT_VOCABULARY,
    MODEL_EXTENT_PAIRS
};

struct model_tensor_rule {
    const char *names[MODEL_FILE_KIND_COUNT]; /* behind "blk.N." or "model.layers.N." if per layer;
                                                 NULL: this kind of file has no such tensor */
    bool per_layer;
    bool optional;
    bool vector;               /* one row of floats, kept in fp32 */
    enum model_extent columns; /* contiguous */
    enum model_extent rows;
};

enum { MODEL_TENSOR_NAME_BYTES = 64 };

/* The rule of a role; CHECKs the role. */
const struct model_tensor_rule *model_tensor_rule(enum model_tensor tensor);

/* Name of the tensor in a file of this kind; false if such files have none. */
bool model_tensor_name(enum model_file_kind kind, enum model_tensor tensor, uint32_t layer,
                       char out_name[MODEL_TENSOR_NAME_BYTES]);

/* Whether a model of `layers` layers has a tensor of this name in a file of this kind. */
bool model_tensor_known(enum model_file_kind kind, uint32_t layers, const char *name);

#endif
