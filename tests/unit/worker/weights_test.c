#include "worker/weights.h"

#include "kernels/cpu/device.h"
#include "kernels/cpu/matrix.h"
#include "support/directory_builder.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

struct loaded {
    uint8_t *file;
    size_t file_bytes;
    struct model_file *model;
    struct model_shape shape;
    struct backend *backend;
    struct weights weights;
    struct reason reason;
};

static struct backend *open_backend(void)
{
    const struct backend_options options = {
        .kind = BACKEND_CPU, .cpu_isa = CPU_ISA_PLAIN, .threads = 1};
    struct backend *backend = NULL;
    assert_int_equal(backend_open(&options, &backend, NULL), STATUS_OK);
    return backend;
}

static enum status load(struct loaded *loaded, weights_progress progress, void *context)
{
    const struct weights_source source = {.file = loaded->model,
                                          .shape = &loaded->shape,
                                          .progress = progress,
                                          .progress_context = context};
    return weights_load(&source, loaded->backend, &loaded->weights, reason_init(&loaded->reason));
}

static void open_file(struct loaded *loaded, const struct tiny_model *model)
{
    memset(loaded, 0, sizeof *loaded);
    loaded->file = tiny_model_file(model, &loaded->file_bytes);
    assert_int_equal(model_file_open_memory(loaded->file, loaded->file_bytes, &loaded->model, NULL),
                     STATUS_OK);
    assert_int_equal(model_shape_read(loaded->model, &loaded->shape, NULL), STATUS_OK);
    loaded->backend = open_backend();
}

static void close_loaded(struct loaded *loaded)
{
    weights_free(&loaded->weights);
    backend_close(loaded->backend);
    model_file_close(loaded->model);
    free(loaded->file);
}

/* Row `row` of a matrix as the backend multiplies it: the product with every unit vector,
 * [columns]. */
static void matrix_row(struct backend *backend, const struct matrix *matrix, uint32_t row,
                       float *out_row)
{
    const struct backend_operations *operations = backend->operations;
    uint32_t columns = matrix->columns;
    void *input, *prepared, *output;
    uint64_t input_bytes = (uint64_t)columns * columns * sizeof(float);
    uint64_t prepared_bytes = operations->prepared_bytes(backend, columns, columns);
    uint64_t output_bytes = (uint64_t)columns * matrix->rows * sizeof(float);
    assert_int_equal(operations->memory_reserve(backend, input_bytes, &input), STATUS_OK);
    assert_int_equal(operations->memory_reserve(backend, prepared_bytes, &prepared), STATUS_OK);
    assert_int_equal(operations->memory_reserve(backend, output_bytes, &output), STATUS_OK);
    float *units = calloc((size_t)columns * columns, sizeof *units);
    float *products = calloc((size_t)columns * matrix->rows, sizeof *products);
    assert_true(units != NULL && products != NULL);
    for (uint32_t i = 0; i < columns; i++)
        units[i * columns + i] = 1;
    operations->upload(backend, input, units, input_bytes);
    operations->prepare(backend, &(struct prepare_args){.input = input,
                                                        .rows = columns,
                                                        .columns = columns,
                                                        .output = prepared,
                                                        .forms = weight_type_form(matrix->type)});
    operations->matmul(backend, &(struct matmul_args){.input = input,
                                                      .prepared = prepared,
                                                      .rows = columns,
                                                      .columns = columns,
                                                      .part_count = 1,
                                                      .parts = {{matrix, output}}});
    assert_int_equal(operations->download(backend, products, output, output_bytes), STATUS_OK);
    for (uint32_t i = 0; i < columns; i++)
        out_row[i] = products[i * matrix->rows + row];
    operations->memory_release(backend, input, input_bytes);
    operations->memory_release(backend, prepared, prepared_bytes);
    operations->memory_release(backend, output, output_bytes);
    free(units);
    free(products);
}

static const float *file_row(const struct loaded *loaded, enum model_tensor role, uint32_t row)
{
    const struct model_file_tensor *tensor = model_file_find(loaded->model, role, 1);
    return (const float *)(const void *)tensor->content + row * tensor->extent[0];
}

