/* Two quantized panels times more than MATMUL_FEW_ROWS rows with AVX-512 VNNI: a vector holds one
 * pair of k of all 16 weight rows as 16-bit integers, and vpdpwssd adds its products with a
 * broadcast activation pair into 16 exact 32-bit sums. Weights are unpacked in registers, once for
 * all rows of a tile, and both panels share every broadcast: without that the loads are the limit
 * and not the products.
 *
 * The sums of 8 rows fill half of the registers. Some of their chains are in the L1 cache then,
 * which costs nothing: each is read and written once in 32 columns. What does cost is multipliers
 * that wait for the sums of a block, and these end all at once where the products go on from pair
 * to pair. So the last pairs of a block are multiplied row by row: while the sums of a row become
 * floats and join its chains, the next row is multiplied. */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/prepared.h"
#include "kernels/cpu/quantized_avx512.h"

enum {
    PANELS = 2,
    ROWS_TOGETHER = 8, /* x 2 panels: 16 sums, 4 weights, 2 scales, 2 minima, 1 factor, 1 mask */
    LAST_PAIRS = 2,    /* of a block; 4 weights are as many as there are registers for */
    PAIR_BYTES = 2 * sizeof(int16_t),
};

/* What is written before is computed before: gcc 12 would gather the sums of all rows again. */
#define END_ROW(chain) __asm__ volatile("" : "+v"(chain))

/* A place that is counted up in a register of its own: gcc 12 would do so once for each row. */
#define COUNTED(place) __asm__("" : "+r"(place))

/* Some rows against two panels. */
struct tile {
    const uint8_t *panel;
    uint64_t panel_bytes;
    uint32_t blocks;
    struct prepared_row row; /* the first one */
    uint64_t row_bytes;
    uint64_t ahead;          /* bytes from a block to the one to prefetch */
    uint32_t turn, turns;    /* blocks turn, turn + turns, ... are prefetched by this tile */
    struct fetch_walk *walk; /* or NULL */
    float *output;           /* [row][output_stride] */
    uint64_t output_stride;
};

/* What the compiler knows of a tile. */
struct form {
    uint32_t type; /* enum weight_type */
    uint32_t rows;
};

/* Records of prepared_row_at(), and where the block at hand has its parts in each of them. */
struct records {
    const uint8_t *row[ROWS_TOGETHER];
    uint64_t q, scale, sum; /* bytes; scaled_sum or zero_sum as the type needs it */
};

/* Of a tile, in registers as far as they go. */
struct results {
    __m512i sums[PANELS][ROWS_TOGETHER];  /* of the block at hand */
    __m512 chains[PANELS][ROWS_TOGETHER]; /* over the blocks before it */
};

ALWAYS_INLINE __m512i broadcast_integer(const uint8_t *from)
{
    int32_t value;
    __builtin_memcpy(&value, from, sizeof value);
    return _mm512_set1_epi32(value);
}

ALWAYS_INLINE __m512 broadcast_float(const uint8_t *from)
{
    return _mm512_castsi512_ps(broadcast_integer(from));
}

ALWAYS_INLINE void start_sums(const struct records *records, struct results *results,
                              const struct form form)
{
#pragma GCC unroll 8
    for (uint32_t r = 0; r < form.rows; r++) {
        __m512i start = _mm512_setzero_si512();
        if (form.type == WEIGHT_TYPE_Q4_0)
            start = broadcast_integer(records->row[r] + records->sum);
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++)
            results->sums[p][r] = start;
    }
}

ALWAYS_INLINE void load_words(const struct block_view *blocks, uint32_t vector, __m512i *words)
{
#pragma GCC unroll 2
    for (uint32_t p = 0; p < PANELS; p++) {
        words[p] = _mm512_loadu_si512(blocks[p].words + vector * PANEL_ROWS);
        PIN(words[p]);
    }
}

/* The first `pairs` pairs of a vector of words, for all rows one after the other. */
ALWAYS_INLINE void add_pairs(const __m512i *words, const uint32_t pairs,
                             const struct records *records, struct results *results,
                             const struct form form)
{
#pragma GCC unroll 4
    for (uint32_t j = 0; j < pairs; j++) {
        __m512i weights[PANELS];
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++) {
            weights[p] = unpack_pair(words[p], j, form.type);
            PIN(weights[p]);
        }
#pragma GCC unroll 8
        for (uint32_t r = 0; r < form.rows; r++) {
            __m512i x = broadcast_integer(records->row[r] + records->q + j * PAIR_BYTES);
#pragma GCC unroll 2
            for (uint32_t p = 0; p < PANELS; p++) {
                results->sums[p][r] = _mm512_dpwssd_epi32(results->sums[p][r], weights[p], x);
                PIN(results->sums[p][r]);
            }
        }
    }
}

