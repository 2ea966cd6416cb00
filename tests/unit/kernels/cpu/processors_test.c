#include "kernels/cpu/processors.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

enum { PROCESSORS = 8, PATH_BYTES = 128 };

static char folder[] = "/tmp/processors-XXXXXX";

static void write_file(const char *path, const char *text)
{
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

/* A machine's description: siblings[i] of processor i, NULL where nothing is told. */
static void describe(const char *const siblings[PROCESSORS])
{
    for (int i = 0; i < PROCESSORS; i++) {
        char path[PATH_BYTES];
        snprintf(path, sizeof path, "%s/cpu%d", folder, i);
        mkdir(path, 0700);
        snprintf(path, sizeof path, "%s/cpu%d/topology", folder, i);
        mkdir(path, 0700);
        snprintf(path, sizeof path, "%s/cpu%d/topology/thread_siblings_list", folder, i);
        if (siblings[i] != NULL)
            write_file(path, siblings[i]);
        else
            unlink(path);
    }
}

static void check_cores(const char *const siblings[PROCESSORS], uint32_t allowed_bits,
                        const char *expected)
{
    struct processors found;
    cpu_set_t allowed;
    char text[64] = "";
    describe(siblings);
    CPU_ZERO(&allowed);
    for (uint32_t i = 0; i < PROCESSORS; i++)
        if (allowed_bits >> i & 1)
            CPU_SET(i, &allowed);
    processors_cores(folder, &allowed, &found);
    for (uint32_t i = 0; i < found.count; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%u ", found.first_of[i]);
    assert_string_equal(text, expected);
}

static void a_core_counts_once(void **state)
{
    static const char *const none[PROCESSORS] = {NULL};
    static const char *const single[PROCESSORS] = {"0\n", "1\n", "2\n", "3\n",
                                                   "4\n", "5\n", "6\n", "7\n"};
    static const char *const pairs[PROCESSORS] = {"0-1\n", "0-1\n", "2-3\n", "2-3\n",
                                                  "4-5\n", "4-5\n", "6-7\n", "6-7\n"};
    static const char *const halves[PROCESSORS] = {"0,4\n", "1,5\n", "2,6\n", "3,7\n",
                                                   "0,4\n", "1,5\n", "2,6\n", "3,7\n"};
    static const char *const ranges[PROCESSORS] = {"0-1,4-5\n", "0-1,4-5\n", "2-3,6-7\n",
                                                   "2-3,6-7\n", "0-1,4-5\n", "0-1,4-5\n",
                                                   "2-3,6-7\n", "2-3,6-7\n"};
    static const char *const broken[PROCESSORS] = {"",     "x\n", "0-\n", "-1\n",
                                                   "9,\n", "5\n", ",",    "\n"};
    (void)state;
    check_cores(none, 0xff, "0 1 2 3 4 5 6 7 ");
    check_cores(single, 0xff, "0 1 2 3 4 5 6 7 ");
    check_cores(pairs, 0xff, "0 2 4 6 ");
    check_cores(halves, 0xff, "0 1 2 3 ");
    check_cores(ranges, 0xff, "0 2 ");
    check_cores(broken, 0xff, "0 1 2 3 4 5 6 7 ");
}

/* A sibling that this process may not use does not take the core from it. */
static void only_what_is_allowed_counts(void **state)
{
    static const char *const pairs[PROCESSORS] = {"0-1\n", "0-1\n", "2-3\n", "2-3\n",
                                                  "4-5\n", "4-5\n", "6-7\n", "6-7\n"};
    (void)state;
    check_cores(pairs, 0x02, "1 ");
    check_cores(pairs, 0x0a, "1 3 ");
    check_cores(pairs, 0x8f, "0 2 7 ");
    check_cores(pairs, 0x00, "0 "); /* cannot be, and must not be zero threads */
}

/* More than there can be threads: the nodes share in all of them. */
static void all_cores_are_told(void **state)
{
    enum { MANY = 300 };
    static struct processors found;
    cpu_set_t allowed;
    (void)state;
    CPU_ZERO(&allowed);
    for (size_t i = 0; i < MANY; i++)
        CPU_SET(i, &allowed);
    processors_cores("/nowhere", &allowed, &found);
    assert_int_equal(found.count, MANY);
    assert_int_equal(CPU_COUNT(&found.on_node[0]), MANY);
}

/* nodes[i]: of processor i, a space where none is told. */
static void check_nodes(const char *nodes, uint32_t allowed_bits, const char *expected)
{
    static const char *const pairs[PROCESSORS] = {"0-1\n", "0-1\n", "2-3\n", "2-3\n",
                                                  "4-5\n", "4-5\n", "6-7\n", "6-7\n"};
    struct processors found;
    cpu_set_t allowed;
    char path[PATH_BYTES], text[64] = "";
    describe(pairs);
    CPU_ZERO(&allowed);
    for (uint32_t i = 0; i < PROCESSORS; i++) {
        snprintf(path, sizeof path, "%s/cpu%u/node%c", folder, i, nodes[i]);
        if (nodes[i] != ' ')
            write_file(path, "");
        if (allowed_bits >> i & 1)
            CPU_SET(i, &allowed);
    }
    processors_cores(folder, &allowed, &found);
    for (uint32_t core = 0; core < found.count; core++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%u", found.node_of[core]);
    for (uint32_t node = 0; node < MEMORY_NODES_MAX; node++)
        if (CPU_COUNT(&found.on_node[node]) > 0)
            snprintf(text + strlen(text), sizeof text - strlen(text), " %u:%d", node,
                     CPU_COUNT(&found.on_node[node]));
    assert_string_equal(text, expected);
    for (uint32_t i = 0; i < PROCESSORS; i++) {
        snprintf(path, sizeof path, "%s/cpu%u/node%c", folder, i, nodes[i]);
        unlink(path);
    }
}

/* Of each core its node; of each node how many processors may be used, siblings too. */
static void cores_have_nodes(void **state)
{
    (void)state;
    check_nodes("00001111", 0xff, "0011 0:4 1:4");
    check_nodes("00110011", 0xff, "0101 0:4 1:4");
    check_nodes("00003333", 0xd2, "033 0:1 3:3");
    check_nodes("22223333", 0xf0, "33 3:4");
    check_nodes("        ", 0xff, "0000 0:8");
    check_nodes("00001111", 0x00, "0 0:1");
}

static void check_quota(const char *text, uint32_t expected)
{
    char path[PATH_BYTES];
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    write_file(path, text);
    assert_int_equal(processors_quota(path), expected);
}

static void a_quota_is_rounded_up(void **state)
{
    (void)state;
    check_quota("max 100000\n", 0);
    check_quota("200000 100000\n", 2);
    check_quota("150000 100000\n", 2);
    check_quota("1000 100000\n", 1);
    check_quota("99999999999 100000\n", POOL_THREADS_MAX);
    check_quota("100000 0\n", 0);
    check_quota("100000\n", 0);
    check_quota("99999999999999999999999 100000\n", 0);
    check_quota("", 0);
    assert_int_equal(processors_quota("/nowhere"), 0);
}

static void this_machine_has_a_core(void **state)
{
    struct processors found;
    (void)state;
    processors_find(&found);
    assert_in_range(found.count, 1, CORES_MAX);
    assert_in_range(found.paid, 1, found.count);
    for (uint32_t i = 1; i < found.count; i++)
        assert_true(found.first_of[i] > found.first_of[i - 1]);
}

static int make_folder(void **state)
{
    (void)state;
    return mkdtemp(folder) == NULL;
}

static int remove_folder(void **state)
{
    static const char *const none[PROCESSORS] = {NULL};
    char path[PATH_BYTES];
    (void)state;
    describe(none);
    for (int i = 0; i < PROCESSORS; i++) {
        snprintf(path, sizeof path, "%s/cpu%d/topology", folder, i);
        rmdir(path);
        snprintf(path, sizeof path, "%s/cpu%d", folder, i);
        rmdir(path);
    }
    snprintf(path, sizeof path, "%s/cpu.max", folder);
    unlink(path);
    return rmdir(folder);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_core_counts_once),    cmocka_unit_test(only_what_is_allowed_counts),
        cmocka_unit_test(all_cores_are_told),    cmocka_unit_test(cores_have_nodes),
        cmocka_unit_test(a_quota_is_rounded_up), cmocka_unit_test(this_machine_has_a_core),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
