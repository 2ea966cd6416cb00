#include "common/model_keys.h"

#include "common/check.h"

#include <inttypes.h>
#include <string.h>

static const char EMBEDDING[] = "token_embd.weight";
static const char ROPE_FACTORS[] = "rope_freqs.weight";

static struct gguf_string string_of(const char *text)
{
    return (struct gguf_string){text, strlen(text)};
}

/* An integer of the architecture in [minimum, maximum]. A missing key leaves *value if `optional`.
 */
struct integer_rule {
    const char *key;
    uint64_t minimum;
    uint64_t maximum;
    bool optional;
};

static enum status read_integer(const struct gguf *gguf, const struct integer_rule *rule,
                                uint32_t *value, struct text *why)
{
    uint64_t read;
    enum status status = gguf_find_integer(gguf, rule->key, rule->maximum, &read, why);
    if (status == STATUS_NOT_FOUND)
        return rule->optional ? STATUS_OK : STATUS_BAD_FILE;
    if (status != STATUS_OK)
        return status;
    if (read < rule->minimum)
        return gguf_refuse(why, STATUS_BAD_FILE, "key", string_of(rule->key),
                           "holds %" PRIu64 ", expected %" PRIu64 " to %" PRIu64, read,
                           rule->minimum, rule->maximum);
    *value = (uint32_t)read;
    return STATUS_OK;
}

/* One number for all layers; writers may also give an array with one per layer, which must agree.
 */
static enum status read_kv_heads(const struct gguf *gguf, struct model_shape *shape,
                                 struct text *why)
{
    static const char key[] = "llama.attention.head_count_kv";
    const struct integer_rule rule = {key, 1, MODEL_HEADS_MAX, true};
    enum gguf_value_type type;
    shape->kv_heads = shape->heads;
    if (!gguf_has(gguf, key, &type) || type != GGUF_VALUE_ARRAY)
        return read_integer(gguf, &rule, &shape->kv_heads, why);
    struct gguf_array array;
    enum status status = gguf_find_array(gguf, key, GGUF_VALUE_U32, &array, why);
    if (status != STATUS_OK)
        return status;
    if (array.remaining != shape->layers)
        return gguf_refuse(why, STATUS_BAD_FILE, "key", string_of(key),
                           "has %" PRIu64 " numbers for %" PRIu32 " layers", array.remaining,
                           shape->layers);
    int64_t first = 0, heads;
    for (uint32_t layer = 0; gguf_next_integer(&array, &heads); layer++) {
        if (heads < 1 || heads > MODEL_HEADS_MAX)
            return gguf_refuse(why, STATUS_BAD_FILE, "key", string_of(key),
                               "holds %" PRId64 " for layer %" PRIu32 ", expected 1 to %d", heads,
                               layer, MODEL_HEADS_MAX);
        first = layer == 0 ? heads : first;
        if (heads != first)
            return gguf_refuse(why, STATUS_UNSUPPORTED, "key", string_of(key),
                               "differs between layers, which is not supported");
    }
    shape->kv_heads = (uint32_t)first;
    return STATUS_OK;
}

/* head_dim stands in up to three keys, or follows from the width. */
static enum status read_head_dim(const struct gguf *gguf, struct model_shape *shape,
                                 struct text *why)
{
    static const struct integer_rule rules[] = {
        {"llama.attention.key_length", 1, MODEL_HEAD_DIM_MAX, true},
        {"llama.attention.value_length", 1, MODEL_HEAD_DIM_MAX, true},
        {"llama.rope.dimension_count", 1, MODEL_HEAD_DIM_MAX, true},
    };
    uint32_t key_length = 0;
    enum status status = read_integer(gguf, &rules[0], &key_length, why);
    if (status != STATUS_OK)
        return status;
    if (key_length == 0 && shape->width % shape->heads != 0) {
        text_set(why, "a width of %" PRIu32 " cannot be divided by %" PRIu32 " heads", shape->width,
                 shape->heads);
        return STATUS_BAD_FILE;
    }
    shape->head_dim = key_length != 0 ? key_length : shape->width / shape->heads;
    if (shape->head_dim % MODEL_HEAD_DIM_MULTIPLE != 0 || shape->head_dim > MODEL_HEAD_DIM_MAX) {
        text_set(why,
                 "heads of %" PRIu32 " dimensions are not supported: a multiple of %d up to %d is",
                 shape->head_dim, MODEL_HEAD_DIM_MULTIPLE, MODEL_HEAD_DIM_MAX);
        return STATUS_UNSUPPORTED;
    }
    for (size_t i = 1; i < sizeof rules / sizeof rules[0]; i++) {
        uint32_t value = shape->head_dim;
        status = read_integer(gguf, &rules[i], &value, why);
        if (status != STATUS_OK)
            return status;
        if (value != shape->head_dim)
            return gguf_refuse(why, STATUS_UNSUPPORTED, "key", string_of(rules[i].key),
                               "holds %" PRIu32 ", only the whole head (%" PRIu32 ") is supported",
                               value, shape->head_dim);
    }
    return STATUS_OK;
}

