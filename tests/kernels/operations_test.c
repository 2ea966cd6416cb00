/* ONE case table for all backends and instruction sets: each case says how to run an operation and
 * what double precision gives. Every subject must be within the bound, and subjects of one family
 * must agree in every bit. */
#define XXH_INLINE_ALL
#include "common/check.h"
#include "common/float16.h"
#include "common/random.h"
#include "kernels/comparison.h"
#include "kernels/rope_table.h"
#include "kernels/subjects.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <cmocka.h>

struct kernel_case {
    const char *name;
    void (*run)(struct backend *backend, const struct kernel_case *test, float *output);
    void (*expect)(const struct kernel_case *test, struct expectation *expected);
    uint32_t rows, columns;
    uint32_t outputs; /* per row */
    uint32_t type;    /* enum weight_type, where there is a weight */
};

static float *values_of(const struct kernel_case *test, uint64_t salt, size_t count)
{
    float *values = malloc(count * sizeof *values);
    CHECK(values != NULL);
    fill_values(values, count, salt * 1000003 + test->columns);
    return values;
}

/* --- weights --------------------------------------------------------------------------------- */

/* Random bytes of a matrix, with scales that keep the weights near 1. */
static uint8_t *random_weights(uint32_t type, uint32_t rows, uint32_t columns)
{
    uint64_t row_bytes = weight_row_bytes(type, columns);
    uint8_t *bytes = malloc(rows * row_bytes);
    struct random random = {type * 7919u + rows + columns};
    CHECK(bytes != NULL && row_bytes != 0);
    for (uint64_t i = 0; i < rows * row_bytes; i++)
        bytes[i] = (uint8_t)random_next(&random);
    if (type == WEIGHT_TYPE_F32) {
        fill_values((float *)bytes, (size_t)rows * columns, type + rows);
        return bytes;
    }
    uint32_t header = type == WEIGHT_TYPE_Q4_1 ? 2 : 1; /* halves in front of a block */
    uint64_t unit = type == WEIGHT_TYPE_F16 || type == WEIGHT_TYPE_BF16
                        ? 2
                        : row_bytes / (columns / QUANTIZED_BLOCK_WEIGHTS);
    for (uint64_t i = 0; i < rows * row_bytes; i += unit) {
        for (uint32_t h = 0; h < header; h++) {
            float value = (float)(random_next(&random) >> 40) * 0x1p-23f - 1.0f;
            uint16_t half =
                type == WEIGHT_TYPE_BF16 ? bf16_from_float(value) : fp16_from_float(value);
            memcpy(bytes + i + 2 * h, &half, sizeof half);
        }
    }
    return bytes;
}

static float half_at(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    return fp16_to_float(half);
}

/* Weight k of a row as the file formats define it, written from their description and not from the
 * kernels. */
static double file_weight(const uint8_t *row, uint32_t type, uint32_t k)
{
    uint32_t block = k / 32, i = k % 32;
    const uint8_t *b;
    float f32;
    uint16_t bf16;
    switch (type) {
    case WEIGHT_TYPE_F32:
        memcpy(&f32, row + 4 * k, sizeof f32);
        return (double)f32;
    case WEIGHT_TYPE_F16:
        return (double)half_at(row + 2 * k);
    case WEIGHT_TYPE_BF16:
        memcpy(&bf16, row + 2 * k, sizeof bf16);
        return (double)bf16_to_float(bf16);
    case WEIGHT_TYPE_Q8_0:
        b = row + 34 * block;
        return (double)half_at(b) * (double)(int8_t)b[2 + i];
    case WEIGHT_TYPE_Q4_0:
        b = row + 18 * block;
        return (double)half_at(b) * ((i < 16 ? b[2 + i] & 15 : b[2 + i - 16] >> 4) - 8);
    default:
        b = row + 20 * block;
        return (double)half_at(b) * (i < 16 ? b[4 + i] & 15 : b[4 + i - 16] >> 4) +
               (double)half_at(b + 2);
    }
}

