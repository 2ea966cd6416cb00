#include "kernels/cpu/avx512.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd_avx512.h"

/* A block of 32 is two vectors. Its largest magnitude, infinity where a value is not finite (max
 * drops a NaN, so it is looked for on its own). */
static float block_magnitude(__m512 low, __m512 high)
{
    __mmask16 unordered = _mm512_cmp_ps_mask(low, high, _CMP_UNORD_Q);
    __m512 largest = _mm512_max_ps(_mm512_abs_ps(low), _mm512_abs_ps(high));
    __m256 eight =
        _mm256_max_ps(_mm512_castps512_ps256(largest), _mm512_extractf32x8_ps(largest, 1));
    return unordered != 0 ? INFINITY : largest_lane(eight);
}

/* q = 0 everywhere where the inverse is 0: the values must not be touched then, they may be NaN. */
static int32_t round_block(__m512 low, __m512 high, float inverse, int16_t *q)
{
    __mmask16 all = inverse == 0.0f ? 0 : 0xffff;
    __m512 factor = _mm512_set1_ps(inverse);
    __m512i first = _mm512_maskz_cvtps_epi32(all, _mm512_mul_ps(low, factor));
    __m512i second = _mm512_maskz_cvtps_epi32(all, _mm512_mul_ps(high, factor));
    _mm256_storeu_si256((__m256i *)q, _mm512_cvtepi32_epi16(first));
    _mm256_storeu_si256((__m256i *)q + 1, _mm512_cvtepi32_epi16(second));
    return _mm512_reduce_add_epi32(_mm512_add_epi32(first, second));
}

void prepare_row_avx512(const float *input, uint32_t columns, const struct prepared_row *output)
{
    for (uint32_t block = 0; block < columns / QUANTIZED_BLOCK_WEIGHTS; block++) {
        uint64_t offset = (uint64_t)block * QUANTIZED_BLOCK_WEIGHTS;
        __m512 low = _mm512_loadu_ps(input + offset);
        __m512 high = _mm512_loadu_ps(input + offset + WIDE_FLOATS);
        struct block_scale scale = block_scale(block_magnitude(low, high));
        int32_t sum = round_block(low, high, scale.inverse, output->q + offset);
        output->scale[block] = scale.scale;
        output->sum[block] = sum;
        output->scaled_sum[block] = scale.scale * (float)sum;
    }
}
