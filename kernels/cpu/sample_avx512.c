#include "kernels/cpu/avx512.h"
#include "kernels/cpu/logarithm.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/weight.h"

#include "common/random.h"

enum { WIDE_DOUBLES = 8, PHILOX_WORDS = 4 };

bool sample_scan_avx512(const float *logits, uint32_t count, float *out_largest,
                        uint32_t *out_index)
{
    const __m512 finite = _mm512_set1_ps(FINITE_MAX);
    __m512 largest = _mm512_set1_ps(-INFINITY);
    __mmask16 strange = 0;
    for (uint32_t i = 0; i < count; i += WIDE_FLOATS) {
        __mmask16 mask = first_lanes_wide(count - i);
        __m512 x = _mm512_mask_loadu_ps(_mm512_set1_ps(logits[0]), mask, logits + i);
        strange |= _mm512_cmp_ps_mask(_mm512_abs_ps(x), finite, _CMP_NLE_UQ);
        largest = _mm512_max_ps(largest, x);
    }
    if (strange != 0)
        return false;
    float top = largest_lane(
        _mm256_max_ps(_mm512_castps512_ps256(largest), _mm512_extractf32x8_ps(largest, 1)));
    uint32_t first = 0;
    __mmask16 found = 0;
    for (; found == 0; first += found == 0 ? WIDE_FLOATS : 0) {
        __mmask16 mask = first_lanes_wide(count - first);
        found = _mm512_mask_cmp_ps_mask(mask, _mm512_maskz_loadu_ps(mask, logits + first),
                                        _mm512_set1_ps(top), _CMP_EQ_OQ);
    }
    *out_index = first + (uint32_t)__builtin_ctz(found);
    *out_largest = logits[*out_index];
    return true;
}

void sample_probabilities_avx512(const float *logits, uint32_t count, float largest,
                                 float sharpness, float *output)
{
    __m512 top = _mm512_set1_ps(largest), factor = _mm512_set1_ps(sharpness);
    for (uint32_t i = 0; i < count; i += WIDE_FLOATS) {
        __mmask16 mask = first_lanes_wide(count - i);
        __m512 distance = _mm512_sub_ps(_mm512_maskz_loadu_ps(mask, logits + i), top);
        _mm512_mask_storeu_ps(output + i, mask, exp_wide(_mm512_mul_ps(distance, factor)));
    }
}

/* The rounded integer stands in the low bits of the shifted double. */
ALWAYS_INLINE __m512i add_weights(__m512i sum, __m256 probabilities)
{
    const __m512d shift = _mm512_set1_pd(INTEGER_SHIFT);
    __m512d scaled =
        _mm512_mul_pd(_mm512_cvtps_pd(probabilities), _mm512_set1_pd(SAMPLE_WEIGHT_ONE));
    __m512i bits = _mm512_castpd_si512(_mm512_add_pd(scaled, shift));
    return _mm512_add_epi64(sum, _mm512_sub_epi64(bits, _mm512_castpd_si512(shift)));
}

uint64_t sample_weight_sum_avx512(const float *probabilities, uint32_t count)
{
    __m512i low = _mm512_setzero_si512(), high = _mm512_setzero_si512();
    for (uint32_t i = 0; i < count; i += WIDE_FLOATS) {
        __m512 p = _mm512_maskz_loadu_ps(first_lanes_wide(count - i), probabilities + i);
        low = add_weights(low, _mm512_castps512_ps256(p));
        high = add_weights(high, _mm512_extractf32x8_ps(p, 1));
    }
    uint64_t lanes[WIDE_DOUBLES], sum = 0;
    _mm512_storeu_si512(lanes, _mm512_add_epi64(low, high));
    for (int i = 0; i < WIDE_DOUBLES; i++)
        sum += lanes[i];
    return sum;
}

/* Eight numbers below 2^52, in 64-bit lanes, to double. */
ALWAYS_INLINE __m512d small_to_double(__m512i x)
{
    const __m512d shift = _mm512_set1_pd(INTEGER_SHIFT);
    return _mm512_sub_pd(_mm512_castsi512_pd(_mm512_or_si512(x, _mm512_castpd_si512(shift))),
                         shift);
}

