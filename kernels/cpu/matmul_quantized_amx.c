/* Quantized panels times many rows with AMX: a tile instruction multiplies 16 rows of 32 bytes with
 * 32 bytes for each of 16 outputs. Activations have 16 bits, so there are two products for a block:
 * S = 256 (sum of high w) + (sum of low w), all of it exact. The 16 x 16 sums of a block go through
 * the L1 cache to the vector unit, which adds them to the chains: these stay in registers over all
 * blocks.
 *
 * Beside tile instructions the second port neither multiplies floats nor converts integers (seen on
 * Intel; it adds and shuffles). So a row of a block takes the first port three or four times, and
 * the sums are shifted by a shuffle. And nothing may wait: while a block is multiplied, the sums of
 * the one before are stored and those of the one before that are added, on and on from one tile of
 * rows to the next. */
#include "kernels/cpu/amx.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/quantized_avx512.h"

#include <stdbool.h>
#include <stddef.h>

enum {
    WORD_BYTES = 4,
    HALF_TILE = ROW_TILE / 2, /* for up to so many rows */
    RING = 2,                 /* blocks of sums on their way: one is stored, one is added */
    PANELS_MAX = 2,
    CHUNK_BLOCKS = 18, /* 22 KiB unpacked, beside 20 of activations in the L1 cache */
    TILE_NAMES = 8,
    TILE_LINE = 64, /* bytes of a row of a tile, at most */
};

/* What LDTILECFG reads. */
struct tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t line_bytes[2 * TILE_NAMES];
    uint8_t rows[2 * TILE_NAMES];
};

static_assert(sizeof(struct tile_shapes) == TILE_LINE, "as the processor reads it");

/* Tiles 0 and 1 are sums, high and low; 2 and 3 activations, high and low; 4 weights. */
#define SHAPES(count)                                                                              \
    {                                                                                              \
        .palette = 1,                                                                              \
        .line_bytes = {TILE_LINE, TILE_LINE, QUANTIZED_BLOCK_WEIGHTS, QUANTIZED_BLOCK_WEIGHTS,     \
                       TILE_LINE},                                                                 \
        .rows = {                                                                                  \
            count,                                                                                 \
            count,                                                                                 \
            count,                                                                                 \
            count,                                                                                 \
            QUANTIZED_BLOCK_WEIGHTS / WORD_BYTES                                                   \
        }                                                                                          \
    }
static const struct tile_shapes whole_shapes = SHAPES(ROW_TILE), half_shapes = SHAPES(HALF_TILE);

/* gcc 12 believes that its own intrinsic reads 8 bytes of the shapes, and that tiles are loaded
 * from nowhere: it would drop what is stored before. */
#define TILE_SHAPES(shapes) __asm__ volatile("ldtilecfg %0" ::"m"(shapes))
#define TILE_RELEASE()      __asm__ volatile("tilerelease" ::)
#define TILE_LOAD(tile, from, bytes)                                                               \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #tile ::"r"(from), "r"((int64_t)(bytes))         \
                     : "memory")
#define TILE_STORE(tile, to)                                                                       \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0,%1,1)" ::"r"(to), "r"((int64_t)TILE_LINE)     \
                     : "memory")
#define MULTIPLY_HIGH() __asm__ volatile("tilezero %%tmm0\n\ttdpbssd %%tmm4, %%tmm2, %%tmm0" ::)
#define MULTIPLY_LOW()  __asm__ volatile("tilezero %%tmm1\n\ttdpbusd %%tmm4, %%tmm3, %%tmm1" ::)

/* A block of a panel: each line of weights has 4 bytes for each of the 16 outputs. */
struct unpacked_block {
    int8_t weights[QUANTIZED_BLOCK_WEIGHTS / WORD_BYTES][TILE_LINE];
    float scales[PANEL_ROWS], minima[PANEL_ROWS];
};

struct block_sums {
    int32_t high[ROW_TILE][PANEL_ROWS], low[ROW_TILE][PANEL_ROWS];
};

