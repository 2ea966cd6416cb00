#include "client/error.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

static void every_result_has_its_code(void **state)
{
    (void)state;
    for (int result = TANDEM_REFUSED; result <= TANDEM_NO_MEMORY; result++) {
        struct tandem_error error;
        memset(&error, 0xff, sizeof error);
        assert_int_equal(error_set(&error, (enum tandem_result)result, "field", "%d is wrong", 7),
                         result);
        assert_true(strlen(error.code) > 0);
        assert_string_equal(error.field, "field");
        assert_string_equal(error.message, "7 is wrong");
        assert_false(error.has_limit);
        assert_int_equal(error.retry_after_ms, 0);
        assert_string_equal(error.instance, "");
    }
}

static void a_long_sentence_is_cut(void **state)
{
    (void)state;
    char text[2000];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    struct tandem_error error;
    (void)error_set_limit(&error, TANDEM_INVALID, "f", 12.5, "%s", text);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    assert_true(error.has_limit && error.limit == 12.5);
}

static void nobody_needs_to_listen(void **state)
{
    (void)state;
    assert_int_equal(error_set(NULL, TANDEM_TIMEOUT, "", "x"), TANDEM_TIMEOUT);
    assert_int_equal(error_set_limit(NULL, TANDEM_TIMEOUT, "", 1, "x"), TANDEM_TIMEOUT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_result_has_its_code),
        cmocka_unit_test(a_long_sentence_is_cut),
        cmocka_unit_test(nobody_needs_to_listen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
