/* Operations that join several give the bits of those, on every instruction set. */
#include "common/check.h"
#include "kernels/rope_table.h"
#include "kernels/scene.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { ROWS = 37, HEADS = 9, KV_HEADS = 3, HEAD_DIM = 64, WIDTH = HEADS * HEAD_DIM, CONTEXT = 64 };
enum {
    ROUNDED_FORMS = ACTIVATION_FORM_INTEGERS | ACTIVATION_FORM_BF16,
    FORMS = ROUNDED_FORMS | ACTIVATION_FORM_FLOATS,
};

static const struct scene_options pool_options = {.heads = HEADS,
                                                  .kv_heads = KV_HEADS,
                                                  .head_dim = HEAD_DIM,
                                                  .block_tokens = 16,
                                                  .type = KV_TYPE_F16,
                                                  .layers = 2,
                                                  .slots = 1,
                                                  .context = CONTEXT,
                                                  .shuffle = 3};

/* Calls `check` with every backend of this machine. */
static void on_all(void (*check)(struct backend *backend, const char *name))
{
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        check(backend, subjects[s].name);
        backend_close(backend);
    }
}

static void *filled(uint64_t seed, size_t count)
{
    float *values = malloc(count * sizeof *values);
    CHECK(values != NULL);
    fill_values(values, count, seed);
    return values;
}

/* Rounded rows start as zeros in both, since a record may end in padding. */
static void check_norm(struct backend *backend, const char *name)
{
    const struct backend_operations *ops = backend->operations;
    size_t count = (size_t)ROWS * WIDTH;
    uint64_t record = ops->prepared_bytes(backend, ROWS, WIDTH);
    float *weight = filled(3, WIDTH), *apart = filled(1, count), *joined = filled(1, count);
    float *addend = filled(2, count), *normed = filled(2, count), *expected = malloc(count * 4);
    void *rounded = calloc(1, record), *expected_rounded = calloc(1, record);
    struct norm_prepare_args args = {joined, normed, weight,  ROWS, WIDTH,
                                     1e-5f,  normed, rounded, FORMS};
    ops->add(backend, &(struct add_args){apart, addend, ROWS, WIDTH});
    ops->rmsnorm(backend, &(struct rmsnorm_args){apart, weight, ROWS, WIDTH, 1e-5f, expected});
    ops->prepare(backend, &(struct prepare_args){expected, ROWS, WIDTH, expected_rounded, FORMS});
    ops->norm_prepare(backend, &args); /* the addend lies where the output goes */
    assert_same_bits(name, joined, apart, count * sizeof *joined);
    assert_same_bits(name, normed, expected, count * sizeof *normed);
    assert_memory_equal(rounded, expected_rounded, record);
    args.addend = NULL;
    args.forms = ACTIVATION_FORM_FLOATS; /* no room is needed then */
    args.prepared = NULL;
    memset(normed, 0, count * sizeof *normed);
    ops->norm_prepare(backend, &args);
    assert_same_bits(name, joined, apart, count * sizeof *joined);
    assert_same_bits(name, normed, expected, count * sizeof *normed);
    free(expected_rounded);
    free(rounded);
    free(expected);
    free(normed);
    free(addend);
    free(joined);
    free(apart);
    free(weight);
}

/* The addend of a row is read before the share's rows go to the place of the first one. */
static void check_rounded_norm(struct backend *backend, const char *name)
{
    const struct backend_operations *ops = backend->operations;
    size_t count = (size_t)ROWS * WIDTH;
    uint64_t record = ops->prepared_bytes(backend, ROWS, WIDTH);
    float *weight = filled(3, WIDTH), *apart = filled(1, count), *joined = filled(1, count);
    float *addend = filled(2, count), *normed = filled(2, count);
    void *rounded = calloc(1, record), *expected = calloc(1, record);
    ops->norm_prepare(backend, &(struct norm_prepare_args){apart, addend, weight, ROWS, WIDTH,
                                                           1e-5f, addend, expected, FORMS});
    ops->norm_prepare(backend, &(struct norm_prepare_args){joined, normed, weight, ROWS, WIDTH,
                                                           1e-5f, normed, rounded, ROUNDED_FORMS});
    assert_same_bits(name, joined, apart, count * sizeof *joined);
    assert_memory_equal(rounded, expected, record);
    free(expected);
    free(rounded);
    free(normed);
    free(addend);
    free(joined);
    free(apart);
    free(weight);
}

static void norm_prepare_is_add_norm_prepare(void **state)
{
    (void)state;
    on_all(check_norm);
    on_all(check_rounded_norm);
}