/* Tiles of rows against some blocks of one panel or two. */
struct tiles {
    const struct unpacked_block *weights; /* [panel][block] */
    const struct row_tile_block *rows;    /* of the first tile, from the first block on */
    uint32_t row_blocks;                  /* from a tile to the next */
    uint32_t panels, blocks;
    uint32_t count, row_count; /* tiles; rows of all of them */
    const uint8_t *soon;       /* the same blocks of panels to come, to be fetched meanwhile */
    uint64_t panel_bytes;
    struct fetch_walk *walk; /* or NULL */
    const float *before;     /* [row][panel][16] chains as they stand so far; NULL: +0 */
    float *output;           /* [row][output_stride] where they go */
    uint64_t output_stride;
};

/* A block of a panel and a tile. */
struct place {
    const struct unpacked_block *weights;
    const struct row_tile_block *rows;
    uint32_t left; /* blocks of the panel, this one included */
    uint32_t panel, row;
};

/* What the compiler knows of tiles. */
struct form {
    uint32_t type; /* enum weight_type */
    uint32_t rows; /* ROW_TILE or HALF_TILE */
};

/* 4-bit words are four bytes of one group of 8 columns and, 4 bits further up, four of the other
 * ones. Of 8-bit words, whose bytes are columns 0, 2, 1, 3 and 4, 6, 5, 7, each line takes two
 * bytes of both. */
ALWAYS_INLINE void unpack_block(const struct block_view *block, struct unpacked_block *unpacked,
                                const uint32_t type)
{
    const __m512i nibbles = _mm512_set1_epi8(0x0F);
    const __m512i zero_point = _mm512_set1_epi8(type == WEIGHT_TYPE_Q4_0 ? Q4_0_ZERO : 0);
    const uint32_t pairs = QUANTIZED_BLOCK_WEIGHTS / WORD_BYTES / 2;
#pragma GCC unroll 4
    for (uint32_t i = 0; i < pairs; i++) {
        __m512i first, second;
        if (type == WEIGHT_TYPE_Q8_0) {
            const __mmask64 even = 0x5555555555555555;
            __m512i a = _mm512_loadu_si512(block->words + (2 * i) * PANEL_ROWS);
            __m512i b = _mm512_loadu_si512(block->words + (2 * i + 1) * PANEL_ROWS);
            first = _mm512_mask_mov_epi8(_mm512_slli_epi32(b, 8), even, a);
            second = _mm512_mask_mov_epi8(b, even, _mm512_srli_epi32(a, 8));
        } else {
            __m512i words = _mm512_loadu_si512(block->words + i * PANEL_ROWS);
            first = _mm512_and_si512(words, nibbles);
            second = _mm512_and_si512(_mm512_srli_epi32(words, 4), nibbles);
            if (type == WEIGHT_TYPE_Q4_0) {
                first = _mm512_sub_epi8(first, zero_point);
                second = _mm512_sub_epi8(second, zero_point);
            }
        }
        _mm512_store_si512(unpacked->weights[2 * i], first);
        _mm512_store_si512(unpacked->weights[2 * i + 1], second);
    }
    _mm512_store_ps(unpacked->scales, load_halves_wide(block->scales));
    if (type == WEIGHT_TYPE_Q4_1)
        _mm512_store_ps(unpacked->minima, load_halves_wide(block->minima));
}

ALWAYS_INLINE void unpack_blocks(const uint8_t *panel, uint32_t blocks,
                                 struct unpacked_block *unpacked, const uint32_t type)
{
    for (uint32_t i = 0; i < blocks; i++) {
        struct block_view block = view_block(panel, i, type);
        unpack_block(&block, unpacked + i, type);
    }
}

ALWAYS_INLINE void load_high(const struct place *place)
{
    TILE_LOAD(4, place->weights->weights, TILE_LINE);
    TILE_LOAD(2, place->rows->high, QUANTIZED_BLOCK_WEIGHTS);
}

ALWAYS_INLINE void load_low(const struct place *place)
{
    TILE_LOAD(3, place->rows->low, QUANTIZED_BLOCK_WEIGHTS);
}

/* Of the 16 outputs of a block. */
struct factors {
    __m512 scales, minima;
};

/* Row `r` of a block: from its sums to its chain. Written out, or gcc 12 keeps every chain twice.
 */
