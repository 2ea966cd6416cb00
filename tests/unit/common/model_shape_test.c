#include "common/model_shape.h"

#include "common/model_file.h"
#include "support/directory_builder.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

struct opened {
    uint8_t *file;
    struct model_file *model;
};

static struct opened open_builder(struct gguf_builder *builder)
{
    struct opened opened = {0};
    struct reason reason;
    size_t length;
    opened.file = builder_finish(builder, &length);
    if (model_file_open_memory(opened.file, length, &opened.model, reason_init(&reason)) !=
        STATUS_OK)
        fail_msg("%s", reason.storage);
    builder_free(builder);
    return opened;
}

static void close_opened(struct opened *opened)
{
    model_file_close(opened->model);
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
    if (model_shape_read(opened.model, &shape, reason_init(&reason)) != STATUS_OK)
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
    assert_true(shape.tied_output);
    assert_true(shape.norm_epsilon == 1e-5F);
    assert_true(shape.rope_base == 10000);
    for (uint32_t i = 0; i < MODEL_HEAD_DIM_MAX / 2; i++)
        assert_true(shape.rope_factor[i] == 1);
}

/* S2: the width of K and V follows from the file. */
static void s02_kv_dim_comes_from_the_model(void **state)
{
    (void)state;
    struct tiny_model model = TINY_MODEL;
    model.heads = 9;
    model.kv_heads = 3;
    model.head_dim = 64;
    struct model_shape shape = shape_of(&model);
    struct kv_geometry geometry = model_shape_geometry(&shape, 32, KV_TYPE_F32, KV_ORDER_CPU);
    assert_int_equal(kv_dim(&geometry), 192);
    assert_int_equal(geometry.layers, 2);
    assert_int_equal(geometry.block_tokens, 32);
    assert_int_equal(geometry.type, KV_TYPE_F32);
    assert_int_equal(geometry.order, KV_ORDER_CPU);
    /* S3, S4: V follows K, the block holds both of one layer. */
    assert_int_equal(kv_v_offset(&geometry), 32 * 192 * 4);
    assert_int_equal(kv_block_bytes(&geometry), 2 * 32 * 192 * 4);
}

static void finds_tensors_by_role(void **state)
{
    (void)state;
    struct opened opened = open_tiny(&TINY_MODEL);
    assert_string_equal(model_file_find(opened.model, MODEL_TENSOR_FFN_DOWN, 1)->name,
                        "blk.1.ffn_down.weight");
    assert_null(model_file_find(opened.model, MODEL_TENSOR_FFN_DOWN, 2));
    assert_null(model_file_find(opened.model, MODEL_TENSOR_OUTPUT, 0));
    close_opened(&opened);
}

static bool same_hash(const struct model_shape *a, const struct model_shape *b)
{
    return id128_equal(&a->metadata_hash, &b->metadata_hash);
}

static struct model_shape shape_with(const struct tiny_model *model, const char *key,
                                     const char *value)
{
    struct gguf_builder builder;
    struct model_shape shape;
    tiny_model_build(&builder, model);
    builder_string(&builder, key, value);
    struct opened opened = open_builder(&builder);
    assert_int_equal(model_shape_read(opened.model, &shape, NULL), STATUS_OK);
    close_opened(&opened);
    return shape;
}

