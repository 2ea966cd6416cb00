/* Writes safetensors files in memory for tests: well-formed ones, and with the raw function any
 * other; and the small models of tiny_model.h as a Hugging Face directory with the same numbers. */
#ifndef TANDEM_TESTS_SUPPORT_DIRECTORY_BUILDER_H
#define TANDEM_TESTS_SUPPORT_DIRECTORY_BUILDER_H

#include "common/model_file.h"
#include "support/tiny_model.h"

#include <inttypes.h>

struct directory_builder {
    struct builder_bytes header; /* entries, without the braces */
    struct builder_bytes data;
};

static inline void directory_free(struct directory_builder *builder)
{
    free(builder->header.bytes);
    free(builder->data.bytes);
}

/* `entry` goes into the header as it is: "name": {...} */
static inline void directory_raw(struct directory_builder *builder, const char *entry)
{
    if (builder->header.length > 0)
        builder_put(&builder->header, ",", 1);
    builder_put(&builder->header, entry, strlen(entry));
}

/* A tensor of one dimension (rows 0) or two, at its place. */
static inline void directory_tensor(struct directory_builder *builder, const char *name,
                                    const char *type, uint64_t rows, uint64_t columns,
                                    const void *bytes)
{
    char entry[256], shape[64];
    uint64_t length = columns * (rows == 0 ? 1 : rows) * (strcmp(type, "F32") == 0 ? 4 : 2);
    if (rows == 0)
        snprintf(shape, sizeof shape, "%" PRIu64, columns);
    else
        snprintf(shape, sizeof shape, "%" PRIu64 ",%" PRIu64, rows, columns);
    snprintf(entry, sizeof entry,
             "\"%s\":{\"dtype\":\"%s\",\"shape\":[%s],\"data_offsets\":[%zu,%" PRIu64 "]}", name,
             type, shape, builder->data.length, builder->data.length + length);
    directory_raw(builder, entry);
    builder_put(&builder->data, bytes, length);
}

/* The file; the caller frees it. */
static inline uint8_t *directory_finish(const struct directory_builder *builder, size_t *out_length)
{
    static const char blanks[8] = "        ";
    struct builder_bytes file = {0};
    size_t length = builder->header.length + 2, padding = (8 - length % 8) % 8;
    builder_put_u64(&file, length + padding);
    builder_put(&file, "{", 1);
    builder_put(&file, builder->header.bytes, builder->header.length);
    builder_put(&file, "}", 1);
    builder_put(&file, blanks, padding);
    builder_put(&file, builder->data.bytes, builder->data.length);
    *out_length = file.length;
    return file.bytes;
}

/* ---- A small model ---- */

enum { TINY_CONFIG_BYTES = 1024 };

/* config.json, open at its end so that more keys may follow. */
static inline void tiny_config(const struct tiny_model *model, const char *more,
                               char out_config[TINY_CONFIG_BYTES])
{
    snprintf(out_config, TINY_CONFIG_BYTES,
             "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
             "\"vocab_size\":%u,\"hidden_size\":%u,\"intermediate_size\":%u,"
             "\"num_hidden_layers\":%u,\"num_attention_heads\":%u,\"num_key_value_heads\":%u,"
             "\"head_dim\":%u,\"max_position_embeddings\":%u,\"rms_norm_eps\":1e-05,"
             "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000.0},"
             "\"tie_word_embeddings\":%s,\"eos_token_id\":2%s%s}",
             model->vocabulary, model->width, model->ffn_width, model->layers, model->heads,
             model->kv_heads, model->head_dim, model->context, model->untied ? "false" : "true",
             more[0] != '\0' ? "," : "", more);
}

/* Rows of Q and K stand interleaved in GGUF: row 2 pair + half there is row half pairs + pair here.
 */
static inline void tiny_half_split(const struct tiny_model *model,
                                   const struct model_file_tensor *tensor, uint8_t *out_bytes)
{
    uint64_t rows = tensor->extent[1], row_bytes = tensor->bytes / rows;
    uint32_t pairs = model->head_dim / 2;
    for (uint64_t row = 0; row < rows; row++) {
        uint64_t head = row / model->head_dim, place = row % model->head_dim;
        uint64_t from = head * model->head_dim + 2 * (place % pairs) + place / pairs;
        memcpy(out_bytes + row * row_bytes, tensor->content + from * row_bytes, row_bytes);
    }
}

/* The tensors of `role` of all layers. */
static inline void tiny_put_role(struct directory_builder *builder, const struct tiny_model *model,
                                 const struct model_file *file, enum model_tensor role)
{
    uint32_t layers = model_tensor_rule(role)->per_layer ? model->layers : 1;
    for (uint32_t layer = 0; layer < layers; layer++) {
        char name[MODEL_TENSOR_NAME_BYTES];
        const struct model_file_tensor *tensor = model_file_find(file, role, layer);
        if (tensor == NULL || !model_tensor_name(MODEL_FILE_DIRECTORY, role, layer, name))
            continue;
        bool vector = model_tensor_rule(role)->vector;
        uint8_t *bytes = malloc(tensor->bytes);
        CHECK(bytes != NULL);
        if (role == MODEL_TENSOR_ATTENTION_Q || role == MODEL_TENSOR_ATTENTION_K)
            tiny_half_split(model, tensor, bytes);
        else
            memcpy(bytes, tensor->content, tensor->bytes);
        directory_tensor(builder, name, tensor->type_name, vector ? 0 : tensor->extent[1],
                         tensor->extent[0], bytes);
        free(bytes);
    }
}

/* The same model as tiny_model_build() makes, of a type without blocks. */
static inline void tiny_directory_build(struct directory_builder *builder,
                                        const struct tiny_model *model)
{
    size_t length;
    uint8_t *gguf = tiny_model_file(model, &length);
    struct model_file *file = NULL;
    CHECK(model_file_open_memory(gguf, length, &file, NULL) == STATUS_OK);
    *builder = (struct directory_builder){0};
    directory_raw(builder, "\"__metadata__\":{\"format\":\"pt\"}");
    for (enum model_tensor role = MODEL_TENSOR_EMBEDDING; role < MODEL_TENSOR_COUNT; role++)
        tiny_put_role(builder, model, file, role);
    model_file_close(file);
    free(gguf);
}

/* The one file of tensors; the caller frees it. */
static inline uint8_t *tiny_directory_tensors(const struct tiny_model *model, size_t *out_length)
{
    struct directory_builder builder;
    tiny_directory_build(&builder, model);
    uint8_t *file = directory_finish(&builder, out_length);
    directory_free(&builder);
    return file;
}

#endif