ALWAYS_INLINE __m512 add_row(const struct block_sums *sums, const struct row_tile_block *x,
                             struct factors factors, uint32_t r, __m512 chain, const uint32_t type)
{
    /* bytes 0 to 2 of each word become 1 to 3: times 256 */
    const __m512i shifted = _mm512_broadcast_i32x4(
        _mm_setr_epi8(-1, 0, 1, 2, -1, 4, 5, 6, -1, 8, 9, 10, -1, 12, 13, 14));
    __m512 sum, factor;
    __asm__ volatile("vmovdqa64 %[high], %[sum]\n\t"
                     "vpshufb %[shifted], %[sum], %[sum]\n\t"
                     "vpaddd %[low], %[sum], %[sum]\n\t"
                     "vmulps %[scale]%{1to16%}, %[scales], %[factor]\n\t"
                     "vcvtdq2ps %[sum], %[sum]\n\t"
                     "vfmadd231ps %[sum], %[factor], %[chain]"
                     : [chain] "+v"(chain), [sum] "=&v"(sum), [factor] "=&v"(factor)
                     : [high] "m"(sums->high[r]), [low] "m"(sums->low[r]), [scale] "m"(x->scale[r]),
                       [scales] "v"(factors.scales), [shifted] "v"(shifted));
    if (type == WEIGHT_TYPE_Q4_1)
        __asm__ volatile("vfmadd231ps %1%{1to16%}, %2, %0"
                         : "+v"(chain)
                         : "m"(x->scaled_sum[r]), "v"(factors.minima));
    return chain;
}

/* Quarter `quarter` of the rows of a block. */
ALWAYS_INLINE void add_quarter(const struct block_sums *sums, const struct place *place,
                               const uint32_t quarter, __m512 *chains, const struct form form)
{
    const uint32_t rows = form.rows / 4, first = quarter * rows;
    const struct factors factors = {_mm512_load_ps(place->weights->scales),
                                    _mm512_load_ps(place->weights->minima)};
#pragma GCC unroll 4
    for (uint32_t r = first; r < first + rows; r++)
        chains[r] = add_row(sums, place->rows, factors, r, chains[r], form.type);
}

/* The next block; behind the last one the first one of the next panel and, behind that one, of the
 * next tile. */
ALWAYS_INLINE void advance(const struct tiles *tiles, struct place *place, const uint32_t rows)
{
    place->weights++;
    place->rows++;
    if (--place->left > 0)
        return;
    place->left = tiles->blocks;
    place->rows -= tiles->blocks;
    if (++place->panel < tiles->panels)
        return;
    place->panel = 0;
    place->row += rows;
    place->weights = tiles->weights;
    place->rows += tiles->row_blocks;
}

/* The lines of the result are fetched: they arrive while the products are made. */
ALWAYS_INLINE void start_chains(const struct tiles *tiles, const struct place *place,
                                __m512 *chains, const struct form form)
{
    uint64_t first = (uint64_t)place->row * tiles->panels + place->panel;
    float *output = tiles->output + place->row * tiles->output_stride + place->panel * PANEL_ROWS;
#pragma GCC unroll 16
    for (uint32_t r = 0; r < form.rows; r++) {
        chains[r] = tiles->before == NULL || place->row + r >= tiles->row_count
                        ? _mm512_setzero_ps()
                        : _mm512_load_ps(tiles->before + (first + r * tiles->panels) * PANEL_ROWS);
        PIN(chains[r]);
        if (place->row + r < tiles->row_count)
            __builtin_prefetch(output, 1);
        output += tiles->output_stride;
    }
}

ALWAYS_INLINE void end_chains(const struct tiles *tiles, const struct place *place,
                              const __m512 *chains, const struct form form)
{
    float *output = tiles->output + place->row * tiles->output_stride + place->panel * PANEL_ROWS;
#pragma GCC unroll 16
    for (uint32_t r = 0; r < form.rows; r++) {
        if (place->row + r < tiles->row_count)
            _mm512_storeu_ps(output, chains[r]);
        output += tiles->output_stride;
    }
}

/* What is to come, spread over all steps. */
struct pace {
    uint32_t panel, block; /* the next one */
    uint32_t wait;         /* steps until then */
};

