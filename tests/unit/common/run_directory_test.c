#include "common/run_directory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void the_first_that_is_given_counts(void **state)
{
    (void)state;
    struct run_directory directory;
    setenv("XDG_RUNTIME_DIR", "/run/user/1000", 1);
    assert_int_equal(run_directory_resolve(&directory, "/srv/a", NULL), STATUS_OK);
    assert_string_equal(directory.path, "/srv/a");
    assert_int_equal(run_directory_resolve(&directory, "", NULL), STATUS_OK);
    assert_string_equal(directory.path, "/run/user/1000/tandem");
    setenv("XDG_RUNTIME_DIR", "not/absolute", 1);
    assert_int_equal(run_directory_resolve(&directory, "", NULL), STATUS_OK);
    assert_string_equal(directory.path, "/run/tandem");
    unsetenv("XDG_RUNTIME_DIR");
    assert_int_equal(run_directory_resolve(&directory, "", NULL), STATUS_OK);
    assert_string_equal(directory.path, "/run/tandem");
}

static void a_relative_path_becomes_absolute(void **state)
{
    (void)state;
    struct run_directory directory;
    assert_int_equal(chdir("/tmp"), 0);
    assert_int_equal(run_directory_resolve(&directory, "a/b//", NULL), STATUS_OK);
    assert_string_equal(directory.path, "/tmp/a/b");
    assert_int_equal(run_directory_resolve(&directory, "/", NULL), STATUS_OK);
    assert_string_equal(directory.path, "/");
}

/* The longest directory that is accepted leaves room for every socket. */
static void the_bound_is_that_of_the_longest_socket(void **state)
{
    (void)state;
    struct run_directory directory;
    struct reason why;
    char path[200];
    memset(path, 'd', sizeof path);
    path[0] = '/';
    path[75] = '\0';
    assert_int_equal(run_directory_resolve(&directory, path, reason_init(&why)), STATUS_OK);
    char socket_path[SOCKET_PATH_BYTES];
    run_directory_worker_path(&directory, UINT64_MAX, socket_path);
    assert_int_equal(strlen(socket_path), SOCKET_PATH_BYTES - 1);
    assert_non_null(strstr(socket_path, "/worker.18446744073709551615.ipc"));
    path[75] = 'd';
    path[76] = '\0';
    assert_int_equal(run_directory_resolve(&directory, path, reason_init(&why)), STATUS_TOO_LARGE);
    assert_non_null(strstr(why.storage, "--run-dir with at most 75 bytes"));
}

static void names_stand_behind_the_directory(void **state)
{
    (void)state;
    struct run_directory directory;
    char path[SOCKET_PATH_BYTES];
    assert_int_equal(run_directory_resolve(&directory, "/r", NULL), STATUS_OK);
    run_directory_path(&directory, RUN_CLIENT_NAME, path);
    assert_string_equal(path, "/r/client.ipc");
    run_directory_worker_path(&directory, 3, path);
    assert_string_equal(path, "/r/worker.3.ipc");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_first_that_is_given_counts),
        cmocka_unit_test(a_relative_path_becomes_absolute),
        cmocka_unit_test(the_bound_is_that_of_the_longest_socket),
        cmocka_unit_test(names_stand_behind_the_directory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
