#include "kernels/cpu/avx512_bf16.h"
#include "kernels/cpu/simd_avx512.h"

#include "common/float16.h"

/* The upper half of each lane is what common/float16.h rounds to, the lower one is zero.
 * (vcvtneps2bf16 takes what is below 2^-126 as zero before it rounds, this does not.) */
static __m512i round_to_bf16(__m512 x)
{
    __m512i bits = _mm512_castps_si512(x);
    __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    __m512i rounded = _mm512_add_epi32(bits, _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff)));
    __mmask16 unordered = _mm512_cmp_ps_mask(x, x, _CMP_UNORD_Q);
    rounded = _mm512_mask_or_epi32(rounded, unordered, bits, _mm512_set1_epi32(0x400000));
    return _mm512_and_si512(rounded, _mm512_set1_epi32((int)0xffff0000));
}

/* Lanes 2i and 2i + 1 become the upper and the lower half of word i. */
static __m256i join_pairs(__m512i rounded)
{
    return _mm512_cvtepi64_epi32(_mm512_or_si512(rounded, _mm512_srli_epi64(rounded, 48)));
}

void round_bf16_row_avx512_bf16(const float *input, uint32_t columns, void *output)
{
    uint32_t *words = output, k = 0;
    for (; k + WIDE_FLOATS <= columns; k += WIDE_FLOATS)
        _mm256_storeu_si256((__m256i *)(words + k / 2),
                            join_pairs(round_to_bf16(_mm512_loadu_ps(input + k))));
    for (; k < columns; k += 2) {
        uint16_t second = k + 1 < columns ? bf16_from_float(input[k + 1]) : 0;
        words[k / 2] = (uint32_t)bf16_from_float(input[k]) << 16 | second;
    }
}
