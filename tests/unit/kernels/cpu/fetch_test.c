/* Which blocks a walk fetches, and that it passes each of their lines once. */
#include "kernels/cpu/fetch.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { LOGICAL = 12, SLOTS = 3, LAYERS = 2, BLOCK_TOKENS = 16, ROWS = 32 };
enum {
    BLOCKS = SLOTS * LAYERS * LOGICAL,
    BLOCK_BYTES = 12288,
    LINES = BLOCK_BYTES / FETCH_LINE_BYTES
};

static uint8_t pool[BLOCKS * BLOCK_BYTES];

static const struct kv_geometry geometry = {LAYERS, 3, 64, BLOCK_TOKENS, KV_TYPE_F16, KV_ORDER_CPU};

/* Block (slot, layer, logical) of the table is its own index. */
struct scene {
    int32_t table[BLOCKS];
    uint32_t positions[ROWS], slots[ROWS];
    struct kv_reads reads;
};

static void scene_init(struct scene *scene)
{
    *scene = (struct scene){0};
    for (int32_t i = 0; i < BLOCKS; i++)
        scene->table[i] = i;
    scene->reads = (struct kv_reads){.places = {scene->positions, scene->slots},
                                     .layer = 1,
                                     .kv = {geometry, pool, scene->table, LOGICAL}};
}

static void add_row(struct scene *scene, uint32_t slot, uint32_t position)
{
    scene->slots[scene->reads.rows] = slot;
    scene->positions[scene->reads.rows++] = position;
}

/* The list is `expected`, also when it is asked for in two parts. */
static void expect_blocks(const struct scene *scene, const uint32_t *expected, uint32_t count)
{
    const uint8_t *pieces[FETCH_PIECES_MAX];
    assert_int_equal(kv_block_bytes(&geometry), BLOCK_BYTES);
    assert_int_equal(count, fetch_count(&scene->reads, FETCH_BYTES_SECOND));
    for (uint32_t cut = 0; cut <= count; cut++) {
        assert_int_equal(cut, fetch_list(&scene->reads, 0, cut, pieces));
        assert_int_equal(count - cut, fetch_list(&scene->reads, cut, count - cut, pieces + cut));
        for (uint32_t i = 0; i < count; i++)
            assert_int_equal(expected[i], (pieces[i] - pool) / BLOCK_BYTES);
    }
}

static void every_sequence_is_listed_once(void **state)
{
    static const uint32_t expected[] = {60, 61, 12, 13, 14, 15, 36};
    struct scene scene;
    (void)state;
    scene_init(&scene);
    add_row(&scene, 2, 16); /* the second block's first position */
    for (uint32_t position = 60; position < 64; position++)
        add_row(&scene, 0, position); /* a short chunk */
    add_row(&scene, 1, 15);
    expect_blocks(&scene, expected, 7);
}

static void long_chunks_are_left_out(void **state)
{
    static const uint32_t expected[] = {12, 36, 37};
    struct scene scene;
    (void)state;
    scene_init(&scene);
    add_row(&scene, 0, 3);
    for (uint32_t position = 0; position < 9; position++)
        add_row(&scene, 2, position);
    for (uint32_t position = 9; position < 17; position++)
        add_row(&scene, 1, position);
    expect_blocks(&scene, expected, 3);
}

static void unmapped_blocks_are_left_out(void **state)
{
    const uint8_t *pieces[2];
    struct scene scene;
    (void)state;
    scene_init(&scene);
    add_row(&scene, 0, 31);
    scene.table[LOGICAL] = KV_BLOCK_UNMAPPED;
    assert_int_equal(fetch_list(&scene.reads, 0, 2, pieces), 1);
    assert_ptr_equal(pieces[0], pool + (LOGICAL + 1) * BLOCK_BYTES);
}

/* More than the caches hold is not begun. */
static void too_much_is_left_alone(void **state)
{
    enum { MOST = FETCH_BYTES_SECOND / BLOCK_BYTES };
    struct scene scene;
    (void)state;
    scene_init(&scene);
    add_row(&scene, 0, (MOST - 1) * BLOCK_TOKENS - 1);
    add_row(&scene, 1, BLOCK_TOKENS - 1);
    assert_int_equal(fetch_count(&scene.reads, FETCH_BYTES_SECOND), MOST);
    scene.positions[1]++;
    assert_int_equal(fetch_count(&scene.reads, FETCH_BYTES_SECOND), 0);
}

static void a_walk_passes_each_line_once(void **state)
{
    const uint8_t *pieces[] = {pool, pool + 7 * BLOCK_BYTES, pool + BLOCK_BYTES};
    (void)state;
    for (uint32_t steps = 1; steps < 4 * LINES; steps += 7) {
        struct fetch_walk walk = {.piece = pieces, .pieces = 3, .piece_bytes = BLOCK_BYTES};
        uint32_t taken = 0, passed = 0;
        fetch_pace(&walk, steps);
        for (; walk.pieces > 0 || walk.at < walk.until; taken++) {
            const uint8_t *before = walk.at < walk.until ? walk.at : *walk.piece;
            fetch_step(&walk);
            assert_true(walk.at > before && walk.at <= before + walk.step_bytes);
            passed += (uint32_t)(walk.at - before) / FETCH_LINE_BYTES;
        }
        assert_int_equal(passed, 3 * LINES);
        assert_true(taken <= steps + 3); /* a step ends with its piece */
        fetch_step(&walk);
        assert_ptr_equal(walk.at, walk.until);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_sequence_is_listed_once), cmocka_unit_test(long_chunks_are_left_out),
        cmocka_unit_test(unmapped_blocks_are_left_out),  cmocka_unit_test(too_much_is_left_alone),
        cmocka_unit_test(a_walk_passes_each_line_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
