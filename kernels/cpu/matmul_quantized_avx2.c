/* Quantized panels with AVX2. A vector holds one pair of k of 8 weight rows as 16-bit integers; a
 * multiply-add of pairs with a broadcast activation pair adds into 8 exact 32-bit sums. Few rows:
 * unpack in registers, once per row. Many rows: unpack CHUNK_BLOCKS blocks into the L1 cache, then
 * 4 activation rows x 16 weight rows at a time. */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/prepared.h"
#include "kernels/cpu/simd_avx2.h"

enum {
    HALVES = PANEL_ROWS / VECTOR_FLOATS,
    PAIRS = QUANTIZED_BLOCK_WEIGHTS / 2,
    CHUNK_BLOCKS = 16, /* 16 KiB unpacked: half of an L1 cache */
    ROWS_TOGETHER = 4, /* 8 accumulators, 2 weights, 1 activation */
    PREFETCH_BYTES = 2048,
    CACHE_LINE_BYTES = 64,
    Q4_0_ZERO = 8,
};

/* Keeps the compiler from moving a value between registers and the stack in the inner loops: gcc 12
 * reorders them until it spills, at half the speed. */
#define PIN(value) __asm__("" : "+x"(value))

ALWAYS_INLINE const void *block_at(const void *panel, uint64_t index, const uint32_t type)
{
    if (type == WEIGHT_TYPE_Q8_0)
        return (const struct panel_block_q8_0 *)panel + index;
    if (type == WEIGHT_TYPE_Q4_0)
        return (const struct panel_block_q4_0 *)panel + index;
    return (const struct panel_block_q4_1 *)panel + index;
}

ALWAYS_INLINE const uint32_t *block_words(const void *block, const uint32_t type)
{
    if (type == WEIGHT_TYPE_Q8_0)
        return ((const struct panel_block_q8_0 *)block)->q[0];
    if (type == WEIGHT_TYPE_Q4_0)
        return ((const struct panel_block_q4_0 *)block)->q[0];
    return ((const struct panel_block_q4_1 *)block)->q[0];
}

ALWAYS_INLINE void prefetch_block(const void *block, const uint32_t type)
{
    const uint32_t bytes = type == WEIGHT_TYPE_Q8_0   ? sizeof(struct panel_block_q8_0)
                           : type == WEIGHT_TYPE_Q4_0 ? sizeof(struct panel_block_q4_0)
                                                      : sizeof(struct panel_block_q4_1);
    for (uint32_t line = 0; line < bytes; line += CACHE_LINE_BYTES)
        _mm_prefetch((const char *)block + PREFETCH_BYTES + line, _MM_HINT_T0);
}

/* Scales stand first in every block; the minima of Q4_1 follow them. */
ALWAYS_INLINE __m256 block_scales(const void *block, uint32_t half)
{
    return load_halves((const uint16_t *)block + half * VECTOR_FLOATS);
}

ALWAYS_INLINE __m256 block_minima(const void *block, uint32_t half)
{
    return load_halves((const uint16_t *)block + PANEL_ROWS + half * VECTOR_FLOATS);
}

ALWAYS_INLINE __m256i load_words(const uint32_t *words, uint32_t v, uint32_t half)
{
    return _mm256_loadu_si256((const __m256i *)(words + v * PANEL_ROWS + half * VECTOR_FLOATS));
}

/* Pair `j` of a vector of words. */
ALWAYS_INLINE __m256i nibble_pair(__m256i words, const int j)
{
    return _mm256_and_si256(_mm256_srli_epi32(words, 4 * j), _mm256_set1_epi32(0x000F000F));
}

ALWAYS_INLINE __m256i byte_pair(__m256i words, const int j)
{
    return _mm256_srai_epi16(j == 0 ? _mm256_slli_epi16(words, 8) : words, 8);
}

ALWAYS_INLINE __m256i broadcast_pair(const int16_t *q, uint32_t pair)
{
    int32_t both;
    __builtin_memcpy(&both, q + 2 * pair, sizeof both);
    return _mm256_set1_epi32(both);
}

ALWAYS_INLINE __m256i add_pair(__m256i sum, __m256i weights, __m256i activations)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(weights, activations));
}

/* Sums of one block and one half of the panel for one row. Two accumulators halve the chain of
 * additions. */
ALWAYS_INLINE __m256i sum_nibbles(const uint32_t *words, uint32_t half, const int16_t *q)
{
    __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
    for (uint32_t v = 0; v < Q4_WORDS; v++) {
        __m256i packed = load_words(words, v, half);
        even = add_pair(even, nibble_pair(packed, 0), broadcast_pair(q, 4 * v));
        odd = add_pair(odd, nibble_pair(packed, 1), broadcast_pair(q, 4 * v + 1));
        even = add_pair(even, nibble_pair(packed, 2), broadcast_pair(q, 4 * v + 2));
        odd = add_pair(odd, nibble_pair(packed, 3), broadcast_pair(q, 4 * v + 3));
    }
    return _mm256_add_epi32(even, odd);
}

