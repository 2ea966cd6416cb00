#include "common/model_keys.h"

#include "support/tiny_model.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

struct opened {
    uint8_t *file;
    struct gguf *gguf;
};

static struct opened open_builder(struct gguf_builder *builder)
{
    struct opened opened = {0};
    struct reason reason;
    size_t length;
    opened.file = builder_finish(builder, &length);
    if (gguf_open_memory(opened.file, length, &opened.gguf, reason_init(&reason)) != STATUS_OK)
        fail_msg("%s", reason.storage);
    builder_free(builder);
    return opened;
}

static void close_opened(struct opened *opened)
{
    gguf_close(opened->gguf);
    free(opened->file);
}

static struct opened open_tiny(const struct tiny_model *model)
{
    struct gguf_builder builder;
    tiny_model_build(&builder, model);
    return open_builder(&builder);
}

static struct model_shape shape_of(const struct tiny_model *model)
{
    struct opened opened = open_tiny(model);
    struct model_shape shape;
    struct reason reason;
    if (model_keys_read(opened.gguf, &shape, reason_init(&reason)) != STATUS_OK)
        fail_msg("%s", reason.storage);
    close_opened(&opened);
    return shape;
}

static void reads_every_number(void **state)
{
    (void)state;
    struct tiny_model model = TINY_MODEL;
    model.tokens = 300;
    struct model_shape shape = shape_of(&model);
    assert_int_equal(shape.layers, 2);
    assert_int_equal(shape.width, 64);
    assert_int_equal(shape.ffn_width, 128);
    assert_int_equal(shape.heads, 4);
    assert_int_equal(shape.kv_heads, 2);
    assert_int_equal(shape.head_dim, 16);
    assert_int_equal(shape.vocabulary, 320);
    assert_int_equal(shape.tokens, 300);
    assert_int_equal(shape.context, 2176);
    assert_true(shape.norm_epsilon == 1e-5F);
    assert_true(shape.rope_base == 10000);
    for (uint32_t i = 0; i < MODEL_HEAD_DIM_MAX / 2; i++)
        assert_true(shape.rope_factor[i] == 1);
}

static void reads_the_factors_of_the_rotation(void **state)
{
    (void)state;
    struct tiny_model model = TINY_MODEL;
    model.rope_factors = true;
    struct model_shape shape = shape_of(&model);
    bool differ = false;
    for (uint32_t i = 0; i < model.head_dim / 2; i++) {
        assert_true(shape.rope_factor[i] >= 1 && shape.rope_factor[i] <= 8);
        differ = differ || shape.rope_factor[i] != shape.rope_factor[0];
    }
    assert_true(differ);
    struct gguf_builder builder;
    model.rope_factors = false;
    tiny_model_build(&builder, &model);
    builder_string(&builder, "llama.rope.scaling.type", "linear");
    builder_f32(&builder, "llama.rope.scaling.factor", 4);
    struct opened opened = open_builder(&builder);
    assert_int_equal(model_keys_read(opened.gguf, &shape, NULL), STATUS_OK);
    assert_true(shape.rope_factor[0] == 4 && shape.rope_factor[7] == 4 &&
                shape.rope_factor[8] == 1);
    close_opened(&opened);
}

static void accepts_one_number_of_kv_heads_per_layer(void **state)
{
    (void)state;
    for (uint32_t second = 2; second <= 4; second += 2) {
        struct gguf_builder builder;
        struct model_shape shape;
        struct reason reason;
        struct tiny_model model = TINY_MODEL;
        tiny_model_build(&builder, &model);
        /* The key of the builder is renamed in place, so that the array can take its name. */
        const char name[] = "llama.attention.head_count_kv";
        uint8_t *found = memmem(builder.keys.bytes, builder.keys.length, name, sizeof name - 1);
        assert_non_null(found);
        found[0] = 'x';
        builder_array(&builder, name, GGUF_VALUE_U32, 2);
        builder_put_u32(&builder.keys, 2);
        builder_put_u32(&builder.keys, second);
        struct opened opened = open_builder(&builder);
        enum status status = model_keys_read(opened.gguf, &shape, reason_init(&reason));
        assert_int_equal(status, second == 2 ? STATUS_OK : STATUS_UNSUPPORTED);
        if (second != 2)
            assert_non_null(strstr(reason.storage, "differs between layers"));
        close_opened(&opened);
    }
}

/* One defect each: a model, a key to be lost (its name is changed), a key to be added. */
struct defect {
    struct tiny_model model;
    const char *lost;  /* in keys or directory; or NULL */
    const char *added; /* or NULL: a string key ... */
    const char *text;  /* ... with this value, or NULL for the number 3 */
    enum status status;
    const char *says;
};

#define TINY(...)                                                                                  \
    {                                                                                              \
        .layers = 2, .width = 64, .ffn_width = 128, .heads = 4, .kv_heads = 2, .head_dim = 16,     \
        .vocabulary = 320, .context = 64, .type = GGUF_TENSOR_F32, .seed = 1, __VA_ARGS__          \
    }

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored                                                                     \
    "-Woverride-init" /* a case overrides one number of the usual model */
