/* Blocks of quantized panels as the AVX-512 products read them. Included by matmul_quantized*.c
 * files for AVX-512 only. */
#ifndef TANDEM_KERNELS_CPU_QUANTIZED_AVX512_H
#define TANDEM_KERNELS_CPU_QUANTIZED_AVX512_H

#include "kernels/cpu/matrix.h"
#include "kernels/cpu/simd_avx512.h"

/* Keeps a value in its register: gcc 12 otherwise reads a vector again for each use. For the same
 * reason all loops over rows and panels are unrolled: one that stays keeps its arrays in memory. */
#define PIN(value) __asm__("" : "+v"(value))

/* A block of a panel: its words, scales and minima. */
struct block_view {
    const uint32_t *words;
    const uint16_t *scales, *minima; /* fp16; minima of Q4_1 only */
};

ALWAYS_INLINE struct block_view view_block(const void *panel, uint64_t index, const uint32_t type)
{
    if (type == WEIGHT_TYPE_Q8_0) {
        const struct panel_block_q8_0 *block = (const struct panel_block_q8_0 *)panel + index;
        return (struct block_view){block->q[0], block->scale, block->scale};
    }
    if (type == WEIGHT_TYPE_Q4_0) {
        const struct panel_block_q4_0 *block = (const struct panel_block_q4_0 *)panel + index;
        return (struct block_view){block->q[0], block->scale, block->scale};
    }
    const struct panel_block_q4_1 *block = (const struct panel_block_q4_1 *)panel + index;
    return (struct block_view){block->q[0], block->scale, block->minimum};
}

ALWAYS_INLINE void prefetch_block(const struct block_view *block, uint64_t distance,
                                  const uint32_t type)
{
    const uint32_t cache_line_bytes = 64;
    const uint32_t bytes = type == WEIGHT_TYPE_Q8_0   ? sizeof(struct panel_block_q8_0)
                           : type == WEIGHT_TYPE_Q4_0 ? sizeof(struct panel_block_q4_0)
                                                      : sizeof(struct panel_block_q4_1);
    for (uint32_t line = 0; line < bytes; line += cache_line_bytes)
        _mm_prefetch((const char *)block->scales + distance + line, _MM_HINT_T0);
}

/* Vectors of words of a block, and pairs of k of each. */
ALWAYS_INLINE uint32_t words_of_block(const uint32_t type)
{
    return type == WEIGHT_TYPE_Q8_0 ? Q8_WORDS : Q4_WORDS;
}

ALWAYS_INLINE uint32_t pairs_of_words(const uint32_t type)
{
    return QUANTIZED_BLOCK_WEIGHTS / 2 / words_of_block(type);
}

/* Pair j of a vector of words. */
ALWAYS_INLINE __m512i unpack_pair(__m512i words, const uint32_t j, const uint32_t type)
{
    if (type == WEIGHT_TYPE_Q8_0)
        return _mm512_srai_epi16(j == 0 ? _mm512_slli_epi16(words, 8) : words, 8);
    if (j == 3) /* the last one needs no mask */
        return _mm512_srli_epi16(words, 12);
    return _mm512_and_si512(_mm512_srli_epi32(words, 4 * j), _mm512_set1_epi32(0x000F000F));
}

#endif
