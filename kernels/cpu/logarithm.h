/* Natural logarithm in double for the sampler, plain C: x = 2^e m with m in [sqrt(1/2), sqrt(2)),
 * log m = 2 atanh(s) with s = (m - 1) / (m + 1) as a series up to s^19. Relative error below 2^-49,
 * also next to 1. Positive normal x only. */
#ifndef TANDEM_KERNELS_CPU_LOGARITHM_H
#define TANDEM_KERNELS_CPU_LOGARITHM_H

#include "kernels/constants.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

/* 2/k for s^k */
#define LOG_C3  0x1.5555555555555p-1
#define LOG_C5  0x1.999999999999ap-2
#define LOG_C7  0x1.2492492492492p-2
#define LOG_C9  0x1.c71c71c71c71cp-3
#define LOG_C11 0x1.745d1745d1746p-3
#define LOG_C13 0x1.3b13b13b13b14p-3
#define LOG_C15 0x1.1111111111111p-3
#define LOG_C17 0x1.e1e1e1e1e1e1ep-4
#define LOG_C19 0x1.af286bca1af28p-4

static inline double log_plain(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t shifted = bits + (ONE_BITS - SQRT_HALF_BITS);
    double e = (double)((int64_t)(shifted >> MANTISSA_BITS) - EXPONENT_BIAS);
    uint64_t mantissa_bits = (shifted & MANTISSA_MASK) + SQRT_HALF_BITS;
    double m;
    memcpy(&m, &mantissa_bits, sizeof m);
    double f = m - 1.0;
    double s = f / (m + 1.0);
    double square = s * s;
    double p = fma(LOG_C19, square, LOG_C17);
    p = fma(p, square, LOG_C15);
    p = fma(p, square, LOG_C13);
    p = fma(p, square, LOG_C11);
    p = fma(p, square, LOG_C9);
    p = fma(p, square, LOG_C7);
    p = fma(p, square, LOG_C5);
    p = fma(p, square, LOG_C3);
    p = fma(p * square, s, 2.0 * s);
    return fma(e, LN2, p);
}

#endif
