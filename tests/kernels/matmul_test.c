/* A row of a matmul does not know how many rows, parts and threads there are. */
#include "common/check.h"
#include "common/float16.h"
#include "common/random.h"
#include "kernels/comparison.h"
#include "kernels/subjects.h"

#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <xmmintrin.h>
#include <cmocka.h>

enum { COLUMNS = 608, ROWS_MAX = 300, OUTPUTS = 91 };

static const uint32_t row_counts[] = {1, 2, 3, 4, 5, 6, 7, 8, 13, 64, 127, 128, 129, 130, 300};

static struct matrix *make_wide_matrix(struct backend *backend, uint32_t type, uint32_t rows,
                                       uint32_t columns, const uint32_t *row_order)
{
    uint64_t row_bytes = weight_row_bytes(type, columns);
    uint8_t *bytes = malloc(rows * row_bytes);
    struct random random = {type + 100};
    CHECK(bytes != NULL);
    for (uint64_t i = 0; i < rows * row_bytes; i++)
        bytes[i] = (uint8_t)(random_next(&random) & 0xb7); /* halves and floats stay finite */
    struct matrix_source source = {
        .type = type, .rows = rows, .columns = columns, .bytes = bytes, .row_order = row_order};
    struct matrix *matrix = NULL;
    CHECK(backend->operations->matrix_load(backend, &source, &matrix) == STATUS_OK);
    free(bytes);
    return matrix;
}

static struct matrix *make_matrix(struct backend *backend, uint32_t type, uint32_t rows,
                                  const uint32_t *row_order)
{
    return make_wide_matrix(backend, type, rows, COLUMNS, row_order);
}

/* parts x input -> outputs in host memory, one buffer per part. */
static void multiply(struct backend *backend, struct matrix *const *parts, uint32_t part_count,
                     const float *input, uint32_t rows, float **outputs)
{
    const struct backend_operations *ops = backend->operations;
    uint32_t columns = parts[0]->columns;
    uint64_t input_bytes = (uint64_t)rows * columns * sizeof(float);
    uint64_t prepared_bytes = ops->prepared_bytes(backend, rows, columns);
    struct matmul_args args = {.input = subject_upload(backend, input, input_bytes),
                               .rows = rows,
                               .columns = columns,
                               .part_count = part_count};
    void *prepared = subject_memory(backend, prepared_bytes);
    struct prepare_args prepare = {args.input, rows, columns, prepared, 0};
    args.prepared = prepared;
    for (uint32_t p = 0; p < part_count; p++) {
        prepare.forms |= weight_type_form(parts[p]->type);
        uint64_t bytes = (uint64_t)rows * parts[p]->rows * sizeof(float);
        args.parts[p] = (struct matmul_part){parts[p], subject_memory(backend, bytes)};
    }
    ops->prepare(backend, &prepare);
    ops->matmul(backend, &args);
    for (uint32_t p = 0; p < part_count; p++) {
        uint64_t bytes = (uint64_t)rows * parts[p]->rows * sizeof(float);
        subject_download(backend, outputs[p], args.parts[p].output, bytes);
        ops->memory_release(backend, args.parts[p].output, bytes);
    }
    ops->memory_release(backend, prepared, prepared_bytes);
    ops->memory_release(backend, (void *)(uintptr_t)args.input, input_bytes);
}

struct buffers {
    float *input, *alone, *together;
};

static struct buffers make_buffers(void)
{
    struct buffers b = {malloc(ROWS_MAX * COLUMNS * sizeof(float)),
                        malloc(ROWS_MAX * OUTPUTS * sizeof(float)),
                        malloc(ROWS_MAX * OUTPUTS * sizeof(float))};
    CHECK(b.input != NULL && b.alone != NULL && b.together != NULL);
    fill_values(b.input, ROWS_MAX * COLUMNS, 77);
    return b;
}

static void free_buffers(struct buffers *b)
{
    free(b->input);
    free(b->alone);
    free(b->together);
}

