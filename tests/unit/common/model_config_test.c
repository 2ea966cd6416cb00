#include "common/model_config.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

#define SIZES                                                                                      \
    "\"model_type\":\"llama\",\"vocab_size\":1000,\"hidden_size\":512,"                            \
    "\"intermediate_size\":1536,\"num_hidden_layers\":3,\"num_attention_heads\":8"

static enum status read_both(const char *config, const char *generation,
                             struct model_config *out_config, struct reason *reason)
{
    const struct model_config_source source = {
        .config = config,
        .config_bytes = strlen(config),
        .generation = generation,
        .generation_bytes = generation != NULL ? strlen(generation) : 0,
    };
    return model_config_read(&source, out_config, reason_init(reason));
}

static struct model_config config_of(const char *config, const char *generation)
{
    struct model_config read;
    struct reason reason;
    if (read_both(config, generation, &read, &reason) != STATUS_OK)
        fail_msg("%s", reason.storage);
    return read;
}

static void reads_every_number(void **state)
{
    (void)state;
    struct model_config config =
        config_of("{" SIZES ",\"architectures\":[\"LlamaForCausalLM\"],\"num_key_value_heads\":2,"
                  "\"head_dim\":128,\"max_position_embeddings\":131072,\"rms_norm_eps\":1e-05,"
                  "\"hidden_act\":\"silu\",\"attention_bias\":false,\"mlp_bias\":false,"
                  "\"tie_word_embeddings\":true,\"dtype\":\"bfloat16\",\"sliding_window\":null,"
                  "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":500000.0},"
                  "\"something_unknown\":{\"deep\":[1,2]}}",
                  NULL);
    const struct model_shape *shape = &config.shape;
    assert_int_equal(shape->vocabulary, 1000);
    assert_int_equal(shape->tokens, 1000);
    assert_int_equal(shape->width, 512);
    assert_int_equal(shape->ffn_width, 1536);
    assert_int_equal(shape->layers, 3);
    assert_int_equal(shape->heads, 8);
    assert_int_equal(shape->kv_heads, 2);
    assert_int_equal(shape->head_dim, 128);
    assert_int_equal(shape->context, 131072);
    assert_true(shape->norm_epsilon == 1e-5F);
    assert_true(shape->rope_base == 500000);
    assert_true(shape->tied_output);
    assert_int_equal(config.end_token_count, 0);
    for (uint32_t i = 0; i < MODEL_HEAD_DIM_MAX / 2; i++)
        assert_true(shape->rope_factor[i] == 1);
}

/* What transformers takes where a key is absent or null. */
static void absent_keys_have_the_defaults_of_llama(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "{" SIZES "}",
        "{" SIZES ",\"num_key_value_heads\":null,\"head_dim\":null,\"rope_scaling\":null,"
        "\"rope_parameters\":null,\"eos_token_id\":null,\"torch_dtype\":null}",
    };
    for (size_t i = 0; i < 2; i++) {
        struct model_config config = config_of(texts[i], NULL);
        assert_int_equal(config.shape.kv_heads, 8);
        assert_int_equal(config.shape.head_dim, 64);
        assert_int_equal(config.shape.context, 2048);
        assert_true(config.shape.norm_epsilon == 1e-6F);
        assert_true(config.shape.rope_base == 10000);
        assert_false(config.shape.tied_output);
        assert_int_equal(config.end_token_count, 0);
    }
}