/* The instruction broadcasts on its own. */
ALWAYS_INLINE __m512i add_last_pair(__m512i sum, __m512i weights, const uint8_t *q)
{
    __asm__ volatile("vpdpwssd %2%{1to16%}, %1, %0"
                     : "+v"(sum)
                     : "v"(weights), "m"(*(const int32_t *)q));
    return sum;
}

/* The last pairs of a block, in `words`, and the step from its sums to the chains, row by row. */
ALWAYS_INLINE void finish_rows(const struct block_view *blocks, const __m512i *words,
                               const struct records *records, struct results *results,
                               const struct form form)
{
    const uint32_t first = pairs_of_words(form.type) - LAST_PAIRS;
    __m512i weights[LAST_PAIRS][PANELS];
    __m512 scales[PANELS], minima[PANELS];
#pragma GCC unroll 2
    for (uint32_t p = 0; p < PANELS; p++) {
#pragma GCC unroll 2
        for (uint32_t j = 0; j < LAST_PAIRS; j++) {
            weights[j][p] = unpack_pair(words[p], first + j, form.type);
            PIN(weights[j][p]);
        }
        scales[p] = load_halves_wide(blocks[p].scales);
        PIN(scales[p]);
        minima[p] = load_halves_wide(blocks[p].minima);
        PIN(minima[p]);
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < form.rows; r++) {
        const uint8_t *row = records->row[r], *q = row + records->q + first * PAIR_BYTES;
#pragma GCC unroll 2
        for (uint32_t j = 0; j < LAST_PAIRS; j++) {
#pragma GCC unroll 2
            for (uint32_t p = 0; p < PANELS; p++)
                results->sums[p][r] =
                    add_last_pair(results->sums[p][r], weights[j][p], q + j * PAIR_BYTES);
        }
        __m512 scale = broadcast_float(row + records->scale);
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++) {
            __m512 factor = _mm512_mul_ps(scales[p], scale);
            __m512 sum = _mm512_cvtepi32_ps(results->sums[p][r]);
            __m512 chain = _mm512_fmadd_ps(factor, sum, results->chains[p][r]);
            if (form.type == WEIGHT_TYPE_Q4_1)
                chain = _mm512_fmadd_ps(minima[p], broadcast_float(row + records->sum), chain);
            END_ROW(chain);
            results->chains[p][r] = chain;
        }
    }
}

/* One block of both panels; `records` moves on to the next. */
ALWAYS_INLINE void multiply_block(const struct block_view *blocks, struct records *records,
                                  struct results *results, const struct form form)
{
    const uint32_t vectors = words_of_block(form.type), pairs = pairs_of_words(form.type);
    __m512i words[PANELS];
    start_sums(records, results, form);
#pragma GCC unroll 8
    for (uint32_t vector = 0; vector < vectors - 1; vector++) {
        load_words(blocks, vector, words);
        add_pairs(words, pairs, records, results, form);
        records->q += pairs * PAIR_BYTES;
        COUNTED(records->q);
    }
    load_words(blocks, vectors - 1, words);
    add_pairs(words, pairs - LAST_PAIRS, records, results, form);
    finish_rows(blocks, words, records, results, form);
    records->q += pairs * PAIR_BYTES;
    records->scale += sizeof(float);
    records->sum += sizeof(int32_t);
    COUNTED(records->scale);
    COUNTED(records->sum);
}

/* The lines of the result are fetched first: they arrive while the products are made. */
ALWAYS_INLINE void start_tile(const struct tile *tile, struct records *records,
                              struct results *results, const struct form form)
{
    const uint8_t *row = (const uint8_t *)tile->row.q;
    const void *sum = form.type == WEIGHT_TYPE_Q4_0 ? (const void *)tile->row.zero_sum
                                                    : (const void *)tile->row.scaled_sum;
    records->q = 0;
    records->scale = (uint64_t)((const uint8_t *)tile->row.scale - row);
    records->sum = (uint64_t)((const uint8_t *)sum - row);
    float *output = tile->output;
#pragma GCC unroll 8
    for (uint32_t r = 0; r < form.rows; r++) {
        records->row[r] = row;
        COUNTED(records->row[r]);
        row += tile->row_bytes;
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++) {
            results->chains[p][r] = _mm512_setzero_ps();
            __builtin_prefetch(output + p * PANEL_ROWS, 1);
        }
        output += tile->output_stride;
    }
}