static void rows_do_not_depend_on_their_number(void **state)
{
    struct buffers b = make_buffers();
    (void)state;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        for (uint32_t type = WEIGHT_TYPE_F32; type < WEIGHT_TYPE_COUNT; type++) {
            struct matrix *matrix = make_matrix(backend, type, OUTPUTS, NULL);
            for (uint32_t row = 0; row < ROWS_MAX; row++) {
                float *output = b.alone + (size_t)row * OUTPUTS;
                multiply(backend, &matrix, 1, b.input + row * COLUMNS, 1, &output);
            }
            for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
                multiply(backend, &matrix, 1, b.input, row_counts[i], &b.together);
                assert_same_bits(subjects[s].name, b.together, b.alone,
                                 row_counts[i] * OUTPUTS * sizeof(float));
            }
            backend->operations->matrix_free(backend, matrix);
        }
        backend_close(backend);
    }
    free_buffers(&b);
}

static void check_width(struct backend *backend, const char *name, uint32_t type, uint32_t columns)
{
    enum { ROWS = 41, WIDE_OUTPUTS = 35 };
    static const uint32_t counts[] = {5, 13, 16, 17, 24, 25, ROWS};
    float *input = calloc(ROWS * columns, sizeof *input);
    float alone[ROWS][WIDE_OUTPUTS], together[ROWS][WIDE_OUTPUTS], *output;
    CHECK(input != NULL);
    fill_values(input, ROWS * columns, columns);
    struct matrix *matrix = make_wide_matrix(backend, type, WIDE_OUTPUTS, columns, NULL);
    for (uint32_t row = 0; row < ROWS; row++) {
        output = alone[row];
        multiply(backend, &matrix, 1, input + (size_t)row * columns, 1, &output);
    }
    output = together[0];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        multiply(backend, &matrix, 1, input, counts[i], &output);
        assert_same_bits(name, together, alone, counts[i] * sizeof *alone);
    }
    backend->operations->matrix_free(backend, matrix);
    free(input);
}

/* One block, as few as a pipeline has stages, and more than are unpacked at a time. */
static void rows_of_any_width_do_not_depend_on_their_number(void **state)
{
    static const uint32_t widths[] = {32, 64, 96, 1568};
    (void)state;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        for (uint32_t type = WEIGHT_TYPE_F32; type < WEIGHT_TYPE_COUNT; type++)
            for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
                check_width(backend, subjects[s].name, type, widths[i]);
        backend_close(backend);
    }
}

static void check_parts(struct backend *backend, const char *name, const uint32_t *types,
                        const struct buffers *b)
{
    static const uint32_t heights[] = {72, 17, 32};
    struct matrix *parts[3];
    float *together[3], *alone = b->alone;
    for (uint32_t p = 0; p < 3; p++) {
        parts[p] = make_matrix(backend, types[p], heights[p], NULL);
        together[p] = calloc(9 * OUTPUTS, sizeof(float));
    }
    multiply(backend, parts, 3, b->input, 9, together);
    for (uint32_t p = 0; p < 3; p++) {
        multiply(backend, &parts[p], 1, b->input, 9, &alone);
        assert_same_bits(name, together[p], alone, 9 * heights[p] * sizeof(float));
        backend->operations->matrix_free(backend, parts[p]);
        free(together[p]);
    }
}

/* q, k, v of different types and heights from one prepared input, in one form or in several. */
static void parts_equal_single_matmuls(void **state)
{
    static const uint32_t types[][3] = {{WEIGHT_TYPE_Q4_1, WEIGHT_TYPE_F16, WEIGHT_TYPE_Q8_0},
                                        {WEIGHT_TYPE_BF16, WEIGHT_TYPE_Q4_0, WEIGHT_TYPE_F32}};
    struct buffers b = make_buffers();
    (void)state;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        for (size_t i = 0; i < sizeof types / sizeof *types; i++)
            check_parts(backend, subjects[s].name, types[i], &b);
        backend_close(backend);
    }
    free_buffers(&b);
}

