#include "kernels/cpu/avx512.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd_avx512.h"
#include "kernels/cpu/weight.h"

enum { WIDE_DOUBLES = 8 };

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