/* Written down by hand for one head of 8: pairs stand side by side in the file, halves after the
 * load. */
static void the_order_undoes_the_interleaving(void **state)
{
    (void)state;
    static const uint32_t expected[] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    uint32_t order[16];
    weights_half_split_order(2, 8, order);
    assert_memory_equal(order, expected, sizeof expected);
}

static void the_order_is_a_permutation_for_all_shapes(void **state)
{
    (void)state;
    for (uint32_t head_dim = 8; head_dim <= 256; head_dim += 8)
        for (uint32_t heads = 1; heads <= 9; heads += 4) {
            uint32_t order[9 * 256];
            bool seen[9 * 256] = {false};
            weights_half_split_order(heads, head_dim, order);
            for (uint32_t row = 0; row < heads * head_dim; row++) {
                assert_int_equal(order[row] / head_dim,
                                 row / head_dim); /* no row leaves its head */
                assert_false(seen[order[row]]);
                seen[order[row]] = true;
            }
        }
}

/* S34, and the layout trap of llama files: Q by its own heads, K by the KV heads, everything else
 * as it stands. */
static void s34_rows_of_q_and_k_move_and_no_others(void **state)
{
    (void)state;
    struct loaded loaded;
    struct tiny_model model = TINY_MODEL;
    open_file(&loaded, &model);
    assert_int_equal(load(&loaded, NULL, NULL), STATUS_OK);
    const struct step_layer *layer = &loaded.weights.layer[1];
    const struct {
        enum model_tensor role;
        const struct matrix *matrix;
        uint32_t rows;
        bool moved;
    } cases[] = {
        {MODEL_TENSOR_ATTENTION_Q, layer->q, 64, true},
        {MODEL_TENSOR_ATTENTION_K, layer->k, 32, true},
        {MODEL_TENSOR_ATTENTION_V, layer->v, 32, false},
        {MODEL_TENSOR_ATTENTION_OUTPUT, layer->attention_output, 64, false},
        {MODEL_TENSOR_FFN_GATE, layer->gate, 128, false},
        {MODEL_TENSOR_FFN_UP, layer->up, 128, false},
        {MODEL_TENSOR_FFN_DOWN, layer->down, 64, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const struct matrix *matrix = cases[i].matrix;
        assert_int_equal(matrix->rows, cases[i].rows);
        for (uint32_t row = 0; row < matrix->rows; row += 5) {
            uint32_t dim = row % 16;
            uint32_t moved = row - dim + (dim < 8 ? 2 * dim : 2 * (dim - 8) + 1);
            float computed[128];
            matrix_row(loaded.backend, matrix, row, computed);
            assert_memory_equal(computed,
                                file_row(&loaded, cases[i].role, cases[i].moved ? moved : row),
                                matrix->columns * sizeof *computed);
        }
    }
    close_loaded(&loaded);
}

/* Two threads of two nodes: the second one multiplies with all of K, V and up, the first one with
 * all of Q and gate. */
static void the_backend_knows_what_is_multiplied_together(void **state)
{
    (void)state;
    struct loaded loaded;
    struct backend_options options = {.kind = BACKEND_CPU, .cpu_isa = CPU_ISA_PLAIN, .threads = 2};
    open_file(&loaded, &TINY_MODEL);
    backend_close(loaded.backend);
    assert_int_equal(backend_open(&options, &loaded.backend, NULL), STATUS_OK);
    struct placement *placement = &cpu_backend_of(loaded.backend)->placement;
    placement->count = 2;
    placement->place[0].threads_end = 1;
    placement->place[1].threads_end = 2;
    assert_int_equal(load(&loaded, NULL, NULL), STATUS_OK);
    for (uint32_t i = 0; i < loaded.weights.layers; i++) {
        const struct step_layer *layer = &loaded.weights.layer[i];
        const struct {
            const struct matrix *matrix;
            uint32_t pieces, place; /* of the first piece */
        } cases[] = {{layer->q, 1, 0},    {layer->k, 1, 1},  {layer->v, 1, 1},
                     {layer->gate, 1, 0}, {layer->up, 1, 1}, {layer->attention_output, 2, 0},
                     {layer->down, 2, 0}};
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            assert_int_equal(cpu_matrix_of(cases[c].matrix)->pieces, cases[c].pieces);
            assert_int_equal(cpu_matrix_of(cases[c].matrix)->piece[0].place, cases[c].place);
        }
    }
    close_loaded(&loaded);
}