static struct matrix *load_matrix(struct backend *backend, const struct kernel_case *test,
                                  const uint32_t *row_order)
{
    uint8_t *bytes = random_weights(test->type, test->outputs, test->columns);
    struct matrix_source source = {.type = test->type,
                                   .rows = test->outputs,
                                   .columns = test->columns,
                                   .bytes = bytes,
                                   .row_order = row_order};
    struct matrix *matrix = NULL;
    CHECK(backend->operations->matrix_load(backend, &source, &matrix) == STATUS_OK);
    free(bytes);
    return matrix;
}

/* --- matmul ---------------------------------------------------------------------------------- */

static void run_matmul(struct backend *backend, const struct kernel_case *test, float *output)
{
    const struct backend_operations *ops = backend->operations;
    size_t count = (size_t)test->rows * test->columns;
    float *values = values_of(test, 1, count);
    float *input = subject_upload(backend, values, count * sizeof(float));
    uint64_t output_bytes = (uint64_t)test->rows * test->outputs * sizeof(float);
    float *result = subject_memory(backend, output_bytes);
    void *prepared =
        subject_memory(backend, ops->prepared_bytes(backend, test->rows, test->columns) + 1);
    struct matrix *matrix = load_matrix(backend, test, NULL);
    struct prepare_args prepare = {input, test->rows, test->columns, prepared,
                                   weight_type_form(test->type)};
    struct matmul_args args = {.input = input,
                               .prepared = prepared,
                               .rows = test->rows,
                               .columns = test->columns,
                               .part_count = 1,
                               .parts = {{matrix, result}}};
    ops->prepare(backend, &prepare);
    ops->matmul(backend, &args);
    subject_download(backend, output, result, output_bytes);
    ops->matrix_free(backend, matrix);
    free(values);
}

/* Activation as the weights of a type meet it; that of quantized weights is a matter of the bound.
 */
static double activation(uint32_t type, float x)
{
    return (double)(type == WEIGHT_TYPE_BF16 ? bf16_to_float(bf16_from_float(x)) : x);
}

/* Float weights: one rounding per step of the chain. Quantized: activations are off by half a unit
 * of a 32767th of the largest of their block, and the chain has two steps per block. */
static void expect_matmul(const struct kernel_case *test, struct expectation *expected)
{
    float *input = values_of(test, 1, (size_t)test->rows * test->columns);
    uint8_t *weights = random_weights(test->type, test->outputs, test->columns);
    uint64_t row_bytes = weight_row_bytes(test->type, test->columns);
    bool quantized = test->type >= WEIGHT_TYPE_Q8_0;
    for (uint32_t row = 0; row < test->rows; row++) {
        const float *x = input + (size_t)row * test->columns;
        for (uint32_t o = 0; o < test->outputs; o++) {
            double sum = 0, magnitude = 0, rounding = 0, largest = 0;
            for (uint32_t k = 0; k < test->columns; k++) {
                double w = file_weight(weights + o * row_bytes, test->type, k);
                if (k % 32 == 0) {
                    largest = 0;
                    for (uint32_t i = k; i < k + 32 && i < test->columns; i++)
                        largest = fmax(largest, fabs((double)x[i]));
                }
                sum += w * activation(test->type, x[k]);
                magnitude += fabs(w * (double)x[k]);
                rounding += fabs(w) * largest / 32767 * 0.51;
            }
            double steps = quantized ? test->columns / 32 * 2 + 16 : test->columns;
            expected[(size_t)row * test->outputs + o] = (struct expectation){
                sum, (quantized ? rounding : 0) + magnitude * steps * FLOAT_EPSILON};
        }
    }
    free(weights);
    free(input);
}

/* --- embed and gather ------------------------------------------------------------------------ */

static uint32_t token_of(const struct kernel_case *test, uint32_t row)
{
    return (row * 5 + 3) % test->outputs;
}

