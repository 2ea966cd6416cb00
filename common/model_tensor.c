#include "common/model_tensor.h"

#include "common/check.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const LAYER_PREFIX[MODEL_FILE_KIND_COUNT] = {
    [MODEL_FILE_GGUF] = "blk.",
    [MODEL_FILE_DIRECTORY] = "model.layers.",
};

#define NAMES(gguf, directory)                                                                     \
    {                                                                                              \
        [MODEL_FILE_GGUF] = gguf, [MODEL_FILE_DIRECTORY] = directory                               \
    }

/* clang-format off */
static const struct model_tensor_rule RULES[MODEL_TENSOR_COUNT] = {
    [MODEL_TENSOR_EMBEDDING] = {
        NAMES("token_embd.weight", "model.embed_tokens.weight"), false, false, false, MODEL_EXTENT_WIDTH, MODEL_EXTENT_VOCABULARY},
    [MODEL_TENSOR_OUTPUT_NORM] = {
        NAMES("output_norm.weight", "model.norm.weight"), false, false, true, MODEL_EXTENT_WIDTH, MODEL_EXTENT_NONE},
    [MODEL_TENSOR_OUTPUT] = {
        NAMES("output.weight", "lm_head.weight"), false, true, false, MODEL_EXTENT_WIDTH, MODEL_EXTENT_VOCABULARY},
    [MODEL_TENSOR_ROPE_FACTORS] = {
        NAMES("rope_freqs.weight", NULL), false, true, true, MODEL_EXTENT_PAIRS, MODEL_EXTENT_NONE},
    [MODEL_TENSOR_ROTARY_FREQUENCIES] = {
        NAMES(NULL, "self_attn.rotary_emb.inv_freq"), true, true, true, MODEL_EXTENT_PAIRS, MODEL_EXTENT_NONE},
    [MODEL_TENSOR_ATTENTION_NORM] = {
        NAMES("attn_norm.weight", "input_layernorm.weight"), true, false, true, MODEL_EXTENT_WIDTH, MODEL_EXTENT_NONE},
    [MODEL_TENSOR_ATTENTION_Q] = {
        NAMES("attn_q.weight", "self_attn.q_proj.weight"), true, false, false, MODEL_EXTENT_WIDTH, MODEL_EXTENT_Q},
    [MODEL_TENSOR_ATTENTION_K] = {
        NAMES("attn_k.weight", "self_attn.k_proj.weight"), true, false, false, MODEL_EXTENT_WIDTH, MODEL_EXTENT_KV},
    [MODEL_TENSOR_ATTENTION_V] = {
        NAMES("attn_v.weight", "self_attn.v_proj.weight"), true, false, false, MODEL_EXTENT_WIDTH, MODEL_EXTENT_KV},
    [MODEL_TENSOR_ATTENTION_OUTPUT] = {
        NAMES("attn_output.weight", "self_attn.o_proj.weight"), true, false, false, MODEL_EXTENT_Q, MODEL_EXTENT_WIDTH},
    [MODEL_TENSOR_FFN_NORM] = {
        NAMES("ffn_norm.weight", "post_attention_layernorm.weight"), true, false, true, MODEL_EXTENT_WIDTH, MODEL_EXTENT_NONE},
    [MODEL_TENSOR_FFN_GATE] = {
        NAMES("ffn_gate.weight", "mlp.gate_proj.weight"), true, false, false, MODEL_EXTENT_WIDTH, MODEL_EXTENT_FFN},
    [MODEL_TENSOR_FFN_UP] = {
        NAMES("ffn_up.weight", "mlp.up_proj.weight"), true, false, false, MODEL_EXTENT_WIDTH, MODEL_EXTENT_FFN},
    [MODEL_TENSOR_FFN_DOWN] = {
        NAMES("ffn_down.weight", "mlp.down_proj.weight"), true, false, false, MODEL_EXTENT_FFN, MODEL_EXTENT_WIDTH},
};
/* clang-format on */

const struct model_tensor_rule *model_tensor_rule(enum model_tensor tensor)
{
    CHECK(tensor > 0 && tensor < MODEL_TENSOR_COUNT);
    return &RULES[tensor];
}

bool model_tensor_name(enum model_file_kind kind, enum model_tensor tensor, uint32_t layer,
                       char out_name[MODEL_TENSOR_NAME_BYTES])
{
    const struct model_tensor_rule *rule = model_tensor_rule(tensor);
    const char *name = rule->names[kind];
    if (name == NULL)
        return false;
    int length;
    if (rule->per_layer)
        length = snprintf(out_name, MODEL_TENSOR_NAME_BYTES, "%s%" PRIu32 ".%s", LAYER_PREFIX[kind],
                          layer, name);
    else
        length = snprintf(out_name, MODEL_TENSOR_NAME_BYTES, "%s", name);
    CHECK(length > 0 && length < MODEL_TENSOR_NAME_BYTES);
    return true;
}

bool model_tensor_known(enum model_file_kind kind, uint32_t layers, const char *name)
{
    unsigned long long layer = 0;
    size_t prefix = strlen(LAYER_PREFIX[kind]);
    if (strncmp(name, LAYER_PREFIX[kind], prefix) == 0)
        layer = strtoull(name + prefix, NULL, 10);
    if (layer >= layers)
        return false;
    for (enum model_tensor role = MODEL_TENSOR_EMBEDDING; role < MODEL_TENSOR_COUNT; role++) {
        char known[MODEL_TENSOR_NAME_BYTES];
        if (model_tensor_name(kind, role, (uint32_t)layer, known) && strcmp(known, name) == 0)
            return true;
    }
    return false;
}
