/* Own exp2, exp, log, fp16 conversion and rotation table against libm in double. */
#include "kernels/cpu/exponential.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/logarithm.h"
#include "kernels/rope_table.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
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

static void half_to_float_equals_the_reference(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= 0xffffu; half++) {
        float right = fp16_to_float((uint16_t)half), value = half_to_float((uint16_t)half);
        if (right != right)
            assert_true(value != value);
        else
            assert_int_equal(float_bits(value), float_bits(right));
    }
}

/* fp32 cos and sin of an angle in double: one rounding, and the double is good to a few of its last
 * bits. */
static void check_rope_table(double theta, uint32_t rotary_dims, uint32_t positions,
                             const float *factors)
{
    struct rope_parameters parameters = {theta, rotary_dims, positions, factors};
    float *table = malloc(rope_table_elements(&parameters) * sizeof *table);
    uint32_t half = rotary_dims / 2;
    assert_non_null(table);
    rope_table_fill(&parameters, table);
    for (uint32_t position = 0; position < positions; position += 1 + position / 50) {
        for (uint32_t j = 0; j < half; j++) {
            long double frequency = powl((long double)theta, -2.0L * j / rotary_dims);
            if (factors != NULL)
                frequency /= (long double)factors[j];
            const float *row = table + (size_t)position * rotary_dims;
            double cosine = (double)cosl(position * frequency);
            double sine = (double)sinl(position * frequency);
            assert_true(fabs((double)row[j] - cosine) <= 0x1p-25 + 1e-9);
            assert_true(fabs((double)row[half + j] - sine) <= 0x1p-25 + 1e-9);
        }
    }
    free(table);
}

static void rope_table_is_accurate(void **state)
{
    float factors[64];
    (void)state;
    for (int j = 0; j < 64; j++)
        factors[j] = j < 20 ? 1.0f : j < 30 ? 1.0f + (float)(j - 19) * 2.8f : 32.0f;
    check_rope_table(10000.0, 64, 4096, NULL);
    check_rope_table(100000.0, 64, 8192, NULL);
    check_rope_table(500000.0, 128, 131072, factors);
    check_rope_table(1.0, 2, 100, NULL);
}

/* The table is part of the arithmetic: these bits may never change. */
static void rope_table_has_fixed_bits(void **state)
{
    struct rope_parameters parameters = {100000.0, 64, 2048, NULL};
    static float table[2048 * 64];
    uint64_t hash = 14695981039346656037u;
    (void)state;
    rope_table_fill(&parameters, table);
    for (size_t i = 0; i < 2048 * 64; i++)
        hash = (hash ^ float_bits(table[i])) * 1099511628211u;
    assert_int_equal(hash, 0x2a3f750d10ba0c41);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exponentials_are_accurate),
        cmocka_unit_test(exponentials_at_the_ends),
        cmocka_unit_test(logarithm_is_accurate_near_one_too),
        cmocka_unit_test(half_to_float_equals_the_reference),
        cmocka_unit_test(rope_table_is_accurate),
        cmocka_unit_test(rope_table_has_fixed_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
