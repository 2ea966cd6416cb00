#include "kernels/cpu/logarithm.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void logarithm_is_accurate_near_one_too(void **state)
{
    (void)state;
    for (int step = 1; step < 2000000; step += 37) {
        double u = step / 2000000.0;
        assert_true(fabs(log_plain(u) - log(u)) <= fabs(log(u)) * 0x1p-49);
        double near = 1.0 - step * 0x1p-33;
        assert_true(fabs(log_plain(near) - log(near)) <= fabs(log(near)) * 0x1p-49);
    }
    assert_true(log_plain(1.0) == 0.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logarithm_is_accurate_near_one_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
