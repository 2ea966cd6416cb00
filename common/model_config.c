#include "common/model_config.h"

#include "common/check.h"
#include "common/json_input.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#define CONFIG     "config.json"
#define GENERATION "generation_config.json"

static const double PI = 3.14159265358979323846;

enum { CONTEXT_DEFAULT = 2048, VALUE_SHOWN = 48 };

static enum status refuse_value(const struct json_input *input, const char *key, const char *value,
                                const char *supported, struct text *why)
{
    json_input_refuse(input, STATUS_UNSUPPORTED, key, why, "holds ");
    if (why != NULL)
        text_append_quoted(why, value, strlen(value), VALUE_SHOWN);
    text_format(why, "; %s", supported);
    return STATUS_UNSUPPORTED;
}

/* ---- What is not built ---- */

static enum status check_architecture(const struct json_input *input, struct text *why)
{
    const char *type = NULL;
    enum status status = json_input_string(input, "model_type", &type, why);
    if (status != STATUS_OK)
        return status;
    if (strcmp(type, "llama") != 0)
        return refuse_value(input, "model_type", type, "only \"llama\" is supported", why);
    const json_t *architectures = json_object_get(input->object, "architectures");
    if (!json_input_has(input, "architectures"))
        return STATUS_OK;
    for (size_t i = 0; i < json_array_size(architectures); i++) {
        const char *name = json_string_value(json_array_get(architectures, i));
        if (name != NULL && strcmp(name, "LlamaForCausalLM") == 0)
            return STATUS_OK;
    }
    return json_input_refuse(input, STATUS_UNSUPPORTED, "architectures", why,
                             "does not list \"LlamaForCausalLM\", the only one supported");
}

static enum status check_word(const struct json_input *input, const char *key,
                              const char *const *allowed, const char *supported, struct text *why)
{
    const char *word = NULL;
    enum status status = json_input_string(input, key, &word, why);
    if (status != STATUS_OK)
        return status == STATUS_NOT_FOUND ? STATUS_OK : status;
    for (; *allowed != NULL; allowed++)
        if (strcmp(word, *allowed) == 0)
            return STATUS_OK;
    return refuse_value(input, key, word, supported, why);
}

static enum status refuse_biases(const struct json_input *input, struct text *why)
{
    static const char *const keys[] = {"attention_bias", "mlp_bias"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        bool set = false;
        enum status status = json_input_bool(input, keys[i], &set, why);
        if (status != STATUS_OK && status != STATUS_NOT_FOUND)
            return status;
        if (set)
            return json_input_refuse(input, STATUS_UNSUPPORTED, keys[i], why,
                                     "asks for biases, which are not supported");
    }
    return STATUS_OK;
}

static enum status refuse_layer_types(const struct json_input *input, struct text *why)
{
    static const char key[] = "layer_types";
    const json_t *types = json_object_get(input->object, key);
    if (json_input_has(input, key) && !json_is_array(types))
        return json_input_refuse(input, STATUS_BAD_FILE, key, why, "is no array of names");
    for (size_t i = 0; i < json_array_size(types); i++) {
        const char *type = json_string_value(json_array_get(types, i));
        if (type == NULL || strcmp(type, "full_attention") != 0)
            return refuse_value(input, key, type != NULL ? type : "",
                                "only \"full_attention\" is supported", why);
    }
    return STATUS_OK;
}

/* Of `input`, which is the configuration or its rotation. */
static enum status refuse_partial_rotation(const struct json_input *input, struct text *why)
{
    static const char key[] = "partial_rotary_factor";
    double share = 1;
    enum status status = json_input_number(input, key, 0, 1, &share, why);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    if (share < 1)
        return json_input_refuse(input, STATUS_UNSUPPORTED, key, why,
                                 "holds %g: only the whole head is rotated", share);
    return STATUS_OK;
}

