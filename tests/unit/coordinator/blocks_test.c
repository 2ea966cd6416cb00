/* The ledger of physical blocks (S11, S12). */
#include "coordinator/blocks.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { LAYERS = 4, TOTAL = 10 * LAYERS };

static struct arena arena;
static struct blocks blocks;

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(arena_init(&arena, 1 << 16), STATUS_OK);
    assert_int_equal(blocks_init(&blocks, &arena, TOTAL, LAYERS, NULL), STATUS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_true(blocks_is_balanced(&blocks));
    arena_free(&arena);
    return 0;
}

static void give_back(const int32_t *list, uint32_t count)
{
    assert_int_equal(blocks_retire(&blocks, list, count), STATUS_OK);
    assert_int_equal(blocks_free(&blocks, list, count), STATUS_OK);
}

static void s12_the_last_block_is_taken_first_and_given_back_last_in_first_out(void **state)
{
    (void)state;
    int32_t first[LAYERS], second[LAYERS], again[LAYERS];
    assert_int_equal(blocks_take(&blocks, first), STATUS_OK);
    assert_int_equal(first[0], TOTAL - 1);
    assert_int_equal(first[LAYERS - 1], TOTAL - LAYERS);
    assert_int_equal(blocks_take(&blocks, second), STATUS_OK);
    assert_int_equal(second[0], TOTAL - LAYERS - 1);
    give_back(first, LAYERS);
    assert_int_equal(blocks_take(&blocks, again), STATUS_OK);
    for (int i = 0; i < LAYERS; i++)
        assert_int_equal(again[i], first[LAYERS - 1 - i]);
}

static void s11_each_layer_has_a_block_of_its_own(void **state)
{
    (void)state;
    int owner[TOTAL] = {0};
    int32_t taken[LAYERS];
    for (int logical = 0; logical < TOTAL / LAYERS; logical++) {
        assert_int_equal(blocks_take(&blocks, taken), STATUS_OK);
        for (int layer = 0; layer < LAYERS; layer++) {
            assert_in_range(taken[layer], 0, TOTAL - 1);
            owner[taken[layer]]++;
        }
    }
    for (int block = 0; block < TOTAL; block++)
        assert_int_equal(owner[block], 1);
}

static void s12_an_empty_list_is_an_answer_and_takes_nothing(void **state)
{
    (void)state;
    int32_t taken[LAYERS] = {-7, -7, -7, -7};
    for (int i = 0; i < TOTAL / LAYERS; i++)
        assert_int_equal(blocks_take(&blocks, taken), STATUS_OK);
    int32_t untouched[LAYERS] = {-7, -7, -7, -7};
    assert_int_equal(blocks_take(&blocks, untouched), STATUS_FULL);
    for (int i = 0; i < LAYERS; i++)
        assert_int_equal(untouched[i], -7);
    assert_int_equal(blocks.held_count, TOTAL);
}

/* A list that holds fewer blocks than the layers need gives none of them. */
static void s14_all_layers_or_none(void **state)
{
    (void)state;
    int32_t taken[TOTAL / LAYERS][LAYERS];
    for (int i = 0; i < TOTAL / LAYERS; i++)
        assert_int_equal(blocks_take(&blocks, taken[i]), STATUS_OK);
    give_back(taken[0], LAYERS - 1);
    int32_t out[LAYERS];
    assert_int_equal(blocks_take(&blocks, out), STATUS_FULL);
    assert_int_equal(blocks.free_count, LAYERS - 1);
    give_back(taken[0] + LAYERS - 1, 1);
    assert_int_equal(blocks_take(&blocks, out), STATUS_OK);
}

static void s12_a_block_given_back_twice_is_noticed_and_changes_nothing(void **state)
{
    (void)state;
    int32_t taken[LAYERS];
    assert_int_equal(blocks_take(&blocks, taken), STATUS_OK);
    assert_int_equal(blocks_free(&blocks, taken, LAYERS), STATUS_INVALID); /* not retired yet */
    assert_int_equal(blocks_retire(&blocks, taken, LAYERS), STATUS_OK);
    assert_int_equal(blocks_retire(&blocks, taken, LAYERS), STATUS_INVALID);
    assert_int_equal(blocks_free(&blocks, taken, LAYERS), STATUS_OK);
    assert_int_equal(blocks_free(&blocks, taken, LAYERS), STATUS_INVALID);
    assert_int_equal(blocks_retire(&blocks, taken, LAYERS), STATUS_INVALID);
    assert_int_equal(blocks.free_count, TOTAL);
    assert_true(blocks_is_balanced(&blocks));
}

