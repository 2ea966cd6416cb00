/* Small llama models with seeded random weights, as GGUF in memory: no file and no download is
 * needed. */
#ifndef TANDEM_TESTS_SUPPORT_TINY_MODEL_H
#define TANDEM_TESTS_SUPPORT_TINY_MODEL_H

#include "common/float16.h"
#include "common/random.h"
#include "support/gguf_builder.h"

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

struct tiny_model {
    uint32_t layers, width, ffn_width, heads, kv_heads, head_dim;
    uint32_t vocabulary; /* rows of the embedding */
    uint32_t tokens;     /* of the tokenizer; 0 = vocabulary */
    uint32_t context;
    uint32_t type;     /* enum gguf_tensor_type of all matrices */
    bool untied;       /* an output matrix of its own */
    bool rope_factors; /* with rope_freqs.weight */
    uint64_t seed;
};

static const struct tiny_model TINY_MODEL = {
    .layers = 2,
    .width = 64,
    .ffn_width = 128,
    .heads = 4,
    .kv_heads = 2,
    .head_dim = 16,
    .vocabulary = 320,
    .context = 2176,
    .type = GGUF_TENSOR_F32,
    .seed = 1,
};

/* Uniform in [-1, 1). */
static inline float tiny_uniform(struct random *random)
{
    return (float)((double)(random_next(random) >> 40) * 0x1p-23 - 1);
}

static inline void tiny_put_half(uint8_t *out, float value)
{
    uint16_t half = fp16_from_float(value);
    memcpy(out, &half, sizeof half);
}

/* One block of random weights of about the given root mean square. */
static inline void tiny_block(struct random *random, uint32_t type, float scale, uint8_t *out)
{
    const struct gguf_tensor_layout *layout = gguf_tensor_layout(type);
    float value =
        scale * 1.7320508F * tiny_uniform(random); /* sqrt(3): root mean square of uniform */
    uint16_t half = type == GGUF_TENSOR_F16 ? fp16_from_float(value) : bf16_from_float(value);
    for (uint32_t i = 0; i < layout->block_bytes; i++)
        out[i] = (uint8_t)random_next(random);
    switch (type) {
    case GGUF_TENSOR_F32:
        memcpy(out, &value, sizeof value);
        break;
    case GGUF_TENSOR_F16:
    case GGUF_TENSOR_BF16:
        memcpy(out, &half, sizeof half);
        break;
    case GGUF_TENSOR_Q8_0:
        tiny_put_half(out, scale / 74);
        break;
    case GGUF_TENSOR_Q4_1:
        tiny_put_half(out, scale / 4.6F);
        tiny_put_half(out + 2, -7.5F * scale / 4.6F);
        break;
    default:
        tiny_put_half(out, scale / 4.6F);
        break;
    }
}

static inline void tiny_matrix(struct gguf_builder *builder, struct random *random,
                               const struct tiny_model *model, const char *name, uint32_t columns,
                               uint32_t rows)
{
    const struct gguf_tensor_layout *layout = gguf_tensor_layout(model->type);
    bool embedding = strncmp(name, "blk.", 4) != 0;
    size_t blocks = (size_t)columns / layout->block_elements * rows;
    uint8_t *bytes = malloc(blocks * layout->block_bytes);
    CHECK(bytes != NULL);
    /* The layers outweigh the embedding in the residual stream: otherwise each token would predict
     * itself. */
    float scale = embedding ? 0.5F : 2.0F / sqrtf((float)columns);
    for (size_t i = 0; i < blocks; i++)
        tiny_block(random, model->type, scale, bytes + i * layout->block_bytes);
    builder_tensor(builder, name, model->type, columns, rows, bytes);
    free(bytes);
}

static inline void tiny_vector(struct gguf_builder *builder, struct random *random,
                               const char *name, uint32_t length, float centre, float spread)
{
    float *values = malloc(length * sizeof *values);
    CHECK(values != NULL);
    for (uint32_t i = 0; i < length; i++)
        values[i] = centre + spread * tiny_uniform(random);
    builder_tensor(builder, name, GGUF_TENSOR_F32, length, 0, values);
    free(values);
}

