/* Float panels with AVX-512: one fused chain per output, a lane per weight row, PANELS panels x
 * ROWS_TOGETHER activation rows in registers. A broadcast activation serves both panels, so the
 * multiply-adds and not the loads are the limit. Many rows: weights are widened once per chunk of
 * columns into the L1 cache, and the chains wait in the output between chunks. */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/simd_avx512.h"

enum {
    ROWS_TOGETHER = 12, /* 24 chains, 2 weights, 1 activation */
    FEW_ROWS = 4,
    PANELS = 2,
    CHUNK_COLUMNS = 128, /* 16 KiB widened: half of an L1 cache */
    PREFETCH_BYTES = 2048,
};

/* Part of a product: some rows, some columns, one or two panels. Chains continue in `output`. */
struct tile {
    const uint8_t *weights[PANELS]; /* [column][16 rows] */
    const float *input;             /* [row][input_stride] */
    uint64_t input_stride;
    uint32_t columns;
    float *output[PANELS]; /* [row][16] */
};

ALWAYS_INLINE uint32_t element_bytes(const uint32_t type)
{
    return type == WEIGHT_TYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

ALWAYS_INLINE __m512 load_weights(const uint8_t *weights, const uint32_t type)
{
    if (type == WEIGHT_TYPE_F32)
        return _mm512_loadu_ps(weights);
    if (type == WEIGHT_TYPE_F16)
        return load_halves_wide(weights);
    __m512i wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)weights));
    return _mm512_castsi512_ps(_mm512_slli_epi32(wide, 16));
}

ALWAYS_INLINE void multiply_rows(const struct tile *tile, const uint32_t type, const uint32_t rows,
                                 const uint32_t panels)
{
    const uint64_t step = PANEL_ROWS * element_bytes(type);
    const float *x[ROWS_TOGETHER];
    __m512 chain[PANELS][ROWS_TOGETHER];
    for (uint32_t row = 0; row < rows; row++) {
        x[row] = tile->input + row * tile->input_stride;
        for (uint32_t p = 0; p < panels; p++)
            chain[p][row] = _mm512_loadu_ps(tile->output[p] + row * PANEL_ROWS);
    }
    for (uint64_t k = 0; k < tile->columns; k++) {
        __m512 weights[PANELS];
        for (uint32_t p = 0; p < panels; p++) {
            const uint8_t *place = tile->weights[p] + k * step;
            _mm_prefetch((const char *)place + PREFETCH_BYTES, _MM_HINT_T0);
            weights[p] = load_weights(place, type);
        }
#pragma GCC unroll 12
        for (uint32_t row = 0; row < rows; row++) {
            __m512 value = _mm512_set1_ps(x[row][k]);
            for (uint32_t p = 0; p < panels; p++)
                chain[p][row] = _mm512_fmadd_ps(value, weights[p], chain[p][row]);
        }
    }
    for (uint32_t row = 0; row < rows; row++) {
        for (uint32_t p = 0; p < panels; p++)
            _mm512_storeu_ps(tile->output[p] + row * PANEL_ROWS, chain[p][row]);
    }
}

/* Rows of a step of few rows, with the weights as they stand in memory. */
ALWAYS_INLINE void multiply_few(const struct tile *tile, const uint32_t type, uint32_t rows,
                                const uint32_t panels)
{
    if (rows == 1)
        multiply_rows(tile, type, 1, panels);
    else if (rows == 2)
        multiply_rows(tile, type, 2, panels);
    else if (rows == 3)
        multiply_rows(tile, type, 3, panels);
    else
        multiply_rows(tile, type, FEW_ROWS, panels);
}

/* A group of rows with widened weights. */
ALWAYS_INLINE void multiply_group(const struct tile *tile, uint32_t rows, const uint32_t panels)
{
    switch (rows) {
    case 5:
        multiply_rows(tile, WEIGHT_TYPE_F32, 5, panels);
        break;
    case 6:
        multiply_rows(tile, WEIGHT_TYPE_F32, 6, panels);
        break;
    case 7:
        multiply_rows(tile, WEIGHT_TYPE_F32, 7, panels);
        break;
    case 8:
        multiply_rows(tile, WEIGHT_TYPE_F32, 8, panels);
        break;
    case 9:
        multiply_rows(tile, WEIGHT_TYPE_F32, 9, panels);
        break;
    case 10:
        multiply_rows(tile, WEIGHT_TYPE_F32, 10, panels);
        break;
    case 11:
        multiply_rows(tile, WEIGHT_TYPE_F32, 11, panels);
        break;
    default:
        multiply_rows(tile, WEIGHT_TYPE_F32, ROWS_TOGETHER, panels);
        break;
    }
}