ALWAYS_INLINE __m256i sum_bytes(const uint32_t *words, uint32_t half, const int16_t *q)
{
    __m256i even = _mm256_setzero_si256(), odd = _mm256_setzero_si256();
    for (uint32_t v = 0; v < Q8_WORDS; v++) {
        __m256i packed = load_words(words, v, half);
        even = add_pair(even, byte_pair(packed, 0), broadcast_pair(q, 2 * v));
        odd = add_pair(odd, byte_pair(packed, 1), broadcast_pair(q, 2 * v + 1));
    }
    return _mm256_add_epi32(even, odd);
}

/* The step from block sums to the chain over blocks. */
ALWAYS_INLINE __m256 add_block(__m256 chain, __m256i sums, __m256 scales, float scale)
{
    __m256 factor = _mm256_mul_ps(scales, _mm256_set1_ps(scale));
    return _mm256_fmadd_ps(factor, _mm256_cvtepi32_ps(sums), chain);
}

ALWAYS_INLINE void multiply_row(const void *panel, const struct prepared_row *row, uint32_t blocks,
                                float *output, const uint32_t type)
{
    __m256 chain[HALVES] = {_mm256_setzero_ps(), _mm256_setzero_ps()};
    for (uint32_t index = 0; index < blocks; index++) {
        const void *block = block_at(panel, index, type);
        const uint32_t *words = block_words(block, type);
        const int16_t *q = row->q + (uint64_t)index * QUANTIZED_BLOCK_WEIGHTS;
        prefetch_block(block, type);
        for (uint32_t half = 0; half < HALVES; half++) {
            __m256i sums =
                type == WEIGHT_TYPE_Q8_0 ? sum_bytes(words, half, q) : sum_nibbles(words, half, q);
            if (type == WEIGHT_TYPE_Q4_0)
                sums = _mm256_sub_epi32(sums, _mm256_set1_epi32(Q4_0_ZERO * row->sum[index]));
            chain[half] =
                add_block(chain[half], sums, block_scales(block, half), row->scale[index]);
            if (type == WEIGHT_TYPE_Q4_1)
                chain[half] = _mm256_fmadd_ps(block_minima(block, half),
                                              _mm256_set1_ps(row->scaled_sum[index]), chain[half]);
        }
    }
    for (uint32_t half = 0; half < HALVES; half++)
        _mm256_storeu_ps(output + half * VECTOR_FLOATS, chain[half]);
}

ALWAYS_INLINE void multiply_few(const void *panel, const struct matmul_share *share,
                                const uint32_t type)
{
    uint32_t blocks = share->columns / QUANTIZED_BLOCK_WEIGHTS;
    for (uint32_t r = 0; r < share->rows; r++) {
        struct prepared_row row = prepared_row_at(share->prepared, share->columns, r);
        multiply_row(panel, &row, blocks, share->output + r * PANEL_ROWS, type);
    }
}

/* Blocks first..first+count-1 of a panel, unpacked. */
struct chunk {
    uint32_t first, count;
    __m256i weights[CHUNK_BLOCKS][PAIRS][HALVES];
    __m256 scales[CHUNK_BLOCKS][HALVES], minima[CHUNK_BLOCKS][HALVES];
};

ALWAYS_INLINE void unpack_half(const uint32_t *words, uint32_t half, __m256i (*weights)[HALVES],
                               const uint32_t type)
{
    const __m256i zero = _mm256_set1_epi16(type == WEIGHT_TYPE_Q4_0 ? Q4_0_ZERO : 0);
    for (uint32_t v = 0; v < Q4_WORDS; v++) {
        __m256i packed = load_words(words, v, half);
        weights[4 * v][half] = _mm256_sub_epi16(nibble_pair(packed, 0), zero);
        weights[4 * v + 1][half] = _mm256_sub_epi16(nibble_pair(packed, 1), zero);
        weights[4 * v + 2][half] = _mm256_sub_epi16(nibble_pair(packed, 2), zero);
        weights[4 * v + 3][half] = _mm256_sub_epi16(nibble_pair(packed, 3), zero);
    }
}

ALWAYS_INLINE void unpack_chunk(const void *panel, struct chunk *chunk, const uint32_t type)
{
    for (uint32_t i = 0; i < chunk->count; i++) {
        const void *block = block_at(panel, chunk->first + i, type);
        const uint32_t *words = block_words(block, type);
        prefetch_block(block, type);
        for (uint32_t half = 0; half < HALVES; half++) {
            chunk->scales[i][half] = block_scales(block, half);
            if (type == WEIGHT_TYPE_Q4_1)
                chunk->minima[i][half] = block_minima(block, half);
            if (type != WEIGHT_TYPE_Q8_0) {
                unpack_half(words, half, chunk->weights[i], type);
                continue;
            }
            for (uint32_t v = 0; v < Q8_WORDS; v++) {
                __m256i packed = load_words(words, v, half);
                chunk->weights[i][2 * v][half] = byte_pair(packed, 0);
                chunk->weights[i][2 * v + 1][half] = byte_pair(packed, 1);
            }
        }
    }
}