static void norms_are_kept_in_fp32(void **state)
{
    (void)state;
    struct loaded loaded;
    open_file(&loaded, &TINY_MODEL);
    assert_int_equal(load(&loaded, NULL, NULL), STATUS_OK);
    float norm[64];
    const struct backend_operations *operations = loaded.backend->operations;
    assert_int_equal(
        operations->download(loaded.backend, norm, loaded.weights.layer[1].ffn_norm, sizeof norm),
        STATUS_OK);
    assert_memory_equal(norm, file_row(&loaded, MODEL_TENSOR_FFN_NORM, 0), sizeof norm);
    assert_int_equal(operations->download(loaded.backend, norm,
                                          loaded.weights.layer[1].attention_norm, sizeof norm),
                     STATUS_OK);
    assert_memory_equal(norm, file_row(&loaded, MODEL_TENSOR_ATTENTION_NORM, 0), sizeof norm);
    assert_int_equal(
        operations->download(loaded.backend, norm, loaded.weights.output_norm, sizeof norm),
        STATUS_OK);
    assert_memory_equal(norm, file_row(&loaded, MODEL_TENSOR_OUTPUT_NORM, 0), sizeof norm);
    close_loaded(&loaded);
}

static void a_tied_model_has_one_matrix_for_both(void **state)
{
    (void)state;
    struct loaded loaded;
    struct tiny_model model = TINY_MODEL;
    open_file(&loaded, &model);
    assert_int_equal(load(&loaded, NULL, NULL), STATUS_OK);
    assert_ptr_equal(loaded.weights.output, loaded.weights.embedding);
    uint64_t tied_bytes = loaded.weights.bytes;
    close_loaded(&loaded);
    model.untied = true;
    open_file(&loaded, &model);
    assert_int_equal(load(&loaded, NULL, NULL), STATUS_OK);
    assert_ptr_not_equal(loaded.weights.output, loaded.weights.embedding);
    assert_int_equal(loaded.weights.output->rows, 320);
    assert_true(loaded.weights.bytes >= tied_bytes + 320 * 64 * 4);
    close_loaded(&loaded);
}

static void the_hash_is_of_the_tensor_bytes(void **state)
{
    (void)state;
    struct loaded first, second;
    struct tiny_model model = TINY_MODEL;
    open_file(&first, &model);
    assert_int_equal(load(&first, NULL, NULL), STATUS_OK);
    open_file(&second, &model);
    assert_int_equal(load(&second, NULL, NULL), STATUS_OK);
    assert_true(id128_equal(&first.weights.tensor_hash, &second.weights.tensor_hash));
    assert_false(id128_is_zero(&first.weights.tensor_hash));
    close_loaded(&second);
    open_file(&second, &model);
    second.file[second.file_bytes - 40] ^= 1; /* in the last tensor */
    assert_int_equal(load(&second, NULL, NULL), STATUS_OK);
    assert_false(id128_equal(&first.weights.tensor_hash, &second.weights.tensor_hash));
    close_loaded(&first);
    close_loaded(&second);
}

struct seen_progress {
    uint32_t calls;
    uint64_t done, total;
};

static void see_progress(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    struct seen_progress *seen = context;
    assert_true(bytes_done > seen->done && bytes_done <= bytes_total);
    seen->calls++;
    seen->done = bytes_done;
    seen->total = bytes_total;
}

