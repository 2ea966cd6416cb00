/* Sixteen blocks of 32 at a time: their largest magnitudes and their sums are lanes of one vector
 * each, so that a block costs a few instructions for both and no wait for a division. */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd_avx512.h"

enum { BLOCKS = 16 };

ALWAYS_INLINE __m512i join(__m512i a, __m512i b, const bool add)
{
    return add ? _mm512_add_epi32(a, b) : _mm512_max_epu32(a, b);
}

/* Lane i: all lanes of rows[i] joined. Each level joins halves of what two vectors hold. */
ALWAYS_INLINE __m512i join_lanes(const __m512i *rows, const bool add)
{
    __m512i pairs[BLOCKS / 2], fours[BLOCKS / 4], eights[BLOCKS / 8];
    for (int i = 0; i < BLOCKS / 2; i++)
        pairs[i] = join(_mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]),
                        _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]), add);
    for (int i = 0; i < BLOCKS / 4; i++)
        fours[i] = join(_mm512_unpacklo_epi64(pairs[2 * i], pairs[2 * i + 1]),
                        _mm512_unpackhi_epi64(pairs[2 * i], pairs[2 * i + 1]), add);
    for (int i = 0; i < BLOCKS / 8; i++)
        eights[i] = join(_mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0x88),
                         _mm512_shuffle_i32x4(fours[2 * i], fours[2 * i + 1], 0xdd), add);
    return join(_mm512_shuffle_i32x4(eights[0], eights[1], 0x88),
                _mm512_shuffle_i32x4(eights[0], eights[1], 0xdd), add);
}

/* Bits of the largest magnitude of each block: as integers they are in the order of the values, and
 * what is not finite lies above. */
ALWAYS_INLINE __m512i magnitudes(const float *input, uint32_t count)
{
    const __m512i mask = _mm512_set1_epi32(0x7fffffff);
    __m512i rows[BLOCKS];
    for (uint32_t block = 0; block < BLOCKS; block++) {
        if (block >= count) {
            rows[block] = _mm512_setzero_si512();
            continue;
        }
        const float *x = input + block * QUANTIZED_BLOCK_WEIGHTS;
        rows[block] = _mm512_max_epu32(_mm512_and_si512(_mm512_loadu_si512(x), mask),
                                       _mm512_and_si512(_mm512_loadu_si512(x + WIDE_FLOATS), mask));
    }
    return join_lanes(rows, false);
}

/* q = 0 in the blocks that are not `kept`: their values must not be touched, they may be NaN. Sums
 * of the blocks' q. */
ALWAYS_INLINE __m512i round_blocks(const float *input, uint32_t count, const float *inverses,
                                   __mmask16 kept, int16_t *q)
{
    __m512i rows[BLOCKS];
    for (uint32_t block = 0; block < BLOCKS; block++) {
        if (block >= count) {
            rows[block] = _mm512_setzero_si512();
            continue;
        }
        const float *x = input + block * QUANTIZED_BLOCK_WEIGHTS;
        int16_t *place = q + block * QUANTIZED_BLOCK_WEIGHTS;
        __mmask16 all = (kept >> block & 1) != 0 ? 0xffff : 0;
        __m512 factor = _mm512_set1_ps(inverses[block]);
        __m512i low = _mm512_maskz_cvtps_epi32(all, _mm512_mul_ps(_mm512_loadu_ps(x), factor));
        __m512i high =
            _mm512_maskz_cvtps_epi32(all, _mm512_mul_ps(_mm512_loadu_ps(x + WIDE_FLOATS), factor));
        _mm256_storeu_si256((__m256i *)place, _mm512_cvtepi32_epi16(low));
        _mm256_storeu_si256((__m256i *)place + 1, _mm512_cvtepi32_epi16(high));
        rows[block] = _mm512_add_epi32(low, high);
    }
    return join_lanes(rows, true);
}

void prepare_row_avx512(const float *input, uint32_t columns, const struct prepared_row *output)
{
    const __m512 most = _mm512_set1_ps(ROUNDED_MAX);
    uint32_t blocks = columns / QUANTIZED_BLOCK_WEIGHTS;
    for (uint32_t first = 0; first < blocks; first += BLOCKS) {
        uint32_t count = blocks - first < BLOCKS ? blocks - first : BLOCKS;
        uint64_t offset = (uint64_t)first * QUANTIZED_BLOCK_WEIGHTS;
        __mmask16 present = first_lanes_wide(count);
        __m512 largest = _mm512_castsi512_ps(magnitudes(input + offset, count));
        __mmask16 finite = _mm512_cmp_ps_mask(largest, _mm512_set1_ps(FINITE_MAX), _CMP_LE_OQ);
        __mmask16 kept =
            _mm512_mask_cmp_ps_mask(finite, largest, _mm512_set1_ps(NEGLIGIBLE), _CMP_GE_OQ);
        __m512 scale = _mm512_mask_div_ps(_mm512_setzero_ps(), kept, largest, most);
        scale = _mm512_mask_mov_ps(_mm512_set1_ps(NAN), finite, scale);
        _Alignas(64) float inverses[BLOCKS];
        _mm512_store_ps(inverses, _mm512_maskz_div_ps(kept, most, largest));
        __m512i sums = round_blocks(input + offset, count, inverses, kept, output->q + offset);
        _mm512_mask_storeu_ps(output->scale + first, present, scale);
        _mm512_mask_storeu_epi32(output->zero_sum + first, present,
                                 _mm512_mullo_epi32(sums, _mm512_set1_epi32(-Q4_0_ZERO)));
        _mm512_mask_storeu_ps(output->scaled_sum + first, present,
                              _mm512_mul_ps(scale, _mm512_cvtepi32_ps(sums)));
    }
}