static enum status refuse_features(const struct json_input *input, struct text *why)
{
    static const struct {
        const char *key, *feature;
    } refused[] = {
        {"sliding_window", "sliding-window attention"},
        {"quantization_config", "quantized weights"},
        {"num_local_experts", "mixture of experts"},
    };
    static const char *const activations[] = {"silu", "swish", NULL};
    static const char *const dtypes[] = {"float32", "float16", "bfloat16", "auto", NULL};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; i++)
        if (json_input_has(input, refused[i].key))
            return json_input_refuse(input, STATUS_UNSUPPORTED, refused[i].key, why,
                                     "asks for %s, which is not supported", refused[i].feature);
    enum status status = check_architecture(input, why);
    if (status == STATUS_OK)
        status = refuse_biases(input, why);
    if (status == STATUS_OK)
        status = refuse_layer_types(input, why);
    if (status == STATUS_OK)
        status = refuse_partial_rotation(input, why);
    if (status == STATUS_OK)
        status = check_word(input, "hidden_act", activations, "only \"silu\" is supported", why);
    for (const char *key = "torch_dtype"; status == STATUS_OK && key != NULL;
         key = key[0] == 't' ? "dtype" : NULL)
        status = check_word(input, key, dtypes,
                            "\"float32\", \"float16\" and \"bfloat16\" are supported", why);
    return status;
}

/* ---- Sizes ---- */

struct size_rule {
    const char *key;
    uint64_t minimum, maximum;
    uint32_t *value; /* holds the default; 0: the key must be there */
};

static enum status read_sizes(const struct json_input *input, struct model_shape *shape,
                              struct text *why)
{
    const struct size_rule rules[] = {
        {"vocab_size", 1, MODEL_VOCABULARY_MAX, &shape->vocabulary},
        {"hidden_size", 1, MODEL_WIDTH_MAX, &shape->width},
        {"intermediate_size", 1, MODEL_FFN_WIDTH_MAX, &shape->ffn_width},
        {"num_hidden_layers", 1, MODEL_LAYERS_MAX, &shape->layers},
        {"num_attention_heads", 1, MODEL_HEADS_MAX, &shape->heads},
        {"max_position_embeddings", MODEL_CONTEXT_MIN, MODEL_CONTEXT_MAX, &shape->context},
    };
    shape->context = CONTEXT_DEFAULT;
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        uint64_t value = *rules[i].value;
        enum status status = json_input_integer(input, rules[i].key, rules[i].minimum,
                                                rules[i].maximum, &value, why);
        if (status == STATUS_NOT_FOUND && value != 0)
            status = STATUS_OK;
        if (status != STATUS_OK)
            return status;
        *rules[i].value = (uint32_t)value;
    }
    shape->tokens = shape->vocabulary;
    return STATUS_OK;
}

static enum status read_heads(const struct json_input *input, struct model_shape *shape,
                              struct text *why)
{
    uint64_t kv_heads = shape->heads, head_dim = 0;
    enum status status =
        json_input_integer(input, "num_key_value_heads", 1, MODEL_HEADS_MAX, &kv_heads, why);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    if (shape->heads % kv_heads != 0)
        return json_input_refuse(input, STATUS_BAD_FILE, "num_key_value_heads", why,
                                 "holds %" PRIu64 ", which %" PRIu32
                                 " query heads cannot share evenly",
                                 kv_heads, shape->heads);
    status = json_input_integer(input, "head_dim", 1, MODEL_WIDTH_MAX, &head_dim, why);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    if (head_dim == 0 && shape->width % shape->heads != 0)
        return json_input_refuse(input, STATUS_BAD_FILE, "hidden_size", why,
                                 "holds %" PRIu32 ", which cannot be divided by %" PRIu32 " heads",
                                 shape->width, shape->heads);
    if (head_dim == 0)
        head_dim = shape->width / shape->heads;
    if (head_dim % MODEL_HEAD_DIM_MULTIPLE != 0 || head_dim > MODEL_HEAD_DIM_MAX)
        return json_input_refuse(input, STATUS_UNSUPPORTED, "head_dim", why,
                                 "is %" PRIu64 ": a multiple of %d up to %d is supported", head_dim,
                                 MODEL_HEAD_DIM_MULTIPLE, MODEL_HEAD_DIM_MAX);
    shape->kv_heads = (uint32_t)kv_heads;
    shape->head_dim = (uint32_t)head_dim;
    return STATUS_OK;
}

/* ---- Rotation ---- */

struct llama3_scaling {
    double factor, low, high, original_context;
};

