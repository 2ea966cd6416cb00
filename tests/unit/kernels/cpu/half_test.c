#include "kernels/cpu/half.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_to_float_equals_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
