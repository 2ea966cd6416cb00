/* Quantized panels with AVX-512 VNNI: a vector holds one pair of k of all 16 weight rows as 16-bit
 * integers, and vpdpwssd adds its products with a broadcast activation pair into 16 exact 32-bit
 * sums. Weights are unpacked in registers, once for all rows of a tile; sums and chains of these
 * rows stay in registers for the whole row, so nothing but the panels and the activations is read
 * and nothing but the result written. Two panels at a time share every broadcast: without that the
 * loads are the limit and not the products. Few rows wait for memory: panel after panel, in one
 * stream that is fetched far enough ahead to keep as many lines on their way as a core can have. */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/prepared.h"
#include "kernels/cpu/simd_avx512.h"

enum {
    PANELS = 2,
    ROWS_TOGETHER = 6, /* x 2 panels: 12 sums, 12 chains, 2 weights, 1 activation, 1 mask */
    ROWS_ALONE = MATMUL_FEW_ROWS, /* x 1 panel: 12 sums, 3 chains, 1 word, 1 weight, 3 masks */
    ALONE_PLACES = 4,
    ALONE_AHEAD_BYTES = 12 << 10, /* a quarter of an L1 cache */
    CACHE_LINE_BYTES = 64,
    Q4_0_ZERO = 8,
};

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
    const uint32_t bytes = type == WEIGHT_TYPE_Q8_0   ? sizeof(struct panel_block_q8_0)
                           : type == WEIGHT_TYPE_Q4_0 ? sizeof(struct panel_block_q4_0)
                                                      : sizeof(struct panel_block_q4_1);
    for (uint32_t line = 0; line < bytes; line += CACHE_LINE_BYTES)
        _mm_prefetch((const char *)block->scales + distance + line, _MM_HINT_T0);
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

ALWAYS_INLINE __m512i broadcast_pair(const int16_t *q)
{
    int32_t both;
    __builtin_memcpy(&both, q, sizeof both);
    __m512i pair = _mm512_set1_epi32(both);
    return pair;
}

/* What the compiler knows of a tile. */
struct form {
    uint32_t type; /* enum weight_type */
    uint32_t rows;
};

/* Sums of block `index` of both panels for each row. */
ALWAYS_INLINE void sum_block(const struct block_view *blocks, const int16_t *const *q,
                             uint64_t index, __m512i (*sums)[ROWS_TOGETHER], const struct form form)
{
    const uint32_t vectors = form.type == WEIGHT_TYPE_Q8_0 ? Q8_WORDS : Q4_WORDS;
    const uint32_t pairs = QUANTIZED_BLOCK_WEIGHTS / 2 / vectors;
    __m512i words[PANELS], weights[PANELS];
#pragma GCC unroll 1 /* small code: there are many forms */
    for (uint32_t v = 0; v < vectors; v++) {
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++) {
            words[p] = _mm512_loadu_si512(blocks[p].words + v * PANEL_ROWS);
            PIN(words[p]);
        }
#pragma GCC unroll 4
        for (uint32_t j = 0; j < pairs; j++) {
            uint64_t place = index * QUANTIZED_BLOCK_WEIGHTS + 2 * (v * pairs + j);
#pragma GCC unroll 2
            for (uint32_t p = 0; p < PANELS; p++) {
                weights[p] = unpack_pair(words[p], j, form.type);
                PIN(weights[p]);
            }
#pragma GCC unroll 6
            for (uint32_t r = 0; r < form.rows; r++) {
                __m512i x = broadcast_pair(q[r] + place);
#pragma GCC unroll 2
                for (uint32_t p = 0; p < PANELS; p++) {
                    sums[p][r] = _mm512_dpwssd_epi32(sums[p][r], weights[p], x);
                    PIN(sums[p][r]);
                }
            }
        }
    }
}

/* What the sums of block `index` begin with. */
ALWAYS_INLINE __m512i first_sum(const struct prepared_row *row, uint64_t index, const uint32_t type)
{
    return _mm512_set1_epi32(type == WEIGHT_TYPE_Q4_0 ? -Q4_0_ZERO * row->sum[index] : 0);
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

/* Some rows against one panel or both. */
struct tile {
    const void *panel[PANELS];
    uint32_t blocks;
    struct prepared_row rows[ROWS_TOGETHER];
    uint64_t ahead;          /* bytes from a block to the one to prefetch */
    uint32_t turn, turns;    /* blocks turn, turn + turns, ... are prefetched by this tile */
    struct fetch_walk *walk; /* or NULL */
    float *output;           /* [row][output_stride] */
    uint64_t output_stride;
};

ALWAYS_INLINE float *place_of(const struct tile *tile, uint64_t row, uint32_t panel)
{
    return tile->output + row * tile->output_stride + panel * PANEL_ROWS;
}

/* The lines of the result are fetched first: they arrive while the products are made. */
ALWAYS_INLINE void multiply_rows(const struct tile *tile, const struct form form)
{
    __m512 chain[PANELS][ROWS_TOGETHER];
    const int16_t *q[ROWS_TOGETHER];
#pragma GCC unroll 6
    for (uint32_t r = 0; r < form.rows; r++) {
        q[r] = tile->rows[r].q;
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++) {
            chain[p][r] = _mm512_setzero_ps();
            __builtin_prefetch(place_of(tile, r, p), 1);
        }
    }
    uint64_t prefetched = tile->turn;
    for (uint64_t index = 0; index < tile->blocks; index++) {
        struct block_view blocks[PANELS];
        __m512i sums[PANELS][ROWS_TOGETHER];
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++) {
            blocks[p] = view_block(tile->panel[p], index, form.type);
            if (index == prefetched)
                prefetch_block(&blocks[p], tile->ahead, form.type);
        }
        prefetched += index == prefetched ? tile->turns : 0;
        if (tile->walk != NULL)
            fetch_step(tile->walk);
#pragma GCC unroll 6
        for (uint32_t r = 0; r < form.rows; r++) {
            __m512i start = first_sum(&tile->rows[r], index, form.type);
#pragma GCC unroll 2
            for (uint32_t p = 0; p < PANELS; p++)
                sums[p][r] = start;
        }
        sum_block(blocks, q, index, sums, form);
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++) {
#pragma GCC unroll 6
            for (uint32_t r = 0; r < form.rows; r++)
                chain[p][r] = add_block(chain[p][r], sums[p][r], &blocks[p], &tile->rows[r], index,
                                        form.type);
        }
    }
