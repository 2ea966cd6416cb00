/* Where the coordinator is looked for, and what is said when it is not there. */
#include "client/connection.h"

#include "client/exchange.h"
#include "support/fake_coordinator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <sys/stat.h>

#include <cmocka.h>

static int clear_environment(void **state)
{
    (void)state;
    return unsetenv("TANDEM_RUN_DIR") | unsetenv("XDG_RUNTIME_DIR");
}

static struct fake_step healthy(void)
{
    struct client_answer answer = {.type = CLIENT_ANSWER_HEALTH};
    answer.health.live = true;
    return fake_step_of(answer);
}

static void a_named_directory_is_the_only_place(void **state)
{
    (void)state;
    struct fake fake;
    struct fake other;
    struct connection connection;
    struct tandem_error error;
    const struct fake_step steps[] = {healthy()};
    fake_make_directory(&fake);
    fake_make_directory(&other);
    FAKE_START(&fake, steps);
    (void)setenv("TANDEM_RUN_DIR", fake.directory, 1);
    assert_int_equal(connection_open(&connection, other.directory, &error), TANDEM_UNAVAILABLE);
    assert_string_equal(error.code, "unavailable");
    assert_string_equal(error.field, "run_dir");
    assert_non_null(strstr(error.message, "no coordinator runs in"));
    assert_non_null(strstr(error.message, other.directory));
    assert_null(strstr(error.message, fake.directory));
    fake_stop(&fake);
    fake_remove_directory(&fake);
    fake_remove_directory(&other);
}

static void the_environment_names_a_directory(void **state)
{
    (void)state;
    struct fake fake;
    struct connection connection;
    struct tandem_error error;
    const struct fake_step steps[] = {healthy()};
    fake_make_directory(&fake);
    FAKE_START(&fake, steps);
    (void)setenv("TANDEM_RUN_DIR", fake.directory, 1);
    assert_int_equal(connection_open(&connection, NULL, &error), TANDEM_OK);
    assert_string_equal(connection.directory.path, fake.directory);
    connection_close(&connection);
    fake_stop(&fake);
    fake_remove_directory(&fake);
}

static void the_runtime_directory_comes_before_the_system(void **state)
{
    (void)state;
    struct fake fake;
    char parent[64];
    struct tandem *tandem = NULL;
    struct tandem_error error;
    const struct fake_step steps[] = {healthy()};
    fake_make_directory(&fake);
    (void)snprintf(parent, sizeof parent, "%s", fake.directory);
    (void)snprintf(fake.path, sizeof fake.path, "%s/tandem/client.ipc", parent);
    (void)snprintf(fake.directory, sizeof fake.directory, "%.50s/tandem", parent);
    assert_int_equal(mkdir(fake.directory, 0700), 0);
    FAKE_START(&fake, steps);
    (void)setenv("XDG_RUNTIME_DIR", parent, 1);
    assert_int_equal(tandem_open(NULL, &tandem, &error), TANDEM_OK);
    assert_string_equal(tandem_run_dir(tandem), fake.directory);
    tandem_close(tandem);
    fake_stop(&fake);
    fake_remove_directory(&fake);
    (void)rmdir(parent);
}

static void all_places_are_named_when_none_answers(void **state)
{
    (void)state;
    struct connection connection;
    struct tandem_error error;
    (void)setenv("XDG_RUNTIME_DIR", "/nowhere", 1);
    enum tandem_result result = connection_open(&connection, NULL, &error);
    if (result ==
        TANDEM_OK) { /* this machine runs one in /run/tandem: then it is the right answer */
        assert_string_equal(connection.directory.path, "/run/tandem");
        connection_close(&connection);
        return;
    }
    assert_int_equal(result, TANDEM_UNAVAILABLE);
    assert_non_null(strstr(error.message, "/nowhere/tandem"));
    assert_non_null(strstr(error.message, "/run/tandem"));
    assert_non_null(strstr(error.message, "start tandem-coordinator"));
}

static void a_missing_directory_is_told_from_a_missing_process(void **state)
{
    (void)state;
    struct connection connection;
    struct tandem_error error;
    assert_int_equal(connection_open(&connection, "/nowhere", &error), TANDEM_UNAVAILABLE);
    assert_non_null(strstr(error.message, "there is no directory /nowhere"));
}

static void a_socket_that_nobody_serves_fails_at_once(void **state)
{
    (void)state;
    struct fake fake;
    struct connection connection;
    struct tandem_error error;
    const struct fake_step steps[] = {healthy()};
    fake_make_directory(&fake);
    FAKE_START(&fake, steps);
    char kept[sizeof fake.path];
    (void)snprintf(kept, sizeof kept, "%s/kept", fake.directory);
    assert_int_equal(rename(fake.path, kept), 0); /* the listener goes, its file stays */
    fake_stop(&fake);
    assert_int_equal(rename(kept, fake.path), 0);
    assert_int_equal(connection_open(&connection, fake.directory, &error), TANDEM_UNAVAILABLE);
    assert_non_null(strstr(error.message, "no coordinator runs in"));
    (void)unlink(fake.path);
    fake_remove_directory(&fake);
}

static void a_path_too_long_for_a_socket_is_refused(void **state)
{
    (void)state;
    struct connection connection;
    struct tandem_error error;
    char directory[160];
    memset(directory, 'a', sizeof directory);
    directory[0] = '/';
    directory[sizeof directory - 1] = '\0';
    assert_int_equal(connection_open(&connection, directory, &error), TANDEM_INVALID);
    assert_string_equal(error.field, "run_dir");
    assert_string_equal(error.code, "invalid_request");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_named_directory_is_the_only_place, clear_environment),
        cmocka_unit_test_setup(the_environment_names_a_directory, clear_environment),
        cmocka_unit_test_setup(the_runtime_directory_comes_before_the_system, clear_environment),
        cmocka_unit_test_setup(all_places_are_named_when_none_answers, clear_environment),
        cmocka_unit_test_setup(a_missing_directory_is_told_from_a_missing_process,
                               clear_environment),
        cmocka_unit_test_setup(a_socket_that_nobody_serves_fails_at_once, clear_environment),
        cmocka_unit_test_setup(a_path_too_long_for_a_socket_is_refused, clear_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
