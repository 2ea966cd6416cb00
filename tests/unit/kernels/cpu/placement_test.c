#include "kernels/cpu/placement.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

/* Nodes of processors 0, 1, 2 ..., each of which is a core. */
static struct processors machine_of(const char *nodes)
{
    struct processors machine = {0};
    for (; nodes[machine.count] != '\0'; machine.count++) {
        uint32_t node = (uint32_t)(nodes[machine.count] - '0');
        machine.first_of[machine.count] = machine.count;
        machine.node_of[machine.count] = node;
        CPU_SET(machine.count, &machine.on_node[node]);
    }
    machine.paid = machine.count;
    return machine;
}

/* `expected`: for each place its node, then the processors of its threads. */
static void check(const char *nodes, uint32_t threads, uint32_t processor, const char *expected)
{
    struct processors machine = machine_of(nodes);
    struct placement placement;
    char text[256] = "";
    placement_find(&machine, threads, processor, &placement);
    for (uint32_t i = 0; i < placement.count; i++) {
        const struct place *place = &placement.place[i];
        assert_true(CPU_EQUAL(&place->processors, &machine.on_node[place->node]));
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%u:", i > 0 ? " " : "",
                 place->node);
        for (uint32_t t = placement_first_thread(&placement, i); t < place->threads_end; t++)
            snprintf(text + strlen(text), sizeof text - strlen(text), "%u", placement.core_of[t]);
    }
    assert_string_equal(text, expected);
    assert_int_equal(placement_first_thread(&placement, placement.count), threads);
    assert_int_equal(placement.kept,
                     strspn(nodes, "0") != strlen(nodes) && strspn(nodes, "2") != strlen(nodes));
}

static void one_node_is_one_place(void **state)
{
    (void)state;
    check("0000", 4, 2, "0:0123");
    check("0000", 2, 0, "0:01");
    check("00", 5, 0, "0:01010");
    check("22", 2, 0, "2:01");
}

static void threads_are_dealt_in_proportion(void **state)
{
    (void)state;
    check("0011", 4, 0, "0:01 1:23");
    check("0011", 3, 0, "0:01 1:2");
    check("0011", 2, 0, "0:0 1:2");
    check("0011", 1, 0, "0:0");
    check("0011", 9, 0, "0:01010 1:2323");
    check("000001", 6, 0, "0:01234 1:5");
    check("000001", 3, 0, "0:012");
    check("0002", 4, 0, "0:012 2:3");
    check("01230123", 8, 0, "0:04 1:15 2:26 3:37");
}

/* The caller's thread is the first one and stays where it is. */
static void the_callers_node_comes_first(void **state)
{
    (void)state;
    check("0011", 4, 3, "1:23 0:01");
    check("0011", 3, 2, "1:23 0:0");
    check("0101", 4, 1, "1:13 0:02");
    check("012", 3, 1, "1:1 2:2 0:0");
    check("0011", 4, 99, "0:01 1:23"); /* not one that may be used */
}

static void every_thread_has_a_place(void **state)
{
    (void)state;
    struct processors machine = machine_of("0001112345");
    for (uint32_t threads = 1; threads <= POOL_THREADS_MAX; threads++) {
        struct placement placement;
        placement_find(&machine, threads, 4, &placement);
        assert_int_equal(placement_first_thread(&placement, placement.count), threads);
        for (uint32_t i = 0; i < placement.count; i++)
            assert_true(placement_first_thread(&placement, i) < placement.place[i].threads_end);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_node_is_one_place),
        cmocka_unit_test(threads_are_dealt_in_proportion),
        cmocka_unit_test(the_callers_node_comes_first),
        cmocka_unit_test(every_thread_has_a_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