ALWAYS_INLINE void multiply_rows(const struct tile *tile, const struct form form)
{
    struct records records;
    struct results results;
    start_tile(tile, &records, &results, form);
    uint64_t prefetched = tile->turn;
    for (uint64_t index = 0; index < tile->blocks; index++) {
        struct block_view blocks[PANELS];
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++) {
            blocks[p] = view_block(tile->panel + p * tile->panel_bytes, index, form.type);
            if (index == prefetched)
                prefetch_block(&blocks[p], tile->ahead, form.type);
        }
        prefetched += index == prefetched ? tile->turns : 0;
        if (tile->walk != NULL)
            fetch_step(tile->walk);
        multiply_block(blocks, &records, &results, form);
    }
    float *output = tile->output;
#pragma GCC unroll 8
    for (uint32_t r = 0; r < form.rows; r++) {
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++)
            _mm512_storeu_ps(output + p * PANEL_ROWS, results.chains[p][r]);
        output += tile->output_stride;
    }
}

/* The forms that exist: every one is a loop of its own, in a function of its own, or gcc 12 spills
 * what another one needs. */
#define FORM(type, rows)                                                                           \
    static __attribute__((noinline)) void multiply_##type##_##rows(const struct tile *tile)        \
    {                                                                                              \
        multiply_rows(tile, (struct form){WEIGHT_TYPE_##type, rows});                              \
    }
#define FORMS(type) FORM(type, 4) FORM(type, 5) FORM(type, 6) FORM(type, 7) FORM(type, 8)
FORMS(Q8_0)
FORMS(Q4_0)
FORMS(Q4_1)

typedef void (*tile_form)(const struct tile *tile);

#define ROWS_LEAST (MATMUL_FEW_ROWS + 1)
static_assert(ROWS_LEAST * 2 == ROWS_TOGETHER, "as even tiles of more than MATMUL_FEW_ROWS rows");

/* By number of rows, ROWS_LEAST first. */
#define FORMS_OF(type)                                                                             \
    {                                                                                              \
        multiply_##type##_4, multiply_##type##_5, multiply_##type##_6, multiply_##type##_7,        \
            multiply_##type##_8                                                                    \
    }
static const tile_form q8_0_forms[] = FORMS_OF(Q8_0);
static const tile_form q4_0_forms[] = FORMS_OF(Q4_0);
static const tile_form q4_1_forms[] = FORMS_OF(Q4_1);

/* All rows in tiles of nearly the same number of rows. Each tile fetches its part of the blocks of
 * the next two panels, which the processor does not do on its own at the pace of several rows. */
static void multiply_tiles(const void *panel, const struct matmul_share *share,
                           const tile_form *forms)
{
    struct tile tile = {
        .panel = panel,
        .panel_bytes = share->panel_bytes,
        .blocks = share->columns / QUANTIZED_BLOCK_WEIGHTS,
        .row_bytes = prepared_row_bytes(share->columns),
        .ahead = PANELS * share->panel_bytes,
        .turns = (share->rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER,
        .walk = share->walk,
        .output = share->output,
        .output_stride = share->output_stride,
    };
    if (tile.walk != NULL)
        fetch_pace(tile.walk, (uint64_t)tile.turns * tile.blocks);
    for (uint32_t row = 0; row < share->rows; tile.turn++) {
        uint32_t tiles = tile.turns - tile.turn;
        uint32_t rows = (share->rows - row + tiles - 1) / tiles;
        tile.row = prepared_row_at(share->prepared, share->columns, row);
        forms[rows - ROWS_LEAST](&tile);
        tile.output += rows * tile.output_stride;
        row += rows;
    }
}

void matmul_q8_0_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_tiles(panel, share, q8_0_forms);
}

void matmul_q4_0_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_tiles(panel, share, q4_0_forms);
}

void matmul_q4_1_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_tiles(panel, share, q4_1_forms);
}