static void progress_ends_at_all_bytes(void **state)
{
    (void)state;
    struct loaded loaded;
    struct seen_progress seen = {0};
    open_file(&loaded, &TINY_MODEL);
    assert_int_equal(load(&loaded, see_progress, &seen), STATUS_OK);
    assert_int_equal(seen.calls, model_file_tensor_count(loaded.model));
    assert_int_equal(seen.done, seen.total);
    assert_true(seen.total > 64 * 320 * 4 && seen.total < loaded.file_bytes);
    close_loaded(&loaded);
}

static void refuses_a_norm_that_is_not_finite(void **state)
{
    (void)state;
    struct loaded loaded;
    const uint32_t not_a_number = 0x7fc00000;
    open_file(&loaded, &TINY_MODEL);
    const struct model_file_tensor *norm = model_file_find(loaded.model, MODEL_TENSOR_FFN_NORM, 1);
    memcpy(loaded.file + (norm->content - loaded.file) + 3 * sizeof not_a_number, &not_a_number,
           sizeof not_a_number);
    assert_int_equal(load(&loaded, NULL, NULL), STATUS_BAD_FILE);
    assert_string_equal(
        loaded.reason.storage,
        "tensor \"blk.1.ffn_norm.weight\" holds a value that is not finite at index 3");
    close_loaded(&loaded);
}

/* The same model as a directory. The tensors are borrowed until the file is closed. */
static void open_directory(struct loaded *loaded, const struct tiny_model *model, const char *more)
{
    char config[TINY_CONFIG_BYTES];
    memset(loaded, 0, sizeof *loaded);
    tiny_config(model, more, config);
    loaded->file = tiny_directory_tensors(model, &loaded->file_bytes);
    const struct model_file_parts parts = {
        .config = {.config = config, .config_bytes = strlen(config)},
        .tensors = loaded->file,
        .tensors_bytes = loaded->file_bytes,
    };
    struct text *why = reason_init(&loaded->reason);
    if (model_file_open_parts(&parts, &loaded->model, why) != STATUS_OK ||
        model_shape_read(loaded->model, &loaded->shape, why) != STATUS_OK)
        fail_msg("%s", loaded->reason.storage);
    loaded->backend = open_backend();
}

/* Every row of every matrix: in a directory Q and K are in half-split order already. */
static void a_directory_gives_the_matrices_of_the_file(void **state)
{
    (void)state;
    for (int untied = 0; untied < 2; untied++) {
        struct loaded file, directory;
        struct tiny_model model = TINY_MODEL;
        model.untied = untied;
        model.type = GGUF_TENSOR_BF16;
        open_file(&file, &model);
        open_directory(&directory, &model, "");
        assert_int_equal(load(&file, NULL, NULL), STATUS_OK);
        assert_int_equal(load(&directory, NULL, NULL), STATUS_OK);
        assert_int_equal(directory.weights.output == directory.weights.embedding, !untied);
        const struct step_layer *a = &file.weights.layer[1], *b = &directory.weights.layer[1];
        const struct matrix *pairs[][2] = {
            {a->q, b->q},       {a->k, b->k},
            {a->v, b->v},       {a->gate, b->gate},
            {a->up, b->up},     {a->attention_output, b->attention_output},
            {a->down, b->down}, {file.weights.output, directory.weights.output}};
        for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; i++)
            for (uint32_t row = 0; row < pairs[i][0]->rows; row += 5) {
                float left[128], right[128];
                matrix_row(file.backend, pairs[i][0], row, left);
                matrix_row(directory.backend, pairs[i][1], row, right);
                assert_memory_equal(left, right, pairs[i][0]->columns * sizeof(float));
            }
        assert_memory_equal(a->attention_norm, b->attention_norm, 64 * sizeof(float));
        assert_memory_equal(a->ffn_norm, b->ffn_norm, 64 * sizeof(float));
        assert_memory_equal(file.weights.output_norm, directory.weights.output_norm,
                            64 * sizeof(float));
        close_loaded(&file);
        close_loaded(&directory);
    }
}

