/* Slots and their blocks: the border law, retiring, generations (S14, S15, S16). */
#include "coordinator/slots.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { SLOTS = 3, LAYERS = 2, BLOCK = 16, LOGICAL = 8, POOL = 12 * LAYERS };

static struct arena arena;
static struct slots slots;

static int set_up(void **state)
{
    (void)state;
    const struct slots_config config = {
        .geometry = {.layers = LAYERS,
                     .kv_heads = 1,
                     .head_dim = 8,
                     .block_tokens = BLOCK,
                     .type = KV_TYPE_F16,
                     .order = KV_ORDER_CPU},
        .slots = SLOTS,
        .logical_blocks = LOGICAL,
        .pool_blocks = POOL,
    };
    assert_int_equal(arena_init(&arena, 1 << 16), STATUS_OK);
    assert_int_equal(slots_init(&slots, &arena, &config), STATUS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_true(slots_is_sound(&slots));
    slots_clear(&slots);
    assert_true(slots_is_sound(&slots));
    assert_int_equal(slots.free_count, SLOTS);
    assert_int_equal(slots.blocks.free_count, POOL);
    arena_free(&arena);
    return 0;
}

static uint32_t take(uint32_t tokens)
{
    uint32_t slot;
    assert_int_equal(slots_take(&slots, 77, &slot), STATUS_OK);
    assert_int_equal(slots_cover(&slots, slot, tokens), STATUS_OK);
    return slot;
}

static void s14_decode_takes_a_block_only_at_a_border(void **state)
{
    (void)state;
    uint32_t slot = take(1);
    for (uint32_t position = 1; position < LOGICAL * BLOCK; position++) {
        uint32_t before = slots.blocks.free_count;
        assert_int_equal(slots_lacking(&slots, slot, position + 1), position % BLOCK == 0);
        assert_int_equal(slots_cover(&slots, slot, position + 1), STATUS_OK);
        assert_int_equal(before - slots.blocks.free_count, position % BLOCK == 0 ? LAYERS : 0);
    }
}

static void s13_prefill_takes_as_many_blocks_as_its_tokens_need(void **state)
{
    (void)state;
    static const uint32_t tokens[] = {1, 15, 16, 17, 31, 32, 33, LOGICAL * BLOCK};
    for (size_t i = 0; i < sizeof tokens / sizeof *tokens; i++) {
        uint32_t slot = take(tokens[i]);
        uint32_t blocks = tokens[i] / BLOCK + (tokens[i] % BLOCK != 0);
        assert_int_equal(slots.rows[slot].logical_blocks, blocks);
        assert_int_equal(slots.blocks.held_count, blocks * LAYERS);
        slots_release(&slots, slot);
    }
}

static void s14_cover_is_all_or_nothing(void **state)
{
    (void)state;
    uint32_t first = take(LOGICAL * BLOCK);
    uint32_t second = take(1);
    uint32_t free_before = slots.blocks.free_count;
    assert_int_equal(slots_cover(&slots, second, 5 * BLOCK), STATUS_FULL);
    assert_int_equal(slots.blocks.free_count, free_before);
    assert_int_equal(slots.rows[second].logical_blocks, 1);
    assert_int_equal(slots_cover(&slots, second, 4 * BLOCK), STATUS_OK);
    assert_int_equal(slots.blocks.free_count, 0);
    assert_int_equal(slots.rows[first].logical_blocks, LOGICAL);
}

static void s15_release_gives_everything_back_at_once_if_no_plan_names_it(void **state)
{
    (void)state;
    uint32_t slot = take(50);
    slots_release(&slots, slot);
    assert_int_equal(slots.rows[slot].state, SLOT_FREE);
    assert_int_equal(slots.blocks.free_count, POOL);
}

static void s15_a_named_slot_retires_until_its_last_plan_is_answered(void **state)
{
    (void)state;
    uint32_t slot = take(50), other = take(10);
    slots_name(&slots, slot, 1);
    slots_name(&slots, other, 1);
    slots_name(&slots, slot, 2);
    slots_release(&slots, slot);
    assert_int_equal(slots.rows[slot].state, SLOT_RETIRING);
    assert_int_equal(slots.blocks.retiring_count, 4 * LAYERS);
    slots_answered(&slots, 1);
    assert_int_equal(slots.rows[slot].state, SLOT_RETIRING);
    slots_release(&slots, other);
    assert_int_equal(slots.rows[other].state, SLOT_FREE);
    assert_true(slots_is_sound(&slots));
    slots_answered(&slots, 2);
    assert_int_equal(slots.rows[slot].state, SLOT_FREE);
    assert_int_equal(slots.blocks.free_count, POOL);
}

/* LIFO: what was just given back is used first, by whoever comes. */
static void s16_a_released_block_serves_another_slot(void **state)
{
    (void)state;
    uint32_t slot = take(16), other = take(1);
    int32_t block = block_table_get(&slots.table, slot, 0, 0);
    slots_release(&slots, slot);
    assert_int_equal(slots_cover(&slots, other, 17), STATUS_OK);
    int32_t reused[LAYERS] = {block_table_get(&slots.table, other, 0, 1),
                              block_table_get(&slots.table, other, 1, 1)};
    assert_true(reused[0] == block || reused[1] == block);
}

static void a_slot_has_a_higher_generation_at_each_use(void **state)
{
    (void)state;
    uint32_t last = 0;
    for (int i = 0; i < 5; i++) {
        uint32_t slot = take(1);
        assert_true(slots.rows[slot].generation > last);
        last = slots.rows[slot].generation;
        slots_release(&slots, slot);
        if (i == 2)
            slots_clear(&slots); /* a new epoch does not set it back */
    }
}

static void no_slot_is_given_twice(void **state)
{
    (void)state;
    bool seen[SLOTS] = {false};
    for (int i = 0; i < SLOTS; i++) {
        uint32_t slot = take(1);
        assert_false(seen[slot]);
        seen[slot] = true;
    }
    uint32_t none = 42;
    assert_int_equal(slots_take(&slots, 0, &none), STATUS_FULL);
    assert_int_equal(none, 42);
}

/* Tests and debug builds believe this judge. */
static void unsound_slots_are_noticed(void **state)
{
    (void)state;
    uint32_t held = take(2 * BLOCK), retiring = take(BLOCK);
    slots_name(&slots, retiring, 1);
    slots_release(&slots, retiring);
    assert_true(slots_is_sound(&slots));
    const struct slots sound = slots;
    uint32_t spare = 3 - held - retiring;
    slots.rows[spare].logical_blocks = 1; /* a free slot that maps a block */
    assert_false(slots_is_sound(&slots));
    slots.rows[spare].logical_blocks = 0;
    slots.rows[held].logical_blocks++; /* more than the table has */
    assert_false(slots_is_sound(&slots));
    slots.rows[held].logical_blocks -= 2; /* less */
    assert_false(slots_is_sound(&slots));
    slots.rows[held].logical_blocks++;
    slots.answered = 1; /* answered, and yet it retires */
    assert_false(slots_is_sound(&slots));
    slots = sound;
    uint32_t *const counts[] = {&slots.free_count, &slots.held_count, &slots.blocks.held_count,
                                &slots.blocks.retiring_count};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        ++*counts[i];
        assert_false(slots_is_sound(&slots));
        --*counts[i];
    }
    slots.blocks.free_count--;
    assert_false(slots_is_sound(&slots));
    slots = sound;
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(s14_decode_takes_a_block_only_at_a_border),
        CASE(s13_prefill_takes_as_many_blocks_as_its_tokens_need),
        CASE(s14_cover_is_all_or_nothing),
        CASE(s15_release_gives_everything_back_at_once_if_no_plan_names_it),
        CASE(s15_a_named_slot_retires_until_its_last_plan_is_answered),
        CASE(s16_a_released_block_serves_another_slot),
        CASE(a_slot_has_a_higher_generation_at_each_use),
        CASE(no_slot_is_given_twice),
        CASE(unsound_slots_are_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