/* log_plain() of eight numbers. */
ALWAYS_INLINE __m512d log_wide(__m512d x)
{
    __m512i shifted = _mm512_add_epi64(_mm512_castpd_si512(x),
                                       _mm512_set1_epi64((long long)(ONE_BITS - SQRT_HALF_BITS)));
    __m512d e = _mm512_sub_pd(small_to_double(_mm512_srli_epi64(shifted, MANTISSA_BITS)),
                              _mm512_set1_pd(EXPONENT_BIAS));
    __m512i mantissa = _mm512_and_si512(shifted, _mm512_set1_epi64((long long)MANTISSA_MASK));
    __m512d m = _mm512_castsi512_pd(
        _mm512_add_epi64(mantissa, _mm512_set1_epi64((long long)SQRT_HALF_BITS)));
    const __m512d one = _mm512_set1_pd(1.0);
    __m512d s = _mm512_div_pd(_mm512_sub_pd(m, one), _mm512_add_pd(m, one));
    __m512d square = _mm512_mul_pd(s, s);
    __m512d p = _mm512_fmadd_pd(_mm512_set1_pd(LOG_C19), square, _mm512_set1_pd(LOG_C17));
    p = _mm512_fmadd_pd(p, square, _mm512_set1_pd(LOG_C15));
    p = _mm512_fmadd_pd(p, square, _mm512_set1_pd(LOG_C13));
    p = _mm512_fmadd_pd(p, square, _mm512_set1_pd(LOG_C11));
    p = _mm512_fmadd_pd(p, square, _mm512_set1_pd(LOG_C9));
    p = _mm512_fmadd_pd(p, square, _mm512_set1_pd(LOG_C7));
    p = _mm512_fmadd_pd(p, square, _mm512_set1_pd(LOG_C5));
    p = _mm512_fmadd_pd(p, square, _mm512_set1_pd(LOG_C3));
    p = _mm512_fmadd_pd(_mm512_mul_pd(p, square), s, _mm512_add_pd(s, s));
    return _mm512_fmadd_pd(e, _mm512_set1_pd(LN2), p);
}

/* philox() for eight consecutive first counters, one per 64-bit lane; words in the low halves. */
ALWAYS_INLINE void philox_wide(uint64_t seed, uint32_t first_counter, uint32_t position,
                               __m512i *words)
{
    const __m512i low_half = _mm512_set1_epi64(0xffffffff);
    const __m512i m0 = _mm512_set1_epi64(PHILOX_MULTIPLIER_0);
    const __m512i m1 = _mm512_set1_epi64(PHILOX_MULTIPLIER_1);
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);
    __m512i c0 = _mm512_add_epi64(_mm512_set1_epi64(first_counter),
                                  _mm512_setr_epi64(0, 1, 2, 3, 4, 5, 6, 7));
    __m512i c1 = _mm512_set1_epi64(position);
    __m512i c2 = _mm512_setzero_si512(), c3 = _mm512_setzero_si512();
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        __m512i p0 = _mm512_mul_epu32(m0, c0), p1 = _mm512_mul_epu32(m1, c2);
        c0 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p1, 32), c1),
                              _mm512_set1_epi64(k0));
        c2 = _mm512_xor_si512(_mm512_xor_si512(_mm512_srli_epi64(p0, 32), c3),
                              _mm512_set1_epi64(k1));
        c1 = _mm512_and_si512(p1, low_half);
        c3 = _mm512_and_si512(p0, low_half);
        k0 += PHILOX_STEP_0;
        k1 += PHILOX_STEP_1;
    }
    words[0] = c0;
    words[1] = c1;
    words[2] = c2;
    words[3] = c3;
}

/* Lanes 2 pair and 2 pair + 1 of four vectors, side by side. */
ALWAYS_INLINE __m512d interleave(const __m512d *values, long long pair)
{
    long long even = 2 * pair, odd = even + 1;
    __m512i front = _mm512_setr_epi64(even, even + 8, 0, 0, odd, odd + 8, 0, 0);
    __m512i back = _mm512_setr_epi64(0, 0, even, even + 8, 0, 0, odd, odd + 8);
    return _mm512_mask_mov_pd(_mm512_permutex2var_pd(values[0], front, values[1]), 0xcc,
                              _mm512_permutex2var_pd(values[2], back, values[3]));
}

void sample_exponentials_avx512(uint64_t seed, uint32_t position, uint32_t first_id, uint32_t count,
                                double *output)
{
    for (uint32_t i = 0; i < count; i += PHILOX_WORDS * WIDE_DOUBLES) {
        __m512i words[PHILOX_WORDS];
        __m512d values[PHILOX_WORDS];
        philox_wide(seed, (first_id + i) / PHILOX_WORDS, position, words);
        for (int word = 0; word < PHILOX_WORDS; word++) {
            __m512d u =
                _mm512_mul_pd(_mm512_add_pd(small_to_double(words[word]), _mm512_set1_pd(0.5)),
                              _mm512_set1_pd(0x1p-32));
            values[word] = _mm512_sub_pd(_mm512_setzero_pd(), log_wide(u));
        }
        for (uint32_t v = 0; v < PHILOX_WORDS && i + v * WIDE_DOUBLES < count; v++) {
            uint32_t left = count - i - v * WIDE_DOUBLES;
            uint32_t lanes = left < WIDE_DOUBLES ? (1u << left) - 1u : 0xffu;
            __mmask8 mask = (__mmask8)lanes;
            _mm512_mask_storeu_pd(output + i + v * WIDE_DOUBLES, mask, interleave(values, v));
        }
    }
}
