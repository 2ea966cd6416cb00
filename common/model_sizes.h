/* The numbers of a llama model and their bounds. */
#ifndef TANDEM_COMMON_MODEL_SIZES_H
#define TANDEM_COMMON_MODEL_SIZES_H

#include "common/id128.h"

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
    MODEL_CONTEXT_MIN = 2, /* a token of the prompt and one that is generated */
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
    uint32_t tokens;     /* of the tokenizer; ids from here on are never sampled. A directory has
                            as many as rows */
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

#endif