/* Long waves are stretched by `factor`, short ones stay, those in between are blended. */
static double llama3_factor(const struct llama3_scaling *scaling, double frequency)
{
    double wavelength = 2 * PI / frequency;
    if (wavelength < scaling->original_context / scaling->high)
        return 1;
    if (wavelength > scaling->original_context / scaling->low)
        return scaling->factor;
    double share =
        (scaling->original_context / wavelength - scaling->low) / (scaling->high - scaling->low);
    return 1 / ((1 - share) / scaling->factor + share);
}

static enum status read_llama3(const struct json_input *config, const struct json_input *rotation,
                               struct model_shape *shape, struct text *why)
{
    static const char original[] = "original_max_position_embeddings";
    struct llama3_scaling scaling = {0};
    enum status status = json_input_number(rotation, "factor", 1, 65536, &scaling.factor, why);
    if (status == STATUS_OK)
        status = json_input_number(rotation, "low_freq_factor", 1e-3, 65536, &scaling.low, why);
    if (status == STATUS_OK)
        status = json_input_number(rotation, "high_freq_factor", 1e-3, 65536, &scaling.high, why);
    if (status == STATUS_OK)
        status = json_input_number(json_input_has(rotation, original) ? rotation : config, original,
                                   1, MODEL_CONTEXT_MAX, &scaling.original_context, why);
    if (status == STATUS_OK && scaling.high <= scaling.low)
        status = json_input_refuse(rotation, STATUS_BAD_FILE, "high_freq_factor", why,
                                   "holds %g, expected more than low_freq_factor, %g", scaling.high,
                                   scaling.low);
    for (uint32_t i = 0; status == STATUS_OK && i < shape->head_dim / 2; i++)
        shape->rope_factor[i] = (float)llama3_factor(
            &scaling, pow(shape->rope_base, -2.0 * (double)i / (double)shape->head_dim));
    return status;
}

