/* A small file with a key of every kind and three tensors, for the tests of the reader. */
#ifndef TANDEM_TESTS_SUPPORT_GGUF_SAMPLE_H
#define TANDEM_TESTS_SUPPORT_GGUF_SAMPLE_H

#include "support/gguf_builder.h"

static const float SAMPLE_VALUES[32] = {1, -2, 3.5F};

/* Every kind of key and three tensors; the last one is not padded to the end of the file by a
 * reader's need. */
static inline void build_sample(struct gguf_builder *builder)
{
    const uint8_t byte = 7;
    const int64_t below = -5;
    const uint64_t above = UINT64_MAX;
    const double wide = 0.25;
    const uint16_t half = 0x3c00;
    uint8_t blocks[2 * 18];
    memset(blocks, 0x5a, sizeof blocks);
    builder_init(builder);
    builder_string(builder, "general.architecture", "llama");
    builder_u32(builder, "number", 4096);
    builder_f32(builder, "float", 1.5F);
    builder_bool(builder, "yes", 1);
    builder_bool(builder, "odd", 7);
    builder_key(builder, "byte", GGUF_VALUE_U8);
    builder_put(&builder->keys, &byte, sizeof byte);
    builder_key(builder, "below", GGUF_VALUE_I64);
    builder_put(&builder->keys, &below, sizeof below);
    builder_key(builder, "above", GGUF_VALUE_U64);
    builder_put(&builder->keys, &above, sizeof above);
    builder_key(builder, "wide", GGUF_VALUE_F64);
    builder_put(&builder->keys, &wide, sizeof wide);
    builder_key(builder, "short", GGUF_VALUE_U16);
    builder_put(&builder->keys, &half, sizeof half);
    builder_array(builder, "words", GGUF_VALUE_STRING, 3);
    builder_put_string(&builder->keys, "one");
    builder_put_string(&builder->keys, "");
    builder_put_string(&builder->keys, "three");
    builder_array(builder, "integers", GGUF_VALUE_I32, 2);
    builder_put_u32(&builder->keys, (uint32_t)-1);
    builder_put_u32(&builder->keys, 9);
    builder_array(builder, "floats", GGUF_VALUE_F32, 2);
    builder_put(&builder->keys, SAMPLE_VALUES, 2 * sizeof SAMPLE_VALUES[0]);
    builder_tensor(builder, "b.first", GGUF_TENSOR_F32, 3, 0, SAMPLE_VALUES);
    builder_tensor(builder, "a.second", GGUF_TENSOR_Q4_0, 32, 2, blocks);
    builder_tensor(builder, "c.third", GGUF_TENSOR_F16, 4, 2, SAMPLE_VALUES);
}

static inline uint8_t *sample_file(size_t *out_length)
{
    struct gguf_builder builder;
    build_sample(&builder);
    uint8_t *file = builder_finish(&builder, out_length);
    builder_free(&builder);
    return file;
}

#endif
