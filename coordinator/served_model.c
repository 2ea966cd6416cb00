#include "coordinator/served_model.h"

#include "common/clock.h"
#include "common/model_file.h"
#include "coordinator/client_port.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* `gguf` is NULL for a directory. */
static void copy_name(const struct gguf *gguf, const char *key, const char *otherwise, char *out)
{
    struct gguf_string text;
    if (gguf == NULL || gguf_find_string(gguf, key, &text, NULL) != STATUS_OK || text.length == 0) {
        text.bytes = otherwise;
        text.length = strlen(otherwise);
    }
    if (text.length > LIMIT_NAME_BYTES)
        text.length = LIMIT_NAME_BYTES;
    for (size_t i = 0; i < text.length; i++) /* it is shown to clients and in logs */
        out[i] = text.bytes[i] >= 0x20 && text.bytes[i] < 0x7f ? text.bytes[i] : '?';
    out[text.length] = '\0';
}

static enum status choose_extents(const struct coordinator_config *config,
                                  const struct model_shape *shape,
                                  struct segment_extents *out_extents, struct text *why)
{
    uint32_t most = shape->context < LIMIT_CONTEXT_TOKENS ? shape->context : LIMIT_CONTEXT_TOKENS;
    uint32_t context = (uint32_t)config->context;
    if (context > most) {
        text_set(why, "--context: %u exceeds the model's %u; give at most that, or 0", context,
                 most);
        return STATUS_INVALID;
    }
    if (context == 0)
        context = most < CONTEXT_TOKENS_DEFAULT ? most : CONTEXT_TOKENS_DEFAULT;
    struct kv_geometry geometry =
        model_shape_geometry(shape, (uint32_t)config->block_tokens, config->kv_type, KV_ORDER_CPU);
    struct segment_extents extents = {
        .geometry = geometry,
        .slots = (uint32_t)config->slots,
        .context = context,
        .logical_blocks = kv_blocks_for(&geometry, context),
        .vocabulary = shape->tokens,
        .step_tokens = (uint32_t)config->step_tokens,
        .pool_blocks = kv_pool_blocks(&geometry, config->kv_pool_bytes),
    };
    if (extents.pool_blocks == 0 || extents.pool_blocks > LIMIT_POOL_BLOCKS) {
        text_set(why,
                 "--kv-pool-bytes: %" PRIu64 " bytes are %" PRIu64 " blocks of %" PRIu64
                 " bytes; 1 to %d are possible",
                 config->kv_pool_bytes, extents.pool_blocks, kv_block_bytes(&geometry),
                 LIMIT_POOL_BLOCKS);
        return STATUS_INVALID;
    }
    enum status status = segment_extents_judge(&extents, why);
    if (status == STATUS_OK)
        *out_extents = extents;
    return status;
}

/* The last part of the path, without slashes at its end. */
static void name_of_path(const char *path, char *out, size_t capacity)
{
    size_t end = strlen(path);
    while (end > 1 && path[end - 1] == '/')
        end--;
    size_t begin = end;
    while (begin > 0 && path[begin - 1] != '/')
        begin--;
    size_t length = end - begin < capacity ? end - begin : capacity - 1;
    memcpy(out, path + begin, length);
    out[length] = '\0';
}

/* What a directory has in the place of a tokenizer. */
static enum status open_ids(struct served_model *model, const struct model_file *file,
                            struct text *why)
{
    const struct model_config *config = model_file_config(file);
    model->ids_only = true;
    model->tokenizer_json = model_file_has_tokenizer_json(file);
    text_set(reason_init(&model->tokenizer.chat_refusal),
             "a directory is served without its tokenizer: ids in, ids out");
    return vocabulary_init_ids(&model->tokenizer.vocabulary, model->shape.tokens,
                               config->end_tokens, config->end_token_count, why);
}

enum status served_model_open(const struct coordinator_config *config,
                              struct served_model *out_model, struct text *why)
{
    struct model_file *file = NULL;
    *out_model = (struct served_model){0};
    enum status status = model_file_open(config->model, &file, why);
    if (status == STATUS_OK)
        status = model_shape_read(file, &out_model->shape, why);
    if (status == STATUS_OK)
        status = choose_extents(config, &out_model->shape, &out_model->extents, why);
    if (status == STATUS_OK && model_file_kind_of(file) == MODEL_FILE_DIRECTORY)
        status = open_ids(out_model, file, why);
    else if (status == STATUS_OK)
        status = tokenizer_open(&out_model->tokenizer, model_file_gguf(file), why);
    if (status == STATUS_OK) {
        char name[LIMIT_NAME_BYTES + 1] = "";
        name_of_path(config->model, name, sizeof name);
        copy_name(model_file_gguf(file), "general.name", name, out_model->name);
        copy_name(model_file_gguf(file), "general.architecture", "llama", out_model->architecture);
    }
    model_file_close(file);
    return status;
}

void served_model_close(struct served_model *model)
{
    tokenizer_free(&model->tokenizer);
}

struct core_config served_model_core_config(const struct served_model *model,
                                            const struct coordinator_config *config)
{
    struct core_config core = {
        .vocabulary = &model->tokenizer.vocabulary,
        .model_name = model->name,
        .model_architecture = model->architecture,
        .metadata_hash = model->shape.metadata_hash,
        .chat_template = model->tokenizer.chat_template.kind != CHAT_TEMPLATE_NONE,
        .ids_only = model->ids_only,
        .extents = model->extents,
        .prefill_chunk = (uint32_t)config->prefill_chunk,
        .shuffle_blocks = config->debug_shuffle_blocks != 0,
        .shuffle_seed = config->debug_shuffle_blocks,
        .queue_requests = (uint32_t)config->queue_requests,
        .kept_requests = (uint32_t)config->kept_requests,
        .queue_bytes = config->queue_bytes,
        .prompt_bytes = config->prompt_bytes,
        .kept_ns = config->kept_ms * NS_PER_MS,
        .orphan_ns = config->orphan_ms * NS_PER_MS,
        .drain_timeout_ns = config->drain_timeout_ms * NS_PER_MS,
        .calls = CLIENT_CALLS_MAX,
    };
    return core;
}
