/* Two quantized panels times more than MATMUL_FEW_ROWS rows with AVX-512 VNNI: a vector holds one
 * pair of k of all 16 weight rows as 16-bit integers, and vpdpwssd adds its products with a
 * broadcast activation pair into 16 exact 32-bit sums. Both panels share every broadcast: without
 * that the loads are the limit and not the products.
 *
 * Weights are unpacked in registers by the first tile of rows, which leaves them in the L1 cache
 * for those behind it, some blocks at a time: where two ports make products and everything else of
 * 512 bits (Intel), masks and shifts take the time of products.
 *
 * The sums of 8 rows fill half of the registers. Some of their chains are in the L1 cache then,
 * which costs nothing: each is read and written once in 32 columns. What does cost is multipliers
 * that wait for the sums of a block, and these end all at once where the products go on from pair
 * to pair. So the last pair of a block is multiplied row by row: while the sums of a row become
 * floats and join its chains, the next row is multiplied. */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/prepared.h"
#include "kernels/cpu/quantized_avx512.h"

#include <stdbool.h>

enum {
    PANELS = 2,
    ROWS_TOGETHER = 8, /* x 2 panels: 16 sums, 4 weights, 2 scales, 2 minima, 1 factor, 1 mask */
    PAIR_BYTES = 2 * sizeof(int16_t),
    PAIRS = QUANTIZED_BLOCK_WEIGHTS / 2, /* of a block */
    CHUNK_BLOCKS = 6,      /* 13.5 KiB unpacked: beside the activations of 32 rows in an L1 cache */
    SHARING_TILES_MIN = 3, /* two tiles unpack for themselves in the same time */
};

/* What is written before is computed before: gcc 12 would gather the sums of all rows again. */
#define END_ROW(chain) __asm__ volatile("" : "+v"(chain))

/* A place that is counted up in a register of its own: gcc 12 would do so once for each row. */
#define COUNTED(place) __asm__("" : "+r"(place))

/* A block of both panels as the products take it. */
struct unpacked_block {
    int32_t pairs[PAIRS][PANELS][PANEL_ROWS];
    float scales[PANELS][PANEL_ROWS], minima[PANELS][PANEL_ROWS];
};

/* Some rows against some blocks of two panels. */
struct tile {
    const uint8_t *panel; /* from the first of the blocks on */
    uint64_t panel_bytes;
    struct unpacked_block *unpacked; /* [block], for the sources that need it */
    uint32_t blocks;
    struct prepared_row row; /* the first one, from the first block on */
    uint64_t row_bytes;
    uint64_t ahead;          /* bytes from a block to the one to prefetch */
    uint32_t turn, turns;    /* blocks turn, turn + turns, ... are prefetched by this tile */
    struct fetch_walk *walk; /* or NULL */
    const float *chains;     /* [row][panel][16] where they stand so far; NULL: +0 */
    float *output;           /* [row][output_stride] where they go */
    uint64_t output_stride;
};

/* Where a tile's weights come from. */
enum source {
    SOURCE_PANELS,      /* all blocks at once */
    SOURCE_PANELS_KEPT, /* and go from there to `unpacked` as well */
    SOURCE_UNPACKED,
    SOURCE_COUNT,
};

