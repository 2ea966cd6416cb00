#include "proto/fingerprint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* Two builds with equal layouts must agree, so the number may change only together with a layout.
 * Who changes a shared struct changes this number too, and thereby says that older programs will be
 * refused. */
static void the_number_stands_for_this_layout(void **state)
{
    (void)state;
    assert_true(layout_fingerprint() == UINT64_C(0x2cc2b59be5b2ea95));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_number_stands_for_this_layout)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
