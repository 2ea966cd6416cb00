/* What the contract of BF16 products rests on: vdpbf16ps(acc, a, b) is
 * fma(a0, b0, fma(a1, b1, acc)) under FTZ and DAZ, the upper halves first, on every processor that
 * has it. */
#include "kernels/cpu/flushing.h"

#include "common/float16.h"
#include "common/random.h"

#include <immintrin.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <cmocka.h>

enum { LANES = 16, VECTORS = 300000 };

struct operands {
    uint32_t a[LANES], b[LANES], sum[LANES];
};

static __attribute__((target("avx512f,avx512bf16"))) void by_instruction(const struct operands *in,
                                                                         uint32_t *output)
{
    __m512bh a = (__m512bh)_mm512_loadu_si512(in->a), b = (__m512bh)_mm512_loadu_si512(in->b);
    __m512 sum = _mm512_castsi512_ps(_mm512_loadu_si512(in->sum));
    _mm512_storeu_si512(output, _mm512_castps_si512(_mm512_dpbf16_ps(sum, a, b)));
}

/* The chain as a kernel of plain C runs it: operands in the place of a panel. */
static void by_chain(const void *panel, const struct matmul_share *share)
{
    const struct operands *in = panel;
    for (int i = 0; i < LANES; i++) {
        float sum = float_from_bits(in->sum[i]);
        sum = fmaf(bf16_to_float((uint16_t)(in->a[i] >> 16)),
                   bf16_to_float((uint16_t)(in->b[i] >> 16)), sum);
        sum = fmaf(bf16_to_float((uint16_t)in->a[i]), bf16_to_float((uint16_t)in->b[i]), sum);
        share->output[i] = sum;
    }
}

/* Lanes whose bits differ; one NaN is as good as another. */
static int differences(const struct operands *operands)
{
    float expected[LANES];
    uint32_t found[LANES];
    struct matmul_share share = {.output = expected};
    int different = 0;
    by_instruction(operands, found); /* flushes though nobody asked for it */
    multiply_flushing(by_chain, operands, &share);
    for (int i = 0; i < LANES; i++) {
        float value = float_from_bits(found[i]);
        if (found[i] == float_bits(expected[i]) || (value != value && expected[i] != expected[i]))
            continue;
        fprintf(stderr, "a %08x b %08x sum %08x: %08x instead of %08x\n", operands->a[i],
                operands->b[i], operands->sum[i], found[i], float_bits(expected[i]));
        different++;
    }
    return different;
}

/* Any bits at all: infinities, NaN and denormals among them. */
static uint32_t any_pair(struct random *random, int side)
{
    (void)side;
    return (uint32_t)random_next(random);
}

static uint32_t any_sum(struct random *random)
{
    return (uint32_t)random_next(random);
}

/* Exponents (biased) of both sides that add to that of products near 2^-126. */
static uint32_t low_pair(struct random *random, int side)
{
    uint32_t exponent = side == 0 ? 60 + random_below(random, 8) : 50 + random_below(random, 20);
    return ((uint32_t)random_next(random) & 0x807f807fu) | exponent << 23 | exponent << 7;
}

static uint32_t low_sum(struct random *random)
{
    return ((uint32_t)random_next(random) & 0x807fffffu) | random_below(random, 30) << 23;
}

/* Near each other, so that sums cancel. */
static uint32_t even_pair(struct random *random, int side)
{
    (void)side;
    return ((uint32_t)random_next(random) & 0x807f807fu) | 0x3f803f80u;
}

static uint32_t even_sum(struct random *random)
{
    return ((uint32_t)random_next(random) & 0x807fffffu) | (124 + random_below(random, 6)) << 23;
}

static void the_instruction_is_two_fused_steps(void **state)
{
    static const struct {
        uint32_t (*pair)(struct random *random, int side);
        uint32_t (*sum)(struct random *random);
    } kinds[] = {{any_pair, any_sum}, {low_pair, low_sum}, {even_pair, even_sum}};
    (void)state;
    if (!__builtin_cpu_supports("avx512bf16")) {
        fprintf(stderr, "not on this machine: this processor has no AVX-512 BF16\n");
        return;
    }
    struct random random = {20261130};
    for (size_t kind = 0; kind < sizeof kinds / sizeof *kinds; kind++) {
        for (uint32_t turn = 0; turn < VECTORS; turn++) {
            struct operands operands;
            for (int i = 0; i < LANES; i++) {
                operands.a[i] = kinds[kind].pair(&random, 0);
                operands.b[i] = kinds[kind].pair(&random, 1);
                operands.sum[i] = kinds[kind].sum(&random);
            }
            assert_int_equal(differences(&operands), 0);
        }
    }
}

/* An operand and a result of half of the smallest normal number. */
static void halves_of_the_least(const void *panel, const struct matmul_share *share)
{
    const volatile float *values = panel;
    share->output[0] = values[0] * values[1];
    share->output[1] = values[2] * values[3];
}

static void flushing_ends_with_the_loop(void **state)
{
    static const float values[] = {0x1p-127f, 0x1p+100f, 0x1p-100f, 0x1p-27f};
    float output[2] = {1, 1};
    struct matmul_share share = {.output = output};
    (void)state;
    uint32_t before = _mm_getcsr();
    multiply_flushing(halves_of_the_least, values, &share);
    assert_int_equal(_mm_getcsr(), before);
    assert_true(output[0] == 0 && output[1] == 0);
    halves_of_the_least(values, &share);
    assert_true(output[0] == 0x1p-27f && output[1] == 0x1p-127f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(flushing_ends_with_the_loop),
        cmocka_unit_test(the_instruction_is_two_fused_steps),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
