/* Writes GGUF files in memory for tests: well-formed ones, and with the raw functions any other. */
#ifndef TANDEM_TESTS_SUPPORT_GGUF_BUILDER_H
#define TANDEM_TESTS_SUPPORT_GGUF_BUILDER_H

#include "common/check.h"
#include "common/gguf.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

struct builder_bytes {
    uint8_t *bytes; /* owned */
    size_t length;
    size_t capacity;
};

struct gguf_builder {
    struct builder_bytes keys;
    struct builder_bytes directory;
    struct builder_bytes tensors;
    uint64_t key_count;
    uint64_t tensor_count;
    uint32_t version;
    uint32_t alignment;
};

static inline void builder_put(struct builder_bytes *out, const void *bytes, size_t length)
{
    if (length > out->capacity - out->length) {
        out->capacity = 2 * out->capacity + length + 256;
        out->bytes = realloc(out->bytes, out->capacity);
        CHECK(out->bytes != NULL);
    }
    if (length > 0)
        memcpy(out->bytes + out->length, bytes, length);
    out->length += length;
}

static inline void builder_put_u32(struct builder_bytes *out, uint32_t value)
{
    builder_put(out, &value, sizeof value);
}

static inline void builder_put_u64(struct builder_bytes *out, uint64_t value)
{
    builder_put(out, &value, sizeof value);
}

static inline void builder_put_string(struct builder_bytes *out, const char *text)
{
    builder_put_u64(out, strlen(text));
    builder_put(out, text, strlen(text));
}

static inline void builder_init(struct gguf_builder *builder)
{
    *builder = (struct gguf_builder){.version = 3, .alignment = GGUF_ALIGNMENT_DEFAULT};
}

static inline void builder_free(struct gguf_builder *builder)
{
    free(builder->keys.bytes);
    free(builder->directory.bytes);
    free(builder->tensors.bytes);
}

/* Key and type; the caller puts the value into builder->keys. */
static inline void builder_key(struct gguf_builder *builder, const char *key, uint32_t type)
{
    builder_put_string(&builder->keys, key);
    builder_put_u32(&builder->keys, type);
    builder->key_count++;
}

static inline void builder_u32(struct gguf_builder *builder, const char *key, uint32_t value)
{
    builder_key(builder, key, GGUF_VALUE_U32);
    builder_put_u32(&builder->keys, value);
}

static inline void builder_f32(struct gguf_builder *builder, const char *key, float value)
{
    builder_key(builder, key, GGUF_VALUE_F32);
    builder_put(&builder->keys, &value, sizeof value);
}

static inline void builder_bool(struct gguf_builder *builder, const char *key, uint8_t value)
{
    builder_key(builder, key, GGUF_VALUE_BOOL);
    builder_put(&builder->keys, &value, sizeof value);
}

static inline void builder_string(struct gguf_builder *builder, const char *key, const char *value)
{
    builder_key(builder, key, GGUF_VALUE_STRING);
    builder_put_string(&builder->keys, value);
}

/* The caller puts `count` elements into builder->keys. */
static inline void builder_array(struct gguf_builder *builder, const char *key, uint32_t type,
                                 uint64_t count)
{
    builder_key(builder, key, GGUF_VALUE_ARRAY);
    builder_put_u32(&builder->keys, type);
    builder_put_u64(&builder->keys, count);
}

static inline void builder_pad(struct builder_bytes *out, size_t position, uint32_t alignment)
{
    static const uint8_t zeros[64];
    CHECK(alignment <= sizeof zeros);
    builder_put(out, zeros, (alignment - position % alignment) % alignment);
}

/* Entry of the directory with every field as given. */
static inline void builder_raw_tensor(struct gguf_builder *builder, const char *name, uint32_t type,
                                      const uint64_t *extents, uint32_t dimensions, uint64_t offset)
{
    builder_put_string(&builder->directory, name);
    builder_put_u32(&builder->directory, dimensions);
    for (uint32_t i = 0; i < dimensions; i++)
        builder_put_u64(&builder->directory, extents[i]);
    builder_put_u32(&builder->directory, type);
    builder_put_u64(&builder->directory, offset);
    builder->tensor_count++;
}

/* A tensor of one or two dimensions (rows 0: a vector) with its bytes, at its place. */
static inline void builder_tensor(struct gguf_builder *builder, const char *name, uint32_t type,
                                  uint64_t columns, uint64_t rows, const void *bytes)
{
    const uint64_t extents[] = {columns, rows};
    const struct gguf_tensor_layout *layout = gguf_tensor_layout(type);
    uint64_t elements = columns * (rows == 0 ? 1 : rows);
    builder_raw_tensor(builder, name, type, extents, rows == 0 ? 1 : 2, builder->tensors.length);
    builder_put(&builder->tensors, bytes, elements / layout->block_elements * layout->block_bytes);
    builder_pad(&builder->tensors, builder->tensors.length, builder->alignment);
}

/* The file; the caller frees it. */
static inline uint8_t *builder_finish(const struct gguf_builder *builder, size_t *out_length)
{
    struct builder_bytes file = {0};
    builder_put(&file, "GGUF", 4);
    builder_put_u32(&file, builder->version);
    builder_put_u64(&file, builder->tensor_count);
    builder_put_u64(&file, builder->key_count);
    builder_put(&file, builder->keys.bytes, builder->keys.length);
    builder_put(&file, builder->directory.bytes, builder->directory.length);
    builder_pad(&file, file.length, builder->alignment);
    builder_put(&file, builder->tensors.bytes, builder->tensors.length);
    *out_length = file.length;
    return file.bytes;
}

#endif
