#include "common/status.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>

static void every_status_has_a_text_of_its_own(void **state)
{
    (void)state;
    for (int a = 0; a < STATUS_COUNT; a++) {
        const char *text = status_text((enum status)a);
        assert_true(strlen(text) > 1);
        for (int b = 0; b < a; b++)
            assert_string_not_equal(text, status_text((enum status)b));
    }
}

static void a_number_that_is_no_status(void **state)
{
    (void)state;
    assert_string_equal(status_text((enum status)STATUS_COUNT), "unknown status");
    assert_string_equal(status_text((enum status) - 1), "unknown status");
}

static void ok_is_zero(void **state)
{
    (void)state;
    assert_int_equal(STATUS_OK, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_text_of_its_own),
        cmocka_unit_test(a_number_that_is_no_status),
        cmocka_unit_test(ok_is_zero),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