/* The matrix has `outputs` rows; the case compares `columns` values per row. */
static void run_embed(struct backend *backend, const struct kernel_case *test, float *output)
{
    uint32_t tokens[16];
    CHECK(test->rows <= 16);
    for (uint32_t row = 0; row < test->rows; row++)
        tokens[row] = token_of(test, row);
    struct kernel_case table = *test;
    struct matrix *matrix = load_matrix(backend, &table, NULL);
    uint64_t bytes = (uint64_t)test->rows * test->columns * sizeof(float);
    struct embed_args args = {matrix, subject_upload(backend, tokens, sizeof tokens), test->rows,
                              subject_memory(backend, bytes)};
    backend->operations->embed(backend, &args);
    subject_download(backend, output, args.output, bytes);
    backend->operations->matrix_free(backend, matrix);
}

static void expect_embed(const struct kernel_case *test, struct expectation *expected)
{
    uint8_t *weights = random_weights(test->type, test->outputs, test->columns);
    uint64_t row_bytes = weight_row_bytes(test->type, test->columns);
    for (uint32_t row = 0; row < test->rows; row++) {
        for (uint32_t k = 0; k < test->columns; k++) {
            double w = file_weight(weights + token_of(test, row) * row_bytes, test->type, k);
            expected[(size_t)row * test->columns + k] = (struct expectation){w, 20 * FLOAT_EPSILON};
        }
    }
    free(weights);
}

static void run_gather(struct backend *backend, const struct kernel_case *test, float *output)
{
    static const uint32_t taken[] = {4, 0, 2};
    float *values = values_of(test, 2, 5 * (size_t)test->columns);
    uint64_t bytes = (uint64_t)test->rows * test->columns * sizeof(float);
    struct gather_args args = {
        subject_upload(backend, values, 5 * (uint64_t)test->columns * sizeof(float)),
        subject_upload(backend, taken, sizeof taken), test->rows, test->columns,
        subject_memory(backend, bytes)};
    backend->operations->gather(backend, &args);
    subject_download(backend, output, args.output, bytes);
    free(values);
}

static void expect_gather(const struct kernel_case *test, struct expectation *expected)
{
    static const uint32_t taken[] = {4, 0, 2};
    float *values = values_of(test, 2, 5 * (size_t)test->columns);
    for (uint32_t i = 0; i < test->rows * test->columns; i++) {
        size_t from = (size_t)taken[i / test->columns] * test->columns + i % test->columns;
        expected[i] = (struct expectation){(double)values[from], 0};
    }
    free(values);
}

/* --- elementwise ----------------------------------------------------------------------------- */

static void run_rmsnorm(struct backend *backend, const struct kernel_case *test, float *output)
{
    size_t count = (size_t)test->rows * test->columns;
    float *values = values_of(test, 3, count), *weight = values_of(test, 4, test->columns);
    struct rmsnorm_args args = {subject_upload(backend, values, count * sizeof(float)),
                                subject_upload(backend, weight, test->columns * sizeof(float)),
                                test->rows,
                                test->columns,
                                1e-5f,
                                subject_memory(backend, count * sizeof(float))};
    backend->operations->rmsnorm(backend, &args);
    subject_download(backend, output, args.output, count * sizeof(float));
    args.output = (float *)(uintptr_t)args.input; /* in place: the same bits */
    backend->operations->rmsnorm(backend, &args);
    float *again = malloc(count * sizeof *again);
    subject_download(backend, again, args.output, count * sizeof(float));
    assert_same_bits("rmsnorm in place", again, output, count * sizeof(float));
    free(again);
    free(weight);
    free(values);
}