static void the_hash_covers_shape_vocabulary_and_directory(void **state)
{
    (void)state;
    struct model_shape base = shape_of(&TINY_MODEL), other;
    struct tiny_model model = TINY_MODEL;
    model.seed = 99; /* other weights: the tensor hash tells, not this one */
    other = shape_of(&model);
    assert_true(same_hash(&base, &other));
    other = shape_with(&TINY_MODEL, "general.name", "somebody");
    assert_true(same_hash(&base, &other));
    other = shape_with(&TINY_MODEL, "tokenizer.ggml.pre", "smollm");
    assert_false(same_hash(&base, &other));
    model = TINY_MODEL;
    model.type = GGUF_TENSOR_F16;
    other = shape_of(&model);
    assert_false(same_hash(&base, &other));
    model = TINY_MODEL;
    model.context--;
    other = shape_of(&model);
    assert_false(same_hash(&base, &other));
    model = TINY_MODEL;
    model.tokens = model.vocabulary - 1;
    other = shape_of(&model);
    assert_false(same_hash(&base, &other));
    struct gguf_builder builder;
    tiny_model_build(&builder, &TINY_MODEL);
    uint8_t *token = memmem(builder.keys.bytes, builder.keys.length, "t17", 3);
    assert_non_null(token);
    token[0] = 'u';
    struct opened opened = open_builder(&builder);
    assert_int_equal(model_shape_read(opened.model, &other, NULL), STATUS_OK);
    assert_false(same_hash(&base, &other));
    close_opened(&opened);
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
    {TINY(.seed = 2), "general.architecture", "general.architecture", "qwen2", STATUS_UNSUPPORTED, "the architecture is \"qwen2\"; only \"llama\""},
    {TINY(.layers = 2), "llama.block_count", "llama.block_count", NULL, STATUS_BAD_FILE, "\"blk.2.attn_norm.weight\" is missing"},
    {TINY(.layers = 4), "llama.block_count", "llama.block_count", NULL, STATUS_UNSUPPORTED, "\"blk.3.attn_norm.weight\" is none that a llama model of 3 layers has"},
    {TINY(.width = 64), "llama.feed_forward_length", "llama.feed_forward_length", NULL, STATUS_BAD_FILE, "\"blk.0.ffn_gate.weight\" has the extents 64 x 128 x 1 x 1, expected 64 x 3"},
    {TINY(.seed = 2), "blk.1.attn_k.weight", NULL, NULL, STATUS_BAD_FILE, "\"blk.1.attn_k.weight\" is missing"},
    {TINY(.untied = true), "output.weight", NULL, NULL, STATUS_UNSUPPORTED, "\"xutput.weight\" is none"},
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
        enum status status = model_shape_read(opened.model, &shape, reason_init(&reason));
        if (status != defect->status || strstr(reason.storage, defect->says) == NULL)
            fail_msg("case %zu: %s: %s", i, status_text(status), reason.storage);
        close_opened(&opened);
    }
}

/* Types of tensors that are read but not computed with, and shapes that only a look at the tensor
 * shows. */
