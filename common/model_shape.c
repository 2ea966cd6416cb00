#include "common/model_shape.h"

#include "common/check.h"
#include "common/model_config.h"
#include "common/model_file.h"
#include "common/model_keys.h"
#include "common/model_tensor.h"

#define XXH_INLINE_ALL
#include <inttypes.h>
#include <string.h>
#include <xxhash.h>

static const uint32_t MATRIX_TYPES[] = {GGUF_TENSOR_F32,  GGUF_TENSOR_F16,  GGUF_TENSOR_BF16,
                                        GGUF_TENSOR_Q8_0, GGUF_TENSOR_Q4_0, GGUF_TENSOR_Q4_1};

static uint64_t extent_of(const struct model_shape *shape, enum model_extent extent)
{
    switch (extent) {
    case MODEL_EXTENT_NONE:
        return 1;
    case MODEL_EXTENT_WIDTH:
        return shape->width;
    case MODEL_EXTENT_FFN:
        return shape->ffn_width;
    case MODEL_EXTENT_Q:
        return (uint64_t)shape->heads * shape->head_dim;
    case MODEL_EXTENT_KV:
        return kv_dim(
            &(struct kv_geometry){.kv_heads = shape->kv_heads, .head_dim = shape->head_dim});
    case MODEL_EXTENT_VOCABULARY:
        return shape->vocabulary;
    case MODEL_EXTENT_PAIRS:
        return shape->head_dim / 2;
    }
    return 0;
}

/* The first three types need no blocks: norms are kept in fp32 whatever the file has, and a
 * directory has no others. */
static bool type_supported(uint32_t type, bool plain)
{
    size_t count = plain ? 3 : sizeof MATRIX_TYPES / sizeof MATRIX_TYPES[0];
    for (size_t i = 0; i < count; i++)
        if (MATRIX_TYPES[i] == type)
            return true;
    return false;
}

static enum status check_tensor(const struct model_file *file, const struct model_shape *shape,
                                enum model_tensor role, uint32_t layer, struct text *why)
{
    const struct model_tensor_rule *rule = model_tensor_rule(role);
    const struct model_file_tensor *tensor = model_file_find(file, role, layer);
    char name[MODEL_TENSOR_NAME_BYTES];
    if (!model_tensor_name(model_file_kind_of(file), role, layer, name))
        return STATUS_OK;
    if (tensor == NULL && rule->optional)
        return STATUS_OK;
    if (tensor == NULL)
        return text_refuse(why, STATUS_BAD_FILE, "tensor", name, "is missing");
    bool plain = rule->vector || model_file_kind_of(file) == MODEL_FILE_DIRECTORY;
    if (!type_supported(tensor->type, plain))
        return text_refuse(why, STATUS_UNSUPPORTED, "tensor", name,
                           "is of type %s, which is not supported%s; use %s", tensor->type_name,
                           rule->vector ? " here" : "",
                           plain ? "F32, F16 or BF16" : "F32, F16, BF16, Q8_0, Q4_0 or Q4_1");
    uint64_t columns = extent_of(shape, rule->columns), rows = extent_of(shape, rule->rows);
    if (tensor->extent[0] != columns || tensor->extent[1] != rows || tensor->extent[2] != 1 ||
        tensor->extent[3] != 1)
        return text_refuse(why, STATUS_BAD_FILE, "tensor", name,
                           "has the extents %" PRIu64 " x %" PRIu64 " x %" PRIu64 " x %" PRIu64
                           ", expected %" PRIu64 " x %" PRIu64,
                           tensor->extent[0], tensor->extent[1], tensor->extent[2],
                           tensor->extent[3], columns, rows);
    return STATUS_OK;
}

/* A GGUF file ties by leaving the output out. A directory says so in its configuration; a copy of
 * the embedding beside it is accepted, another matrix is not. */
static enum status check_output(const struct model_file *file, struct model_shape *shape,
                                struct text *why)
{
    const struct model_file_tensor *embedding = model_file_find(file, MODEL_TENSOR_EMBEDDING, 0);
    const struct model_file_tensor *output = model_file_find(file, MODEL_TENSOR_OUTPUT, 0);
    if (model_file_kind_of(file) == MODEL_FILE_GGUF)
        shape->tied_output = output == NULL;
    else if (!shape->tied_output && output == NULL)
        return text_refuse(why, STATUS_BAD_FILE, "tensor", "lm_head.weight",
                           "is missing, and config.json does not set tie_word_embeddings");
    else if (shape->tied_output && output != NULL &&
             (output->type != embedding->type ||
              memcmp(output->content, embedding->content, (size_t)embedding->bytes) != 0))
        return text_refuse(why, STATUS_BAD_FILE, "tensor", output->name,
                           "differs from \"%s\", although config.json sets tie_word_embeddings",
                           embedding->name);
    return STATUS_OK;
}

