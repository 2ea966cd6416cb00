/* Quantized panels with AVX-512 VNNI: a vector holds one pair of k of all 16 weight rows as 16-bit
 * integers, and vpdpwssd adds its products with a broadcast activation pair into 16 exact 32-bit
 * sums. Weights are unpacked in registers, once for ROWS_TOGETHER rows; sums and chains of these
 * rows stay in registers for the whole row, so nothing but the panel and the activations is read
 * and nothing but the result written. */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/prepared.h"
#include "kernels/cpu/simd_avx512.h"

enum {
    ROWS_TOGETHER = 8, /* 8 sums and 8 chains, the rest for the panel */
    PREFETCH_BYTES = 2048,
    CACHE_LINE_BYTES = 64,
    Q4_0_ZERO = 8,
};

ALWAYS_INLINE __m512i load_words(const uint32_t *words)
{
    return _mm512_loadu_si512(words);
}

/* sum += weights x the pair at `pair`, broadcast by the instruction itself, which gcc 12 does not
 * do on its own. */
ALWAYS_INLINE __m512i add_pair(__m512i sum, __m512i weights, const int16_t *pair)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*(const int32_t *)pair));
    return sum;
}

/* What one block of a panel gives, in the order in which it is used. */
struct block_view {
    const uint32_t *words;
    __m512 scales, minima;
};

ALWAYS_INLINE struct block_view view_block(const void *panel, uint64_t index, const uint32_t type)
{
    struct block_view view;
    const uint16_t *halves;
    uint32_t bytes;
    if (type == WEIGHT_TYPE_Q8_0) {
        const struct panel_block_q8_0 *block = (const struct panel_block_q8_0 *)panel + index;
        view.words = block->q[0];
        halves = block->scale;
        bytes = sizeof *block;
    } else if (type == WEIGHT_TYPE_Q4_0) {
        const struct panel_block_q4_0 *block = (const struct panel_block_q4_0 *)panel + index;
        view.words = block->q[0];
        halves = block->scale;
        bytes = sizeof *block;
    } else {
        const struct panel_block_q4_1 *block = (const struct panel_block_q4_1 *)panel + index;
        view.words = block->q[0];
        halves = block->scale;
        bytes = sizeof *block;
    }
    for (uint32_t line = 0; line < bytes; line += CACHE_LINE_BYTES)
        _mm_prefetch((const char *)halves + PREFETCH_BYTES + line, _MM_HINT_T0);
    view.scales = load_halves_wide(halves);
    view.minima =
        type == WEIGHT_TYPE_Q4_1 ? load_halves_wide(halves + PANEL_ROWS) : _mm512_setzero_ps();
    return view;
}

/* Sums of one block for `rows` rows whose activations of the block start at q[row]. */
ALWAYS_INLINE void sum_block(const uint32_t *words, const int16_t *const *q, uint64_t offset,
                             __m512i *sums, const uint32_t type, const uint32_t rows)
{
    const __m512i nibbles = _mm512_set1_epi32(0x000F000F);
    const uint32_t vectors = type == WEIGHT_TYPE_Q8_0 ? Q8_WORDS : Q4_WORDS;
    const uint32_t pairs = QUANTIZED_BLOCK_WEIGHTS / 2 / vectors;
#pragma GCC unroll 8
    for (uint32_t v = 0; v < vectors; v++) {
        __m512i packed = load_words(words + v * PANEL_ROWS);
#pragma GCC unroll 4
        for (uint32_t j = 0; j < pairs; j++) {
            __m512i weights;
            if (type == WEIGHT_TYPE_Q8_0)
                weights = _mm512_srai_epi16(j == 0 ? _mm512_slli_epi16(packed, 8) : packed, 8);
            else
                weights = _mm512_and_si512(_mm512_srli_epi32(packed, 4 * j), nibbles);
#pragma GCC unroll 8
            for (uint32_t r = 0; r < rows; r++)
                sums[r] = add_pair(sums[r], weights, q[r] + offset + 2 * (v * pairs + j));
        }
    }
}

ALWAYS_INLINE void multiply_rows(const void *panel, const struct prepared_row *prepared,
                                 uint32_t blocks, float *output, const uint32_t type,
                                 const uint32_t rows)
{
    __m512 chain[ROWS_TOGETHER];
    const int16_t *q[ROWS_TOGETHER];
    for (uint32_t r = 0; r < rows; r++) {
        chain[r] = _mm512_setzero_ps();
        q[r] = prepared[r].q;
    }
    for (uint32_t index = 0; index < blocks; index++) {
        struct block_view view = view_block(panel, index, type);
        __m512i sums[ROWS_TOGETHER];
        for (uint32_t r = 0; r < rows; r++) {
            sums[r] = type == WEIGHT_TYPE_Q4_0
                          ? _mm512_set1_epi32(-Q4_0_ZERO * prepared[r].sum[index])
                          : _mm512_setzero_si512();
        }
        sum_block(view.words, q, (uint64_t)index * QUANTIZED_BLOCK_WEIGHTS, sums, type, rows);
        for (uint32_t r = 0; r < rows; r++) {
            __m512 factor = _mm512_mul_ps(view.scales, _mm512_set1_ps(prepared[r].scale[index]));
            chain[r] = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(sums[r]), chain[r]);
            if (type == WEIGHT_TYPE_Q4_1)
                chain[r] = _mm512_fmadd_ps(view.minima,
                                           _mm512_set1_ps(prepared[r].scaled_sum[index]), chain[r]);
        }
    }
    for (uint32_t r = 0; r < rows; r++)
        _mm512_storeu_ps(output + r * PANEL_ROWS, chain[r]);
}

ALWAYS_INLINE void multiply(const void *panel, const struct matmul_share *share,
                            const uint32_t type)
{
    uint32_t blocks = share->columns / QUANTIZED_BLOCK_WEIGHTS;
    for (uint32_t row = 0; row < share->rows; row += ROWS_TOGETHER) {
        struct prepared_row prepared[ROWS_TOGETHER];
        uint32_t rows = share->rows - row;
        float *output = share->output + row * PANEL_ROWS;
        for (uint32_t r = 0; r < ROWS_TOGETHER && r < rows; r++)
            prepared[r] = prepared_row_at(share->prepared, share->columns, row + r);
        switch (rows) {
        case 1:
            multiply_rows(panel, prepared, blocks, output, type, 1);
            break;
        case 2:
            multiply_rows(panel, prepared, blocks, output, type, 2);
            break;
        case 3:
            multiply_rows(panel, prepared, blocks, output, type, 3);
            break;
        case 4:
            multiply_rows(panel, prepared, blocks, output, type, 4);
            break;
        case 5:
            multiply_rows(panel, prepared, blocks, output, type, 5);
            break;
        case 6:
            multiply_rows(panel, prepared, blocks, output, type, 6);
            break;
        case 7:
            multiply_rows(panel, prepared, blocks, output, type, 7);
            break;
        default:
            multiply_rows(panel, prepared, blocks, output, type, ROWS_TOGETHER);
            break;
        }
    }
}

void matmul_q8_0_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_Q8_0);
}

void matmul_q4_0_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_Q4_0);
}

void matmul_q4_1_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_Q4_1);
}
