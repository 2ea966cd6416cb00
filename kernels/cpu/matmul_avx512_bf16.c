/* BF16 panels with vdpbf16ps: acc = fma(a0, b0, fma(a1, b1, acc)) per lane, where the upper halves
 * (a1, b1) of both words hold the earlier column, so every output is one chain over k ascending. A
 * lane is a weight row; PANELS panels x ROWS_TOGETHER activation rows stay in registers, one
 * broadcast pair of activations serves both panels, and weights are read as they lie in memory. */
#include "kernels/cpu/avx512_bf16.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/simd_avx512.h"

enum {
    ROWS_TOGETHER = 12, /* 24 chains, 2 weights, 1 activation */
    PANELS = 2,
    PAIR_BYTES = PANEL_ROWS * sizeof(uint32_t),
};

/* Some rows against one or two panels, all columns. */
struct tile {
    const uint8_t *weights[PANELS]; /* [pair of columns][16 rows] */
    const uint32_t *input;          /* [row][pairs] */
    uint64_t pairs;
    const uint8_t *ahead[PANELS]; /* what to prefetch meanwhile, a line per pair; NULL: nothing */
    float *output;                /* [row][output_stride] */
    uint64_t output_stride;
};

ALWAYS_INLINE float *place_of(const struct tile *tile, uint64_t row, uint32_t panel)
{
    return tile->output + row * tile->output_stride + panel * PANEL_ROWS;
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
    for (uint64_t pair = 0; pair < tile->pairs; pair++) {
        __m512bh weights[PANELS];
#pragma GCC unroll 2
        for (uint32_t p = 0; p < panels; p++) {
            if (tile->ahead[p] != NULL)
                _mm_prefetch((const char *)tile->ahead[p] + pair * PAIR_BYTES, _MM_HINT_T1);
            weights[p] = (__m512bh)_mm512_loadu_si512(tile->weights[p] + pair * PAIR_BYTES);
        }
#pragma GCC unroll 12
        for (uint32_t row = 0; row < rows; row++) {
            __m512bh value = (__m512bh)_mm512_set1_epi32((int)x[row][pair]);
#pragma GCC unroll 2
            for (uint32_t p = 0; p < panels; p++)
                chain[p][row] = _mm512_dpbf16_ps(chain[p][row], value, weights[p]);
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
#define ROWS(count)                                                                                \
    static void multiply_##count(const struct tile *tile)                                          \
    {                                                                                              \
        multiply_rows(tile, count, PANELS);                                                        \
    }
ROWS(1)
ROWS(2)
ROWS(3)
ROWS(4)
ROWS(5)
ROWS(6)
ROWS(7)
ROWS(8)
ROWS(9)
ROWS(10)
ROWS(11)
ROWS(12)

static void (*const multiply_group[ROWS_TOGETHER + 1])(const struct tile *tile) = {
    NULL,       multiply_1, multiply_2, multiply_3,  multiply_4,  multiply_5, multiply_6,
    multiply_7, multiply_8, multiply_9, multiply_10, multiply_11, multiply_12};

static struct tile tile_of(const void *panel, const struct matmul_share *share, uint32_t panels)
{
    struct tile tile = {
        .input = share->pairs,
        .pairs = share->columns / 2,
        .output = share->output,
        .output_stride = share->output_stride,
    };
    for (uint32_t p = 0; p < panels; p++) {
        tile.weights[p] = (const uint8_t *)panel + p * share->panel_bytes;
        tile.ahead[p] = tile.weights[p] + panels * share->panel_bytes;
    }
    return tile;
}

/* Goes on to the rows behind `count` of them. The first group has fetched what the next panels
 * need. */
static void advance(struct tile *tile, uint32_t count)
{
    tile->input += count * tile->pairs;
    tile->output += count * tile->output_stride;
    for (uint32_t p = 0; p < PANELS; p++)
        tile->ahead[p] = NULL;
}

/* Groups of nearly the same size. */
void matmul_bf16_pair_avx512_bf16(const void *panel, const struct matmul_share *share)
{
    struct tile tile = tile_of(panel, share, PANELS);
    for (uint32_t left = share->rows; left > 0;) {
        uint32_t groups = (left + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
        uint32_t count = (left + groups - 1) / groups;
        multiply_group[count](&tile);
        advance(&tile, count);
        left -= count;
    }
}

/* The last panel of a matrix with an odd number of them, or its last columns: row by row. */
void matmul_bf16_avx512_bf16(const void *panel, const struct matmul_share *share)
{
    struct tile tile = tile_of(panel, share, 1);
    for (uint32_t row = 0; row < share->rows; row++) {
        multiply_rows(&tile, 1, 1);
        advance(&tile, 1);
    }
}
