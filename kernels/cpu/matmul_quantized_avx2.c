/* Quantized panels with AVX2. A vector holds one pair of k of 8 weight rows as 16-bit integers; a
 * multiply-add of pairs with a broadcast activation pair adds into 8 exact 32-bit sums. Few rows:
 * unpack in registers, once per row. Many rows: unpack CHUNK_BLOCKS blocks into the L1 cache, then
 * 4 activation rows x 16 weight rows at a time. */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/prepared.h"
#include "kernels/cpu/simd_avx2.h"

enum {
    HALVES = PANEL_ROWS / VECTOR_FLOATS,
    PAIRS = QUANTIZED_BLOCK_WEIGHTS / 2,
    CHUNK_BLOCKS = 9,           /* 9 KiB unpacked, beside as much to come, in an L1 cache */
    ROWS_TOGETHER = 4,          /* 8 accumulators, 2 weights, 1 activation */
    FEW_AHEAD_BYTES = 12 << 10, /* a third or a quarter of an L1 cache */
    CACHE_LINE_BYTES = 64,
};

/* Keeps the compiler from moving a value between registers and the stack in the inner loops: gcc 12
 * reorders them until it spills, at half the speed. */
#define PIN(value) __asm__("" : "+x"(value))

/* Without it gcc keeps a second copy of the chains on the stack. */
#define STAY_IN_PLACE() __asm__ volatile("" : : : "memory")

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

