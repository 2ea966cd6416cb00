#include "common/geometry.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

/* Llama-3.2-1B, the model of the original system: its numbers are the golden ones. */
static const struct kv_geometry LLAMA = {.layers = 16,
                                         .kv_heads = 8,
                                         .head_dim = 64,
                                         .block_tokens = 16,
                                         .type = KV_TYPE_BF16,
                                         .order = KV_ORDER_CUDA};

/* An odd one: nothing is a power of two, one head. */
static const struct kv_geometry ODD = {.layers = 3,
                                       .kv_heads = 3,
                                       .head_dim = 24,
                                       .block_tokens = 8,
                                       .type = KV_TYPE_F32,
                                       .order = KV_ORDER_CPU};

static void s01_s02_s03_s04_sizes_follow_from_the_model(void **state)
{
    (void)state;
    assert_int_equal(KV_BLOCK_TOKENS_DEFAULT, 16);
    assert_int_equal(kv_dim(&LLAMA), 512);
    assert_int_equal(kv_v_offset(&LLAMA), 16384);
    assert_int_equal(kv_block_bytes(&LLAMA), 32768);
    assert_int_equal(kv_dim(&ODD), 72);
    assert_int_equal(kv_v_offset(&ODD), 72 * 8 * 4);
    assert_int_equal(kv_block_bytes(&ODD), 2 * 72 * 8 * 4);
}

static void s05_a_pool_of_two_gib_has_65536_blocks(void **state)
{
    (void)state;
    assert_int_equal(kv_pool_blocks(&LLAMA, UINT64_C(2) << 30), 65536);
    assert_int_equal(kv_pool_positions(&LLAMA, 65536), 65536);
    /* A logical block takes one block per layer: what is left over is not handed out. */
    uint64_t logical = kv_block_bytes(&ODD) * ODD.layers;
    assert_int_equal(kv_pool_blocks(&ODD, 5 * logical), 15);
    assert_int_equal(kv_pool_blocks(&ODD, 5 * logical - 1), 12);
    assert_int_equal(kv_pool_blocks(&ODD, logical - 1), 0);
}

/* Every (slot, layer, logical) has an index of its own and none is left over; the innermost runs
 * fastest, as the law [slot][layer][logical] says. */
static void s09_s10_s11_table_index_is_a_bijection(void **state)
{
    (void)state;
    enum { SLOTS = 5, LOGICAL = 7 };
    uint64_t entries = kv_table_entries(&LLAMA, LOGICAL, SLOTS);
    assert_int_equal(entries, SLOTS * 16 * LOGICAL);
    uint64_t expected = 0;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t layer = 0; layer < LLAMA.layers; layer++)
            for (uint32_t logical = 0; logical < LOGICAL; logical++)
                assert_int_equal(kv_table_index(&LLAMA, LOGICAL, slot, layer, logical), expected++);
    assert_int_equal(expected, entries);
    assert_int_equal(KV_BLOCK_UNMAPPED, -1);
}

/* Every element of every block has an address of its own, and together they fill the pool. */
static void check_addresses(const struct kv_geometry *geometry, uint32_t blocks)
{
    uint32_t element_bytes = kv_element_bytes(geometry);
    uint64_t elements = blocks * kv_block_bytes(geometry) / element_bytes;
    uint8_t *seen = calloc(elements, 1);
    assert_non_null(seen);
    uint64_t count = 0;
    for (uint32_t block = 0; block < blocks; block++)
        for (uint32_t head = 0; head < geometry->kv_heads; head++)
            for (uint32_t token = 0; token < geometry->block_tokens; token++)
                for (uint32_t dim = 0; dim < geometry->head_dim; dim++) {
                    uint64_t k = kv_k_head_offset(geometry, block, head) / element_bytes +
                                 kv_k_element(geometry, token, dim);
                    uint64_t v = kv_v_head_offset(geometry, block, head) / element_bytes +
                                 kv_v_element(geometry, token, dim);
                    assert_true(k < elements && v < elements);
                    assert_true(!seen[k] && !seen[v] && k != v);
                    seen[k] = seen[v] = 1;
                    count += 2;
                }
    free(seen);
    assert_int_equal(count, elements);
}

