/* Eight blocks of 32 at a time: their largest magnitudes and their sums are lanes of one vector
 * each, so that a block costs a few instructions for both and no wait for a division. */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd_avx2.h"

#include "common/float16.h"

enum { VECTORS = QUANTIZED_BLOCK_WEIGHTS / VECTOR_FLOATS, BLOCKS = VECTOR_FLOATS };

ALWAYS_INLINE __m256i join(__m256i a, __m256i b, const bool add)
{
    return add ? _mm256_add_epi32(a, b) : _mm256_max_epu32(a, b);
}

/* Lane i: all lanes of rows[i] joined. Each level joins halves of what two vectors hold. */
ALWAYS_INLINE __m256i join_lanes(const __m256i *rows, const bool add)
{
    __m256i pairs[BLOCKS / 2], fours[BLOCKS / 4];
    for (int i = 0; i < BLOCKS / 2; i++)
        pairs[i] = join(_mm256_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]),
                        _mm256_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]), add);
    for (int i = 0; i < BLOCKS / 4; i++)
        fours[i] = join(_mm256_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                        _mm256_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]), add);
    return join(_mm256_permute2x128_si256(fours[0], fours[1], 0x20),
                _mm256_permute2x128_si256(fours[0], fours[1], 0x31), add);
}

/* Bits of the largest magnitude of each block: as integers they are in the order of the values, and
 * what is not finite lies above. */
ALWAYS_INLINE __m256i magnitudes(const float *input, uint32_t count)
{
    const __m256i mask = _mm256_set1_epi32(0x7fffffff);
    __m256i rows[BLOCKS];
    for (uint32_t block = 0; block < BLOCKS; block++) {
        const float *x = input + (uint64_t)block * QUANTIZED_BLOCK_WEIGHTS;
        rows[block] = _mm256_setzero_si256();
        for (uint32_t v = 0; block < count && v < VECTORS; v++) {
            __m256i bits = _mm256_loadu_si256((const __m256i *)(x + v * VECTOR_FLOATS));
            rows[block] = _mm256_max_epu32(rows[block], _mm256_and_si256(bits, mask));
        }
    }
    return join_lanes(rows, false);
}

/* What a block's values are multiplied with, and all ones, or 0 where they become 0: such values
 * must not be touched, they may be NaN. */
struct factors {
    _Alignas(32) float inverse[BLOCKS];
    _Alignas(32) int32_t kept[BLOCKS];
};

/* Sums of the blocks' q. */
ALWAYS_INLINE __m256i round_blocks(const float *input, uint32_t count,
                                   const struct factors *factors, int16_t *q)
{
    __m256i rows[BLOCKS];
    for (uint32_t block = 0; block < BLOCKS; block++) {
        rows[block] = _mm256_setzero_si256();
        if (block >= count)
            continue;
        const float *x = input + (uint64_t)block * QUANTIZED_BLOCK_WEIGHTS;
        int16_t *place = q + (uint64_t)block * QUANTIZED_BLOCK_WEIGHTS;
        __m256 inverse = _mm256_set1_ps(factors->inverse[block]);
        __m256i kept = _mm256_set1_epi32(factors->kept[block]), rounded[VECTORS];
        for (uint32_t v = 0; v < VECTORS; v++) {
            __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(x + v * VECTOR_FLOATS), inverse);
            rounded[v] = _mm256_and_si256(_mm256_cvtps_epi32(scaled), kept);
            rows[block] = _mm256_add_epi32(rows[block], rounded[v]);
        }
        for (uint32_t v = 0; v < VECTORS; v += 2) {
            __m256i packed = _mm256_packs_epi32(rounded[v], rounded[v + 1]);
            packed = _mm256_permute4x64_epi64(packed, 0xD8); /* packs works per 128-bit half */
            _mm256_storeu_si256((__m256i *)(place + v * VECTOR_FLOATS), packed);
        }
    }
    return join_lanes(rows, true);
}

void prepare_row_avx2(const float *input, uint32_t columns, const struct prepared_row *output)
{
    const __m256 most = _mm256_set1_ps(ROUNDED_MAX);
    uint32_t blocks = columns / QUANTIZED_BLOCK_WEIGHTS;
    for (uint32_t first = 0; first < blocks; first += BLOCKS) {
        uint32_t count = blocks - first < BLOCKS ? blocks - first : BLOCKS;
        uint64_t offset = (uint64_t)first * QUANTIZED_BLOCK_WEIGHTS;
        __m256i present = first_lanes(count);
        __m256 largest = _mm256_castsi256_ps(magnitudes(input + offset, count));
        __m256 finite = _mm256_cmp_ps(largest, _mm256_set1_ps(FINITE_MAX), _CMP_LE_OQ);
        __m256 kept =
            _mm256_and_ps(finite, _mm256_cmp_ps(largest, _mm256_set1_ps(NEGLIGIBLE), _CMP_GE_OQ));
        __m256 scale = _mm256_and_ps(kept, _mm256_div_ps(largest, most));
        scale = _mm256_blendv_ps(_mm256_set1_ps(NAN), scale, finite);
        struct factors factors;
        _mm256_store_ps(factors.inverse, _mm256_div_ps(most, largest));
        _mm256_store_si256((__m256i *)factors.kept, _mm256_castps_si256(kept));
        __m256i sums = round_blocks(input + offset, count, &factors, output->q + offset);
        _mm256_maskstore_ps(output->scale + first, present, scale);
        _mm256_maskstore_epi32(output->zero_sum + first, present,
                               _mm256_mullo_epi32(sums, _mm256_set1_epi32(-Q4_0_ZERO)));
        _mm256_maskstore_ps(output->scaled_sum + first, present,
                            _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sums)));
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
