#include "coordinator/served_model.h"

#include "common/clock.h"
#include "coordinator/client_port.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static void copy_name(const struct gguf *gguf, const char *key, const char *otherwise, char *out)
{
    struct gguf_string text;
    struct reason unused;
    if (gguf_find_string(gguf, key, &text, reason_init(&unused)) != STATUS_OK || text.length == 0) {
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

enum status served_model_open(const struct coordinator_config *config,
                              struct served_model *out_model, struct text *why)
{
    struct gguf *gguf = NULL;
    *out_model = (struct served_model){0};
    enum status status = gguf_open(config->model, &gguf, why);
    if (status == STATUS_OK)
        status = model_shape_read(gguf, &out_model->shape, why);
    if (status == STATUS_OK)
        status = choose_extents(config, &out_model->shape, &out_model->extents, why);
    if (status == STATUS_OK)
        status = tokenizer_open(&out_model->tokenizer, gguf, why);
    if (status == STATUS_OK) {
        const char *slash = strrchr(config->model, '/');
        copy_name(gguf, "general.name", slash != NULL ? slash + 1 : config->model, out_model->name);
        copy_name(gguf, "general.architecture", "unknown", out_model->architecture);
    }
    gguf_close(gguf);
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