/* clang-format off */
static const struct defect DEFECTS[] = {
    {TINY(.seed = 2), "general.architecture", NULL, NULL, STATUS_BAD_FILE, "\"general.architecture\" is missing"},
    {TINY(.seed = 2), "general.architecture", "general.architecture", "qwen2", STATUS_UNSUPPORTED, "the architecture is \"qwen2\"; only \"llama\""},
    {TINY(.seed = 2), "llama.block_count", NULL, NULL, STATUS_BAD_FILE, "\"llama.block_count\" is missing"},
    {TINY(.seed = 2), "llama.block_count", "llama.block_count", "two", STATUS_BAD_FILE, "is of type string, expected an integer"},
    {TINY(.context = 1), NULL, NULL, NULL, STATUS_BAD_FILE, "\"llama.context_length\" holds 1, expected 2 to"},
    {TINY(.context = (1 << 24) + 1), NULL, NULL, NULL, STATUS_BAD_FILE, "\"llama.context_length\" holds 16777217, expected 0 to 16777216"},
    {TINY(.width = 64), "llama.embedding_length", "llama.embedding_length", NULL, STATUS_BAD_FILE, "a width of 3 cannot be divided by 4 heads"},
    {TINY(.heads = 3, .kv_heads = 2), NULL, NULL, NULL, STATUS_BAD_FILE, "3 query heads cannot share 2 key heads evenly"},
    {TINY(.head_dim = 12), NULL, NULL, NULL, STATUS_UNSUPPORTED, "heads of 12 dimensions are not supported"},
    {TINY(.seed = 2), NULL, "llama.rope.dimension_count", NULL, STATUS_UNSUPPORTED, "\"llama.rope.dimension_count\" holds 3, only the whole head (16) is supported"},
    {TINY(.seed = 2), NULL, "llama.attention.value_length", NULL, STATUS_UNSUPPORTED, "\"llama.attention.value_length\" holds 3"},
    {TINY(.seed = 2), NULL, "llama.expert_count", NULL, STATUS_UNSUPPORTED, "\"llama.expert_count\" asks for mixture of experts"},
    {TINY(.seed = 2), NULL, "llama.attention.sliding_window", NULL, STATUS_UNSUPPORTED, "sliding-window attention"},
    {TINY(.seed = 2), NULL, "llama.rope.scaling.type", "yarn", STATUS_UNSUPPORTED, "holds \"yarn\": none, linear and llama3"},
    {TINY(.seed = 2), NULL, "llama.rope.scaling.type", "llama3", STATUS_UNSUPPORTED, "rope_freqs.weight"},
    {TINY(.seed = 2), NULL, "llama.rope.scaling.type", "linear", STATUS_BAD_FILE, "\"llama.rope.scaling.factor\" is missing"},
    {TINY(.seed = 2), "llama.attention.layer_norm_rms_epsilon", NULL, NULL, STATUS_BAD_FILE, "is missing"},
    {TINY(.seed = 2), "llama.rope.freq_base", "llama.rope.freq_base", NULL, STATUS_BAD_FILE, "is of type u32, expected a float"},
    {TINY(.seed = 2), "tokenizer.ggml.tokens", NULL, NULL, STATUS_BAD_FILE, "\"tokenizer.ggml.tokens\" is missing"},
    {TINY(.tokens = 321), NULL, NULL, NULL, STATUS_BAD_FILE, "has 321 tokens, expected 1 to the 320 rows"},
    {TINY(.seed = 2), "token_embd.weight", NULL, NULL, STATUS_BAD_FILE, "\"token_embd.weight\" is missing"},
    {TINY(.rope_factors = true), NULL, "llama.rope.scaling.type", "llama3", STATUS_OK, ""},
};
/* clang-format on */
#pragma GCC diagnostic pop

/* Changes the first letter of a name where it stands as a whole string. */
static void lose(struct builder_bytes *bytes, const char *name)
{
    struct builder_bytes record = {0};
    builder_put_string(&record, name);
    uint8_t *found = memmem(bytes->bytes, bytes->length, record.bytes, record.length);
    if (found != NULL)
        found[sizeof(uint64_t)] = 'x';
    free(record.bytes);
}

static void refuses_each_defect_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof DEFECTS / sizeof DEFECTS[0]; i++) {
        const struct defect *defect = &DEFECTS[i];
        struct gguf_builder builder;
        struct model_shape shape;
        struct reason reason;
        tiny_model_build(&builder, &defect->model);
        if (defect->lost != NULL) {
            lose(&builder.keys, defect->lost);
            lose(&builder.directory, defect->lost);
        }
        if (defect->text != NULL)
            builder_string(&builder, defect->added, defect->text);
        else if (defect->added != NULL)
            builder_u32(&builder, defect->added, 3);
        struct opened opened = open_builder(&builder);
        enum status status = model_keys_read(opened.gguf, &shape, reason_init(&reason));
        if (status != defect->status || strstr(reason.storage, defect->says) == NULL)
            fail_msg("case %zu: %s: %s", i, status_text(status), reason.storage);
        close_opened(&opened);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_number),
        cmocka_unit_test(reads_the_factors_of_the_rotation),
        cmocka_unit_test(accepts_one_number_of_kv_heads_per_layer),
        cmocka_unit_test(refuses_each_defect_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
