#include "kernels/cpu/avx2.h"
#include "kernels/cpu/logarithm.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd_avx2.h"
#include "kernels/cpu/weight.h"

#include "common/random.h"

enum { VECTOR_DOUBLES = 4, PHILOX_WORDS = 4 };

bool sample_scan_avx2(const float *logits, uint32_t count, float *out_largest, uint32_t *out_index)
{
    const __m256 magnitude_mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 largest = _mm256_set1_ps(-INFINITY), strange = _mm256_setzero_ps();
    for (uint32_t i = 0; i < count; i += VECTOR_FLOATS) {
        __m256 x = _mm256_set1_ps(logits[0]);
        if (i + VECTOR_FLOATS <= count) {
            x = _mm256_loadu_ps(logits + i);
        } else {
            __m256i mask = first_lanes(count - i);
            x = _mm256_blendv_ps(x, _mm256_maskload_ps(logits + i, mask),
                                 _mm256_castsi256_ps(mask));
        }
        __m256 magnitude = _mm256_and_ps(x, magnitude_mask);
        strange = _mm256_or_ps(strange,
                               _mm256_cmp_ps(magnitude, _mm256_set1_ps(FINITE_MAX), _CMP_NLE_UQ));
        largest = _mm256_max_ps(largest, x);
    }
    if (_mm256_movemask_ps(strange) != 0)
        return false;
    *out_largest = largest_lane(largest) + 0.0f;
    uint32_t index = 0;
    while (logits[index] != *out_largest)
        index++;
    *out_largest = logits[index];
    *out_index = index;
    return true;
}

void sample_probabilities_avx2(const float *logits, uint32_t count, float largest, float sharpness,
                               float *output)
{
    __m256 top = _mm256_set1_ps(largest), factor = _mm256_set1_ps(sharpness);
    uint32_t i = 0;
    for (; i + VECTOR_FLOATS <= count; i += VECTOR_FLOATS) {
        __m256 distance = _mm256_sub_ps(_mm256_loadu_ps(logits + i), top);
        _mm256_storeu_ps(output + i, exp_vector(_mm256_mul_ps(distance, factor)));
    }
    if (i < count) {
        __m256i mask = first_lanes(count - i);
        __m256 distance = _mm256_sub_ps(_mm256_maskload_ps(logits + i, mask), top);
        _mm256_maskstore_ps(output + i, mask, exp_vector(_mm256_mul_ps(distance, factor)));
    }
}

/* The rounded integer stands in the low bits of the shifted double. */
ALWAYS_INLINE __m256i add_weights(__m256i sum, __m128 probabilities)
{
    const __m256d shift = _mm256_set1_pd(INTEGER_SHIFT);
    __m256d scaled =
        _mm256_mul_pd(_mm256_cvtps_pd(probabilities), _mm256_set1_pd(SAMPLE_WEIGHT_ONE));
    __m256i bits = _mm256_castpd_si256(_mm256_add_pd(scaled, shift));
    return _mm256_add_epi64(sum, _mm256_sub_epi64(bits, _mm256_castpd_si256(shift)));
}

uint64_t sample_weight_sum_avx2(const float *probabilities, uint32_t count)
{
    __m256i sum = _mm256_setzero_si256();
    for (uint32_t i = 0; i < count; i += VECTOR_FLOATS) {
        __m256 p = _mm256_maskload_ps(probabilities + i, first_lanes(count - i));
        sum = add_weights(sum, _mm256_castps256_ps128(p));
        sum = add_weights(sum, _mm256_extractf128_ps(p, 1));
    }
    uint64_t lanes[VECTOR_DOUBLES];
    _mm256_storeu_si256((__m256i *)lanes, sum);
    return lanes[0] + lanes[1] + lanes[2] + lanes[3];
}

/* Four numbers below 2^52, in 64-bit lanes, to double. */
ALWAYS_INLINE __m256d small_to_double(__m256i x)
{
    const __m256d shift = _mm256_set1_pd(INTEGER_SHIFT);
    return _mm256_sub_pd(_mm256_castsi256_pd(_mm256_or_si256(x, _mm256_castpd_si256(shift))),
                         shift);
}