static void check_silu(struct backend *backend, const char *name)
{
    const struct backend_operations *ops = backend->operations;
    size_t count = (size_t)ROWS * WIDTH;
    uint64_t record = ops->prepared_bytes(backend, ROWS, WIDTH);
    float *gate = filled(4, count), *up = filled(5, count), *expected = malloc(count * 4);
    void *rounded = calloc(1, record), *expected_rounded = calloc(1, record);
    ops->silu_mul(backend, &(struct silu_mul_args){gate, up, ROWS, WIDTH, expected});
    ops->prepare(backend, &(struct prepare_args){expected, ROWS, WIDTH, expected_rounded, FORMS});
    ops->silu_prepare(backend,
                      &(struct silu_prepare_args){{gate, up, ROWS, WIDTH, gate}, rounded, FORMS});
    assert_same_bits(name, gate, expected, count * sizeof *gate);
    assert_memory_equal(rounded, expected_rounded, record);
    free(gate);
    gate = filled(4, count);
    memset(rounded, 0, record);
    ops->silu_prepare(backend, &(struct silu_prepare_args){
                                   {gate, up, ROWS, WIDTH, gate}, rounded, ROUNDED_FORMS});
    assert_memory_equal(rounded, expected_rounded, record);
    free(expected_rounded);
    free(rounded);
    free(expected);
    free(up);
    free(gate);
}

static void silu_prepare_is_silu_mul_prepare(void **state)
{
    (void)state;
    on_all(check_silu);
}

struct rows {
    uint32_t positions[ROWS], slots[ROWS], errors[ROWS];
    float *queries, *keys, *values;
};

/* One value of row 5 does not fit the pool's type. */
static struct rows *make_rows(void)
{
    struct rows *rows = calloc(1, sizeof *rows);
    CHECK(rows != NULL);
    rows->queries = filled(6, (size_t)ROWS * WIDTH);
    rows->keys = filled(7, (size_t)ROWS * KV_HEADS * HEAD_DIM);
    rows->values = filled(8, (size_t)ROWS * KV_HEADS * HEAD_DIM);
    rows->values[5 * KV_HEADS * HEAD_DIM + 100] = 1e6f;
    for (uint32_t i = 0; i < ROWS; i++)
        rows->positions[i] = i + 11;
    return rows;
}

static void free_rows(struct rows *rows)
{
    free(rows->values);
    free(rows->keys);
    free(rows->queries);
    free(rows);
}

static void check_rope(struct backend *backend, const char *name)
{
    const struct backend_operations *ops = backend->operations;
    const struct rope_parameters parameters = {
        .theta = 10000, .rotary_dims = HEAD_DIM, .positions = CONTEXT};
    float *table = malloc(rope_table_elements(&parameters) * sizeof *table);
    struct rows *apart = make_rows(), *joined = make_rows();
    struct scene expected, scene;
    CHECK(table != NULL);
    rope_table_fill(&parameters, table);
    scene_open(&expected, backend, &pool_options);
    scene_open(&scene, backend, &pool_options);
    struct rope_args queries = {apart->queries, apart->positions, table,   ROWS,
                                HEADS,          HEAD_DIM,         HEAD_DIM};
    struct rope_args keys = {apart->keys, apart->positions, table,   ROWS,
                             KV_HEADS,    HEAD_DIM,         HEAD_DIM};
    struct kv_write_args write = {.keys = apart->keys,
                                  .values = apart->values,
                                  .places = {apart->positions, apart->slots},
                                  .rows = ROWS,
                                  .layer = 1,
                                  .kv = expected.kv,
                                  .row_errors = apart->errors};
    ops->rope(backend, &queries);
    ops->rope(backend, &keys);
    ops->kv_write(backend, &write);
    queries.values = joined->queries;
    keys.values = joined->keys;
    write.keys = joined->keys;
    write.values = joined->values;
    write.kv = scene.kv;
    write.row_errors = joined->errors;
    ops->rope_write(backend, &(struct rope_write_args){queries, keys, write});
    assert_same_bits(name, joined->queries, apart->queries, (size_t)ROWS * WIDTH * 4);
    assert_same_bits(name, joined->keys, apart->keys, (size_t)ROWS * KV_HEADS * HEAD_DIM * 4);
    assert_memory_equal(joined->errors, apart->errors, sizeof joined->errors);
    assert_int_equal(joined->errors[5], ROW_ERROR_KV_RANGE);
    assert_memory_equal(scene.kv.pool, expected.kv.pool, scene.pool_bytes);
    scene_close(&scene);
    scene_close(&expected);
    free_rows(joined);
    free_rows(apart);
    free(table);
}

static void rope_write_is_two_rotations_and_kv_write(void **state)
{
    (void)state;
    on_all(check_rope);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(norm_prepare_is_add_norm_prepare),
        cmocka_unit_test(silu_prepare_is_silu_mul_prepare),
        cmocka_unit_test(rope_write_is_two_rotations_and_kv_write),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