static void expect_rmsnorm(const struct kernel_case *test, struct expectation *expected)
{
    size_t count = (size_t)test->rows * test->columns;
    float *values = values_of(test, 3, count), *weight = values_of(test, 4, test->columns);
    for (uint32_t row = 0; row < test->rows; row++) {
        const float *x = values + (size_t)row * test->columns;
        double sum = 0;
        for (uint32_t k = 0; k < test->columns; k++)
            sum += (double)x[k] * (double)x[k];
        double inverse = 1 / sqrt(sum / test->columns + (double)1e-5f);
        for (uint32_t k = 0; k < test->columns; k++) {
            double y = (double)x[k] * inverse * (double)weight[k];
            expected[(size_t)row * test->columns + k] =
                (struct expectation){y, fabs(y) * (test->columns / 16 + 12) * FLOAT_EPSILON};
        }
    }
    free(weight);
    free(values);
}

static void run_silu_mul(struct backend *backend, const struct kernel_case *test, float *output)
{
    size_t count = (size_t)test->rows * test->columns;
    float *gate = values_of(test, 5, count), *up = values_of(test, 6, count);
    for (size_t i = 0; i < count; i++)
        gate[i] *= 8;
    float *place = subject_upload(backend, gate, count * sizeof(float));
    struct silu_mul_args args = {place, subject_upload(backend, up, count * sizeof(float)),
                                 test->rows, test->columns, place};
    backend->operations->silu_mul(backend, &args);
    subject_download(backend, output, place, count * sizeof(float));
    free(up);
    free(gate);
}

/* Where exp(-gate) exceeds e^88 the result is zero. */
static void expect_silu_mul(const struct kernel_case *test, struct expectation *expected)
{
    size_t count = (size_t)test->rows * test->columns;
    float *gate = values_of(test, 5, count), *up = values_of(test, 6, count);
    for (size_t i = 0; i < count; i++) {
        double g = (double)gate[i] * 8;
        double y = g / (1 + exp(-g)) * (double)up[i];
        expected[i] = (struct expectation){y, fabs(y) * 8 * FLOAT_EPSILON + 1e-34};
    }
    free(up);
    free(gate);
}

static void run_add(struct backend *backend, const struct kernel_case *test, float *output)
{
    size_t count = (size_t)test->rows * test->columns;
    float *a = values_of(test, 7, count), *b = values_of(test, 8, count);
    struct add_args args = {subject_upload(backend, a, count * sizeof(float)),
                            subject_upload(backend, b, count * sizeof(float)), test->rows,
                            test->columns};
    backend->operations->add(backend, &args);
    subject_download(backend, output, args.accumulator, count * sizeof(float));
    free(b);
    free(a);
}

static void expect_add(const struct kernel_case *test, struct expectation *expected)
{
    size_t count = (size_t)test->rows * test->columns;
    float *a = values_of(test, 7, count), *b = values_of(test, 8, count);
    for (size_t i = 0; i < count; i++) {
        double y = (double)a[i] + (double)b[i];
        expected[i] = (struct expectation){y, fabs(y) * FLOAT_EPSILON};
    }
    free(b);
    free(a);
}

enum { ROPE_POSITIONS = 3000, ROPE_HEADS = 2 };

static uint32_t rope_position(uint32_t row)
{
    static const uint32_t positions[] = {0, 1, 17, 2047, 2999};
    return positions[row % 5];
}

static struct rope_parameters rope_parameters_of(uint32_t rotary_dims)
{
    return (struct rope_parameters){100000.0, rotary_dims, ROPE_POSITIONS, NULL};
}

/* columns = head_dim, outputs = ROPE_HEADS x head_dim, type = dims that stay unrotated */
static void run_rope(struct backend *backend, const struct kernel_case *test, float *output)
{
    struct rope_parameters parameters = rope_parameters_of(test->columns - test->type);
    float *table = malloc(rope_table_elements(&parameters) * sizeof *table);
    rope_table_fill(&parameters, table);
    size_t count = (size_t)test->rows * test->outputs;
    float *values = values_of(test, 9, count);
    uint32_t positions[8];
    for (uint32_t row = 0; row < test->rows; row++)
        positions[row] = rope_position(row);
    struct rope_args args = {
        subject_upload(backend, values, count * sizeof(float)),
        subject_upload(backend, positions, sizeof positions),
        subject_upload(backend, table, rope_table_elements(&parameters) * sizeof(float)),
        test->rows,
        ROPE_HEADS,
        test->columns,
        parameters.rotary_dims};
    backend->operations->rope(backend, &args);
    subject_download(backend, output, args.values, count * sizeof(float));
    free(values);
    free(table);
}

