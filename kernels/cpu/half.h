/* fp16 to fp32 without branches, for plain C loops that the compiler turns into vectors. Same value
 * as fp16_to_float(); a NaN stays a NaN. Denormals must be kept (MXCSR as in
 * float_environment_set()). */
#ifndef TANDEM_KERNELS_CPU_HALF_H
#define TANDEM_KERNELS_CPU_HALF_H

#include "common/float16.h"

static inline float half_to_float(uint16_t half)
{
    uint32_t magnitude = half & 0x7fffu;
    float value = float_from_bits(magnitude << 13) * 0x1p+112f; /* moves the exponent's bias */
    uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;
    return float_from_bits(float_bits(value) | special | (uint32_t)(half & 0x8000u) << 16);
}

#endif