static enum status read_integers(const struct gguf *gguf, struct model_shape *shape,
                                 struct text *why)
{
    const struct {
        struct integer_rule rule;
        uint32_t *value;
    } rows[] = {
        {{"llama.block_count", 1, MODEL_LAYERS_MAX, false}, &shape->layers},
        {{"llama.embedding_length", 1, MODEL_WIDTH_MAX, false}, &shape->width},
        {{"llama.feed_forward_length", 1, MODEL_FFN_WIDTH_MAX, false}, &shape->ffn_width},
        {{"llama.attention.head_count", 1, MODEL_HEADS_MAX, false}, &shape->heads},
        {{"llama.context_length", MODEL_CONTEXT_MIN, MODEL_CONTEXT_MAX, false}, &shape->context},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum status status = read_integer(gguf, &rows[i].rule, rows[i].value, why);
        if (status != STATUS_OK)
            return status;
    }
    enum status status = read_kv_heads(gguf, shape, why);
    if (status != STATUS_OK)
        return status;
    if (shape->heads % shape->kv_heads != 0) {
        text_set(why, "%" PRIu32 " query heads cannot share %" PRIu32 " key heads evenly",
                 shape->heads, shape->kv_heads);
        return STATUS_BAD_FILE;
    }
    return read_head_dim(gguf, shape, why);
}

static enum status read_float(const struct gguf *gguf, const char *key, double above, double below,
                              double *value, struct text *why)
{
    double read;
    enum status status = gguf_find_float(gguf, key, &read, why);
    if (status != STATUS_OK)
        return status;
    if (!(read > above && read < below))
        return gguf_refuse(why, STATUS_BAD_FILE, "key", string_of(key),
                           "holds %g, expected a number between %g and %g", read, above, below);
    *value = read;
    return STATUS_OK;
}

/* Keys that change the arithmetic in a way that is not built: present and not neutral = refused. */
static enum status refuse_features(const struct gguf *gguf, struct text *why)
{
    static const struct {
        const char *key;
        const char *feature;
    } rows[] = {
        {"llama.expert_count", "mixture of experts"},
        {"llama.attention.sliding_window", "sliding-window attention"},
        {"llama.attention.clamp_kqv", "clamped projections"},
        {"llama.attention.logit_softcapping", "soft-capped attention"},
        {"llama.final_logit_softcapping", "soft-capped logits"},
        {"llama.embedding_scale", "scaled embeddings"},
        {"llama.residual_scale", "scaled residuals"},
        {"llama.attention.scale", "its own attention scale"},
        {"llama.logit_scale", "scaled logits"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        enum gguf_value_type type;
        uint64_t integer;
        if (!gguf_has(gguf, rows[i].key, &type))
            continue;
        if (gguf_find_integer(gguf, rows[i].key, UINT64_MAX, &integer, NULL) == STATUS_OK &&
            integer == 0)
            continue;
        return gguf_refuse(why, STATUS_UNSUPPORTED, "key", string_of(rows[i].key),
                           "asks for %s, which is not supported", rows[i].feature);
    }
    return STATUS_OK;
}

static enum status read_rope_tensor(const struct gguf *gguf, struct model_shape *shape,
                                    struct text *why)
{
    const struct gguf_tensor *tensor = gguf_find_tensor(gguf, ROPE_FACTORS);
    if (tensor == NULL)
        return STATUS_OK;
    struct gguf_string name = string_of(tensor->name);
    if (tensor->type != GGUF_TENSOR_F32 || tensor->dimensions != 1 ||
        tensor->extent[0] != shape->head_dim / 2)
        return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name, "is no vector of %" PRIu32 " F32",
                           shape->head_dim / 2);
    const uint8_t *bytes = gguf_tensor_bytes(gguf, tensor);
    for (uint32_t i = 0; i < shape->head_dim / 2; i++) {
        float factor;
        memcpy(&factor, bytes + i * sizeof factor, sizeof factor);
        if (!(factor > 0 && factor <= 65536))
            return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name,
                               "holds %g at index %" PRIu32 ", expected a divisor up to 65536",
                               (double)factor, i);
        shape->rope_factor[i] = factor;
    }
    return STATUS_OK;
}