/* What the compiler knows of a tile. */
struct form {
    uint32_t type; /* enum weight_type */
    uint32_t rows;
    uint32_t source; /* enum source */
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

/* A vector of words of both panels, as far as they are needed. */
ALWAYS_INLINE void load_words(const struct block_view *blocks, uint32_t vector, __m512i *words,
                              const struct form form)
{
    if (form.source == SOURCE_UNPACKED)
        return;
#pragma GCC unroll 2
    for (uint32_t p = 0; p < PANELS; p++) {
        words[p] = _mm512_loadu_si512(blocks[p].words + vector * PANEL_ROWS);
        PIN(words[p]);
    }
}

/* Pair j of a vector of words of a panel. */
ALWAYS_INLINE __m512i take_pair(__m512i words, const uint32_t j, int32_t *unpacked,
                                const struct form form)
{
    if (form.source == SOURCE_UNPACKED)
        return _mm512_load_si512(unpacked);
    __m512i pair = unpack_pair(words, j, form.type);
    if (form.source == SOURCE_PANELS_KEPT)
        _mm512_store_si512(unpacked, pair);
    return pair;
}

/* Scales or minima of a panel. */
ALWAYS_INLINE __m512 take_floats(const uint16_t *halves, float *unpacked, const struct form form)
{
    if (form.source == SOURCE_UNPACKED)
        return _mm512_load_ps(unpacked);
    __m512 floats = load_halves_wide(halves);
    if (form.source == SOURCE_PANELS_KEPT)
        _mm512_store_ps(unpacked, floats);
    return floats;
}

/* The first `pairs` pairs of a vector of words, for all rows one after the other. */
ALWAYS_INLINE void add_pairs(const __m512i *words, const uint32_t pairs,
                             int32_t (*unpacked)[PANELS][PANEL_ROWS], const struct records *records,
                             struct results *results, const struct form form)
{
#pragma GCC unroll 4
    for (uint32_t j = 0; j < pairs; j++) {
        __m512i weights[PANELS];
#pragma GCC unroll 2
        for (uint32_t p = 0; p < PANELS; p++) {
            weights[p] = take_pair(words[p], j, unpacked[j][p], form);
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

/* The last pair of a block against row `r`. Written out, or gcc 12 would do so for all rows first;
 * and with a broadcast of its own: instructions that broadcast each for themselves are slower. */
ALWAYS_INLINE void add_last_pair(const __m512i *weights, const uint8_t *q, uint32_t r,
                                 struct results *results)
{
    __m512i x;
    __asm__ volatile("vpbroadcastd %1, %0" : "=v"(x) : "m"(*(const int32_t *)q));
#pragma GCC unroll 2
    for (uint32_t p = 0; p < PANELS; p++)
        __asm__ volatile("vpdpwssd %2, %1, %0"
                         : "+v"(results->sums[p][r])
                         : "v"(weights[p]), "v"(x));
}

/* The last pair of a block, in `words`, and the step from its sums to the chains, row by row. */
ALWAYS_INLINE void finish_rows(const struct block_view *blocks, const __m512i *words,
                               struct unpacked_block *unpacked, const struct records *records,
                               struct results *results, const struct form form)
{
    const uint32_t last = pairs_of_words(form.type) - 1;
    __m512i weights[PANELS];
    __m512 scales[PANELS], minima[PANELS];
#pragma GCC unroll 2
    for (uint32_t p = 0; p < PANELS; p++) {
        weights[p] = take_pair(words[p], last, unpacked->pairs[PAIRS - 1][p], form);
        PIN(weights[p]);
        scales[p] = take_floats(blocks[p].scales, unpacked->scales[p], form);
        PIN(scales[p]);
        if (form.type == WEIGHT_TYPE_Q4_1) {
            minima[p] = take_floats(blocks[p].minima, unpacked->minima[p], form);
            PIN(minima[p]);
        }
    }
#pragma GCC unroll 8
    for (uint32_t r = 0; r < form.rows; r++) {
        const uint8_t *row = records->row[r];
        add_last_pair(weights, row + records->q + last * PAIR_BYTES, r, results);
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
ALWAYS_INLINE void multiply_block(const struct block_view *blocks, struct unpacked_block *unpacked,
                                  struct records *records, struct results *results,
                                  const struct form form)
{
    const uint32_t vectors = words_of_block(form.type), pairs = pairs_of_words(form.type);
    __m512i words[PANELS] = {0};
    start_sums(records, results, form);
#pragma GCC unroll 8
    for (uint32_t vector = 0; vector < vectors; vector++) {
        bool last = vector == vectors - 1;
        load_words(blocks, vector, words, form);
        add_pairs(words, last ? pairs - 1 : pairs, unpacked->pairs + vector * pairs, records,
                  results, form);
        if (last)
            finish_rows(blocks, words, unpacked, records, results, form);
        records->q += pairs * PAIR_BYTES;
        if (!last)
            COUNTED(records->q);
    }
    records->scale += sizeof(float);
    records->sum += sizeof(int32_t);
    COUNTED(records->scale);
    COUNTED(records->sum);
}

/* Chains of a row of a panel before the tile. */
ALWAYS_INLINE __m512 first_chain(const struct tile *tile, uint32_t r, uint32_t p,
                                 const struct form form)
{
    if (form.source == SOURCE_PANELS || tile->chains == NULL)
        return _mm512_setzero_ps();
    return _mm512_load_ps(tile->chains + (r * PANELS + p) * PANEL_ROWS);
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
            results->chains[p][r] = first_chain(tile, r, p, form);
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
        /* all blocks at once are more than it holds, and are not kept */
        struct unpacked_block *unpacked =
            form.source == SOURCE_PANELS ? tile->unpacked : tile->unpacked + index;
        multiply_block(blocks, unpacked, &records, &results, form);
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
#define FORM(type, rows, source)                                                                   \
    static __attribute__((noinline)) void multiply_##type##_##rows##_##source(                     \
        const struct tile *tile)                                                                   \
    {                                                                                              \
        multiply_rows(tile, (struct form){WEIGHT_TYPE_##type, rows, SOURCE_##source});             \
    }
#define FORMS_OF_SOURCE(type, source)                                                              \
    FORM(type, 4, source)                                                                          \
    FORM(type, 5, source)                                                                          \
    FORM(type, 6, source)                                                                          \
    FORM(type, 7, source)                                                                          \
    FORM(type, 8, source)
#define FORMS(type)                                                                                \
    FORMS_OF_SOURCE(type, PANELS)                                                                  \
    FORMS_OF_SOURCE(type, PANELS_KEPT)                                                             \
    FORMS_OF_SOURCE(type, UNPACKED)
FORMS(Q8_0)
FORMS(Q4_0)
FORMS(Q4_1)

typedef void (*tile_form)(const struct tile *tile);

#define ROWS_LEAST (MATMUL_FEW_ROWS + 1)
static_assert(ROWS_LEAST * 2 == ROWS_TOGETHER, "as even tiles of more than MATMUL_FEW_ROWS rows");

/* By source, then by number of rows, ROWS_LEAST first. */
struct tile_forms {
    tile_form of[SOURCE_COUNT][ROWS_TOGETHER - ROWS_LEAST + 1];
};
#define ROWS_OF(type, source)                                                                      \
    {                                                                                              \
        multiply_##type##_4_##source, multiply_##type##_5_##source, multiply_##type##_6_##source,  \
            multiply_##type##_7_##source, multiply_##type##_8_##source                             \
    }
#define TILE_FORMS(type)                                                                           \
    {                                                                                              \
        {                                                                                          \
            [SOURCE_PANELS] = ROWS_OF(type, PANELS),                                               \
            [SOURCE_PANELS_KEPT] = ROWS_OF(type, PANELS_KEPT),                                     \
            [SOURCE_UNPACKED] = ROWS_OF(type, UNPACKED),                                           \
        }                                                                                          \
    }
static const struct tile_forms q8_0_forms = TILE_FORMS(Q8_0);
static const struct tile_forms q4_0_forms = TILE_FORMS(Q4_0);
static const struct tile_forms q4_1_forms = TILE_FORMS(Q4_1);

static struct prepared_row row_from(const struct matmul_share *share, uint32_t row,
                                    uint32_t first_block)
{
    struct prepared_row parts = prepared_row_at(share->prepared, share->columns, row);
    parts.q += first_block * QUANTIZED_BLOCK_WEIGHTS;
    parts.scale += first_block;
    parts.scaled_sum += first_block;
    parts.zero_sum += first_block;
    return parts;
}

static enum source source_of(const struct tile *tile)
{
    if (tile->turns < SHARING_TILES_MIN)
        return SOURCE_PANELS;
    return tile->turn == 0 ? SOURCE_PANELS_KEPT : SOURCE_UNPACKED;
}

/* All rows over some blocks, in tiles of nearly the same number of rows. Each tile fetches its part
 * of the blocks of the next two panels, which the processor does not do on its own at the pace of
 * several rows. */
static void multiply_tiles(struct tile tile, const struct matmul_share *share, uint32_t first_block,
                           const struct tile_forms *forms)
{
    for (uint32_t row = 0; row < share->rows; tile.turn++) {
        uint32_t tiles = tile.turns - tile.turn;
        uint32_t rows = (share->rows - row + tiles - 1) / tiles;
        tile.row = row_from(share, row, first_block);
        forms->of[source_of(&tile)][rows - ROWS_LEAST](&tile);
        tile.output += rows * tile.output_stride;
        if (tile.chains != NULL)
            tile.chains += rows * PANELS * PANEL_ROWS;
        row += rows;
    }
}

/* Chunk after chunk of the blocks, where several tiles share what the first one unpacked. Between
 * two of them the chains wait in a tile of their own, since rows of the result may lie such that
 * they evict each other. */
static void multiply_chunks(const void *panel, const struct matmul_share *share,
                            const struct tile_forms *forms)
{
    _Alignas(64) struct unpacked_block unpacked[CHUNK_BLOCKS];
    _Alignas(64) float chains[MATMUL_TILE_ROWS * PANELS * PANEL_ROWS];
    const uint32_t blocks = share->columns / QUANTIZED_BLOCK_WEIGHTS;
    struct tile tile = {
        .panel_bytes = share->panel_bytes,
        .unpacked = unpacked,
        .row_bytes = prepared_row_bytes(share->columns),
        .ahead = PANELS * share->panel_bytes,
        .turns = (share->rows + ROWS_TOGETHER - 1) / ROWS_TOGETHER,
        .walk = share->walk,
    };
    if (tile.walk != NULL)
        fetch_pace(tile.walk, (uint64_t)tile.turns * blocks);
    uint32_t chunks = (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    if (tile.turns < SHARING_TILES_MIN)
        chunks = 1;
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        bool last = chunk + 1 == chunks;
        uint32_t first = blocks * chunk / chunks;
        tile.blocks = blocks * (chunk + 1) / chunks - first;
        tile.panel = (const uint8_t *)panel + share->panel_bytes / blocks * first;
        tile.chains = chunk == 0 ? NULL : chains;
        tile.output = last ? share->output : chains;
        tile.output_stride = last ? share->output_stride : PANELS * PANEL_ROWS;
        multiply_tiles(tile, share, first, forms);
    }
}

void matmul_q8_0_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_chunks(panel, share, &q8_0_forms);
}

void matmul_q4_0_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_chunks(panel, share, &q4_0_forms);
}

void matmul_q4_1_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_chunks(panel, share, &q4_1_forms);
}
