#include "kernels/rope_table.h"

#include "common/float16.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <cmocka.h>

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
    check_rope_table(500000.0, 128, 16384, factors);
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
        cmocka_unit_test(rope_table_is_accurate),
        cmocka_unit_test(rope_table_has_fixed_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