/* row_order permutes rows at load (the rotation layout of some files). */
static void row_order_permutes_the_output(void **state)
{
    struct buffers b = make_buffers();
    uint32_t order[OUTPUTS];
    (void)state;
    for (uint32_t i = 0; i < OUTPUTS; i++)
        order[i] = (i * 25 + 7) % OUTPUTS;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        for (uint32_t type = WEIGHT_TYPE_F32; type < WEIGHT_TYPE_COUNT; type++) {
            struct matrix *plain = make_matrix(backend, type, OUTPUTS, NULL);
            struct matrix *ordered = make_matrix(backend, type, OUTPUTS, order);
            multiply(backend, &plain, 1, b.input, 1, &b.alone);
            multiply(backend, &ordered, 1, b.input, 1, &b.together);
            for (uint32_t i = 0; i < OUTPUTS; i++)
                assert_same_bits(subjects[s].name, &b.together[i], &b.alone[order[i]],
                                 sizeof(float));
            backend->operations->matrix_free(backend, ordered);
            backend->operations->matrix_free(backend, plain);
        }
        backend_close(backend);
    }
    free_buffers(&b);
}

/* A value that is not finite must come out as NaN in its own row, through every weight type, and
 * nowhere else. */
static void a_strange_input_spoils_its_row_alone(void **state)
{
    /* The last two would become zero if they were rounded as numbers are. */
    const float strange[] = {NAN, INFINITY, -INFINITY, float_from_bits(0x7fffffff),
                             float_from_bits(0xffffffff)};
    const uint32_t rows = 14; /* so many that every kernel takes its way of several */
    struct buffers b = make_buffers();
    (void)state;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        for (uint32_t type = WEIGHT_TYPE_F32; type < WEIGHT_TYPE_COUNT; type++) {
            struct matrix *matrix = make_matrix(backend, type, OUTPUTS, NULL);
            for (size_t i = 0; i < sizeof strange / sizeof *strange; i++) {
                multiply(backend, &matrix, 1, b.input, rows, &b.alone);
                float kept = b.input[2 * COLUMNS + 70];
                b.input[2 * COLUMNS + 70] = strange[i];
                multiply(backend, &matrix, 1, b.input, rows, &b.together);
                b.input[2 * COLUMNS + 70] = kept;
                for (uint32_t o = 0; o < OUTPUTS; o++) {
                    assert_true(!isfinite(b.together[2 * OUTPUTS + o]));
                    b.together[2 * OUTPUTS + o] = b.alone[2 * OUTPUTS + o];
                }
                assert_same_bits(subjects[s].name, b.together, b.alone,
                                 sizeof(float) * rows * OUTPUTS);
            }
            backend->operations->matrix_free(backend, matrix);
        }
        backend_close(backend);
    }
    free_buffers(&b);
}

static const float block_sizes[] = {0.0f,     0x1p-149f, 0x1p-101f, 0x1p-100f,
                                    0x1p-60f, 1.0f,      0x1p+60f};
enum { BLOCK_SIZES = sizeof block_sizes / sizeof *block_sizes };

/* Each block of 32 values of a row has the size that `sizes` names for it; all subjects give the
 * same bits, which are returned. */
static const float *multiply_sizes(struct buffers *b, const float *sizes)
{
    const float *first = NULL;
    for (uint32_t k = 0; k < COLUMNS; k++)
        b->input[k] = sizes[k / 32] * (k % 3 == 0 ? -1.0f : 1.0f);
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        struct matrix *matrix = make_matrix(backend, WEIGHT_TYPE_Q8_0, OUTPUTS, NULL);
        multiply(backend, &matrix, 1, b->input, 1, first == NULL ? &b->alone : &b->together);
        if (first != NULL)
            assert_same_bits(subjects[s].name, b->together, b->alone, sizeof(float) * OUTPUTS);
        first = b->alone;
        backend->operations->matrix_free(backend, matrix);
        backend_close(backend);
    }
    return first;
}

