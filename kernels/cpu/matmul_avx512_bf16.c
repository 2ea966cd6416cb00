/* BF16 panels with vdpbf16ps: acc = fma(a0, b0, fma(a1, b1, acc)) per lane, where the upper halves
 * (a1, b1) of both words hold the earlier column, so every output is one chain over k ascending. A
 * lane is a weight row; PANELS panels x ROWS_TOGETHER activation rows stay in registers, one
 * broadcast pair of activations serves both panels, and weights are read as they lie in memory. One
 * chain alone would take a line of weights per latency of the instruction, less than a core can
 * read: so few rows take two panels at a time as well. */
#include "kernels/cpu/avx512_bf16.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/simd_avx512.h"

#include <stdbool.h>

enum {
    ROWS_TOGETHER = 12, /* 24 chains, 2 weights, 1 activation */
    PANELS = 2,
    PAIR_BYTES = PANEL_ROWS * sizeof(uint32_t),
    FEW_AHEAD_PAIRS = 96, /* 6 KiB of each panel: a quarter of an L1 cache */
};

/* What to prefetch meanwhile: up to pair `until` the lines so many bytes behind it; 0: nothing. */
struct ahead {
    uint64_t until, bytes;
};

/* Some rows against one or two panels, all columns. */
struct tile {
    const uint8_t *weights[PANELS]; /* [pair of columns][16 rows] */
    const uint32_t *input;          /* [row][pairs] */
    uint64_t pairs;
    struct ahead ahead[2]; /* the second one to the end */
    float *output;         /* [row][output_stride] */
    uint64_t output_stride;
};

ALWAYS_INLINE float *place_of(const struct tile *tile, uint64_t row, uint32_t panel)
{
    return tile->output + row * tile->output_stride + panel * PANEL_ROWS;
}

/* Few rows need a line as soon as it is there, many the next panels in the L2 cache. */
ALWAYS_INLINE void prefetch(const uint8_t *line, const uint32_t rows)
{
    if (rows <= MATMUL_FEW_ROWS)
        _mm_prefetch((const char *)line, _MM_HINT_T0);
    else
        _mm_prefetch((const char *)line, _MM_HINT_T1);
}

ALWAYS_INLINE void multiply_rows(const struct tile *tile, const uint32_t rows,
                                 const uint32_t panels)
{
    const uint32_t *x[ROWS_TOGETHER];
    __m512 chain[PANELS][ROWS_TOGETHER];
#pragma GCC unroll 12
    for (uint32_t row = 0; row < rows; row++) {
        x[row] = tile->input + row * tile->pairs;
#pragma GCC unroll 2
        for (uint32_t p = 0; p < panels; p++) {
            chain[p][row] = _mm512_setzero_ps();
            __builtin_prefetch(place_of(tile, row, p), 1);
        }
    }
    uint64_t pair = 0;
    for (const struct ahead *ahead = tile->ahead; ahead < tile->ahead + 2; ahead++) {
        for (; pair < ahead->until; pair++) {
            __m512bh weights[PANELS];
#pragma GCC unroll 2
            for (uint32_t p = 0; p < panels; p++) {
                const uint8_t *line = tile->weights[p] + pair * PAIR_BYTES;
                if (ahead->bytes != 0)
                    prefetch(line + ahead->bytes, rows);
                weights[p] = (__m512bh)_mm512_loadu_si512(line);
            }
#pragma GCC unroll 12
            for (uint32_t row = 0; row < rows; row++) {
                __m512bh value = (__m512bh)_mm512_set1_epi32((int)x[row][pair]);
#pragma GCC unroll 2
                for (uint32_t p = 0; p < panels; p++)
                    chain[p][row] = _mm512_dpbf16_ps(chain[p][row], value, weights[p]);
            }
        }
    }
#pragma GCC unroll 12
    for (uint32_t row = 0; row < rows; row++) {
#pragma GCC unroll 2
        for (uint32_t p = 0; p < panels; p++)
            _mm512_storeu_ps(place_of(tile, row, p), chain[p][row]);
    }
}

/* Each form is a loop of its own: what is left to run time keeps the chains in memory. */
#define FORM(rows, panels)                                                                         \
    static void multiply_##rows##x##panels(const struct tile *tile)                                \
    {                                                                                              \
        multiply_rows(tile, rows, panels);                                                         \
    }
FORM(1, 1)
FORM(2, 1)
FORM(3, 1)
FORM(1, 2)
FORM(2, 2)
FORM(3, 2)
FORM(4, 2)
FORM(5, 2)
FORM(6, 2)
FORM(7, 2)
FORM(8, 2)
FORM(9, 2)
FORM(10, 2)
FORM(11, 2)
FORM(12, 2)

typedef void (*tile_form)(const struct tile *tile);

/* By number of rows. */
static const tile_form alone_forms[MATMUL_FEW_ROWS] = {multiply_1x1, multiply_2x1, multiply_3x1};
static const tile_form pair_forms[ROWS_TOGETHER] = {
    multiply_1x2, multiply_2x2, multiply_3x2, multiply_4x2,  multiply_5x2,  multiply_6x2,
    multiply_7x2, multiply_8x2, multiply_9x2, multiply_10x2, multiply_11x2, multiply_12x2};

/* All rows, in groups of nearly the same size. The first one fetches what the next panels need. */
static void multiply_groups(struct tile tile, uint32_t rows, const tile_form *forms,
                            uint32_t together)
{
    for (uint32_t left = rows; left > 0;) {
        uint32_t groups = (left + together - 1) / together;
        uint32_t count = (left + groups - 1) / groups;
        forms[count - 1](&tile);
        tile.input += count * tile.pairs;
        tile.output += count * tile.output_stride;
        tile.ahead[0].bytes = tile.ahead[1].bytes = 0;
        left -= count;
    }
}

static struct tile tile_of(const void *panel, const struct matmul_share *share)
{
    return (struct tile){
        .weights = {panel, (const uint8_t *)panel + share->panel_bytes},
        .input = share->pairs,
        .pairs = share->columns / 2,
        .ahead = {{0}, {.until = share->columns / 2}},
        .output = share->output,
        .output_stride = share->output_stride,
    };
}

/* Few rows: a little ahead in each panel, and from its end on in the panel after the next. */
static void look_ahead_few(struct tile *tile, uint64_t panel_bytes)
{
    bool is_long = tile->pairs > FEW_AHEAD_PAIRS;
    tile->ahead[0].until = is_long ? tile->pairs - FEW_AHEAD_PAIRS : 0;
    tile->ahead[0].bytes = FEW_AHEAD_PAIRS * PAIR_BYTES;
    tile->ahead[1].bytes = FEW_AHEAD_PAIRS * PAIR_BYTES + panel_bytes;
}

void matmul_bf16_pair_avx512_bf16(const void *panel, const struct matmul_share *share)
{
    struct tile tile = tile_of(panel, share);
    if (share->rows <= MATMUL_FEW_ROWS)
        look_ahead_few(&tile, share->panel_bytes);
    else
        tile.ahead[1].bytes = PANELS * share->panel_bytes;
    multiply_groups(tile, share->rows, pair_forms, ROWS_TOGETHER);
}

/* The last panel of an odd number of them, or the last columns. */
void matmul_bf16_avx512_bf16(const void *panel, const struct matmul_share *share)
{
    multiply_groups(tile_of(panel, share), share->rows, alone_forms, MATMUL_FEW_ROWS);
}