/* sums[row][half] of one block. */
ALWAYS_INLINE void sum_block(const __m256i (*weights)[HALVES], const int16_t *const *q,
                             uint32_t offset, __m256i (*sums)[HALVES], const uint32_t rows)
{
    for (uint32_t r = 0; r < rows; r++)
        sums[r][0] = sums[r][1] = _mm256_setzero_si256();
#pragma GCC unroll 16
    for (uint32_t pair = 0; pair < PAIRS; pair++) {
        __m256i low = weights[pair][0], high = weights[pair][1];
        PIN(low);
        PIN(high);
#pragma GCC unroll 4
        for (uint32_t r = 0; r < rows; r++) {
            __m256i x = broadcast_pair(q[r] + offset, pair);
            PIN(x);
            sums[r][0] = add_pair(sums[r][0], low, x);
            sums[r][1] = add_pair(sums[r][1], high, x);
            PIN(sums[r][0]);
            PIN(sums[r][1]);
        }
    }
}

/* Continues the chains of `rows` rows over the blocks of a chunk. */
ALWAYS_INLINE void chain_chunk(const struct chunk *chunk, const struct prepared_row *prepared,
                               float *output, const uint32_t rows, const bool with_minimum)
{
    const uint32_t first = chunk->first;
    const int16_t *q[ROWS_TOGETHER] = {NULL};
    for (uint32_t r = 0; r < rows; r++)
        q[r] = prepared[r].q + (uint64_t)first * QUANTIZED_BLOCK_WEIGHTS;
    for (uint32_t i = 0; i < chunk->count; i++) {
        __m256i sums[ROWS_TOGETHER][HALVES];
        sum_block(chunk->weights[i], q, i * QUANTIZED_BLOCK_WEIGHTS, sums, rows);
        for (uint32_t r = 0; r < rows; r++) {
            float scale = prepared[r].scale[first + i];
            float scaled_sum = prepared[r].scaled_sum[first + i];
            for (uint32_t half = 0; half < HALVES; half++) {
                float *place = output + r * PANEL_ROWS + half * VECTOR_FLOATS;
                __m256 chain =
                    add_block(_mm256_loadu_ps(place), sums[r][half], chunk->scales[i][half], scale);
                if (with_minimum)
                    chain =
                        _mm256_fmadd_ps(chunk->minima[i][half], _mm256_set1_ps(scaled_sum), chain);
                _mm256_storeu_ps(place, chain);
            }
        }
    }
}

ALWAYS_INLINE void multiply_many(const void *panel, const struct matmul_share *share,
                                 const uint32_t type)
{
    struct chunk chunk;
    const bool with_minimum = type == WEIGHT_TYPE_Q4_1;
    uint32_t blocks = share->columns / QUANTIZED_BLOCK_WEIGHTS;
    __builtin_memset(share->output, 0, share->rows * PANEL_ROWS * sizeof(float));
    for (chunk.first = 0; chunk.first < blocks; chunk.first += CHUNK_BLOCKS) {
        uint32_t left = blocks - chunk.first;
        chunk.count = left < CHUNK_BLOCKS ? left : CHUNK_BLOCKS;
        unpack_chunk(panel, &chunk, type);
        for (uint32_t row = 0; row < share->rows; row += ROWS_TOGETHER) {
            struct prepared_row prepared[ROWS_TOGETHER];
            float *output = share->output + row * PANEL_ROWS;
            uint32_t rows = share->rows - row;
            for (uint32_t r = 0; r < ROWS_TOGETHER && r < rows; r++)
                prepared[r] = prepared_row_at(share->prepared, share->columns, row + r);
            if (rows >= ROWS_TOGETHER) {
                chain_chunk(&chunk, prepared, output, ROWS_TOGETHER, with_minimum);
                continue;
            }
            for (uint32_t r = 0; r < rows; r++)
                chain_chunk(&chunk, prepared + r, output + r * PANEL_ROWS, 1, with_minimum);
        }
    }
}

void matmul_q8_0_few_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_few(panel, share, WEIGHT_TYPE_Q8_0);
}

void matmul_q8_0_many_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_many(panel, share, WEIGHT_TYPE_Q8_0);
}

void matmul_q4_0_few_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_few(panel, share, WEIGHT_TYPE_Q4_0);
}

void matmul_q4_0_many_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_many(panel, share, WEIGHT_TYPE_Q4_0);
}

void matmul_q4_1_few_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_few(panel, share, WEIGHT_TYPE_Q4_1);
}

void matmul_q4_1_many_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_many(panel, share, WEIGHT_TYPE_Q4_1);
}
