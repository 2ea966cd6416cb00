/* fp16 and bf16 <-> fp32, bit-exact, round to nearest even, NaN kept quiet. The storage type is
 * uint16_t. Hardware conversions (F16C, __float2half_rn) have the same bits; tests prove it over
 * all inputs that matter. */
#ifndef TANDEM_COMMON_FLOAT16_H
#define TANDEM_COMMON_FLOAT16_H

#include "common/host_device.h"

#include <stdint.h>
#include <string.h>

ON_HOST_AND_DEVICE static inline uint32_t float_bits(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

ON_HOST_AND_DEVICE static inline float float_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ON_HOST_AND_DEVICE static inline float bf16_to_float(uint16_t half)
{
    return float_from_bits((uint32_t)half << 16);
}

ON_HOST_AND_DEVICE static inline uint16_t bf16_from_float(float value)
{
    uint32_t bits = float_bits(value);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)((bits >> 16) | 0x40u);
    return (uint16_t)((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

ON_HOST_AND_DEVICE static inline float fp16_to_float(uint16_t half)
{
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16;
    uint32_t exponent = (half >> 10) & 0x1fu;
    uint32_t mantissa = half & 0x3ffu;
    if (exponent == 0x1fu)
        return float_from_bits(sign | 0x7f800000u | (mantissa << 13) | (mantissa ? 0x400000u : 0u));
    if (exponent != 0)
        return float_from_bits(sign | ((exponent + 112u) << 23) | (mantissa << 13));
    if (mantissa == 0)
        return float_from_bits(sign);
    while ((mantissa & 0x400u) == 0) {
        mantissa <<= 1;
        exponent--;
    }
    return float_from_bits(sign | ((exponent + 113u) << 23) | ((mantissa & 0x3ffu) << 13));
}

ON_HOST_AND_DEVICE static inline uint16_t fp16_from_float(float value)
{
    uint32_t bits = float_bits(value);
    uint32_t sign = (bits >> 16) & 0x8000u;
    uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) /* NaN: quiet, payload cut, as vcvtps2ph */
        return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x3ffu));
    if (magnitude >= 0x477ff000u) /* 65520 and above round to infinity */
        return (uint16_t)(sign | 0x7c00u);
    if (magnitude < 0x33000001u) /* at most half of the smallest subnormal */
        return (uint16_t)sign;
    uint32_t exponent = magnitude >> 23;
    uint32_t mantissa = (magnitude & 0x7fffffu) | 0x800000u;
    uint32_t shift = exponent < 113u ? 126u - exponent : 13u;
    uint32_t kept = mantissa >> shift;
    uint32_t rest = mantissa & ((1u << shift) - 1u);
    uint32_t half = 1u << (shift - 1u);
    kept += (rest > half || (rest == half && (kept & 1u))) ? 1u : 0u;
    if (exponent < 113u)
        return (uint16_t)(sign | kept);
    return (uint16_t)(sign | (((exponent - 113u) << 10) + kept));
}

#endif
