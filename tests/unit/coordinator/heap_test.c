/* The heap against a sorted scan. */
#include "coordinator/heap.h"

#include "common/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>

enum { ITEMS = 200 };

static struct arena arena;
static struct heap heap;

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(arena_init(&arena, 1 << 16), STATUS_OK);
    assert_int_equal(heap_init(&heap, &arena, ITEMS), STATUS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    arena_free(&arena);
    return 0;
}

static void an_empty_heap_has_no_first(void **state)
{
    (void)state;
    assert_null(heap_first(&heap));
    assert_int_equal(heap_rank(&heap, UINT64_MAX), 0);
    heap_remove(&heap, 3); /* absent: nothing happens */
    assert_int_equal(heap.count, 0);
}

static void equal_keys_come_out_by_item(void **state)
{
    (void)state;
    heap_set(&heap, 9, 5);
    heap_set(&heap, 2, 5);
    heap_set(&heap, 4, 5);
    assert_int_equal(heap_first(&heap)->item, 2);
    heap_remove(&heap, 2);
    assert_int_equal(heap_first(&heap)->item, 4);
    heap_set(&heap, 4, 6);
    assert_int_equal(heap_first(&heap)->item, 9);
    assert_int_equal(heap.count, 2);
}

/* Model: key of each item, or absent. */
static void random_operations_agree_with_a_scan(void **state)
{
    (void)state;
    uint64_t keys[ITEMS];
    bool present[ITEMS] = {false};
    struct random random = {.state = 1};
    for (int round = 0; round < 20000; round++) {
        uint32_t item = random_below(&random, ITEMS);
        if (random_below(&random, 3) == 0) {
            heap_remove(&heap, item);
            present[item] = false;
        } else {
            keys[item] = random_below(&random, 1000);
            heap_set(&heap, item, keys[item]);
            present[item] = true;
        }
        uint32_t count = 0, best = ITEMS, below = 0;
        for (uint32_t i = 0; i < ITEMS; i++) {
            assert_int_equal(heap_contains(&heap, i), present[i]);
            if (!present[i])
                continue;
            count++;
            below += keys[i] < 500;
            if (best == ITEMS || keys[i] < keys[best])
                best = i;
        }
        assert_int_equal(heap.count, count);
        assert_int_equal(heap_rank(&heap, 500), below);
        if (count > 0) {
            assert_int_equal(heap_first(&heap)->item, best);
            assert_int_equal(heap_first(&heap)->key, keys[best]);
        }
        if (round % 100 == 0)
            assert_true(heap_is_sound(&heap));
    }
}

/* Tests and debug builds believe this judge. */
static void an_unsound_heap_is_noticed(void **state)
{
    (void)state;
    for (uint32_t item = 0; item < 5; item++)
        heap_set(&heap, item, item);
    assert_true(heap_is_sound(&heap));
    heap.places[3]++;
    assert_false(heap_is_sound(&heap));
    heap.places[3]--;
    heap.entries[0].key = 9;
    assert_false(heap_is_sound(&heap));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_empty_heap_has_no_first, set_up, tear_down),
        cmocka_unit_test_setup_teardown(equal_keys_come_out_by_item, set_up, tear_down),
        cmocka_unit_test_setup_teardown(random_operations_agree_with_a_scan, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_unsound_heap_is_noticed, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