static void expect_rope(const struct kernel_case *test, struct expectation *expected)
{
    size_t count = (size_t)test->rows * test->outputs;
    float *values = values_of(test, 9, count);
    uint32_t rotary = test->columns - test->type, half = rotary / 2;
    for (size_t i = 0; i < count; i++) {
        uint32_t row = (uint32_t)(i / test->outputs), dim = (uint32_t)(i % test->columns);
        const float *head = values + (i - dim);
        if (dim >= rotary) {
            expected[i] = (struct expectation){(double)head[dim], 0};
            continue;
        }
        uint32_t j = dim % half;
        double angle = rope_position(row) * pow(100000.0, -2.0 * j / rotary);
        double low = (double)head[j], high = (double)head[half + j];
        double y = dim < half ? low * cos(angle) - high * sin(angle)
                              : high * cos(angle) + low * sin(angle);
        expected[i] = (struct expectation){y, (fabs(low) + fabs(high)) * 4 * FLOAT_EPSILON};
    }
    free(values);
}

/* --- the table ------------------------------------------------------------------------------- */

#define MATMUL(kind, rows, columns, outputs)                                                       \
    {                                                                                              \
        "matmul " #kind " " #rows "x" #columns "x" #outputs, run_matmul, expect_matmul, rows,      \
            columns, outputs, WEIGHT_TYPE_##kind                                                   \
    }
#define MATMUL_SHAPES(kind)                                                                        \
    MATMUL(kind, 1, 32, 1), MATMUL(kind, 1, 576, 192), MATMUL(kind, 2, 96, 17),                    \
        MATMUL(kind, 3, 64, 16), MATMUL(kind, 4, 608, 40), MATMUL(kind, 7, 544, 33),               \
        MATMUL(kind, 9, 1536, 20), MATMUL(kind, 131, 64, 18)
#define EMBED(kind)                                                                                \
    {                                                                                              \
        "embed " #kind, run_embed, expect_embed, 7, 96, 35, WEIGHT_TYPE_##kind                     \
    }

/* clang-format off */
static const struct kernel_case cases[] = {
    MATMUL_SHAPES(F32), MATMUL_SHAPES(F16), MATMUL_SHAPES(BF16),
    MATMUL_SHAPES(Q8_0), MATMUL_SHAPES(Q4_0), MATMUL_SHAPES(Q4_1),
    MATMUL(F32, 5, 1, 3), MATMUL(F16, 6, 7, 16), MATMUL(BF16, 11, 100, 15),
    MATMUL(BF16, 4, 1, 5), MATMUL(BF16, 13, 33, 40), MATMUL(BF16, 1, 577, 97), MATMUL(BF16, 27, 259, 64),
    EMBED(F32), EMBED(F16), EMBED(BF16), EMBED(Q8_0), EMBED(Q4_0), EMBED(Q4_1),
    {"embed BF16, odd columns", run_embed, expect_embed, 7, 97, 35, WEIGHT_TYPE_BF16},
    {"gather", run_gather, expect_gather, 3, 40, 40, 0},
    {"rmsnorm 1x576", run_rmsnorm, expect_rmsnorm, 1, 576, 576, 0},
    {"rmsnorm 9x77", run_rmsnorm, expect_rmsnorm, 9, 77, 77, 0},
    {"rmsnorm 3x5", run_rmsnorm, expect_rmsnorm, 3, 5, 5, 0},
    {"rmsnorm 2x2061", run_rmsnorm, expect_rmsnorm, 2, 2061, 2061, 0},
    {"silu_mul 5x1536", run_silu_mul, expect_silu_mul, 5, 1536, 1536, 0},
    {"silu_mul 3x13", run_silu_mul, expect_silu_mul, 3, 13, 13, 0},
    {"add 300x33", run_add, expect_add, 300, 33, 33, 0},
    {"rope head_dim 64", run_rope, expect_rope, 5, 64, 128, 0},
    {"rope head_dim 128", run_rope, expect_rope, 4, 128, 256, 0},
    {"rope 48 of 64 dims", run_rope, expect_rope, 5, 64, 128, 16},
    {"rope 12 of 16 dims", run_rope, expect_rope, 5, 16, 32, 4},
};
/* clang-format on */