/* transformers 4 and 5 spell the same rotation. */
static void both_spellings_of_a_rotation_are_the_same(void **state)
{
    (void)state;
#define SCALING                                                                                    \
    "\"factor\":32.0,\"low_freq_factor\":1.0,\"high_freq_factor\":4.0,"                            \
    "\"original_max_position_embeddings\":8192"
    static const char *const texts[] = {
        "{" SIZES ",\"rope_theta\":500000.0,\"rope_scaling\":{\"rope_type\":\"llama3\"," SCALING
        "}}",
        "{" SIZES ",\"rope_parameters\":{\"rope_theta\":500000.0,\"rope_type\":\"llama3\"," SCALING
        "}}",
        "{" SIZES ",\"rope_theta\":500000,\"rope_scaling\":{\"type\":\"llama3\"," SCALING "}}",
        "{" SIZES ",\"rope_theta\":10000.0,\"rope_parameters\":{\"rope_theta\":500000.0,"
        "\"rope_type\":\"llama3\"," SCALING "}}",
    };
    struct model_config first = config_of(texts[0], NULL);
    for (size_t i = 1; i < sizeof texts / sizeof texts[0]; i++) {
        struct model_config other = config_of(texts[i], NULL);
        assert_memory_equal(&first.shape, &other.shape, sizeof first.shape);
    }
    /* By hand for 64 dimensions: short waves stay, long ones are stretched 32 times, those between
     * 2,048 and 8,192 positions are blended. */
    const float *factor = first.shape.rope_factor;
    assert_true(factor[0] == 1 && factor[14] == 1);
    assert_true(factor[18] == 32 && factor[31] == 32);
    double wavelength = 2 * 3.14159265358979323846 * pow(500000, 2.0 * 16 / 64);
    double share = (8192 / wavelength - 1) / 3;
    assert_true(wavelength > 2048 && wavelength < 8192);
    assert_true(fabs(factor[16] - 1 / ((1 - share) / 32 + share)) < 1e-5);
    struct model_config linear =
        config_of("{" SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":4}}", NULL);
    assert_true(linear.shape.rope_factor[0] == 4 && linear.shape.rope_factor[31] == 4 &&
                linear.shape.rope_factor[32] == 1);
}

static void end_tokens_of_both_files_are_united(void **state)
{
    (void)state;
    struct model_config config =
        config_of("{" SIZES ",\"eos_token_id\":[7,3,7]}", "{\"eos_token_id\":[3,9]}");
    static const uint32_t expected[] = {7, 3, 9};
    assert_int_equal(config.end_token_count, 3);
    assert_memory_equal(config.end_tokens, expected, sizeof expected);
    config = config_of("{" SIZES ",\"eos_token_id\":5}", "{\"do_sample\":true}");
    assert_true(config.end_token_count == 1 && config.end_tokens[0] == 5);
    config = config_of("{" SIZES "}", "{\"eos_token_id\":0}");
    assert_true(config.end_token_count == 1 && config.end_tokens[0] == 0);
}