static void s12_a_list_with_one_wrong_block_is_refused_whole(void **state)
{
    (void)state;
    int32_t taken[LAYERS];
    assert_int_equal(blocks_take(&blocks, taken), STATUS_OK);
    int32_t twice[LAYERS] = {taken[0], taken[1], taken[2], taken[1]};
    assert_int_equal(blocks_retire(&blocks, twice, LAYERS), STATUS_INVALID);
    int32_t outside[LAYERS] = {taken[0], taken[1], taken[2], TOTAL};
    assert_int_equal(blocks_retire(&blocks, outside, LAYERS), STATUS_INVALID);
    int32_t negative[LAYERS] = {taken[0], -1, taken[2], taken[3]};
    assert_int_equal(blocks_retire(&blocks, negative, LAYERS), STATUS_INVALID);
    assert_true(blocks_is_balanced(&blocks));
    assert_int_equal(blocks.held_count, LAYERS);
    give_back(taken, LAYERS);
}

static void a_leak_shows_in_the_counts(void **state)
{
    (void)state;
    int32_t taken[LAYERS];
    assert_int_equal(blocks_take(&blocks, taken), STATUS_OK);
    assert_true(blocks_is_balanced(&blocks));
    blocks.free_count--; /* a block that nobody has */
    assert_false(blocks_is_balanced(&blocks));
    blocks.free_count++;
    blocks.held_count++;
    assert_false(blocks_is_balanced(&blocks));
    blocks.held_count--;
}

static void retiring_blocks_count_as_soon_but_not_as_free(void **state)
{
    (void)state;
    int32_t taken[LAYERS];
    assert_int_equal(blocks_take(&blocks, taken), STATUS_OK);
    assert_int_equal(blocks_free_logical(&blocks), TOTAL / LAYERS - 1);
    assert_int_equal(blocks_soon_logical(&blocks), TOTAL / LAYERS - 1);
    assert_int_equal(blocks_retire(&blocks, taken, LAYERS), STATUS_OK);
    assert_int_equal(blocks_free_logical(&blocks), TOTAL / LAYERS - 1);
    assert_int_equal(blocks_soon_logical(&blocks), TOTAL / LAYERS);
}

static void s33_a_seed_permutes_the_free_list(void **state)
{
    (void)state;
    struct random shuffle = {.state = 7};
    struct blocks shuffled;
    assert_int_equal(blocks_init(&shuffled, &arena, TOTAL, LAYERS, &shuffle), STATUS_OK);
    bool seen[TOTAL] = {false};
    int moved = 0;
    for (int i = 0; i < TOTAL; i++) {
        seen[shuffled.free_list[i]] = true;
        moved += shuffled.free_list[i] != i;
    }
    for (int i = 0; i < TOTAL; i++)
        assert_true(seen[i]);
    assert_true(moved > TOTAL / 2);
    assert_true(blocks_is_balanced(&shuffled));
}

/* Tests and debug builds believe this judge. */
static void an_unbalanced_ledger_is_noticed(void **state)
{
    (void)state;
    int32_t held[LAYERS];
    assert_int_equal(blocks_take(&blocks, held), STATUS_OK);
    const struct blocks balanced = blocks;
    uint8_t *kept = &blocks.states[held[0]];
    *kept = 7; /* no state */
    assert_false(blocks_is_balanced(&blocks));
    *kept = blocks.states[blocks.free_list[0]]; /* free, but not in the list */
    assert_false(blocks_is_balanced(&blocks));
    *kept = blocks.states[held[1]];
    int32_t last = blocks.free_list[blocks.free_count - 1];
    blocks.free_list[blocks.free_count - 1] = held[0]; /* in the list, but held */
    assert_false(blocks_is_balanced(&blocks));
    blocks.free_list[blocks.free_count - 1] = last;
    blocks.free_count--;
    assert_false(blocks_is_balanced(&blocks));
    blocks = balanced;
    blocks.held_count--;
    assert_false(blocks_is_balanced(&blocks));
    blocks = balanced;
    blocks.retiring_count++;
    assert_false(blocks_is_balanced(&blocks));
    blocks = balanced;
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(s12_the_last_block_is_taken_first_and_given_back_last_in_first_out),
        CASE(s11_each_layer_has_a_block_of_its_own),
        CASE(s12_an_empty_list_is_an_answer_and_takes_nothing),
        CASE(s14_all_layers_or_none),
        CASE(s12_a_block_given_back_twice_is_noticed_and_changes_nothing),
        CASE(s12_a_list_with_one_wrong_block_is_refused_whole),
        CASE(a_leak_shows_in_the_counts),
        CASE(retiring_blocks_count_as_soon_but_not_as_free),
        CASE(s33_a_seed_permutes_the_free_list),
        CASE(an_unbalanced_ledger_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