static size_t output_count(const struct kernel_case *test)
{
    return (size_t)test->rows * (test->run == run_embed ? test->columns : test->outputs);
}

/* The first subject of the family gives the bits that the others must have. */
struct family_result {
    const char *family;
    float *output;
};

/* Returns the hash of the output bits of the first subject. */
static uint64_t check_case(const struct kernel_case *test)
{
    size_t count = output_count(test);
    struct expectation *expected = malloc(count * sizeof *expected);
    struct family_result first = {NULL, malloc(count * sizeof(float))};
    float *output = malloc(count * sizeof *output);
    CHECK(expected != NULL && first.output != NULL && output != NULL);
    test->expect(test, expected);
    for (size_t s = 0; s < subject_count; s++) {
        char what[160];
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        memset(output, 0xff, count * sizeof *output);
        test->run(backend, test, output);
        backend_close(backend);
        snprintf(what, sizeof what, "%s on %s", test->name, subjects[s].name);
        assert_close(what, output, expected, count);
        if (first.family != NULL && strcmp(first.family, subjects[s].family) == 0) {
            assert_same_bits(what, output, first.output, count * sizeof *output);
        } else {
            first.family = subjects[s].family;
            memcpy(first.output, output, count * sizeof *output);
        }
    }
    uint64_t hash = XXH3_64bits(first.output, count * sizeof *output);
    free(output);
    free(first.output);
    free(expected);
    return hash;
}

/* All output bits of all cases: a change of one of these numbers is a change of the arithmetic,
 * which then needs another version in backend_arithmetic(). (A new case changes them too.) Cases
 * of BF16 weights stand apart, so that a change of theirs shows that nothing else moved. */
#define ARITHMETIC_CPU_1      UINT64_C(0x152294ef5efb38c7)
#define ARITHMETIC_CPU_2_BF16 UINT64_C(0xfda2a9d9cdc97c75)

static bool is_bf16(const struct kernel_case *test)
{
    return test->type == WEIGHT_TYPE_BF16;
}

static void every_case_is_right_on_every_backend(void **state)
{
    uint64_t hashes[2][sizeof cases / sizeof *cases];
    size_t counts[2] = {0};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool apart = is_bf16(&cases[i]);
        hashes[apart][counts[apart]++] = check_case(&cases[i]);
    }
    uint64_t most = XXH3_64bits(hashes[0], counts[0] * sizeof **hashes);
    uint64_t bf16 = XXH3_64bits(hashes[1], counts[1] * sizeof **hashes);
    if (most != ARITHMETIC_CPU_1 || bf16 != ARITHMETIC_CPU_2_BF16)
        fail_msg("the bits of the arithmetic changed: %#llx, cases of BF16 %#llx",
                 (unsigned long long)most, (unsigned long long)bf16);
}

/* A buffer serves all inputs of a step: what suffices for the widest one suffices for each. */
static void prepared_rows_fit_where_wider_ones_do(void **state)
{
    static const uint32_t row_counts[] = {1, 13, 40};
    (void)state;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
            uint64_t narrower = 0;
            for (uint32_t columns = 1; columns <= 200; columns++) {
                uint64_t bytes =
                    backend->operations->prepared_bytes(backend, row_counts[i], columns);
                assert_true(bytes >= narrower);
                narrower = bytes;
            }
        }
        backend_close(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_case_is_right_on_every_backend),
        cmocka_unit_test(prepared_rows_fit_where_wider_ones_do),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
