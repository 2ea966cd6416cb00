#include "proto/error_codes.h"

#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* Programs of others compare with these: neither name nor number may ever change. */
static void names_and_numbers_stay(void **state)
{
    (void)state;
    static const char *const names[] = {
        "unknown",         "invalid_request", "too_large",
        "prompt_too_long", "unauthorized",    "rate_limited",
        "overloaded",      "draining",        "idempotency_conflict",
        "poisoned",        "numeric_error",   "deadline_exceeded",
        "cancelled",       "journal_full",    "unsupported_version",
        "not_found",       "internal",        "unsupported",
    };
    uint32_t count = sizeof names / sizeof names[0];
    assert_int_equal(error_code_enum.count, count - 1);
    for (uint32_t i = 0; i < count; i++)
        assert_string_equal(error_code_name((enum error_code)i), names[i]);
    assert_string_equal(error_code_name((enum error_code)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(names_and_numbers_stay)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