#pragma GCC unroll 2
    for (uint32_t p = 0; p < PANELS; p++) {
#pragma GCC unroll 6
        for (uint32_t r = 0; r < form.rows; r++)
            _mm512_storeu_ps(place_of(tile, r, p), chain[p][r]);
    }
}

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
    if (type == WEIGHT_TYPE_Q8_0 || j == ALONE_PLACES - 1)
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
                              __m512i (*sums)[ALONE_PLACES], const struct form form)
{
    const uint32_t vectors = form.type == WEIGHT_TYPE_Q8_0 ? Q8_WORDS : Q4_WORDS;
    const uint32_t pairs = QUANTIZED_BLOCK_WEIGHTS / 2 / vectors;
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

ALWAYS_INLINE void multiply_alone(const struct tile *tile, const struct form form)
{
    __m512 chain[ROWS_ALONE];
#pragma GCC unroll 3
    for (uint32_t r = 0; r < form.rows; r++)
        chain[r] = _mm512_setzero_ps();
    uint64_t prefetched = tile->turn;
    for (uint64_t index = 0; index < tile->blocks; index++) {
        struct block_view block = view_block(tile->panel[0], index, form.type);
        if (index == prefetched) {
            prefetch_block(&block, tile->ahead, form.type);
            prefetched += tile->turns;
        }
        const int16_t *q[ROWS_ALONE];
        __m512i sums[ROWS_ALONE][ALONE_PLACES];
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
        _mm512_storeu_ps(place_of(tile, r, 0), chain[r]);
}

/* The forms that exist: every one is a loop of its own, and sanitizers make each a large one. */
ALWAYS_INLINE void multiply_tile(const struct tile *tile, const uint32_t type, uint32_t rows,
                                 const uint32_t panels)
{
    if (panels == 1) {
        if (rows == 1)
            multiply_alone(tile, (struct form){type, 1});
        else if (rows == 2)
            multiply_alone(tile, (struct form){type, 2});
        else
            multiply_alone(tile, (struct form){type, ROWS_ALONE});
        return;
    }
    if (rows == 3)
        multiply_rows(tile, (struct form){type, 3});
    else if (rows == 4)
        multiply_rows(tile, (struct form){type, 4});
    else if (rows == 5)
        multiply_rows(tile, (struct form){type, 5});
    else
        multiply_rows(tile, (struct form){type, ROWS_TOGETHER});
}

/* All rows in tiles of nearly the same number of rows: with more than MATMUL_FEW_ROWS of them no
 * pair meets fewer than 3. Each tile fetches its part of the blocks of the next pair, which the
 * processor does not do on its own at the pace of several rows. */
ALWAYS_INLINE void multiply(const void *panel, const struct matmul_share *share,
                            const uint32_t type, const uint32_t panels)
{
    struct tile tile = {
        .blocks = share->columns / QUANTIZED_BLOCK_WEIGHTS,
        .ahead = panels == 1 ? ALONE_AHEAD_BYTES : panels * share->panel_bytes,
        .output = share->output,
        .output_stride = share->output_stride,
        .walk = share->walk,
    };
    const uint32_t together = panels == 1 ? ROWS_ALONE : ROWS_TOGETHER;
    tile.turns = (share->rows + together - 1) / together;
    if (tile.walk != NULL)
        fetch_pace(tile.walk, (uint64_t)tile.turns * tile.blocks);
    for (uint32_t p = 0; p < panels; p++)
        tile.panel[p] = (const uint8_t *)panel + p * share->panel_bytes;
    for (uint32_t row = 0; row < share->rows;) {
        uint32_t left = share->rows - row;
        uint32_t tiles = (left + together - 1) / together;
        uint32_t rows = (left + tiles - 1) / tiles;
        for (uint32_t r = 0; r < rows; r++)
            tile.rows[r] = prepared_row_at(share->prepared, share->columns, row + r);
        multiply_tile(&tile, type, rows, panels);
        tile.output += rows * tile.output_stride;
        tile.turn++;
        row += rows;
    }
}

void matmul_q8_0_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_Q8_0, 1);
}

void matmul_q8_0_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_Q8_0, PANELS);
}

void matmul_q4_0_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_Q4_0, 1);
}

void matmul_q4_0_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_Q4_0, PANELS);
}

void matmul_q4_1_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_Q4_1, 1);
}

void matmul_q4_1_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_Q4_1, PANELS);
}