ALWAYS_INLINE void prefetch_block(const void *block, uint64_t ahead, const uint32_t type)
{
    const uint32_t bytes = type == WEIGHT_TYPE_Q8_0   ? sizeof(struct panel_block_q8_0)
                           : type == WEIGHT_TYPE_Q4_0 ? sizeof(struct panel_block_q4_0)
                                                      : sizeof(struct panel_block_q4_1);
    for (uint32_t line = 0; line < bytes; line += CACHE_LINE_BYTES)
        _mm_prefetch((const char *)block + ahead + line, _MM_HINT_T0);
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

/* One activation pair with both halves of the panel. */
ALWAYS_INLINE void add_both(__m256i *sums, __m256i low, __m256i high, __m256i activations)
{
    PIN(activations);
    sums[0] = add_pair(sums[0], low, activations);
    sums[1] = add_pair(sums[1], high, activations);
    PIN(sums[0]);
    PIN(sums[1]);
}

/* Sums of a block for one row. A pair in the middle of a half word is masked where it lies, 16 or
 * 256 times what it stands for, and shifted back once for the whole block: |sum| < 2^30. */
ALWAYS_INLINE void sum_nibbles(const uint32_t *words, const int16_t *q, __m256i *sums)
{
    const __m256i first = _mm256_set1_epi32(0x000F000F), second = _mm256_set1_epi32(0x00F000F0);
    const __m256i third = _mm256_set1_epi32(0x0F000F00);
    __m256i by_16[HALVES], by_256[HALVES];
    for (uint32_t half = 0; half < HALVES; half++)
        sums[half] = by_16[half] = by_256[half] = _mm256_setzero_si256();
#pragma GCC unroll 4
    for (uint32_t v = 0; v < Q4_WORDS; v++) {
        const int16_t *at = q + 8 * v;
        __m256i packed[HALVES] = {load_words(words, v, 0), load_words(words, v, 1)};
        add_both(sums, _mm256_and_si256(packed[0], first), _mm256_and_si256(packed[1], first),
                 broadcast_pair(at, 0));
        add_both(by_16, _mm256_and_si256(packed[0], second), _mm256_and_si256(packed[1], second),
                 broadcast_pair(at, 1));
        add_both(by_256, _mm256_and_si256(packed[0], third), _mm256_and_si256(packed[1], third),
                 broadcast_pair(at, 2));
        add_both(sums, _mm256_srli_epi16(packed[0], 12), _mm256_srli_epi16(packed[1], 12),
                 broadcast_pair(at, 3));
    }
    for (uint32_t half = 0; half < HALVES; half++) {
        __m256i shifted =
            _mm256_add_epi32(_mm256_srai_epi32(by_16[half], 4), _mm256_srai_epi32(by_256[half], 8));
        sums[half] = _mm256_add_epi32(sums[half], shifted);
    }
}

ALWAYS_INLINE void sum_bytes(const uint32_t *words, const int16_t *q, __m256i *sums)
{
    sums[0] = sums[1] = _mm256_setzero_si256();
#pragma GCC unroll 8
    for (uint32_t v = 0; v < Q8_WORDS; v++) {
        __m256i low = load_words(words, v, 0), high = load_words(words, v, 1);
        add_both(sums, byte_pair(low, 0), byte_pair(high, 0), broadcast_pair(q, 2 * v));
        add_both(sums, byte_pair(low, 1), byte_pair(high, 1), broadcast_pair(q, 2 * v + 1));
    }
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
        prefetch_block(block, FEW_AHEAD_BYTES, type);
        __m256i sums[HALVES];
        if (type == WEIGHT_TYPE_Q8_0)
            sum_bytes(words, q, sums);
        else
            sum_nibbles(words, q, sums);
        for (uint32_t half = 0; half < HALVES; half++) {
            if (type == WEIGHT_TYPE_Q4_0)
                sums[half] = _mm256_add_epi32(sums[half], _mm256_set1_epi32(row->zero_sum[index]));
            chain[half] =
                add_block(chain[half], sums[half], block_scales(block, half), row->scale[index]);
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

/* Blocks first..first+count-1 of a panel, unpacked. Each tile of rows fetches its part of the
 * blocks that come CHUNK_BLOCKS later, those of the next panel at the end: the processor does not
 * at the pace of several rows. */
struct chunk {
    const void *panel;
    uint32_t first, count;
    uint32_t turn, turns;    /* blocks turn, turn + turns, ... are fetched by this tile */
    struct fetch_walk *walk; /* or NULL */
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

ALWAYS_INLINE void unpack_chunk(struct chunk *chunk, const uint32_t type)
{
    for (uint32_t i = 0; i < chunk->count; i++) {
        const void *block = block_at(chunk->panel, chunk->first + i, type);
        const uint32_t *words = block_words(block, type);
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

/* The records of some rows from a block on. They lie at equal distances, so that few registers hold
 * their addresses. */
struct rows_view {
    const uint8_t *q, *scale, *scaled_sum; /* of the first row */
    uint64_t stride;                       /* bytes from a row to the next */
    float *output;                         /* [row][16] */
};

ALWAYS_INLINE void skip_blocks(struct rows_view *rows, uint64_t blocks)
{
    rows->q += blocks * QUANTIZED_BLOCK_WEIGHTS * sizeof(int16_t);
    rows->scale += blocks * sizeof(float);
    rows->scaled_sum += blocks * sizeof(float);
}

ALWAYS_INLINE void skip_rows(struct rows_view *rows, uint64_t count)
{
    rows->q += count * rows->stride;
    rows->scale += count * rows->stride;
    rows->scaled_sum += count * rows->stride;
    rows->output += count * PANEL_ROWS;
}

ALWAYS_INLINE __m256i pair_of_row(const struct rows_view *rows, uint32_t r, uint32_t pair)
{
    int32_t both;
    __builtin_memcpy(&both, rows->q + r * rows->stride + pair * sizeof both, sizeof both);
    return _mm256_set1_epi32(both);
}

ALWAYS_INLINE __m256 float_of_row(const uint8_t *first, uint64_t stride, uint32_t r)
{
    float x;
    __builtin_memcpy(&x, first + r * stride, sizeof x);
    return _mm256_set1_ps(x);
}

/* sums[row][half] of one block. */
ALWAYS_INLINE void sum_block(const __m256i (*weights)[HALVES], const struct rows_view *view,
                             __m256i (*sums)[HALVES], const uint32_t rows)
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
            __m256i x = pair_of_row(view, r, pair);
            PIN(x);
            sums[r][0] = add_pair(sums[r][0], low, x);
            sums[r][1] = add_pair(sums[r][1], high, x);
            PIN(sums[r][0]);
            PIN(sums[r][1]);
        }
    }
}

ALWAYS_INLINE void fetch_ahead(const struct chunk *chunk, uint32_t i, const uint32_t type)
{
    const char *here = block_at(chunk->panel, chunk->first + i, type);
    const char *there = block_at(chunk->panel, chunk->first + i + CHUNK_BLOCKS, type);
    prefetch_block(here, (uint64_t)(there - here), type);
}

/* From the sums of block i of the chunk to the chains, which wait in the L1 cache. */
ALWAYS_INLINE void add_blocks(const struct chunk *chunk, uint32_t i, __m256i (*sums)[HALVES],
                              const struct rows_view *view, const uint32_t rows,
                              const uint32_t type)
{
#pragma GCC unroll 4
    for (uint32_t r = 0; r < rows; r++) {
        __m256 scale = float_of_row(view->scale, view->stride, r);
#pragma GCC unroll 2
        for (uint32_t half = 0; half < HALVES; half++) {
            float *place = view->output + r * PANEL_ROWS + half * VECTOR_FLOATS;
            __m256 factor = _mm256_mul_ps(chunk->scales[i][half], scale);
            __m256 sum = _mm256_cvtepi32_ps(sums[r][half]);
            __m256 chain = _mm256_fmadd_ps(factor, sum, _mm256_loadu_ps(place));
            if (type == WEIGHT_TYPE_Q4_1)
                chain = _mm256_fmadd_ps(chunk->minima[i][half],
                                        float_of_row(view->scaled_sum, view->stride, r), chain);
            _mm256_storeu_ps(place, chain);
        }
    }
}

/* Continues the chains of `rows` rows, whose view begins at the chunk, over its blocks. */
ALWAYS_INLINE void chain_chunk(const struct chunk *chunk, struct rows_view view,
                               const uint32_t rows, const uint32_t type)
{
    uint32_t fetched = chunk->turn;
    for (uint32_t i = 0; i < chunk->count; i++) {
        __m256i sums[ROWS_TOGETHER][HALVES];
        if (i == fetched) {
            fetch_ahead(chunk, i, type);
            fetched += chunk->turns;
        }
        if (chunk->walk != NULL)
            fetch_step(chunk->walk);
        sum_block(chunk->weights[i], &view, sums, rows);
        add_blocks(chunk, i, sums, &view, rows, type);
        skip_blocks(&view, 1);
        STAY_IN_PLACE();
    }
}

ALWAYS_INLINE struct rows_view view_rows(const struct matmul_share *share, uint32_t row,
                                         uint32_t block)
{
    struct prepared_row first = prepared_row_at(share->prepared, share->columns, row);
    struct rows_view view = {
        .q = (const uint8_t *)first.q,
        .scale = (const uint8_t *)first.scale,
        .scaled_sum = (const uint8_t *)first.scaled_sum,
        .stride = prepared_row_bytes(share->columns),
        .output = share->output + (uint64_t)row * PANEL_ROWS,
    };
    skip_blocks(&view, block);
    return view;
}

ALWAYS_INLINE void multiply_many(const void *panel, const struct matmul_share *share,
                                 const uint32_t type)
{
    struct chunk chunk;
    chunk.panel = panel;
    chunk.turns = (share->rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
    chunk.walk = share->walk;
    uint32_t blocks = share->columns / QUANTIZED_BLOCK_WEIGHTS;
    __builtin_memset(share->output, 0, share->rows * PANEL_ROWS * sizeof(float));
    if (chunk.walk != NULL)
        fetch_pace(chunk.walk, (uint64_t)chunk.turns * blocks);
    for (chunk.first = 0; chunk.first < blocks; chunk.first += CHUNK_BLOCKS) {
        uint32_t left = blocks - chunk.first;
        chunk.count = left < CHUNK_BLOCKS ? left : CHUNK_BLOCKS;
        unpack_chunk(&chunk, type);
        chunk.turn = 0;
        for (uint32_t row = 0; row < share->rows; row += ROWS_TOGETHER, chunk.turn++) {
            struct rows_view view = view_rows(share, row, chunk.first);
            if (share->rows - row >= ROWS_TOGETHER) {
                chain_chunk(&chunk, view, ROWS_TOGETHER, type);
                continue;
            }
            for (uint32_t r = row; r < share->rows; r++) {
                chain_chunk(&chunk, view, 1, type);
                skip_rows(&view, 1);
            }
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