/* A directory may tie and hold the copy all the same: it is not loaded twice. */
static void a_copy_of_the_embedding_is_left_out(void **state)
{
    (void)state;
    struct loaded loaded;
    struct tiny_model model = TINY_MODEL;
    struct directory_builder builder;
    char config[TINY_CONFIG_BYTES];
    open_file(&loaded, &model);
    tiny_directory_build(&builder, &model);
    directory_tensor(&builder, "lm_head.weight", "F32", model.vocabulary, model.width,
                     model_file_find(loaded.model, MODEL_TENSOR_EMBEDDING, 0)->content);
    assert_int_equal(load(&loaded, NULL, NULL), STATUS_OK);
    uint64_t bytes = loaded.weights.bytes;
    close_loaded(&loaded);
    memset(&loaded, 0, sizeof loaded);
    tiny_config(&model, "", config);
    loaded.file = directory_finish(&builder, &loaded.file_bytes);
    const struct model_file_parts parts = {
        .config = {.config = config, .config_bytes = strlen(config)},
        .tensors = loaded.file,
        .tensors_bytes = loaded.file_bytes,
    };
    assert_int_equal(model_file_open_parts(&parts, &loaded.model, NULL), STATUS_OK);
    assert_int_equal(model_shape_read(loaded.model, &loaded.shape, NULL), STATUS_OK);
    loaded.backend = open_backend();
    assert_int_equal(load(&loaded, NULL, NULL), STATUS_OK);
    assert_ptr_equal(loaded.weights.output, loaded.weights.embedding);
    assert_int_equal(loaded.weights.bytes, bytes);
    close_loaded(&loaded);
    directory_free(&builder);
}

/* Half-precision norms are read, not refused. */
static void reads_norms_of_every_float_type(void **state)
{
    (void)state;
    const uint32_t types[] = {GGUF_TENSOR_F16, GGUF_TENSOR_BF16};
    for (size_t i = 0; i < 2; i++) {
        struct loaded loaded;
        struct gguf_builder builder;
        uint16_t halves[64];
        float norm[64];
        open_file(&loaded, &TINY_MODEL);
        model_file_close(loaded.model);
        free(loaded.file);
        for (uint32_t j = 0; j < 64; j++)
            halves[j] = types[i] == GGUF_TENSOR_F16 ? fp16_from_float((float)j * 0.25F)
                                                    : bf16_from_float((float)j * 0.25F);
        tiny_model_build(&builder, &TINY_MODEL);
        uint8_t *name =
            memmem(builder.directory.bytes, builder.directory.length, "output_norm.weight", 18);
        assert_non_null(name);
        name[0] = 'x'; /* makes room for one of another type; a name that is not known is refused by
                          the shape */
        builder_tensor(&builder, "output_norm.weight", types[i], 64, 0, halves);
        loaded.file = builder_finish(&builder, &loaded.file_bytes);
        builder_free(&builder);
        assert_int_equal(
            model_file_open_memory(loaded.file, loaded.file_bytes, &loaded.model, NULL), STATUS_OK);
        assert_int_equal(load(&loaded, NULL, NULL), STATUS_OK);
        assert_int_equal(loaded.backend->operations->download(
                             loaded.backend, norm, loaded.weights.output_norm, sizeof norm),
                         STATUS_OK);
        for (uint32_t j = 0; j < 64; j++)
            assert_true(norm[j] == (float)j * 0.25F);
        close_loaded(&loaded);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_order_undoes_the_interleaving),
        cmocka_unit_test(the_order_is_a_permutation_for_all_shapes),
        cmocka_unit_test(s34_rows_of_q_and_k_move_and_no_others),
        cmocka_unit_test(the_backend_knows_what_is_multiplied_together),
        cmocka_unit_test(norms_are_kept_in_fp32),
        cmocka_unit_test(a_tied_model_has_one_matrix_for_both),
        cmocka_unit_test(the_hash_is_of_the_tensor_bytes),
        cmocka_unit_test(progress_ends_at_all_bytes),
        cmocka_unit_test(refuses_a_norm_that_is_not_finite),
        cmocka_unit_test(a_directory_gives_the_matrices_of_the_file),
        cmocka_unit_test(a_copy_of_the_embedding_is_left_out),
        cmocka_unit_test(reads_norms_of_every_float_type),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
