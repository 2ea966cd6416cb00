#include "kernels/cpu/memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <cmocka.h>

enum { PIECES = 40, PIECE_BYTES = 5000001, LINE_BYTES = 64 };

static uint32_t count_runs(const struct memory_run *run)
{
    uint32_t count = 0;
    for (; run != NULL; run = run->previous)
        count++;
    return count;
}

/* 40 pieces of 5 MB need several runs. Each is filled with its number and read again after all the
 * others. */
static void pieces_do_not_overlap(void **state)
{
    struct memory_runs runs = {0};
    uint8_t *pieces[PIECES];
    (void)state;
    for (uint32_t i = 0; i < PIECES; i++) {
        void *memory = NULL;
        assert_int_equal(memory_cut(&runs, PIECE_BYTES, &memory), STATUS_OK);
        pieces[i] = memory;
        assert_int_equal((uintptr_t)memory % LINE_BYTES, 0);
        assert_int_equal(pieces[i][0] | pieces[i][PIECE_BYTES - 1], 0);
        memset(pieces[i], (int)i + 1, PIECE_BYTES);
    }
    assert_true(count_runs(runs.newest) > 1);
    for (uint32_t i = 0; i < PIECES; i++) {
        assert_int_equal(pieces[i][0], i + 1);
        assert_int_equal(pieces[i][PIECE_BYTES - 1], i + 1);
        memory_return(&runs, pieces[i]);
    }
    assert_null(runs.newest);
}

/* A run goes with its last piece, in whatever order they come back. */
static void runs_go_with_their_last_piece(void **state)
{
    struct memory_runs runs = {0};
    void *pieces[PIECES];
    (void)state;
    for (uint32_t i = 0; i < PIECES; i++)
        assert_int_equal(memory_cut(&runs, PIECE_BYTES, &pieces[i]), STATUS_OK);
    uint32_t count = count_runs(runs.newest);
    for (uint32_t i = 0; i < PIECES; i += 2)
        memory_return(&runs, pieces[i]);
    assert_int_equal(count_runs(runs.newest), count);
    for (uint32_t i = PIECES - 1; i < PIECES; i -= 2) {
        assert_non_null(runs.newest);
        memory_return(&runs, pieces[i]);
    }
    assert_null(runs.newest);
    memory_return(&runs, NULL);
}

/* A piece that no run of the usual size holds gets one of its own. */
static void large_pieces_are_possible(void **state)
{
    struct memory_runs runs = {0};
    uint64_t bytes = UINT64_C(300) << 20;
    void *small = NULL, *large = NULL;
    (void)state;
    assert_int_equal(memory_cut(&runs, 1, &small), STATUS_OK);
    assert_int_equal(memory_cut(&runs, bytes, &large), STATUS_OK);
    ((uint8_t *)large)[bytes - 1] = 7;
    assert_int_equal(((uint8_t *)large)[bytes - 1], 7);
    memory_return(&runs, small);
    assert_int_equal(count_runs(runs.newest), 1);
    memory_return(&runs, large);
    assert_null(runs.newest);
    assert_int_equal(memory_cut(&runs, UINT64_C(1) << 62, &large), STATUS_OUT_OF_MEMORY);
    assert_null(runs.newest);
}

/* A node that may not be there, or is not to be asked for: memory comes all the same. */
static void nodes_are_a_wish(void **state)
{
    (void)state;
    for (uint32_t node = 0; node < 64; node += 63) {
        struct memory_runs runs = {.on_node = true, .node = node};
        void *memory = NULL;
        assert_int_equal(memory_cut(&runs, PIECE_BYTES, &memory), STATUS_OK);
        memset(memory, 1, PIECE_BYTES);
        memory_return(&runs, memory);
        assert_null(runs.newest);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_do_not_overlap),
        cmocka_unit_test(runs_go_with_their_last_piece),
        cmocka_unit_test(large_pieces_are_possible),
        cmocka_unit_test(nodes_are_a_wish),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
