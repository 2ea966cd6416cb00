/* The block table (S9, S10, S13). */
#include "coordinator/block_table.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { SLOTS = 3, LAYERS = 5, LOGICAL = 7 };

static struct arena arena;
static struct block_table table;

static int set_up(void **state)
{
    (void)state;
    const struct kv_geometry geometry = {.layers = LAYERS,
                                         .kv_heads = 1,
                                         .head_dim = 8,
                                         .block_tokens = 16,
                                         .type = KV_TYPE_F16,
                                         .order = KV_ORDER_CPU};
    assert_int_equal(arena_init(&arena, 1 << 16), STATUS_OK);
    assert_int_equal(block_table_init(&table, &arena, &geometry, SLOTS, LOGICAL), STATUS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_free(&arena);
    return 0;
}

static void fill(int32_t *blocks, int32_t first)
{
    for (int layer = 0; layer < LAYERS; layer++)
        blocks[layer] = first + layer;
}

static void s9_every_entry_starts_unmapped(void **state)
{
    (void)state;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t logical = 0; logical < LOGICAL; logical++)
                assert_int_equal(block_table_get(&table, slot, layer, logical), -1);
}

/* Every (slot, layer, logical) has an entry of its own: what is written to one shows in no other.
 */
static void s10_the_index_law_is_a_bijection(void **state)
{
    (void)state;
    int32_t blocks[LAYERS];
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        for (uint32_t logical = 0; logical < LOGICAL; logical++) {
            fill(blocks, (int32_t)(slot * LOGICAL + logical) * LAYERS);
            assert_int_equal(block_table_map(&table, slot, logical, blocks), STATUS_OK);
        }
    }
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t logical = 0; logical < LOGICAL; logical++)
                assert_int_equal(block_table_get(&table, slot, layer, logical),
                                 (slot * LOGICAL + logical) * LAYERS + layer);
}

static void s13_a_mapped_entry_is_refused_not_overwritten(void **state)
{
    (void)state;
    int32_t blocks[LAYERS], others[LAYERS];
    fill(blocks, 10);
    fill(others, 20);
    assert_int_equal(block_table_map(&table, 1, 2, blocks), STATUS_OK);
    assert_int_equal(block_table_map(&table, 1, 2, others), STATUS_EXISTS);
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        assert_int_equal(block_table_get(&table, 1, layer, 2), 10 + layer);
}

static void s15_clearing_unmaps_the_slot_in_every_layer_and_no_other(void **state)
{
    (void)state;
    int32_t blocks[LAYERS];
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        for (uint32_t logical = 0; logical < 3; logical++) {
            fill(blocks, 30);
            assert_int_equal(block_table_map(&table, slot, logical, blocks), STATUS_OK);
        }
    }
    block_table_clear(&table, 1, 2);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        for (uint32_t layer = 0; layer < LAYERS; layer++)
            for (uint32_t logical = 0; logical < 3; logical++)
                assert_int_equal(block_table_get(&table, slot, layer, logical),
                                 slot == 1 && logical < 2 ? -1 : (int32_t)(30 + layer));
    assert_int_equal(block_table_map(&table, 1, 0, blocks), STATUS_OK);
}

static void a_row_is_one_layer_by_logical_block(void **state)
{
    (void)state;
    int32_t blocks[LAYERS];
    for (uint32_t logical = 0; logical < LOGICAL; logical++) {
        fill(blocks, (int32_t)(100 * logical));
        assert_int_equal(block_table_map(&table, 2, logical, blocks), STATUS_OK);
    }
    const int32_t *row = block_table_row(&table, 2, 3);
    for (uint32_t logical = 0; logical < LOGICAL; logical++)
        assert_int_equal(row[logical], 100 * logical + 3);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(s9_every_entry_starts_unmapped),
        CASE(s10_the_index_law_is_a_bijection),
        CASE(s13_a_mapped_entry_is_refused_not_overwritten),
        CASE(s15_clearing_unmaps_the_slot_in_every_layer_and_no_other),
        CASE(a_row_is_one_layer_by_logical_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