/* clang-format off */
static const struct {
    const char *config, *generation;
    enum status status;
    const char *says;
} DEFECTS[] = {
    {"", NULL, STATUS_BAD_FILE, "config.json: no valid JSON"},
    {"[]", NULL, STATUS_BAD_FILE, "config.json: is no JSON object"},
    {"{}", NULL, STATUS_BAD_FILE, "config.json: key \"model_type\" is missing"},
    {"{\"model_type\":\"qwen2\"}", NULL, STATUS_UNSUPPORTED, "\"model_type\" holds \"qwen2\"; only \"llama\" is supported"},
    {"{" SIZES ",\"architectures\":[\"LlamaForSequenceClassification\"]}", NULL, STATUS_UNSUPPORTED, "does not list \"LlamaForCausalLM\""},
    {"{" SIZES ",\"architectures\":[]}", NULL, STATUS_UNSUPPORTED, "does not list"},
    {"{" SIZES ",\"attention_bias\":true}", NULL, STATUS_UNSUPPORTED, "\"attention_bias\" asks for biases"},
    {"{" SIZES ",\"mlp_bias\":true}", NULL, STATUS_UNSUPPORTED, "\"mlp_bias\" asks for biases"},
    {"{" SIZES ",\"mlp_bias\":1}", NULL, STATUS_BAD_FILE, "\"mlp_bias\" is an integer, expected true or false"},
    {"{" SIZES ",\"hidden_act\":\"gelu\"}", NULL, STATUS_UNSUPPORTED, "\"hidden_act\" holds \"gelu\"; only \"silu\""},
    {"{" SIZES ",\"sliding_window\":4096}", NULL, STATUS_UNSUPPORTED, "\"sliding_window\" asks for sliding-window attention"},
    {"{" SIZES ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]}", NULL, STATUS_UNSUPPORTED, "\"layer_types\" holds \"sliding_attention\""},
    {"{" SIZES ",\"layer_types\":[7]}", NULL, STATUS_UNSUPPORTED, "only \"full_attention\" is supported"},
    {"{" SIZES ",\"architectures\":[7]}", NULL, STATUS_UNSUPPORTED, "does not list"},
    {"{" SIZES ",\"rope_parameters\":{\"sliding_attention\":{}}}", NULL, STATUS_UNSUPPORTED, "differs between layers"},
    {"{" SIZES ",\"rope_parameters\":{\"rope_type\":7}}", NULL, STATUS_BAD_FILE, "\"rope_type\" is an integer, expected a string"},
    {"{" SIZES ",\"quantization_config\":{\"bits\":4}}", NULL, STATUS_UNSUPPORTED, "asks for quantized weights"},
    {"{" SIZES ",\"num_local_experts\":8}", NULL, STATUS_UNSUPPORTED, "mixture of experts"},
    {"{" SIZES ",\"torch_dtype\":\"float8_e4m3fn\"}", NULL, STATUS_UNSUPPORTED, "\"torch_dtype\" holds \"float8_e4m3fn\""},
    {"{" SIZES ",\"dtype\":\"int8\"}", NULL, STATUS_UNSUPPORTED, "\"dtype\" holds \"int8\""},
    {"{" SIZES ",\"partial_rotary_factor\":0.5}", NULL, STATUS_UNSUPPORTED, "\"partial_rotary_factor\" holds 0.5"},
    {"{" SIZES ",\"rope_parameters\":{\"partial_rotary_factor\":0.25}}", NULL, STATUS_UNSUPPORTED, "only the whole head is rotated"},
    {"{" SIZES ",\"rope_parameters\":{\"rope_type\":\"default\"},\"rope_scaling\":{\"type\":\"linear\"}}", NULL, STATUS_BAD_FILE, "stands beside rope_parameters"},
    {"{" SIZES ",\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"default\"}}}", NULL, STATUS_UNSUPPORTED, "differs between layers"},
    {"{" SIZES ",\"rope_parameters\":[]}", NULL, STATUS_BAD_FILE, "\"rope_parameters\" is an array, expected an object"},
    {"{" SIZES ",\"rope_scaling\":{\"rope_type\":\"yarn\",\"factor\":4}}", NULL, STATUS_UNSUPPORTED, "\"rope_type\" holds \"yarn\"; \"default\", \"linear\" and \"llama3\" are supported"},
    {"{" SIZES ",\"rope_scaling\":{\"type\":\"dynamic\",\"factor\":4}}", NULL, STATUS_UNSUPPORTED, "\"type\" holds \"dynamic\""},
    {"{" SIZES ",\"rope_scaling\":{\"type\":\"linear\"}}", NULL, STATUS_BAD_FILE, "\"factor\" is missing"},
    {"{" SIZES ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":0}}", NULL, STATUS_BAD_FILE, "\"factor\" holds 0, expected 1 to 65536"},
    {"{" SIZES ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":4,\"high_freq_factor\":4,\"original_max_position_embeddings\":8192}}", NULL, STATUS_BAD_FILE, "\"high_freq_factor\" holds 4, expected more than low_freq_factor, 4"},
    {"{" SIZES ",\"rope_scaling\":{\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4}}", NULL, STATUS_BAD_FILE, "\"original_max_position_embeddings\" is missing"},
    {"{" SIZES ",\"rope_theta\":0}", NULL, STATUS_BAD_FILE, "\"rope_theta\" holds 0, expected 1 to 1e+12"},
    {"{" SIZES ",\"num_key_value_heads\":3}", NULL, STATUS_BAD_FILE, "\"num_key_value_heads\" holds 3, which 8 query heads cannot share evenly"},
    {"{" SIZES ",\"num_key_value_heads\":0}", NULL, STATUS_BAD_FILE, "holds 0, expected 1 to 1024"},
    {"{" SIZES ",\"head_dim\":60}", NULL, STATUS_UNSUPPORTED, "\"head_dim\" is 60: a multiple of 8 up to 256"},
    {"{" SIZES ",\"head_dim\":264}", NULL, STATUS_UNSUPPORTED, "\"head_dim\" is 264"},
    {"{" SIZES ",\"max_position_embeddings\":1}", NULL, STATUS_BAD_FILE, "holds 1, expected 2 to 16777216"},
    {"{" SIZES ",\"layer_types\":\"sliding_attention\"}", NULL, STATUS_BAD_FILE, "\"layer_types\" is no array of names"},
    {"{" SIZES ",\"rope_scaling\":{\"factor\":4}}", NULL, STATUS_BAD_FILE, "\"rope_type\" is missing beside \"factor\""},
    {"{" SIZES ",\"rms_norm_eps\":0}", NULL, STATUS_BAD_FILE, "\"rms_norm_eps\" holds 0"},
    {"{" SIZES ",\"rms_norm_eps\":2}", NULL, STATUS_BAD_FILE, "\"rms_norm_eps\" holds 2"},
    {"{" SIZES ",\"tie_word_embeddings\":\"yes\"}", NULL, STATUS_BAD_FILE, "expected true or false"},
    {"{" SIZES ",\"eos_token_id\":1000}", NULL, STATUS_BAD_FILE, "config.json: key \"eos_token_id\" holds what is no token id below 1000"},
    {"{" SIZES ",\"eos_token_id\":[1,-1]}", NULL, STATUS_BAD_FILE, "no token id below 1000"},
    {"{" SIZES ",\"eos_token_id\":\"2\"}", NULL, STATUS_BAD_FILE, "no token id below 1000"},
    {"{" SIZES ",\"eos_token_id\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]}", NULL, STATUS_TOO_LARGE, "more than 16 end tokens"},
    {"{" SIZES "}", "{\"eos_token_id\":1000}", STATUS_BAD_FILE, "generation_config.json: key \"eos_token_id\""},
    {"{" SIZES "}", "x", STATUS_BAD_FILE, "generation_config.json: no valid JSON"},
    {"{\"model_type\":\"llama\",\"vocab_size\":1048577}", NULL, STATUS_BAD_FILE, "\"vocab_size\" holds 1048577, expected 1 to 1048576"},
    {"{\"model_type\":\"llama\",\"vocab_size\":100}", NULL, STATUS_BAD_FILE, "\"hidden_size\" is missing"},
    {"{\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":100,\"intermediate_size\":1,\"num_hidden_layers\":1,\"num_attention_heads\":3}", NULL, STATUS_BAD_FILE, "\"hidden_size\" holds 100, which cannot be divided by 3 heads"},
    {"{\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":65537}", NULL, STATUS_BAD_FILE, "\"hidden_size\" holds 65537"},
    {"{\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":64,\"intermediate_size\":1,\"num_hidden_layers\":513}", NULL, STATUS_BAD_FILE, "\"num_hidden_layers\" holds 513, expected 1 to 512"},
};
/* clang-format on */

static void refuses_each_defect_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof DEFECTS / sizeof DEFECTS[0]; i++) {
        struct model_config config;
        struct reason reason;
        enum status status = read_both(DEFECTS[i].config, DEFECTS[i].generation, &config, &reason);
        if (status != DEFECTS[i].status || strstr(reason.storage, DEFECTS[i].says) == NULL)
            fail_msg("case %zu: %s: %s", i, status_text(status), reason.storage);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_number),
        cmocka_unit_test(absent_keys_have_the_defaults_of_llama),
        cmocka_unit_test(both_spellings_of_a_rotation_are_the_same),
        cmocka_unit_test(end_tokens_of_both_files_are_united),
        cmocka_unit_test(refuses_each_defect_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