static void refuses_tensors_of_another_type_or_shape(void **state)
{
    (void)state;
    static const uint8_t zeros[64 * 320 * 4];
    const struct {
        const char *name;
        uint32_t type;
        uint64_t columns, rows;
        enum status status;
        const char *says;
    } cases[] = {
        {"output.weight", 14, 256, 1, STATUS_UNSUPPORTED,
         "is of type Q6_K, which is not supported"},
        {"output.weight", GGUF_TENSOR_F32, 64, 319, STATUS_BAD_FILE,
         "64 x 319 x 1 x 1, expected 64 x 320"},
        {"output.weight", GGUF_TENSOR_F32, 63, 320, STATUS_BAD_FILE, "63 x 320"},
        {"rope_freqs.weight", GGUF_TENSOR_F32, 9, 0, STATUS_BAD_FILE, "is no vector of 8 F32"},
        {"rope_freqs.weight", GGUF_TENSOR_F32, 8, 0, STATUS_BAD_FILE, "holds 0 at index 0"},
        {"rope_freqs.weight", GGUF_TENSOR_F16, 8, 0, STATUS_BAD_FILE, "is no vector of 8 F32"},
        {"blk.0.attn_q.bias", GGUF_TENSOR_F32, 64, 0, STATUS_UNSUPPORTED,
         "\"blk.0.attn_q.bias\" is none"},
        {"blk.00.attn_q.weight", GGUF_TENSOR_F32, 64, 64, STATUS_UNSUPPORTED, "is none"},
        {"blk.x.attn_q.weight", GGUF_TENSOR_F32, 64, 64, STATUS_UNSUPPORTED, "is none"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct gguf_builder builder;
        struct model_shape shape;
        struct reason reason;
        tiny_model_build(&builder, &TINY_MODEL);
        builder_tensor(&builder, cases[i].name, cases[i].type, cases[i].columns, cases[i].rows,
                       zeros);
        struct opened opened = open_builder(&builder);
        enum status status = model_shape_read(opened.model, &shape, reason_init(&reason));
        if (status != cases[i].status || strstr(reason.storage, cases[i].says) == NULL)
            fail_msg("case %zu: %s: %s", i, status_text(status), reason.storage);
        close_opened(&opened);
    }
}

/* ---- Directories ---- */

struct change {
    const char *more;  /* keys of config.json behind the usual ones */
    const char *lost;  /* in the header of the tensors: its first letter is changed; or NULL */
    const char *added; /* name of a tensor that is added, of `type`, `rows` and `columns` */
    const char *type;
    uint64_t rows, columns;
    enum status status;
    const char *says;
};

static enum status read_directory(const struct tiny_model *model, const struct change *change,
                                  struct model_shape *out_shape, struct reason *reason)
{
    static const uint8_t zeros[64 * 320 * 4];
    struct directory_builder builder;
    struct model_file *file = NULL;
    char config[TINY_CONFIG_BYTES];
    size_t length;
    tiny_config(model, change->more, config);
    tiny_directory_build(&builder, model);
    if (change->added != NULL)
        directory_tensor(&builder, change->added, change->type, change->rows, change->columns,
                         zeros);
    uint8_t *bytes = directory_finish(&builder, &length);
    if (change->lost != NULL) {
        uint8_t *found = memmem(bytes, length, change->lost, strlen(change->lost));
        assert_non_null(found);
        found[0] = 'x';
    }
    const struct model_file_parts parts = {
        .config = {.config = config, .config_bytes = strlen(config)},
        .tensors = bytes,
        .tensors_bytes = length,
    };
    enum status status = model_file_open_parts(&parts, &file, reason_init(reason));
    if (status == STATUS_OK)
        status = model_shape_read(file, out_shape, &reason->text);
    model_file_close(file);
    directory_free(&builder);
    free(bytes);
    return status;
}

/* A directory and a GGUF file of one model differ in names and hash alone. */
static void a_directory_has_the_shape_of_the_file(void **state)
{
    (void)state;
    const struct change none = {.more = ""};
    for (int untied = 0; untied < 2; untied++) {
        struct tiny_model model = TINY_MODEL;
        model.untied = untied;
        struct model_shape file = shape_of(&model), directory;
        struct reason reason;
        memset(&directory, 0, sizeof directory);
        if (read_directory(&model, &none, &directory, &reason) != STATUS_OK)
            fail_msg("%s", reason.storage);
        assert_false(same_hash(&file, &directory));
        directory.metadata_hash = file.metadata_hash;
        assert_memory_equal(&file, &directory, sizeof file);
    }
}

static void the_hash_covers_the_end_tokens(void **state)
{
    (void)state;
    const struct change none = {.more = ""}, more = {.more = "\"bos_token_id\":1", .added = NULL};
    struct model_shape base, same;
    struct reason reason;
    assert_int_equal(read_directory(&TINY_MODEL, &none, &base, &reason), STATUS_OK);
    assert_int_equal(read_directory(&TINY_MODEL, &more, &same, &reason), STATUS_OK);
    assert_true(same_hash(&base, &same));
    const char generation[] = "{\"eos_token_id\":3}";
    char config[TINY_CONFIG_BYTES];
    size_t length;
    struct model_file *file = NULL;
    uint8_t *bytes = tiny_directory_tensors(&TINY_MODEL, &length);
    tiny_config(&TINY_MODEL, "", config);
    const struct model_file_parts parts = {
        .config = {config, strlen(config), generation, sizeof generation - 1},
        .tensors = bytes,
        .tensors_bytes = length,
    };
    assert_int_equal(model_file_open_parts(&parts, &file, NULL), STATUS_OK);
    assert_int_equal(model_shape_read(file, &same, NULL), STATUS_OK);
    assert_false(same_hash(&base, &same));
    model_file_close(file);
    free(bytes);
}

static void refuses_directories_by_name(void **state)
{
    (void)state;
    /* clang-format off */
    static const struct change cases[] = {
        {"", "model.layers.1.mlp.up_proj", NULL, NULL, 0, 0, STATUS_BAD_FILE, "\"model.layers.1.mlp.up_proj.weight\" is missing"},
        {"", "model.embed_tokens.weight", NULL, NULL, 0, 0, STATUS_BAD_FILE, "\"model.embed_tokens.weight\" is missing"},
        {"", "model.norm.weight", NULL, NULL, 0, 0, STATUS_BAD_FILE, "\"model.norm.weight\" is missing"},
        {"", NULL, "model.layers.0.self_attn.q_proj.bias", "F32", 0, 64, STATUS_UNSUPPORTED, "\"model.layers.0.self_attn.q_proj.bias\" is none that a llama model of 2 layers has"},
        {"", NULL, "model.layers.2.mlp.up_proj.weight", "F32", 128, 64, STATUS_UNSUPPORTED, "is none that a llama model of 2 layers has"},
        {"", NULL, "lm_head.weight", "F32", 320, 64, STATUS_BAD_FILE, "\"lm_head.weight\" differs from \"model.embed_tokens.weight\", although config.json sets tie_word_embeddings"},
        {"", NULL, "lm_head.weight", "F16", 320, 64, STATUS_BAD_FILE, "differs from"},
        {"", NULL, "lm_head.weight", "F32", 319, 64, STATUS_BAD_FILE, "has the extents 64 x 319 x 1 x 1, expected 64 x 320"},
        {"", NULL, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 0, 8, STATUS_OK, ""},
        {"", NULL, "model.layers.0.self_attn.rotary_emb.inv_freq", "F32", 0, 9, STATUS_BAD_FILE, "has the extents 9"},
        {"", NULL, "model.layers.0.self_attn.rotary_emb.inv_freq", "I16", 0, 8, STATUS_UNSUPPORTED, "is of type I16, which is not supported here; use F32, F16 or BF16"},
    };
    /* clang-format on */
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct model_shape shape;
        struct reason reason;
        enum status status = read_directory(&TINY_MODEL, &cases[i], &shape, &reason);
        if (status != cases[i].status || strstr(reason.storage, cases[i].says) == NULL)
            fail_msg("case %zu: %s: %s", i, status_text(status), reason.storage);
    }
    struct tiny_model untied = TINY_MODEL;
    struct model_shape shape;
    struct reason reason;
    untied.untied = true;
    const struct change lost = {.more = "", .lost = "lm_head.weight"};
    assert_int_equal(read_directory(&untied, &lost, &shape, &reason), STATUS_UNSUPPORTED);
    untied.untied = false; /* the tensors of a tied model under the configuration of another */
    char config[TINY_CONFIG_BYTES];
    size_t length;
    struct model_file *file = NULL;
    uint8_t *bytes = tiny_directory_tensors(&untied, &length);
    untied.untied = true;
    tiny_config(&untied, "", config);
    const struct model_file_parts parts = {
        .config = {.config = config, .config_bytes = strlen(config)},
        .tensors = bytes,
        .tensors_bytes = length,
    };
    assert_int_equal(model_file_open_parts(&parts, &file, NULL), STATUS_OK);
    assert_int_equal(model_shape_read(file, &shape, reason_init(&reason)), STATUS_BAD_FILE);
    assert_non_null(strstr(reason.storage, "\"lm_head.weight\" is missing, and config.json does "
                                           "not set tie_word_embeddings"));
    model_file_close(file);
    free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_every_number),
        cmocka_unit_test(s02_kv_dim_comes_from_the_model),
        cmocka_unit_test(finds_tensors_by_role),
        cmocka_unit_test(the_hash_covers_shape_vocabulary_and_directory),
        cmocka_unit_test(refuses_each_defect_by_name),
        cmocka_unit_test(refuses_tensors_of_another_type_or_shape),
        cmocka_unit_test(a_directory_has_the_shape_of_the_file),
        cmocka_unit_test(the_hash_covers_the_end_tokens),
        cmocka_unit_test(refuses_directories_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