/* log_plain() of four numbers. */
ALWAYS_INLINE __m256d log_vector(__m256d x)
{
    __m256i shifted = _mm256_add_epi64(_mm256_castpd_si256(x),
                                       _mm256_set1_epi64x((long long)(ONE_BITS - SQRT_HALF_BITS)));
    __m256d e = _mm256_sub_pd(small_to_double(_mm256_srli_epi64(shifted, MANTISSA_BITS)),
                              _mm256_set1_pd(EXPONENT_BIAS));
    __m256i mantissa = _mm256_and_si256(shifted, _mm256_set1_epi64x((long long)MANTISSA_MASK));
    __m256d m = _mm256_castsi256_pd(
        _mm256_add_epi64(mantissa, _mm256_set1_epi64x((long long)SQRT_HALF_BITS)));
    const __m256d one = _mm256_set1_pd(1.0);
    __m256d s = _mm256_div_pd(_mm256_sub_pd(m, one), _mm256_add_pd(m, one));
    __m256d square = _mm256_mul_pd(s, s);
    __m256d p = _mm256_fmadd_pd(_mm256_set1_pd(LOG_C19), square, _mm256_set1_pd(LOG_C17));
    p = _mm256_fmadd_pd(p, square, _mm256_set1_pd(LOG_C15));
    p = _mm256_fmadd_pd(p, square, _mm256_set1_pd(LOG_C13));
    p = _mm256_fmadd_pd(p, square, _mm256_set1_pd(LOG_C11));
    p = _mm256_fmadd_pd(p, square, _mm256_set1_pd(LOG_C9));
    p = _mm256_fmadd_pd(p, square, _mm256_set1_pd(LOG_C7));
    p = _mm256_fmadd_pd(p, square, _mm256_set1_pd(LOG_C5));
    p = _mm256_fmadd_pd(p, square, _mm256_set1_pd(LOG_C3));
    p = _mm256_fmadd_pd(_mm256_mul_pd(p, square), s, _mm256_add_pd(s, s));
    return _mm256_fmadd_pd(e, _mm256_set1_pd(LN2), p);
}

/* philox() for four consecutive first counters, one per 64-bit lane; words in the low halves. */
ALWAYS_INLINE void philox_vector(uint64_t seed, uint32_t first_counter, uint32_t position,
                                 __m256i *words)
{
    const __m256i low_half = _mm256_set1_epi64x(0xffffffff);
    const __m256i m0 = _mm256_set1_epi64x(PHILOX_MULTIPLIER_0);
    const __m256i m1 = _mm256_set1_epi64x(PHILOX_MULTIPLIER_1);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    __m256i c0 =
        _mm256_add_epi64(_mm256_set1_epi64x(first_counter), _mm256_setr_epi64x(0, 1, 2, 3));
    __m256i c1 = _mm256_set1_epi64x(position);
    __m256i c2 = _mm256_setzero_si256(), c3 = _mm256_setzero_si256();
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        __m256i p0 = _mm256_mul_epu32(m0, c0), p1 = _mm256_mul_epu32(m1, c2);
        c0 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p1, 32), c1),
                              _mm256_set1_epi64x(k0));
        c2 = _mm256_xor_si256(_mm256_xor_si256(_mm256_srli_epi64(p0, 32), c3),
                              _mm256_set1_epi64x(k1));
        c1 = _mm256_and_si256(p1, low_half);
        c3 = _mm256_and_si256(p0, low_half);
        k0 += PHILOX_STEP_0;
        k1 += PHILOX_STEP_1;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

void sample_exponentials_avx2(uint64_t seed, uint32_t position, uint32_t first_id, uint32_t count,
                              double *output)
{
    for (uint32_t i = 0; i < count; i += PHILOX_WORDS * VECTOR_DOUBLES) {
        __m256i words[PHILOX_WORDS];
        philox_vector(seed, (first_id + i) / PHILOX_WORDS, position, words);
        double lanes[PHILOX_WORDS][VECTOR_DOUBLES];
        for (int word = 0; word < PHILOX_WORDS; word++) {
            __m256d u =
                _mm256_mul_pd(_mm256_add_pd(small_to_double(words[word]), _mm256_set1_pd(0.5)),
                              _mm256_set1_pd(0x1p-32));
            _mm256_storeu_pd(lanes[word], _mm256_sub_pd(_mm256_setzero_pd(), log_vector(u)));
        }
        for (uint32_t j = 0; j < PHILOX_WORDS * VECTOR_DOUBLES && i + j < count; j++)
            output[i + j] = lanes[j % PHILOX_WORDS][j / PHILOX_WORDS];
    }
}