static inline void tiny_shape_keys(struct gguf_builder *builder, const struct tiny_model *model)
{
    builder_string(builder, "general.architecture", "llama");
    builder_u32(builder, "llama.block_count", model->layers);
    builder_u32(builder, "llama.context_length", model->context);
    builder_u32(builder, "llama.embedding_length", model->width);
    builder_u32(builder, "llama.feed_forward_length", model->ffn_width);
    builder_u32(builder, "llama.attention.head_count", model->heads);
    builder_u32(builder, "llama.attention.head_count_kv", model->kv_heads);
    if (model->heads * model->head_dim != model->width)
        builder_u32(builder, "llama.attention.key_length", model->head_dim);
    builder_f32(builder, "llama.attention.layer_norm_rms_epsilon", 1e-5F);
    builder_f32(builder, "llama.rope.freq_base", 10000);
}

/* Names of tokens alone, which is what the worker looks at. */
static inline void tiny_token_keys(struct gguf_builder *builder, const struct tiny_model *model)
{
    uint32_t tokens = model->tokens == 0 ? model->vocabulary : model->tokens;
    builder_string(builder, "tokenizer.ggml.model", "gpt2");
    builder_array(builder, "tokenizer.ggml.tokens", GGUF_VALUE_STRING, tokens);
    for (uint32_t i = 0; i < tokens; i++) {
        char token[16];
        snprintf(token, sizeof token, "t%u", i);
        builder_put_string(&builder->keys, token);
    }
}

static inline void tiny_tensors(struct gguf_builder *builder, const struct tiny_model *model)
{
    struct random random = {.state = model->seed};
    uint32_t width = model->width, query = model->heads * model->head_dim;
    uint32_t key = model->kv_heads * model->head_dim;
    const struct {
        const char *name;
        uint32_t columns;
        uint32_t rows;
    } matrices[] = {
        {"attn_q", width, query},
        {"attn_k", width, key},
        {"attn_v", width, key},
        {"attn_output", query, width},
        {"ffn_gate", width, model->ffn_width},
        {"ffn_up", width, model->ffn_width},
        {"ffn_down", model->ffn_width, width},
    };
    char name[64];
    tiny_matrix(builder, &random, model, "token_embd.weight", width, model->vocabulary);
    for (uint32_t layer = 0; layer < model->layers; layer++) {
        snprintf(name, sizeof name, "blk.%u.attn_norm.weight", layer);
        tiny_vector(builder, &random, name, width, 1, 0.2F);
        snprintf(name, sizeof name, "blk.%u.ffn_norm.weight", layer);
        tiny_vector(builder, &random, name, width, 1, 0.2F);
        for (size_t i = 0; i < sizeof matrices / sizeof matrices[0]; i++) {
            snprintf(name, sizeof name, "blk.%u.%s.weight", layer, matrices[i].name);
            tiny_matrix(builder, &random, model, name, matrices[i].columns, matrices[i].rows);
        }
    }
    tiny_vector(builder, &random, "output_norm.weight", width, 1, 0.2F);
    if (model->untied)
        tiny_matrix(builder, &random, model, "output.weight", width, model->vocabulary);
    if (model->rope_factors)
        tiny_vector(builder, &random, "rope_freqs.weight", model->head_dim / 2, 4.5F, 3.5F);
}

/* Keys and tensors; builder_finish() makes the file. */
static inline void tiny_model_build(struct gguf_builder *builder, const struct tiny_model *model)
{
    builder_init(builder);
    tiny_shape_keys(builder, model);
    tiny_token_keys(builder, model);
    tiny_tensors(builder, model);
}

/* The whole file; the caller frees it. */
static inline uint8_t *tiny_model_file(const struct tiny_model *model, size_t *out_length)
{
    struct gguf_builder builder;
    tiny_model_build(&builder, model);
    uint8_t *file = builder_finish(&builder, out_length);
    builder_free(&builder);
    return file;
}

#endif