ALWAYS_INLINE void fetch_soon(const struct tiles *tiles, struct pace *pace, const uint32_t type)
{
    if (tiles->walk != NULL)
        fetch_step(tiles->walk);
    if (pace->wait-- > 0)
        return;
    const uint8_t *panel = tiles->soon + pace->panel * tiles->panel_bytes;
    struct block_view soon = view_block(panel, pace->block, type);
    prefetch_block(&soon, 0, type);
    pace->wait = tiles->count - 1;
    if (++pace->block < tiles->blocks)
        return;
    pace->block = 0;
    pace->panel++;
}

/* A step multiplies a block and loads the next one, stores the sums of the block before and adds
 * those of the one before that. What the first step stores nobody reads; the last two multiply what
 * nobody stores. */
ALWAYS_INLINE void multiply_tiles(const struct tiles *all, struct block_sums *sums,
                                  const struct form form)
{
    const struct tiles own = *all, *tiles = &own; /* no store can change it: in registers */
    const uint32_t steps = tiles->count * tiles->panels * tiles->blocks;
    __m512 chains[ROW_TILE];
    struct place ahead = {tiles->weights, tiles->rows, tiles->blocks, 0, 0}, behind = ahead;
    struct pace pace = {0};
    start_chains(tiles, &behind, chains, form);
    load_high(&ahead);
    load_low(&ahead);
    for (uint32_t step = 0; step < steps + 2; step++) {
        const struct block_sums *added = &sums[step % RING];
        struct block_sums *stored = &sums[(step + 1) % RING];
        bool adds = step >= 2;
        if (step < steps)
            fetch_soon(tiles, &pace, form.type);
        if (step + 1 < steps)
            advance(tiles, &ahead, form.rows);
        TILE_STORE(0, stored->high[0]);
        MULTIPLY_HIGH();
        if (adds) {
            add_quarter(added, &behind, 0, chains, form);
            add_quarter(added, &behind, 1, chains, form);
        }
        TILE_STORE(1, stored->low[0]);
        MULTIPLY_LOW();
        load_high(&ahead);
        if (adds)
            add_quarter(added, &behind, 2, chains, form);
        load_low(&ahead);
        if (!adds)
            continue;
        add_quarter(added, &behind, 3, chains, form);
        bool last = behind.left == 1;
        if (last)
            end_chains(tiles, &behind, chains, form);
        advance(tiles, &behind, form.rows);
        if (last && behind.row < tiles->row_count)
            start_chains(tiles, &behind, chains, form);
    }
}

