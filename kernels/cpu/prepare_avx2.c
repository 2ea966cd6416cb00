#include "kernels/cpu/avx2.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd_avx2.h"

#include "common/float16.h"

enum { VECTORS = QUANTIZED_BLOCK_WEIGHTS / VECTOR_FLOATS };

/* Largest magnitude, infinity where a value is not finite (max drops a NaN, so it is looked for on
 * its own). */
static float block_magnitude(const __m256 *x)
{
    const __m256 magnitude_mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
    __m256 largest = _mm256_setzero_ps(), unordered = _mm256_setzero_ps();
    for (int v = 0; v < VECTORS; v++) {
        largest = _mm256_max_ps(largest, _mm256_and_ps(x[v], magnitude_mask));
        unordered = _mm256_or_ps(unordered, _mm256_cmp_ps(x[v], x[v], _CMP_UNORD_Q));
    }
    return _mm256_movemask_ps(unordered) != 0 ? INFINITY : largest_lane(largest);
}

static int32_t sum_of_words(__m256i words)
{
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1));
    __m128i two = _mm_add_epi32(four, _mm_unpackhi_epi64(four, four));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 1)));
}

/* q = 0 everywhere where the inverse is 0: the values must not be touched then, they may be NaN. */
static int32_t round_block(const __m256 *x, float inverse, int16_t *q)
{
    __m256i rounded[VECTORS];
    __m256i sum = _mm256_setzero_si256();
    for (int v = 0; v < VECTORS; v++) {
        rounded[v] = inverse == 0.0f
                         ? _mm256_setzero_si256()
                         : _mm256_cvtps_epi32(_mm256_mul_ps(x[v], _mm256_set1_ps(inverse)));
        sum = _mm256_add_epi32(sum, rounded[v]);
    }
    for (int v = 0; v < VECTORS; v += 2) {
        __m256i packed = _mm256_packs_epi32(rounded[v], rounded[v + 1]);
        packed = _mm256_permute4x64_epi64(packed, 0xD8); /* packs works per 128-bit half */
        _mm256_storeu_si256((__m256i *)(q + v * VECTOR_FLOATS), packed);
    }
    return sum_of_words(sum);
}

void prepare_row_avx2(const float *input, uint32_t columns, const struct prepared_row *output)
{
    for (uint32_t block = 0; block < columns / QUANTIZED_BLOCK_WEIGHTS; block++) {
        uint64_t offset = (uint64_t)block * QUANTIZED_BLOCK_WEIGHTS;
        __m256 x[VECTORS];
        for (int v = 0; v < VECTORS; v++)
            x[v] = _mm256_loadu_ps(input + offset + v * VECTOR_FLOATS);
        struct block_scale scale = block_scale(block_magnitude(x));
        int32_t sum = round_block(x, scale.inverse, output->q + offset);
        output->scale[block] = scale.scale;
        output->sum[block] = sum;
        output->scaled_sum[block] = scale.scale * (float)sum;
    }
}

/* To the nearest even bf16 as common/float16.h does it: half a unit, or a little less where the
 * last bit kept is even, carries into the upper half. NaN stays NaN. */
static __m256i round_to_bf16(__m256 x)
{
    __m256i bits = _mm256_castps_si256(x);
    __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    __m256i half = _mm256_add_epi32(odd, _mm256_set1_epi32(0x7fff));
    __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    __m256 unordered = _mm256_cmp_ps(x, x, _CMP_UNORD_Q);
    __m256 rounded = _mm256_blendv_ps(_mm256_castsi256_ps(_mm256_add_epi32(bits, half)),
                                      _mm256_castsi256_ps(quiet), unordered);
    return _mm256_and_si256(_mm256_castps_si256(rounded), _mm256_set1_epi32((int)0xffff0000));
}

void round_bf16_row_avx2(const float *input, uint32_t columns, void *output)
{
    float *rounded = output;
    uint32_t k = 0;
    for (; k + VECTOR_FLOATS <= columns; k += VECTOR_FLOATS)
        _mm256_storeu_si256((__m256i *)(rounded + k), round_to_bf16(_mm256_loadu_ps(input + k)));
    for (; k < columns; k++)
        rounded[k] = bf16_to_float(bf16_from_float(input[k]));
    if (columns % 2 != 0)
        rounded[columns] = 0.0f;
}