/* Blocks of tiny and huge values: scales at the ends of their range. */
static void extreme_activations_keep_their_precision(void **state)
{
    float sizes[COLUMNS / 32];
    struct buffers b = make_buffers();
    (void)state;
    for (size_t i = 0; i < BLOCK_SIZES; i++) {
        for (uint32_t block = 0; block < COLUMNS / 32; block++)
            sizes[block] = block_sizes[i];
        const float *output = multiply_sizes(&b, sizes);
        for (uint32_t o = 0; o < OUTPUTS; o++)
            assert_true(isfinite(output[o]) && (block_sizes[i] >= 0x1p-100f || output[o] == 0.0f));
    }
    free_buffers(&b);
}

/* Several blocks are rounded at a time: each has a scale of its own. */
static void blocks_of_all_sizes_stand_side_by_side(void **state)
{
    float sizes[COLUMNS / 32];
    struct buffers b = make_buffers();
    (void)state;
    for (uint32_t shift = 0; shift < BLOCK_SIZES; shift++) {
        for (uint32_t block = 0; block < COLUMNS / 32; block++)
            sizes[block] = block_sizes[(block + shift) % BLOCK_SIZES];
        const float *output = multiply_sizes(&b, sizes);
        for (uint32_t o = 0; o < OUTPUTS; o++)
            assert_true(isfinite(output[o]) && output[o] != 0.0f);
    }
    free_buffers(&b);
}

/* A row as BF16 weights take it, and what is expected of one, in halves. */
struct chain {
    uint16_t weights[OUTPUTS][COLUMNS], rounded[COLUMNS];
    float input[COLUMNS], expected[OUTPUTS];
};

/* The contract: one fused chain, columns ascending, operands and results below 2^-126 as zero. Not
 * inlined: the compiler knows nothing of MXCSR. */
static __attribute__((noinline)) void expect_chains(struct chain *chain)
{
    for (uint32_t o = 0; o < OUTPUTS; o++) {
        float sum = 0.0f;
        for (uint32_t k = 0; k < COLUMNS; k++)
            sum = fmaf(bf16_to_float(chain->rounded[k]), bf16_to_float(chain->weights[o][k]), sum);
        chain->expected[o] = sum;
    }
}

/* Products around 2^`exponent`, of both signs; every fifth activation lies between two values of
 * bf16. */
static struct chain *make_chain(int exponent)
{
    struct chain *chain = calloc(1, sizeof *chain);
    struct random random = {(uint64_t)(exponent + 1000)};
    CHECK(chain != NULL);
    for (uint32_t k = 0; k < COLUMNS; k++) {
        int half = exponent / 2 + (int)random_below(&random, 9) - 4;
        float value = (float)(random_next(&random) >> 40) * 0x1p-23f - 1.0f;
        chain->input[k] = ldexpf(value, half);
        if (k % 5 == 0)
            chain->input[k] =
                float_from_bits((float_bits(chain->input[k]) & 0xffff0000u) | 0x8000u);
        chain->rounded[k] = bf16_from_float(chain->input[k]);
        for (uint32_t o = 0; o < OUTPUTS; o++) {
            value = (float)(random_next(&random) >> 40) * 0x1p-23f - 1.0f;
            chain->weights[o][k] = bf16_from_float(ldexpf(value, exponent - half));
        }
    }
    uint32_t before = _mm_getcsr();
    _mm_setcsr(before | 0x8040); /* FTZ and DAZ */
    expect_chains(chain);
    _mm_setcsr(before);
    return chain;
}

/* The bits of BF16 products, down to where results and operands are flushed to zero. */
static void bf16_products_are_flushed_chains(void **state)
{
    static const int exponents[] = {0, -40, -110, -120, -126, -128, -132, -136, -180, -250, 100};
    struct buffers b = make_buffers();
    (void)state;
    for (size_t i = 0; i < sizeof exponents / sizeof *exponents; i++) {
        struct chain *chain = make_chain(exponents[i]);
        for (size_t s = 0; s < subject_count; s++) {
            struct backend *backend = subject_open(&subjects[s]);
            if (backend == NULL)
                continue;
            struct matrix_source source = {.type = WEIGHT_TYPE_BF16,
                                           .rows = OUTPUTS,
                                           .columns = COLUMNS,
                                           .bytes = chain->weights};
            struct matrix *matrix = NULL;
            CHECK(backend->operations->matrix_load(backend, &source, &matrix) == STATUS_OK);
            for (uint32_t row = 0; row < 13; row++)
                memcpy(b.input + row * COLUMNS, chain->input, sizeof chain->input);
            multiply(backend, &matrix, 1, b.input, 13, &b.together);
            for (uint32_t row = 0; row < 13; row++)
                assert_same_bits(subjects[s].name, b.together + row * OUTPUTS, chain->expected,
                                 sizeof chain->expected);
            backend->operations->matrix_free(backend, matrix);
            backend_close(backend);
        }
        free(chain);
    }
    free_buffers(&b);
}

