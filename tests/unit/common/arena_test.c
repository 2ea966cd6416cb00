#include "common/arena.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static void pieces_are_aligned_zeroed_and_apart(void **state)
{
    (void)state;
    struct arena arena;
    assert_int_equal(arena_init(&arena, 1000), STATUS_OK);
    uint8_t *before = NULL;
    for (size_t bytes = 1; bytes <= 100; bytes += 33) {
        uint8_t *piece = arena_alloc(&arena, bytes);
        assert_non_null(piece);
        assert_int_equal((uintptr_t)piece % 64, 0);
        assert_true(before == NULL || piece > before);
        for (size_t i = 0; i < bytes; i++)
            assert_int_equal(piece[i], 0);
        memset(piece, 0xff, bytes);
        before = piece + bytes - 1;
    }
    arena_free(&arena);
}

/* A capacity that is no multiple of the alignment: the last piece must not overlap the one before.
 */
static void last_piece_of_an_odd_capacity(void **state)
{
    (void)state;
    struct arena arena;
    assert_int_equal(arena_init(&arena, 100), STATUS_OK);
    uint8_t *first = arena_alloc(&arena, 90);
    assert_non_null(first);
    assert_null(arena_alloc(&arena, 30));
    assert_true(arena.used <= arena.capacity);
    arena_free(&arena);
}

static void full_arena_gives_nothing(void **state)
{
    (void)state;
    struct arena arena;
    assert_int_equal(arena_init(&arena, 4096), STATUS_OK);
    assert_null(arena_alloc(&arena, 4097));
    assert_null(arena_alloc(&arena, SIZE_MAX));
    assert_non_null(arena_alloc(&arena, 4096));
    assert_null(arena_alloc(&arena, 1));
    assert_int_equal(arena.used_max, 4096);
    arena_free(&arena);
}

static void products_do_not_wrap(void **state)
{
    (void)state;
    struct arena arena;
    assert_int_equal(arena_init(&arena, 4096), STATUS_OK);
    assert_null(arena_alloc_array(&arena, SIZE_MAX / 2 + 2, 2));
    assert_non_null(arena_alloc_array(&arena, 1024, 4));
    arena_free(&arena);
}

static void reset_gives_zeroed_memory_again(void **state)
{
    (void)state;
    struct arena arena;
    assert_int_equal(arena_init(&arena, 256), STATUS_OK);
    uint8_t *first = arena_alloc(&arena, 256);
    memset(first, 0xff, 256);
    arena_reset(&arena);
    uint8_t *second = arena_alloc(&arena, 256);
    assert_ptr_equal(first, second);
    for (size_t i = 0; i < 256; i++)
        assert_int_equal(second[i], 0);
    arena_free(&arena);
}

static void zeroed_and_empty_arenas(void **state)
{
    (void)state;
    struct arena arena = {0};
    arena_free(&arena);
    assert_int_equal(arena_init(&arena, 0), STATUS_OK);
    assert_null(arena_alloc(&arena, 1));
    arena_free(&arena);
    assert_int_equal(arena_init(&arena, SIZE_MAX), STATUS_OUT_OF_MEMORY);
    assert_int_equal(arena_init(&arena, SIZE_MAX / 2), STATUS_OUT_OF_MEMORY);
    arena_free(&arena);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_are_aligned_zeroed_and_apart),
        cmocka_unit_test(last_piece_of_an_odd_capacity),
        cmocka_unit_test(full_arena_gives_nothing),
        cmocka_unit_test(products_do_not_wrap),
        cmocka_unit_test(reset_gives_zeroed_memory_again),
        cmocka_unit_test(zeroed_and_empty_arenas),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