static enum status read_rope(const struct gguf *gguf, struct model_shape *shape, struct text *why)
{
    static const char scaling_key[] = "llama.rope.scaling.type";
    shape->rope_base = 10000; /* the default of the format */
    enum status status = read_float(gguf, "llama.rope.freq_base", 1, 1e12, &shape->rope_base, why);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    struct gguf_string scaling = string_of("none");
    status = gguf_find_string(gguf, scaling_key, &scaling, why);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    double factor = 1;
    if (gguf_string_equal(scaling, "linear")) {
        status = read_float(gguf, "llama.rope.scaling.factor", 0, 65536, &factor, why);
        if (status != STATUS_OK)
            return status == STATUS_NOT_FOUND ? STATUS_BAD_FILE : status;
    } else if (!gguf_string_equal(scaling, "none") &&
               !(gguf_string_equal(scaling, "llama3") &&
                 gguf_find_tensor(gguf, ROPE_FACTORS) != NULL)) {
        gguf_refuse(why, STATUS_UNSUPPORTED, "key", string_of(scaling_key), "holds ");
        text_append_quoted(why, scaling.bytes, scaling.length, 32);
        text_format(why,
                    ": none, linear and llama3 with the tensor rope_freqs.weight are supported");
        return STATUS_UNSUPPORTED;
    }
    for (uint32_t i = 0; i < MODEL_HEAD_DIM_MAX / 2; i++)
        shape->rope_factor[i] = i < shape->head_dim / 2 ? (float)factor : 1;
    return read_rope_tensor(gguf, shape, why);
}

/* Rows of the embedding, which must hold at least the tokenizer's tokens. */
static enum status read_vocabulary(const struct gguf *gguf, struct model_shape *shape,
                                   struct text *why)
{
    static const char tokens_key[] = "tokenizer.ggml.tokens";
    const struct gguf_tensor *embedding = gguf_find_tensor(gguf, EMBEDDING);
    if (embedding == NULL)
        return gguf_refuse(why, STATUS_BAD_FILE, "tensor", string_of(EMBEDDING), "is missing");
    if (embedding->extent[1] > MODEL_VOCABULARY_MAX)
        return gguf_refuse(why, STATUS_UNSUPPORTED, "tensor", string_of(embedding->name),
                           "has %" PRIu64 " rows; a vocabulary of up to %d is supported",
                           embedding->extent[1], MODEL_VOCABULARY_MAX);
    shape->vocabulary = (uint32_t)embedding->extent[1];
    struct gguf_array tokens;
    enum status status = gguf_find_array(gguf, tokens_key, GGUF_VALUE_STRING, &tokens, why);
    if (status != STATUS_OK)
        return status == STATUS_NOT_FOUND ? STATUS_BAD_FILE : status;
    if (tokens.remaining == 0 || tokens.remaining > shape->vocabulary)
        return gguf_refuse(why, STATUS_BAD_FILE, "key", string_of(tokens_key),
                           "has %" PRIu64 " tokens, expected 1 to the %" PRIu32
                           " rows of the embedding",
                           tokens.remaining, shape->vocabulary);
    shape->tokens = (uint32_t)tokens.remaining;
    return STATUS_OK;
}

enum status model_keys_read(const struct gguf *gguf, struct model_shape *out_shape,
                            struct text *why)
{
    static const char architecture_key[] = "general.architecture";
    struct model_shape shape;
    memset(&shape, 0, sizeof shape);
    struct gguf_string architecture;
    enum status status = gguf_find_string(gguf, architecture_key, &architecture, why);
    if (status != STATUS_OK)
        return STATUS_BAD_FILE;
    if (!gguf_string_equal(architecture, "llama")) {
        text_set(why, "the architecture is ");
        text_append_quoted(why, architecture.bytes, architecture.length, 32);
        text_format(why, "; only \"llama\" is supported");
        return STATUS_UNSUPPORTED;
    }
    double epsilon = 0;
    status = refuse_features(gguf, why);
    if (status == STATUS_OK)
        status = read_integers(gguf, &shape, why);
    if (status == STATUS_OK)
        status = read_float(gguf, "llama.attention.layer_norm_rms_epsilon", 0, 1, &epsilon, why);
    if (status == STATUS_OK)
        status = read_rope(gguf, &shape, why);
    if (status == STATUS_OK)
        status = read_vocabulary(gguf, &shape, why);
    if (status != STATUS_OK)
        return status == STATUS_NOT_FOUND ? STATUS_BAD_FILE : status;
    shape.norm_epsilon = (float)epsilon;
    *out_shape = shape;
    return STATUS_OK;
}