/* Where columns are odd, a row's last pair of weights holds nothing of the row behind it. */
static void an_odd_row_ends_with_itself(void **state)
{
    uint16_t weights[2][33];
    float input[3 * 33], output[3][2], *outputs = output[0];
    (void)state;
    for (uint32_t k = 0; k < 33; k++)
        weights[0][k] = weights[1][k] = bf16_from_float(1.0f);
    weights[1][0] = bf16_from_float(INFINITY);
    fill_values(input, 3 * 33, 5);
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        struct matrix_source source = {
            .type = WEIGHT_TYPE_BF16, .rows = 2, .columns = 33, .bytes = weights};
        struct matrix *matrix = NULL;
        CHECK(backend->operations->matrix_load(backend, &source, &matrix) == STATUS_OK);
        multiply(backend, &matrix, 1, input, 3, &outputs);
        for (uint32_t row = 0; row < 3; row++)
            assert_true(isfinite(output[row][0]) && !isfinite(output[row][1]));
        backend->operations->matrix_free(backend, matrix);
        backend_close(backend);
    }
}

/* Finite, but beyond the largest bf16: infinite, and so seen in the logits. */
static void what_bf16_cannot_hold_spoils_its_row(void **state)
{
    struct buffers b = make_buffers();
    (void)state;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        struct matrix *matrix = make_matrix(backend, WEIGHT_TYPE_BF16, OUTPUTS, NULL);
        float kept = b.input[70];
        b.input[70] = FLT_MAX;
        multiply(backend, &matrix, 1, b.input, 2, &b.together);
        b.input[70] = kept;
        for (uint32_t o = 0; o < OUTPUTS; o++)
            assert_true(!isfinite(b.together[o]) && isfinite(b.together[OUTPUTS + o]));
        backend->operations->matrix_free(backend, matrix);
        backend_close(backend);
    }
    free_buffers(&b);
}

static void unknown_types_and_broken_blocks_are_refused(void **state)
{
    static const uint32_t wrong[][2] = {
        {0, 32}, {WEIGHT_TYPE_COUNT, 32}, {WEIGHT_TYPE_Q4_1, 33}, {WEIGHT_TYPE_Q8_0, 0}};
    uint8_t bytes[4096] = {0};
    (void)state;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
            struct matrix_source source = {
                .type = wrong[i][0], .rows = 4, .columns = wrong[i][1], .bytes = bytes};
            struct matrix *matrix = NULL;
            assert_int_equal(backend->operations->matrix_load(backend, &source, &matrix),
                             STATUS_UNSUPPORTED);
            assert_null(matrix);
        }
        backend_close(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(rows_do_not_depend_on_their_number),
        cmocka_unit_test(rows_of_any_width_do_not_depend_on_their_number),
        cmocka_unit_test(parts_equal_single_matmuls),
        cmocka_unit_test(row_order_permutes_the_output),
        cmocka_unit_test(a_strange_input_spoils_its_row_alone),
        cmocka_unit_test(extreme_activations_keep_their_precision),
        cmocka_unit_test(blocks_of_all_sizes_stand_side_by_side),
        cmocka_unit_test(bf16_products_are_flushed_chains),
        cmocka_unit_test(an_odd_row_ends_with_itself),
        cmocka_unit_test(what_bf16_cannot_hold_spoils_its_row),
        cmocka_unit_test(unknown_types_and_broken_blocks_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
