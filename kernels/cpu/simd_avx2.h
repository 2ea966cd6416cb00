/* Vectors of 8 floats with the steps of the plain C functions of the same name. Included by
 * *_avx2.c files only. */
#ifndef TANDEM_KERNELS_CPU_SIMD_AVX2_H
#define TANDEM_KERNELS_CPU_SIMD_AVX2_H

#include "common/geometry.h"
#include "kernels/cpu/exponential.h"

#include <immintrin.h>

#define ALWAYS_INLINE static inline __attribute__((always_inline))

enum { VECTOR_FLOATS = 8 };

ALWAYS_INLINE __m256 load_halves(const void *halves)
{
    return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)halves));
}

ALWAYS_INLINE __m256 round_vector(__m256 x)
{
    __m256 shift = _mm256_set1_ps(ROUNDING_SHIFT);
    return _mm256_sub_ps(_mm256_add_ps(x, shift), shift);
}

ALWAYS_INLINE __m256 scale_by_power_of_two_vector(__m256 value, __m256 exponent)
{
    __m256i shifted = _mm256_slli_epi32(_mm256_cvtps_epi32(exponent), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(value), shifted));
}

/* min and max take the second operand where one is NaN, so a NaN stays and comes out of the
 * polynomial. */
ALWAYS_INLINE __m256 exp2_vector(__m256 x)
{
    __m256 lowest = _mm256_set1_ps(EXP2_LOWEST);
    __m256 too_low = _mm256_cmp_ps(x, lowest, _CMP_LT_OQ);
    x = _mm256_max_ps(lowest, _mm256_min_ps(_mm256_set1_ps(EXP2_HIGHEST), x));
    __m256 n = round_vector(x);
    __m256 f = _mm256_sub_ps(x, n);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(EXP2_C6), f, _mm256_set1_ps(EXP2_C5));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(EXP2_C4));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(EXP2_C3));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(EXP2_C2));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(EXP2_C1));
    p = _mm256_fmadd_ps(p, f, _mm256_set1_ps(1.0f));
    return _mm256_andnot_ps(too_low, scale_by_power_of_two_vector(p, n));
}

ALWAYS_INLINE __m256 exp_vector(__m256 x)
{
    __m256 lowest = _mm256_set1_ps(EXP_LOWEST), highest = _mm256_set1_ps(EXP_HIGHEST);
    __m256 too_low = _mm256_cmp_ps(x, lowest, _CMP_LT_OQ);
    __m256 too_high = _mm256_cmp_ps(x, highest, _CMP_GT_OQ);
    x = _mm256_max_ps(lowest, _mm256_min_ps(highest, x));
    __m256 n = round_vector(_mm256_mul_ps(x, _mm256_set1_ps(EXP_LOG2_E)));
    __m256 r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_HIGH), x);
    r = _mm256_fmadd_ps(n, _mm256_set1_ps(-EXP_LN2_LOW), r);
    __m256 p = _mm256_fmadd_ps(_mm256_set1_ps(EXP_C6), r, _mm256_set1_ps(EXP_C5));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C4));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C3));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C2));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(EXP_C1));
    p = _mm256_fmadd_ps(p, r, _mm256_set1_ps(1.0f));
    p = _mm256_andnot_ps(too_low, scale_by_power_of_two_vector(p, n));
    return _mm256_blendv_ps(p, _mm256_set1_ps(INFINITY), too_high);
}

/* Sum of 16 lanes by the tree (i, i + 8), 4, 2, 1. */
ALWAYS_INLINE float tree_sum(__m256 low, __m256 high)
{
    __m256 eight = _mm256_add_ps(low, high);
    __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

ALWAYS_INLINE float largest_lane(__m256 x)
{
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

/* Mask whose first `count` lanes are set. */
ALWAYS_INLINE __m256i first_lanes(uint32_t count)
{
    __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    return _mm256_cmpgt_epi32(_mm256_set1_epi32((int)count), lane);
}

#endif
