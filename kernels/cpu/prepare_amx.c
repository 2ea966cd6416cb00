#include "kernels/cpu/amx.h"
#include "kernels/cpu/matrix.h"

#include <immintrin.h>

/* The bytes of a half of a block in the order of struct row_tile_block. */
static __m256i tile_order(__m256i bytes)
{
    const __m256i order = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15));
    return _mm256_shuffle_epi8(bytes, order);
}

void split_row_amx(const struct prepared_row *row, uint32_t columns, uint32_t place,
                   struct row_tile_block *tile)
{
    for (uint32_t block = 0; block < columns / QUANTIZED_BLOCK_WEIGHTS; block++, tile++) {
        __m512i q = _mm512_loadu_si512(row->q + (uint64_t)block * QUANTIZED_BLOCK_WEIGHTS);
        __m256i high = _mm512_cvtepi16_epi8(_mm512_srai_epi16(q, 8));
        __m256i low = _mm512_cvtepi16_epi8(q);
        _mm256_storeu_si256((__m256i *)tile->high[place], tile_order(high));
        _mm256_storeu_si256((__m256i *)tile->low[place], tile_order(low));
        tile->scale[place] = row->scale[block];
        tile->scaled_sum[place] = row->scaled_sum[block];
    }
}
