#include "worker/kv_pool.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* The cache of a model of 16 layers, 8 heads of 64, in 16 bits: 32,768 bytes a block, as in the
 * original system. */
static const struct kv_geometry GEOMETRY = {
    .layers = 16,
    .kv_heads = 8,
    .head_dim = 64,
    .block_tokens = KV_BLOCK_TOKENS_DEFAULT,
    .type = KV_TYPE_F16,
    .order = KV_ORDER_CPU,
};

static struct backend *backend;

static int open_backend(void **state)
{
    (void)state;
    const struct backend_options options = {
        .kind = BACKEND_CPU, .cpu_isa = CPU_ISA_PLAIN, .threads = 1};
    return backend_open(&options, &backend, NULL) == STATUS_OK ? 0 : -1;
}

static int close_backend(void **state)
{
    (void)state;
    backend_close(backend);
    return 0;
}

static uint64_t resident_bytes(void)
{
    unsigned long long total, resident;
    FILE *file = fopen("/proc/self/statm", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%llu %llu", &total, &resident), 2);
    fclose(file);
    return resident * (uint64_t)sysconf(_SC_PAGESIZE);
}

/* S5: 2 GiB make 65,536 blocks of 32,768 bytes; the room costs nothing before it is used. */
static void s05_two_gibibytes_make_65536_blocks(void **state)
{
    (void)state;
    struct kv_pool pool;
    uint64_t before = resident_bytes();
    assert_int_equal(kv_pool_open(backend, &GEOMETRY, UINT64_C(2) << 30, &pool, NULL), STATUS_OK);
    assert_int_equal(pool.blocks, 65536);
    assert_int_equal(pool.bytes, UINT64_C(2) << 30);
    assert_true(resident_bytes() - before < 16 << 20);
    kv_pool_close(&pool);
}

/* Offsets of 64 bits: in a pool of 5 GiB the last block is far beyond 2^31 and does not alias a
 * lower one. */
static void s05_a_sparse_pool_of_five_gibibytes(void **state)
{
    (void)state;
    struct kv_pool pool;
    assert_int_equal(kv_pool_open(backend, &GEOMETRY, UINT64_C(5) << 30, &pool, NULL), STATUS_OK);
    assert_int_equal(pool.blocks, 163840);
    uint64_t before = resident_bytes();
    const uint32_t blocks[] = {0, 1, 65535, 65536, 131071, 131072, 163839};
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        uint8_t *bytes = (uint8_t *)pool.memory + kv_block_offset(&GEOMETRY, blocks[i]);
        assert_true((uint64_t)(bytes - (uint8_t *)pool.memory) == (uint64_t)blocks[i] * 32768);
        memset(bytes, (int)i + 1, 32768);
    }
    for (size_t i = 0; i < sizeof blocks / sizeof blocks[0]; i++) {
        const uint8_t *bytes = (uint8_t *)pool.memory + kv_block_offset(&GEOMETRY, blocks[i]);
        assert_int_equal(bytes[0], i + 1);
        assert_int_equal(bytes[32767], i + 1);
    }
    assert_true(resident_bytes() - before < 64 << 20);
    kv_pool_close(&pool);
}

static void the_number_of_blocks_is_a_multiple_of_the_layers(void **state)
{
    (void)state;
    struct kv_pool pool;
    assert_int_equal(kv_pool_open(backend, &GEOMETRY, 47 * 32768 + 100, &pool, NULL), STATUS_OK);
    assert_int_equal(pool.blocks, 32);
    kv_pool_close(&pool);
}

static void refuses_a_pool_without_a_block_or_with_too_many(void **state)
{
    (void)state;
    struct kv_pool pool = {0};
    struct reason reason;
    assert_int_equal(kv_pool_open(backend, &GEOMETRY, 16 * 32768 - 1, &pool, reason_init(&reason)),
                     STATUS_INVALID);
    assert_non_null(strstr(reason.storage, "a pool of 524287 bytes makes 0 blocks of 32768 bytes"));
    assert_int_equal(
        kv_pool_open(backend, &GEOMETRY, UINT64_C(1) << 47, &pool, reason_init(&reason)),
        STATUS_INVALID);
    assert_non_null(strstr(reason.storage, "makes 4294967296 blocks"));
    kv_pool_close(&pool); /* a zeroed one may be closed */
}

static void discarding_gives_the_memory_back(void **state)
{
    (void)state;
    struct kv_pool pool;
    const uint64_t used = 64 << 20;
    assert_int_equal(kv_pool_open(backend, &GEOMETRY, UINT64_C(1) << 30, &pool, NULL), STATUS_OK);
    assert_false(pool.touched);
    uint64_t before = resident_bytes();
    for (uint32_t block = 0; block < used / 32768; block++)
        kv_pool_poison(&pool, block);
    assert_true(pool.touched);
    assert_true(resident_bytes() - before >= used);
    kv_pool_discard(&pool);
    assert_false(pool.touched);
    assert_true(resident_bytes() < before + (16 << 20));
    const uint64_t *words = pool.memory;
    for (uint64_t i = 0; i < used / sizeof *words; i += 512)
        assert_int_equal(words[i], 0);
    kv_pool_close(&pool);
}

static void poison_is_nan_in_every_type_and_stays_in_its_block(void **state)
{
    (void)state;
    struct kv_pool pool;
    assert_int_equal(kv_pool_open(backend, &GEOMETRY, 32 * 32768, &pool, NULL), STATUS_OK);
    kv_pool_poison(&pool, 3);
    const uint8_t *bytes = pool.memory;
    for (uint32_t i = 0; i < 32 * 32768; i++)
        assert_int_equal(bytes[i], i / 32768 == 3 ? 0xff : 0);
    float value;
    memcpy(&value, bytes + 3 * 32768, sizeof value);
    assert_true(isnan(value));
    kv_pool_close(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(s05_two_gibibytes_make_65536_blocks),
        cmocka_unit_test(s05_a_sparse_pool_of_five_gibibytes),
        cmocka_unit_test(the_number_of_blocks_is_a_multiple_of_the_layers),
        cmocka_unit_test(refuses_a_pool_without_a_block_or_with_too_many),
        cmocka_unit_test(discarding_gives_the_memory_back),
        cmocka_unit_test(poison_is_nan_in_every_type_and_stays_in_its_block),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