/* All rows, more than FEW_ROWS, over the columns of a chunk, in groups of nearly the same size:
 * none has fewer than 5. */
ALWAYS_INLINE void multiply_groups(struct tile tile, uint32_t rows, const uint32_t panels)
{
    for (uint32_t left = rows; left > 0;) {
        uint32_t groups = (left + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
        uint32_t count = (left + groups - 1) / groups;
        multiply_group(&tile, count, panels);
        tile.input += count * tile.input_stride;
        for (uint32_t p = 0; p < panels; p++)
            tile.output[p] += count * PANEL_ROWS;
        left -= count;
    }
}

/* One copy of each for all types. */
static __attribute__((noinline)) void multiply_wide(const struct tile *tile, uint32_t rows)
{
    multiply_groups(*tile, rows, 1);
}

static __attribute__((noinline)) void multiply_wide_pair(const struct tile *tile, uint32_t rows)
{
    multiply_groups(*tile, rows, PANELS);
}

ALWAYS_INLINE void widen(const uint8_t *weights, uint32_t columns, const uint32_t type,
                         float (*output)[PANEL_ROWS])
{
    const uint64_t step = PANEL_ROWS * element_bytes(type);
    for (uint32_t k = 0; k < columns; k++) {
        _mm_prefetch((const char *)weights + k * step + PREFETCH_BYTES, _MM_HINT_T0);
        _mm512_store_ps(output[k], load_weights(weights + k * step, type));
    }
}

/* A chunk of columns for all rows: the weights stay in the L1 cache. */
ALWAYS_INLINE void multiply_chunk(const struct tile *chunk, const uint32_t type, uint32_t rows,
                                  const uint32_t panels)
{
    _Alignas(64) float wide[PANELS][CHUNK_COLUMNS][PANEL_ROWS];
    struct tile tile = *chunk;
    for (uint32_t p = 0; p < panels && type != WEIGHT_TYPE_F32; p++) {
        widen(chunk->weights[p], chunk->columns, type, wide[p]);
        tile.weights[p] = (const uint8_t *)wide[p];
    }
    if (panels == 1)
        multiply_wide(&tile, rows);
    else
        multiply_wide_pair(&tile, rows);
}

ALWAYS_INLINE void multiply(const void *panel, const struct matmul_share *share,
                            const uint32_t type, const uint32_t panels)
{
    struct tile tile = {.input = share->input, .input_stride = share->columns};
    for (uint32_t p = 0; p < panels; p++) {
        tile.weights[p] = (const uint8_t *)panel + p * share->panel_bytes;
        tile.output[p] = share->output + p * share->rows * PANEL_ROWS;
    }
    __builtin_memset(share->output, 0, panels * share->rows * PANEL_ROWS * sizeof(float));
    if (share->rows <= FEW_ROWS) {
        tile.columns = share->columns;
        multiply_few(&tile, type, share->rows, panels);
        return;
    }
    for (uint32_t first = 0; first < share->columns; first += CHUNK_COLUMNS) {
        uint32_t left = share->columns - first;
        tile.columns = left < CHUNK_COLUMNS ? left : CHUNK_COLUMNS;
        multiply_chunk(&tile, type, share->rows, panels);
        tile.input += tile.columns;
        for (uint32_t p = 0; p < panels; p++)
            tile.weights[p] += (uint64_t)tile.columns * PANEL_ROWS * element_bytes(type);
    }
}

void matmul_f32_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_F32, 1);
}

void matmul_f32_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_F32, 2);
}

void matmul_f16_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_F16, 1);
}

void matmul_f16_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_F16, 2);
}

void matmul_bf16_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_BF16, 1);
}

void matmul_bf16_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_BF16, 2);
}
