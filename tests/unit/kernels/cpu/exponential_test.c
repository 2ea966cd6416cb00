#include "kernels/cpu/exponential.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

/* Largest relative error over floats from `low` to `high` in steps of `stride` representable
 * numbers. */
static double worst(float (*tested)(float), double (*exact)(double), float low, float high,
                    uint32_t stride)
{
    double largest = 0;
    for (int negative = 0; negative <= 1; negative++) {
        for (uint32_t bits = 0; bits < 0x7f800000u; bits += stride) {
            float x = float_from_bits(bits | (negative ? 0x80000000u : 0u));
            if (x < low || x > high)
                continue;
            double right = exact((double)x);
            double error = fabs((double)tested(x) - right) / right;
            largest = error > largest ? error : largest;
        }
    }
    return largest;
}

static void exponentials_are_accurate(void **state)
{
    (void)state;
    assert_true(worst(exp2_plain, exp2, -126.0f, 127.9f, 997) < 0x1p-23);
    assert_true(worst(exp_plain, exp, EXP_LOWEST, EXP_HIGHEST, 997) < 0x1p-23);
}

static void exponentials_at_the_ends(void **state)
{
    (void)state;
    assert_true(exp2_plain(0.0f) == 1.0f && exp_plain(0.0f) == 1.0f);
    assert_true(exp2_plain(-0.0f) == 1.0f && exp_plain(-0.0f) == 1.0f);
    assert_true(exp2_plain(1.0f) == 2.0f && exp2_plain(-126.0f) == 0x1p-126f);
    assert_true(exp2_plain(-126.01f) == 0.0f && exp2_plain(-INFINITY) == 0.0f);
    assert_true(exp2_plain(127.0f) == 0x1p+127f && exp2_plain(128.0f) == INFINITY);
    assert_true(exp2_plain(1e30f) == INFINITY && exp2_plain(INFINITY) == INFINITY);
    assert_true(exp_plain(-87.01f) == 0.0f && exp_plain(-INFINITY) == 0.0f);
    assert_true(exp_plain(88.01f) == INFINITY && exp_plain(INFINITY) == INFINITY);
    assert_true(isnan(exp2_plain(NAN)) && isnan(exp_plain(NAN)));
    for (float x = -130.0f; x < 130.0f; x += 0.0078125f) /* no denormal, whatever comes */
        assert_true(exp2_plain(x) == 0.0f || exp2_plain(x) >= 0x1p-126f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponentials_are_accurate),
        cmocka_unit_test(exponentials_at_the_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