static void s18_s26_addresses_fill_the_pool_without_overlap(void **state)
{
    (void)state;
    check_addresses(&LLAMA, 3);
    check_addresses(&ODD, 4);
    struct kv_geometry cpu = LLAMA;
    cpu.order = KV_ORDER_CPU;
    check_addresses(&cpu, 2);
}

static void s18_s26_golden_addresses(void **state)
{
    (void)state;
    /* Block 2, head 3: K in front, V behind, one head's 16 tokens are one run. */
    assert_int_equal(kv_k_head_offset(&LLAMA, 2, 3), 2 * 32768 + 3 * 16 * 64 * 2);
    assert_int_equal(kv_v_head_offset(&LLAMA, 2, 3), 2 * 32768 + 16384 + 3 * 16 * 64 * 2);
    assert_int_equal(kv_k_element(&LLAMA, 5, 7), 5 * 64 + 5 * 8 + 7); /* vector 0 xor 5 */
    assert_int_equal(kv_v_element(&LLAMA, 5, 7), 5 * 64 + 5 * 8 + 7);
    assert_int_equal(kv_v_element(&LLAMA, 8, 63), 8 * 64 + 63);  /* xor 0 */
    assert_int_equal(kv_v_element(&LLAMA, 15, 63), 15 * 64 + 7); /* vector 7 xor 7 */
    struct kv_geometry cpu = LLAMA;
    cpu.order = KV_ORDER_CPU;
    assert_int_equal(kv_k_element(&cpu, 5, 7), 7 * 16 + 5);
    assert_int_equal(kv_v_element(&cpu, 5, 7), 5 * 64 + 7);
}

/* The original computed in int, one block below the edge. */
static void offsets_beyond_two_gib_do_not_wrap(void **state)
{
    (void)state;
    assert_int_equal(kv_block_offset(&LLAMA, 65536), UINT64_C(1) << 31);
    assert_int_equal(kv_block_offset(&LLAMA, UINT32_MAX), UINT64_C(0xffffffff) * 32768);
    assert_int_equal(kv_v_head_offset(&LLAMA, 200000, 7),
                     UINT64_C(200000) * 32768 + 16384 + 7 * 2048);
    assert_int_equal(kv_table_index(&LLAMA, 1u << 20, 1000, 15, 1u << 19),
                     (UINT64_C(1000) * 16 + 15) * (1u << 20) + (1u << 19));
}

static void s14_s24_blocks_at_the_borders(void **state)
{
    (void)state;
    static const struct {
        uint32_t tokens, blocks;
    } CASES[] = {{0, 0},  {1, 1},  {15, 1},     {16, 1},     {17, 2},    {31, 2},
                 {32, 2}, {33, 3}, {2047, 128}, {2048, 128}, {2049, 129}};
    for (size_t i = 0; i < sizeof CASES / sizeof CASES[0]; i++)
        assert_int_equal(kv_blocks_for(&LLAMA, CASES[i].tokens), CASES[i].blocks);
    assert_int_equal(kv_blocks_for(&LLAMA, UINT32_MAX), UINT32_MAX / 16 + 1);
    assert_int_equal(kv_positions_of(&LLAMA, 0), 0);
    assert_int_equal(kv_positions_of(&LLAMA, 3), 48);
    for (uint32_t position = 0; position < 100; position++) {
        uint32_t logical = kv_logical_block(&LLAMA, position);
        assert_int_equal(logical, kv_blocks_for(&LLAMA, position + 1) - 1);
        assert_int_equal(kv_token_in_block(&LLAMA, position), position - logical * 16);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(s01_s02_s03_s04_sizes_follow_from_the_model),
        cmocka_unit_test(s05_a_pool_of_two_gib_has_65536_blocks),
        cmocka_unit_test(s09_s10_s11_table_index_is_a_bijection),
        cmocka_unit_test(s18_s26_addresses_fill_the_pool_without_overlap),
        cmocka_unit_test(s18_s26_golden_addresses),
        cmocka_unit_test(offsets_beyond_two_gib_do_not_wrap),
        cmocka_unit_test(s14_s24_blocks_at_the_borders),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
