/* Vectors of 16 floats with the steps of the plain C functions of the same name. Included by
 * *_avx512.c files only. */
#ifndef TANDEM_KERNELS_CPU_SIMD_AVX512_H
#define TANDEM_KERNELS_CPU_SIMD_AVX512_H

#include "kernels/cpu/simd_avx2.h"

enum { WIDE_FLOATS = 16 };

ALWAYS_INLINE __m512 load_halves_wide(const void *halves)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)halves));
}

/* Mask whose first `count` lanes are set. */
ALWAYS_INLINE __mmask16 first_lanes_wide(uint32_t count)
{
    return _cvtu32_mask16(count >= WIDE_FLOATS ? 0xffffu : (1u << count) - 1);
}

ALWAYS_INLINE __m512 round_wide(__m512 x)
{
    __m512 shift = _mm512_set1_ps(ROUNDING_SHIFT);
    return _mm512_sub_ps(_mm512_add_ps(x, shift), shift);
}

/* What is too low is garbage until the end, where it becomes zero; a NaN comes out of the
 * polynomial. A power of two from -126 on times what is at least 1 there is normal, so scaling by
 * it is the addition to the exponent of the plain version. */
ALWAYS_INLINE __m512 exp2_wide(__m512 x)
{
    __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP2_LOWEST), _CMP_NLT_UQ);
    x = _mm512_min_ps(_mm512_set1_ps(EXP2_HIGHEST), x); /* the second operand where one is NaN */
    __m512 n = round_wide(x);
    __m512 f = _mm512_sub_ps(x, n);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(EXP2_C6), f, _mm512_set1_ps(EXP2_C5));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(EXP2_C4));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(EXP2_C3));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(EXP2_C2));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(EXP2_C1));
    p = _mm512_fmadd_ps(p, f, _mm512_set1_ps(1.0f));
    return _mm512_maskz_scalef_ps(kept, p, n);
}

ALWAYS_INLINE __m512 exp_wide(__m512 x)
{
    __mmask16 kept = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_LOWEST), _CMP_NLT_UQ);
    __mmask16 too_high = _mm512_cmp_ps_mask(x, _mm512_set1_ps(EXP_HIGHEST), _CMP_GT_OQ);
    __m512 n = round_wide(_mm512_mul_ps(x, _mm512_set1_ps(EXP_LOG2_E)));
    __m512 r = _mm512_fmadd_ps(n, _mm512_set1_ps(-EXP_LN2_HIGH), x);
    r = _mm512_fmadd_ps(n, _mm512_set1_ps(-EXP_LN2_LOW), r);
    __m512 p = _mm512_fmadd_ps(_mm512_set1_ps(EXP_C6), r, _mm512_set1_ps(EXP_C5));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C4));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C3));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C2));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(EXP_C1));
    p = _mm512_fmadd_ps(p, r, _mm512_set1_ps(1.0f));
    return _mm512_mask_mov_ps(_mm512_maskz_scalef_ps(kept, p, n), too_high,
                              _mm512_set1_ps(INFINITY));
}

/* Sum of 16 lanes by the tree (i, i + 8), 4, 2, 1. */
ALWAYS_INLINE float tree_sum_wide(__m512 x)
{
    return tree_sum(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
}

#endif
