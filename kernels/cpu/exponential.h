/* exp2 and exp of the arithmetic, plain C. Horner with fused multiply-adds over minimax
 * polynomials; every instruction set takes the same steps. Relative error below 2^-22.9 (exp2) and
 * 2^-22.9 (exp), tested against libm. */
#ifndef TANDEM_KERNELS_CPU_EXPONENTIAL_H
#define TANDEM_KERNELS_CPU_EXPONENTIAL_H

#include "common/float16.h"

#include <math.h>
#include <stdint.h>

/* Adding and subtracting 1.5 x 2^23 rounds to the nearest even integer: exact for |x| < 2^22 on
 * every machine. */
#define ROUNDING_SHIFT 0x1.8p+23f

/* exp2(f) on [-1/2, 1/2]: 1 + f (c1 + f (c2 + ...)) */
#define EXP2_LOWEST  -126.0f /* below: +0, so that no result is denormal */
#define EXP2_HIGHEST 128.0f  /* from here on: infinity */
#define EXP2_C1      0x1.62e432p-1f
#define EXP2_C2      0x1.ebfbep-3f
#define EXP2_C3      0x1.c6ae2cp-5f
#define EXP2_C4      0x1.3b29e4p-7f
#define EXP2_C5      0x1.5f88fep-10f
#define EXP2_C6      0x1.446c7ep-13f

/* exp(r) on [-ln2/2, ln2/2] */
#define EXP_LOWEST   -87.0f
#define EXP_HIGHEST  88.0f
#define EXP_LOG2_E   0x1.715476p+0f
#define EXP_LN2_HIGH 0x1.62e4p-1f /* 15 bits: n x high is exact */
#define EXP_LN2_LOW  0x1.7f7d1cp-20f
#define EXP_C1       0x1.000002p+0f
#define EXP_C2       0x1.000004p-1f
#define EXP_C3       0x1.555292p-3f
#define EXP_C4       0x1.554a8ap-5f
#define EXP_C5       0x1.1307e6p-7f
#define EXP_C6       0x1.761212p-10f

static inline float scale_by_power_of_two(float value, float exponent)
{
    return float_from_bits(float_bits(value) + ((uint32_t)(int32_t)exponent << 23));
}

static inline float exp2_plain(float x)
{
    if (x != x)
        return x;
    if (x < EXP2_LOWEST)
        return 0.0f;
    if (x > EXP2_HIGHEST)
        x = EXP2_HIGHEST;
    float n = (x + ROUNDING_SHIFT) - ROUNDING_SHIFT;
    float f = x - n;
    float p = fmaf(EXP2_C6, f, EXP2_C5);
    p = fmaf(p, f, EXP2_C4);
    p = fmaf(p, f, EXP2_C3);
    p = fmaf(p, f, EXP2_C2);
    p = fmaf(p, f, EXP2_C1);
    p = fmaf(p, f, 1.0f);
    return scale_by_power_of_two(p, n);
}

static inline float exp_plain(float x)
{
    if (x != x)
        return x;
    if (x < EXP_LOWEST)
        return 0.0f;
    if (x > EXP_HIGHEST)
        return INFINITY;
    float n = (x * EXP_LOG2_E + ROUNDING_SHIFT) - ROUNDING_SHIFT;
    float r = fmaf(n, -EXP_LN2_HIGH, x);
    r = fmaf(n, -EXP_LN2_LOW, r);
    float p = fmaf(EXP_C6, r, EXP_C5);
    p = fmaf(p, r, EXP_C4);
    p = fmaf(p, r, EXP_C3);
    p = fmaf(p, r, EXP_C2);
    p = fmaf(p, r, EXP_C1);
    p = fmaf(p, r, 1.0f);
    return scale_by_power_of_two(p, n);
}

#endif