/* The object that describes the rotation: rope_parameters, or rope_scaling, or none. */
static enum status find_rotation(const struct json_input *config, struct json_input *rotation,
                                 struct text *why)
{
    *rotation = (struct json_input){NULL, config->where};
    if (json_input_has(config, "rope_parameters") && json_input_has(config, "rope_scaling"))
        return json_input_refuse(config, STATUS_BAD_FILE, "rope_scaling", why,
                                 "stands beside rope_parameters; give one of them");
    enum status status = json_input_object(config, "rope_parameters", rotation, why);
    if (status == STATUS_NOT_FOUND)
        status = json_input_object(config, "rope_scaling", rotation, why);
    if (status == STATUS_OK && (json_object_get(rotation->object, "full_attention") != NULL ||
                                json_object_get(rotation->object, "sliding_attention") != NULL))
        return json_input_refuse(config, STATUS_UNSUPPORTED, "rope_parameters", why,
                                 "differs between layers, which is not supported");
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

static enum status read_base(const struct json_input *config, const struct json_input *rotation,
                             struct model_shape *shape, struct text *why)
{
    shape->rope_base = 10000;
    bool inside = rotation->object != NULL && json_input_has(rotation, "rope_theta");
    enum status status = json_input_number(inside ? rotation : config, "rope_theta", 1, 1e12,
                                           &shape->rope_base, why);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

static enum status read_scaling(const struct json_input *config, const struct json_input *rotation,
                                struct model_shape *shape, struct text *why)
{
    const bool old_name =
        json_input_has(rotation, "type") && !json_input_has(rotation, "rope_type");
    const char *key = old_name ? "type" : "rope_type", *type = "default";
    enum status status = json_input_string(rotation, key, &type, why);
    if (status == STATUS_NOT_FOUND && json_input_has(rotation, "factor"))
        return json_input_refuse(rotation, STATUS_BAD_FILE, key, why,
                                 "is missing beside \"factor\"");
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    status = refuse_partial_rotation(rotation, why);
    if (status != STATUS_OK || strcmp(type, "default") == 0)
        return status;
    if (strcmp(type, "llama3") == 0)
        return read_llama3(config, rotation, shape, why);
    if (strcmp(type, "linear") != 0)
        return refuse_value(rotation, key, type,
                            "\"default\", \"linear\" and \"llama3\" are supported", why);
    double factor = 1;
    status = json_input_number(rotation, "factor", 1, 65536, &factor, why);
    for (uint32_t i = 0; status == STATUS_OK && i < shape->head_dim / 2; i++)
        shape->rope_factor[i] = (float)factor;
    return status;
}

static enum status read_rotation(const struct json_input *config, struct model_shape *shape,
                                 struct text *why)
{
    struct json_input rotation;
    for (uint32_t i = 0; i < MODEL_HEAD_DIM_MAX / 2; i++)
        shape->rope_factor[i] = 1;
    enum status status = find_rotation(config, &rotation, why);
    if (status == STATUS_OK)
        status = read_base(config, &rotation, shape, why);
    if (status == STATUS_OK && rotation.object != NULL)
        status = read_scaling(config, &rotation, shape, why);
    return status;
}

/* ---- End tokens ---- */

static enum status add_end_token(const struct json_input *input, const json_t *value,
                                 struct model_config *config, struct text *why)
{
    static const char key[] = "eos_token_id";
    json_int_t token = json_integer_value(value);
    if (!json_is_integer(value) || token < 0 || token >= config->shape.vocabulary)
        return json_input_refuse(input, STATUS_BAD_FILE, key, why,
                                 "holds what is no token id below %" PRIu32,
                                 config->shape.vocabulary);
    for (uint32_t i = 0; i < config->end_token_count; i++)
        if (config->end_tokens[i] == (uint32_t)token)
            return STATUS_OK;
    if (config->end_token_count == MODEL_CONFIG_END_TOKENS_MAX)
        return json_input_refuse(input, STATUS_TOO_LARGE, key, why, "makes more than %d end tokens",
                                 MODEL_CONFIG_END_TOKENS_MAX);
    config->end_tokens[config->end_token_count++] = (uint32_t)token;
    return STATUS_OK;
}

/* One id, or an array of them. */
static enum status read_end_tokens(const struct json_input *input, struct model_config *config,
                                   struct text *why)
{
    const json_t *value = json_object_get(input->object, "eos_token_id");
    if (value == NULL || json_is_null(value))
        return STATUS_OK;
    if (!json_is_array(value))
        return add_end_token(input, value, config, why);
    enum status status = STATUS_OK;
    for (size_t i = 0; status == STATUS_OK && i < json_array_size(value); i++)
        status = add_end_token(input, json_array_get(value, i), config, why);
    return status;
}

static enum status read_generation(const struct model_config_source *source,
                                   struct model_config *config, struct text *why)
{
    json_t *root = NULL;
    enum status status =
        json_input_parse(source->generation, source->generation_bytes, GENERATION, &root, why);
    if (status == STATUS_OK)
        status = read_end_tokens(&(struct json_input){root, GENERATION}, config, why);
    json_decref(root);
    return status;
}

/* ---- All of it ---- */

static enum status read_config(const struct json_input *input, struct model_config *config,
                               struct text *why)
{
    struct model_shape *shape = &config->shape;
    double epsilon = 1e-6;
    enum status status = refuse_features(input, why);
    if (status == STATUS_OK)
        status = read_sizes(input, shape, why);
    if (status == STATUS_OK)
        status = read_heads(input, shape, why);
    if (status == STATUS_OK)
        status = read_rotation(input, shape, why);
    if (status == STATUS_OK) {
        status = json_input_number(input, "rms_norm_eps", 1e-30, 1, &epsilon, why);
        status = status == STATUS_NOT_FOUND ? STATUS_OK : status;
        shape->norm_epsilon = (float)epsilon;
    }
    if (status == STATUS_OK) {
        status = json_input_bool(input, "tie_word_embeddings", &shape->tied_output, why);
        status = status == STATUS_NOT_FOUND ? STATUS_OK : status;
    }
    return status == STATUS_OK ? read_end_tokens(input, config, why) : status;
}

enum status model_config_read(const struct model_config_source *source,
                              struct model_config *out_config, struct text *why)
{
    struct model_config config;
    json_t *root = NULL;
    memset(&config, 0, sizeof config);
    enum status status = json_input_parse(source->config, source->config_bytes, CONFIG, &root, why);
    if (status == STATUS_OK)
        status = read_config(&(struct json_input){root, CONFIG}, &config, why);
    json_decref(root);
    if (status == STATUS_OK && source->generation != NULL)
        status = read_generation(source, &config, why);
    if (status != STATUS_OK)
        return status == STATUS_NOT_FOUND ? STATUS_BAD_FILE : status;
    *out_config = config;
    return STATUS_OK;
}