static enum status check_tensors(const struct model_file *file, struct model_shape *shape,
                                 struct text *why)
{
    for (enum model_tensor role = MODEL_TENSOR_EMBEDDING; role < MODEL_TENSOR_COUNT; role++) {
        uint32_t layers = model_tensor_rule(role)->per_layer ? shape->layers : 1;
        for (uint32_t layer = 0; layer < layers; layer++) {
            enum status status = check_tensor(file, shape, role, layer, why);
            if (status != STATUS_OK)
                return status;
        }
    }
    for (uint32_t i = 0; i < model_file_tensor_count(file); i++) {
        const char *name = model_file_tensor_at(file, i)->name;
        if (!model_tensor_known(model_file_kind_of(file), shape->layers, name))
            return text_refuse(why, STATUS_UNSUPPORTED, "tensor", name,
                               "is none that a llama model of %" PRIu32 " layers has",
                               shape->layers);
    }
    return check_output(file, shape, why);
}

static void hash_bytes(XXH3_state_t *state, const void *bytes, size_t length)
{
    uint64_t prefix = length; /* lengths keep neighbours apart: "ab","c" is not "a","bc" */
    CHECK(XXH3_128bits_update(state, &prefix, sizeof prefix) == XXH_OK);
    CHECK(XXH3_128bits_update(state, bytes, length) == XXH_OK);
}

static bool names_vocabulary(struct gguf_string key)
{
    static const char prefix[] = "tokenizer.ggml.";
    return key.length >= sizeof prefix - 1 && memcmp(key.bytes, prefix, sizeof prefix - 1) == 0;
}

/* Keys come sorted, so their order in the file does not matter. */
static void hash_vocabulary(XXH3_state_t *state, const struct model_file *file)
{
    const struct gguf *gguf = model_file_gguf(file);
    const struct model_config *config = model_file_config(file);
    if (config != NULL)
        hash_bytes(state, config->end_tokens, config->end_token_count * sizeof(uint32_t));
    for (uint32_t i = 0; gguf != NULL && i < gguf_key_count(gguf); i++) {
        const struct gguf_entry *entry = gguf_entry_at(gguf, i);
        if (!names_vocabulary(entry->key))
            continue;
        hash_bytes(state, entry->key.bytes, entry->key.length);
        hash_bytes(state, entry->value.bytes, entry->value.length);
    }
}

/* The order of tensors is part of the directory. */
static void hash_metadata(const struct model_file *file, struct model_shape *shape)
{
    XXH3_state_t state;
    CHECK(XXH3_128bits_reset(&state) == XXH_OK);
    const uint32_t integers[] = {
        shape->layers,   shape->width,   shape->ffn_width, shape->heads,      shape->kv_heads,
        shape->head_dim, shape->context, shape->tokens,    shape->vocabulary, shape->tied_output};
    hash_bytes(&state, integers, sizeof integers);
    hash_bytes(&state, &shape->norm_epsilon, sizeof shape->norm_epsilon);
    hash_bytes(&state, &shape->rope_base, sizeof shape->rope_base);
    hash_bytes(&state, shape->rope_factor, sizeof shape->rope_factor);
    hash_vocabulary(&state, file);
    for (uint32_t i = 0; i < model_file_tensor_count(file); i++) {
        const struct model_file_tensor *tensor = model_file_tensor_at(file, i);
        hash_bytes(&state, tensor->name, strlen(tensor->name));
        hash_bytes(&state, tensor->extent, sizeof tensor->extent);
        hash_bytes(&state, &tensor->type, sizeof tensor->type);
        hash_bytes(&state, &tensor->bytes, sizeof tensor->bytes);
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&state));
    _Static_assert(sizeof canonical == sizeof shape->metadata_hash, "XXH3-128");
    memcpy(shape->metadata_hash.bytes, &canonical, sizeof canonical);
}

enum status model_shape_read(const struct model_file *file, struct model_shape *out_shape,
                             struct text *why)
{
    struct model_shape shape;
    enum status status = STATUS_OK;
    if (model_file_kind_of(file) == MODEL_FILE_GGUF)
        status = model_keys_read(model_file_gguf(file), &shape, why);
    else
        shape = model_file_config(file)->shape;
    if (status == STATUS_OK)
        status = check_tensors(file, &shape, why);
    if (status != STATUS_OK)
        return status;
    hash_metadata(file, &shape);
    *out_shape = shape;
    return STATUS_OK;
}

struct kv_geometry model_shape_geometry(const struct model_shape *shape, uint32_t block_tokens,
                                        enum kv_type type, enum kv_order order)
{
    return (struct kv_geometry){
        .layers = shape->layers,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .block_tokens = block_tokens,
        .type = (uint32_t)type,
        .order = (uint32_t)order,
    };
}
