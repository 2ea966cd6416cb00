/* One quantized panel times few rows with AVX-512 VNNI: a vector holds one pair of k of all 16
 * weight rows as 16-bit integers, and vpdpwssd adds its products with a broadcast activation pair
 * into 16 exact 32-bit sums. Weights are unpacked in registers, once for all rows of a tile; sums
 * and chains of these rows stay in registers for the whole row, so nothing but the panel and the
 * activations is read and nothing but the result written. Few rows wait for memory: panel after
 * panel, in one stream that is fetched far enough ahead to keep as many lines on their way as a
 * core can have. */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/prepared.h"
#include "kernels/cpu/quantized_avx512.h"

enum {
    ROWS_TOGETHER = MATMUL_FEW_ROWS, /* 12 sums, 3 chains, 1 word, 1 weight, 3 masks */
    PLACES = 4,
    AHEAD_BYTES = 12 << 10, /* a quarter of an L1 cache */
};

/* What the compiler knows of a tile. */
struct form {
    uint32_t type; /* enum weight_type */
    uint32_t rows;
};

/* What the sums of block `index` begin with. */
ALWAYS_INLINE __m512i first_sum(const struct prepared_row *row, uint64_t index, const uint32_t type)
{
    return _mm512_set1_epi32(type == WEIGHT_TYPE_Q4_0 ? row->zero_sum[index] : 0);
}

/* The step from the sums of a block to the chain over blocks. */
ALWAYS_INLINE __m512 add_block(__m512 chain, __m512i sums, const struct block_view *block,
                               const struct prepared_row *row, uint64_t index, const uint32_t type)
{
    __m512 scales = load_halves_wide(block->scales);
    __m512 factor = _mm512_mul_ps(scales, _mm512_set1_ps(row->scale[index]));
    chain = _mm512_fmadd_ps(factor, _mm512_cvtepi32_ps(sums), chain);
    if (type != WEIGHT_TYPE_Q4_1)
        return chain;
    __m512 minima = load_halves_wide(block->minima);
    return _mm512_fmadd_ps(minima, _mm512_set1_ps(row->scaled_sum[index]), chain);
}

/* Some rows against a panel. */
struct tile {
    const void *panel;
    uint32_t blocks;
    struct prepared_row rows[ROWS_TOGETHER];
    uint32_t turn, turns; /* blocks turn, turn + turns, ... are prefetched by this tile */
    float *output;        /* [row][output_stride] */
    uint64_t output_stride;
};

/* The instruction broadcasts on its own, which gcc 12 does not find out. */
ALWAYS_INLINE __m512i add_pair_at(__m512i sum, __m512i weights, const int16_t *q)
{
    __asm__("vpdpwssd %2%{1to16%}, %1, %0" : "+v"(sum) : "v"(weights), "m"(*(const int32_t *)q));
    return sum;
}

/* Pair j of a vector of words where it stands: 16^j times what it is worth, the last one of 4 bits
 * once. */
ALWAYS_INLINE __m512i mask_pair(__m512i words, const uint32_t j, const uint32_t type)
{
    if (type == WEIGHT_TYPE_Q8_0 || j == PLACES - 1)
        return unpack_pair(words, j, type);
    return _mm512_and_si512(words, _mm512_set1_epi32(0x000F000F << 4 * j));
}

/* The sum of a block from those of its places: exact, since each is a multiple of its 16^j. A place
 * adds 8 products of at most 2^15 x 15 x 256: less than 2^30. */
ALWAYS_INLINE __m512i join_places(const __m512i *places, const uint32_t type)
{
    if (type == WEIGHT_TYPE_Q8_0)
        return _mm512_add_epi32(places[0], places[1]);
    return _mm512_add_epi32(
        _mm512_add_epi32(places[0], places[3]),
        _mm512_add_epi32(_mm512_srai_epi32(places[1], 4), _mm512_srai_epi32(places[2], 8)));
}

/* Sums of a block of one panel for each row, one for each place of a pair in a word: independent of
 * each other, and half of the shifts. */
ALWAYS_INLINE void sum_places(const struct block_view *block, const int16_t *const *q,
                              __m512i (*sums)[PLACES], const struct form form)
{
    const uint32_t vectors = words_of_block(form.type), pairs = pairs_of_words(form.type);
#pragma GCC unroll 8
    for (uint32_t v = 0; v < vectors; v++) {
        __m512i words = _mm512_loadu_si512(block->words + v * PANEL_ROWS);
        PIN(words);
#pragma GCC unroll 4
        for (uint32_t j = 0; j < pairs; j++) {
            __m512i weights = mask_pair(words, j, form.type);
#pragma GCC unroll 3
            for (uint32_t r = 0; r < form.rows; r++)
                sums[r][j] = add_pair_at(sums[r][j], weights, q[r] + 2 * (v * pairs + j));
        }
    }
}

ALWAYS_INLINE void multiply_rows(const struct tile *tile, const struct form form)
{
    __m512 chain[ROWS_TOGETHER];
#pragma GCC unroll 3
    for (uint32_t r = 0; r < form.rows; r++)
        chain[r] = _mm512_setzero_ps();
    uint64_t prefetched = tile->turn;
    for (uint64_t index = 0; index < tile->blocks; index++) {
        struct block_view block = view_block(tile->panel, index, form.type);
        if (index == prefetched) {
            prefetch_block(&block, AHEAD_BYTES, form.type);
            prefetched += tile->turns;
        }
        const int16_t *q[ROWS_TOGETHER];
        __m512i sums[ROWS_TOGETHER][PLACES];
#pragma GCC unroll 3
        for (uint32_t r = 0; r < form.rows; r++) {
            q[r] = tile->rows[r].q + index * QUANTIZED_BLOCK_WEIGHTS;
            sums[r][0] = first_sum(&tile->rows[r], index, form.type);
            sums[r][1] = sums[r][2] = sums[r][3] = _mm512_setzero_si512();
        }
        sum_places(&block, q, sums, form);
#pragma GCC unroll 3
        for (uint32_t r = 0; r < form.rows; r++)
            chain[r] = add_block(chain[r], join_places(sums[r], form.type), &block, &tile->rows[r],
                                 index, form.type);
    }
#pragma GCC unroll 3
    for (uint32_t r = 0; r < form.rows; r++)
        _mm512_storeu_ps(tile->output + r * tile->output_stride, chain[r]);
}

/* All rows in tiles, each of which fetches its part of the blocks ahead. */
ALWAYS_INLINE void multiply(const void *panel, const struct matmul_share *share,
                            const uint32_t type)
{
    struct tile tile = {
        .panel = panel,
        .blocks = share->columns / QUANTIZED_BLOCK_WEIGHTS,
        .turns = (share->rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER,
        .output = share->output,
        .output_stride = share->output_stride,
    };
    for (uint32_t row = 0; row < share->rows; tile.turn++) {
        uint32_t left = share->rows - row, tiles = tile.turns - tile.turn;
        uint32_t rows = (left + tiles - 1) / tiles;
        for (uint32_t r = 0; r < rows; r++)
            tile.rows[r] = prepared_row_at(share->prepared, share->columns, row + r);
        if (rows == 1)
            multiply_rows(&tile, (struct form){type, 1});
        else if (rows == 2)
            multiply_rows(&tile, (struct form){type, 2});
        else
            multiply_rows(&tile, (struct form){type, ROWS_TOGETHER});
        tile.output += rows * tile.output_stride;
        row += rows;
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
