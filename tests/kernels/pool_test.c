/* kv_write: addresses in the pool, 64-bit offsets, values that the pool's type cannot hold. */
#include "common/check.h"
#include "common/float16.h"
#include "kernels/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

static const struct scene_options base = {.heads = 3,
                                          .kv_heads = 3,
                                          .head_dim = 64,
                                          .block_tokens = 16,
                                          .type = KV_TYPE_F16,
                                          .layers = 2,
                                          .slots = 2,
                                          .context = 48,
                                          .shuffle = 9};

/* Byte offsets written out by hand for 16-token blocks, 3 heads of 64 dims, F16: K
 * [head][dim][token], then V [head][token][dim]. */
static uint64_t golden_offset(int32_t block, bool value, uint32_t head, uint32_t token,
                              uint32_t dim)
{
    uint64_t start = (uint64_t)block * 12288 + head * 2048u;
    return value ? start + 6144 + token * 128u + dim * 2u : start + dim * 32u + token * 2u;
}

static void check_addresses(struct backend *backend)
{
    struct scene scene;
    scene_open(&scene, backend, &base);
    scene_write(&scene, 1, 1, 0, 40);
    uint8_t *pool = subject_memory(backend, scene.pool_bytes);
    subject_download(backend, pool, scene.kv.pool, scene.pool_bytes);
    for (uint32_t position = 0; position < 48; position++) {
        int32_t block = scene.table[(1 * 2 + 1) * 3 + position / 16]; /* [slot 1][layer 1] */
        struct scene_row row = {1, position};
        for (uint32_t d = 0; d < 3 * 64; d++) {
            uint16_t key, value;
            uint32_t head = d / 64, dim = d % 64;
            memcpy(&key, pool + golden_offset(block, false, head, position % 16, dim), 2);
            memcpy(&value, pool + golden_offset(block, true, head, position % 16, dim), 2);
            if (position < 40) {
                assert_int_equal(key, fp16_from_float(scene_key(&base, 1, row, head, dim)));
                assert_int_equal(value, fp16_from_float(scene_value(&base, 1, row, head, dim)));
            } else { /* not written */
                assert_int_equal(key, 0xffff);
                assert_int_equal(value, 0xffff);
            }
        }
    }
    scene_close(&scene);
}

static void s3_s4_s18_s26_golden_addresses(void **state)
{
    (void)state;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        if (backend->kv_order == KV_ORDER_CPU)
            check_addresses(backend);
        backend_close(backend);
    }
}

/* A pool of 5 GiB of which only the touched pages exist: blocks lie on both sides of 2 and of 4
 * GiB. */
static void s5_offsets_beyond_two_and_four_gib(void **state)
{
    struct scene_options options = base;
    struct scene_row row = {1, 47};
    struct expectation expected[3 * 64];
    float output[3 * 64];
    (void)state;
    options.pool_blocks = (UINT64_C(5) << 30) / 12288;
    scene_expect(&options, 1, row, expected);
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        struct scene scene;
        bool beyond[2] = {false, false};
        if (backend == NULL)
            continue;
        scene_open(&scene, backend, &options);
        for (uint32_t layer = 0; layer < 2; layer++) {
            scene_write(&scene, layer, 0, 0, 48);
            scene_write(&scene, layer, 1, 0, 48);
        }
        for (uint32_t i = 0; i < 12; i++) {
            uint64_t offset = kv_block_offset(&scene.kv.geometry, (uint32_t)scene.table[i]);
            beyond[0] = beyond[0] || offset > INT32_MAX;
            beyond[1] = beyond[1] || offset > UINT32_MAX;
        }
        assert_true(beyond[0] && beyond[1]);
        scene_attend(&scene, 1, &row, 1, false, output);
        assert_close(subjects[s].name, output, expected, 3 * 64);
        scene_close(&scene);
        backend_close(backend);
    }
}

/* Writes one row whose key or value has `strange` at one place; returns the row's errors. */
static uint32_t write_strange(struct backend *backend, uint32_t type, bool in_value, float strange)
{
    struct scene_options options = base;
    struct scene scene;
    float row[2][3 * 64] = {{0}}; /* a sound row, then the strange one */
    uint32_t positions[2] = {4, 5}, slots[2] = {0, 0}, errors[2] = {0, 0};
    options.type = type;
    scene_open(&scene, backend, &options);
    float *sound = subject_upload(backend, row, sizeof row);
    row[1][3 * 64 - 3] = strange;
    float *other = subject_upload(backend, row, sizeof row);
    struct kv_write_args args = {.keys = in_value ? sound : other,
                                 .values = in_value ? other : sound,
                                 .places = {subject_upload(backend, positions, sizeof positions),
                                            subject_upload(backend, slots, sizeof slots)},
                                 .rows = 2,
                                 .layer = 0,
                                 .kv = scene.kv,
                                 .row_errors = subject_upload(backend, errors, sizeof errors)};
    backend->operations->kv_write(backend, &args);
    subject_download(backend, errors, args.row_errors, sizeof errors);
    scene_close(&scene);
    assert_int_equal(errors[0], 0); /* the neighbour is not blamed */
    return errors[1];
}

static void values_beyond_the_pool_type_are_errors_of_their_row(void **state)
{
    static const struct {
        float value;
        bool f16_holds, f32_holds;
    } tests[] = {
        {65504.0f, true, true},    {65519.0f, true, true}, {65520.0f, false, true},
        {-1e5f, false, true},      {1e-30f, true, true},   {INFINITY, false, false},
        {-INFINITY, false, false}, {NAN, false, false},    {0x1.fffffep+127f, false, true},
    };
    (void)state;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        for (size_t i = 0; i < sizeof tests / sizeof *tests; i++) {
            for (int in_value = 0; in_value <= 1; in_value++) {
                assert_int_equal(write_strange(backend, KV_TYPE_F16, in_value != 0, tests[i].value),
                                 tests[i].f16_holds ? 0 : ROW_ERROR_KV_RANGE);
                assert_int_equal(write_strange(backend, KV_TYPE_F32, in_value != 0, tests[i].value),
                                 tests[i].f32_holds ? 0 : ROW_ERROR_KV_RANGE);
            }
        }
        backend_close(backend);
    }
}

/* Discarded memory reads as zero and is the system's again; it can be written again. */
static void discarded_memory_is_zero(void **state)
{
    enum { BYTES = 1 << 20 };
    (void)state;
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        uint8_t *memory = subject_memory(backend, BYTES), sample[BYTES / 1024];
        memset(sample, 7, sizeof sample);
        for (uint32_t i = 0; i < BYTES; i += sizeof sample)
            backend->operations->upload(backend, memory + i, sample, sizeof sample);
        backend->operations->memory_discard(backend, memory, BYTES);
        for (uint32_t i = 0; i < BYTES; i += sizeof sample) {
            subject_download(backend, sample, memory + i, sizeof sample);
            assert_int_equal(sample[0] | sample[sizeof sample - 1], 0);
        }
        backend->operations->memory_release(backend, memory, BYTES);
        backend_close(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(s3_s4_s18_s26_golden_addresses),
        cmocka_unit_test(s5_offsets_beyond_two_and_four_gib),
        cmocka_unit_test(values_beyond_the_pool_type_are_errors_of_their_row),
        cmocka_unit_test(discarded_memory_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