/* Every form is a function of its own, or gcc 12 spills what another one needs. */
#define FORM(type, rows)                                                                           \
    static __attribute__((noinline)) void multiply_##type##_##rows(const struct tiles *tiles,      \
                                                                   struct block_sums *sums)        \
    {                                                                                              \
        multiply_tiles(tiles, sums, (struct form){WEIGHT_TYPE_##type, rows});                      \
    }
FORM(Q8_0, HALF_TILE)
FORM(Q8_0, ROW_TILE)
FORM(Q4_0, HALF_TILE)
FORM(Q4_0, ROW_TILE)
FORM(Q4_1, HALF_TILE)
FORM(Q4_1, ROW_TILE)

static void multiply_of_type(const struct tiles *tiles, struct block_sums *sums, bool whole,
                             const uint32_t type)
{
    switch (type) {
    case WEIGHT_TYPE_Q8_0:
        whole ? multiply_Q8_0_ROW_TILE(tiles, sums) : multiply_Q8_0_HALF_TILE(tiles, sums);
        break;
    case WEIGHT_TYPE_Q4_0:
        whole ? multiply_Q4_0_ROW_TILE(tiles, sums) : multiply_Q4_0_HALF_TILE(tiles, sums);
        break;
    default:
        whole ? multiply_Q4_1_ROW_TILE(tiles, sums) : multiply_Q4_1_HALF_TILE(tiles, sums);
        break;
    }
}

/* All rows over the blocks of a chunk; a rest of up to half a tile on its own. */
static void multiply_rows(struct tiles tiles, uint32_t rows, struct block_sums *sums,
                          const uint32_t type)
{
    uint32_t rest = rows % ROW_TILE;
    rest = rest <= HALF_TILE ? rest : 0;
    tiles.row_count = rows - rest;
    tiles.count = (rows - rest + ROW_TILE - 1) / ROW_TILE;
    if (tiles.count > 0) {
        TILE_SHAPES(whole_shapes);
        multiply_of_type(&tiles, sums, true, type);
    }
    if (rest == 0)
        return;
    tiles.rows += tiles.count * tiles.row_blocks;
    tiles.output += tiles.row_count * tiles.output_stride;
    tiles.before =
        tiles.before == NULL ? NULL : tiles.before + tiles.row_count * tiles.panels * PANEL_ROWS;
    tiles.row_count = rest;
    tiles.count = 1;
    TILE_SHAPES(half_shapes);
    multiply_of_type(&tiles, sums, false, type);
}

/* Chunk after chunk of the blocks, unpacked once for all rows. */
ALWAYS_INLINE void multiply_panels(const uint8_t *panel, const struct matmul_share *share,
                                   const uint32_t panels, const uint32_t type)
{
    _Alignas(64) struct unpacked_block unpacked[PANELS_MAX * CHUNK_BLOCKS];
    _Alignas(64) struct block_sums sums[RING];
    _Alignas(64) float chains[MATMUL_TILE_ROWS * PANELS_MAX * PANEL_ROWS];
    const uint32_t blocks = share->columns / QUANTIZED_BLOCK_WEIGHTS;
    uint32_t chunks = (blocks + CHUNK_BLOCKS - 1) / CHUNK_BLOCKS;
    if (share->walk != NULL)
        fetch_pace(share->walk,
                   (uint64_t)((share->rows + ROW_TILE - 1) / ROW_TILE) * panels * blocks);
    for (uint32_t chunk = 0; chunk < chunks; chunk++) {
        bool last = chunk + 1 == chunks;
        uint32_t first = blocks * chunk / chunks, count = blocks * (chunk + 1) / chunks - first;
        const uint8_t *from = panel + share->panel_bytes / blocks * first;
        for (uint32_t p = 0; p < panels; p++)
            unpack_blocks(from + p * share->panel_bytes, count, unpacked + p * count, type);
        struct tiles tiles = {
            .weights = unpacked,
            .rows = share->row_tiles + first,
            .row_blocks = blocks,
            .panels = panels,
            .blocks = count,
            .soon = from + panels * share->panel_bytes,
            .panel_bytes = share->panel_bytes,
            .walk = share->walk,
            .before = chunk == 0 ? NULL : chains,
            .output = last ? share->output : chains,
            .output_stride = last ? share->output_stride : panels * PANEL_ROWS,
        };
        multiply_rows(tiles, share->rows, sums, type);
    }
    TILE_RELEASE(); /* or each switch of threads would save them */
}

/* Steps of few rows have no row tiles. */
void matmul_q8_0_amx(const void *panel, const struct matmul_share *share)
{
    if (share->row_tiles == NULL)
        matmul_q8_0_avx512(panel, share);
    else
        multiply_panels(panel, share, 1, WEIGHT_TYPE_Q8_0);
}

void matmul_q8_0_pair_amx(const void *panel, const struct matmul_share *share)
{
    if (share->row_tiles == NULL)
        matmul_q8_0_pair_avx512(panel, share);
    else
        multiply_panels(panel, share, 2, WEIGHT_TYPE_Q8_0);
}

void matmul_q4_0_amx(const void *panel, const struct matmul_share *share)
{
    if (share->row_tiles == NULL)
        matmul_q4_0_avx512(panel, share);
    else
        multiply_panels(panel, share, 1, WEIGHT_TYPE_Q4_0);
}

void matmul_q4_0_pair_amx(const void *panel, const struct matmul_share *share)
{
    if (share->row_tiles == NULL)
        matmul_q4_0_pair_avx512(panel, share);
    else
        multiply_panels(panel, share, 2, WEIGHT_TYPE_Q4_0);
}

void matmul_q4_1_amx(const void *panel, const struct matmul_share *share)
{
    if (share->row_tiles == NULL)
        matmul_q4_1_avx512(panel, share);
    else
        multiply_panels(panel, share, 1, WEIGHT_TYPE_Q4_1);
}

void matmul_q4_1_pair_amx(const void *panel, const struct matmul_share *share)
{
    if (share->row_tiles == NULL)
        matmul_q4_1_pair_avx512(panel, share);
    else
        multiply_panels(panel, share, 2, WEIGHT_TYPE_Q4_1);
}
