#include "common/float16.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

__extension__ typedef _Float16 compiler_half;

/* Every fp16 value survives the way to fp32 and back; NaN stays NaN. */
static void fp16_round_trip_is_exact(void **state)
{
    (void)state;
    for (uint32_t half = 0; half <= 0xffffu; half++) {
        float value = fp16_to_float((uint16_t)half);
        uint16_t back = fp16_from_float(value);
        if ((half & 0x7c00u) == 0x7c00u && (half & 0x3ffu) != 0)
            assert_int_equal(back, half | 0x200u);
        else
            assert_int_equal(back, half);
    }
}

/* _Float16 of the compiler is the independent judge of rounding, over a stride of all fp32 bit
 * patterns. */
static void fp16_rounds_like_the_compiler(void **state)
{
    (void)state;
    for (uint64_t bits = 0; bits <= UINT32_MAX; bits += 4093) {
        float value = float_from_bits((uint32_t)bits);
        if (value != value)
            continue;
        compiler_half expected = (compiler_half)value;
        uint16_t expected_bits;
        memcpy(&expected_bits, &expected, sizeof expected_bits);
        assert_int_equal(fp16_from_float(value), expected_bits);
    }
}

static void bf16_rounds_to_nearest_even(void **state)
{
    (void)state;
    assert_int_equal(bf16_from_float(float_from_bits(0x3f808000u)), 0x3f80u); /* tie to even */
    assert_int_equal(bf16_from_float(float_from_bits(0x3f818000u)), 0x3f82u);
    assert_int_equal(bf16_from_float(float_from_bits(0x3f808001u)), 0x3f81u);
    assert_int_equal(bf16_from_float(float_from_bits(0x7f7fffffu)),
                     0x7f80u); /* overflows to infinity */
    assert_int_equal(bf16_from_float(float_from_bits(0x7f800001u)), 0x7fc0u); /* NaN stays NaN */
    for (uint32_t half = 0; half <= 0xffffu; half++)
        if ((half & 0x7f80u) != 0x7f80u || (half & 0x7fu) == 0)
            assert_int_equal(bf16_from_float(bf16_to_float((uint16_t)half)), half);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fp16_round_trip_is_exact),
        cmocka_unit_test(fp16_rounds_like_the_compiler),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
