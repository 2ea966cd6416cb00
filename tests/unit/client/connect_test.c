/* tandem_open and its settings. */
#include "client/tandem.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void the_patience_has_a_bound(void **state)
{
    (void)state;
    const struct tandem_settings settings = {.run_dir = "/nowhere", .patience_ms = 3600 * 1000 + 1};
    struct tandem *tandem = NULL;
    struct tandem_error error;
    assert_int_equal(tandem_open(&settings, &tandem, &error), TANDEM_INVALID);
    assert_string_equal(error.field, "patience_ms");
    assert_true(error.has_limit && error.limit == 3600 * 1000);
    assert_null(tandem);
}

static void a_failure_needs_no_error_struct(void **state)
{
    (void)state;
    const struct tandem_settings settings = {.run_dir = "/nowhere"};
    struct tandem *tandem = NULL;
    assert_int_equal(tandem_open(&settings, &tandem, NULL), TANDEM_UNAVAILABLE);
    assert_null(tandem);
}

static void closing_nothing_is_allowed(void **state)
{
    (void)state;
    tandem_close(NULL);
    tandem_stream_close(NULL);
    tandem_free(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_patience_has_a_bound),
        cmocka_unit_test(a_failure_needs_no_error_struct),
        cmocka_unit_test(closing_nothing_is_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
