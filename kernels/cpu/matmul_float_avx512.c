/* Float panels with AVX-512: one fused chain per output, a lane per weight row, PANELS panels x
 * ROWS_TOGETHER activation rows in registers. A broadcast activation serves both panels, so the
 * multiply-adds and not the loads are the limit. Many rows: weights are widened once per chunk of
 * columns into the L1 cache, and the chains wait in the output between chunks. */
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/flushing.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/simd_avx512.h"

enum {
    ROWS_TOGETHER = 12, /* 24 chains, 2 weights, 1 activation */
    FEW_ROWS = 8,
    PANELS = 2,
    CHUNK_COLUMNS = 128,       /* 16 KiB widened: half of an L1 cache */
    FEW_AHEAD_BYTES = 6 << 10, /* of each panel: a quarter of an L1 cache */
};

/* Part of a product: some rows, some columns, one or two panels. Chains continue in `output`. */
struct tile {
    const uint8_t *weights[PANELS]; /* [column][16 rows] */
    const float *input;             /* [row][input_stride] */
    uint64_t input_stride;
    uint32_t columns;
    const uint8_t *ahead[PANELS]; /* what to prefetch meanwhile, ahead_step bytes per column */
    uint64_t ahead_step;          /* 0: nothing */
    const float *chains;          /* [row][panel][16] where they stand so far; NULL: +0 */
    float *output;                /* [row][output_stride] where they go */
    uint64_t output_stride;
};

ALWAYS_INLINE float *place_of(const struct tile *tile, uint64_t row, uint32_t panel)
{
    return tile->output + row * tile->output_stride + panel * PANEL_ROWS;
}

ALWAYS_INLINE uint32_t element_bytes(const uint32_t type)
{
    return type == WEIGHT_TYPE_F32 ? sizeof(float) : sizeof(uint16_t);
}

/* Columns that lie interleaved in one vector. */
ALWAYS_INLINE uint32_t columns_together(const uint32_t type)
{
    return type == WEIGHT_TYPE_BF16 ? 2 : 1;
}

/* Column `which` of those that lie together at `weights`. */
ALWAYS_INLINE __m512 load_weights(const uint8_t *weights, uint32_t which, const uint32_t type)
{
    if (type == WEIGHT_TYPE_F32)
        return _mm512_loadu_ps(weights);
    if (type == WEIGHT_TYPE_F16)
        return load_halves_wide(weights);
    __m512i words = _mm512_loadu_si512(weights);
    if (which == 0)
        return _mm512_castsi512_ps(_mm512_and_si512(words, _mm512_set1_epi32((int)0xffff0000)));
    return _mm512_castsi512_ps(_mm512_slli_epi32(words, 16));
}

/* Few rows need a line as soon as it is there, many the next panels in the L2 cache. */
ALWAYS_INLINE void prefetch(const uint8_t *line, const uint32_t rows)
{
    if (rows <= MATMUL_FEW_ROWS)
        _mm_prefetch((const char *)line, _MM_HINT_T0);
    else
        _mm_prefetch((const char *)line, _MM_HINT_T1);
}

ALWAYS_INLINE void multiply_rows(const struct tile *tile, const uint32_t type, const uint32_t rows,
                                 const uint32_t panels)
{
    const uint64_t step = PANEL_ROWS * element_bytes(type);
    const float *x[ROWS_TOGETHER];
    __m512 chain[PANELS][ROWS_TOGETHER];
#pragma GCC unroll 12
    for (uint32_t row = 0; row < rows; row++) {
        x[row] = tile->input + row * tile->input_stride;
#pragma GCC unroll 2
        for (uint32_t p = 0; p < panels; p++)
            chain[p][row] = tile->chains == NULL
                                ? _mm512_setzero_ps()
                                : _mm512_load_ps(tile->chains + (row * panels + p) * PANEL_ROWS);
        __builtin_prefetch(place_of(tile, row, 0), 1);
        __builtin_prefetch(place_of(tile, row, panels - 1), 1);
    }
    for (uint64_t first = 0; first < tile->columns; first += columns_together(type)) {
#pragma GCC unroll 2
        for (uint32_t i = 0; i < columns_together(type); i++) {
            __m512 weights[PANELS];
            uint64_t k = first + i;
            if (tile->ahead_step != 0) /* 2 columns of 16 bits are a cache line */
                prefetch(tile->ahead[k % panels] + k / panels * panels * tile->ahead_step, rows);
#pragma GCC unroll 2
            for (uint32_t p = 0; p < panels; p++)
                weights[p] = load_weights(tile->weights[p] + first * step, i, type);
#pragma GCC unroll 12
            for (uint32_t row = 0; row < rows; row++) {
                __m512 value = _mm512_set1_ps(x[row][k]);
#pragma GCC unroll 2
                for (uint32_t p = 0; p < panels; p++)
                    chain[p][row] = _mm512_fmadd_ps(value, weights[p], chain[p][row]);
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

/* Up to FEW_ROWS rows against a pair, with the weights as they stand in memory. */
ALWAYS_INLINE void multiply_few_of(const struct tile *tile, uint32_t rows, const uint32_t type)
{
    if (rows == 1)
        multiply_rows(tile, type, 1, PANELS);
    else if (rows == 2)
        multiply_rows(tile, type, 2, PANELS);
    else if (rows == 3)
        multiply_rows(tile, type, 3, PANELS);
    else if (rows == 4)
        multiply_rows(tile, type, 4, PANELS);
    else if (rows == 5)
        multiply_rows(tile, type, 5, PANELS);
    else if (rows == 6)
        multiply_rows(tile, type, 6, PANELS);
    else if (rows == 7)
        multiply_rows(tile, type, 7, PANELS);
    else
        multiply_rows(tile, type, FEW_ROWS, PANELS);
}

/* One copy for each type. */
static __attribute__((noinline)) void multiply_few_f32(const struct tile *tile, uint32_t rows)
{
    multiply_few_of(tile, rows, WEIGHT_TYPE_F32);
}

static __attribute__((noinline)) void multiply_few_f16(const struct tile *tile, uint32_t rows)
{
    multiply_few_of(tile, rows, WEIGHT_TYPE_F16);
}

static __attribute__((noinline)) void multiply_few_bf16(const struct tile *tile, uint32_t rows)
{
    multiply_few_of(tile, rows, WEIGHT_TYPE_BF16);
}

ALWAYS_INLINE void multiply_few(const struct tile *tile, uint32_t rows, const uint32_t type)
{
    if (type == WEIGHT_TYPE_F32)
        multiply_few_f32(tile, rows);
    else if (type == WEIGHT_TYPE_F16)
        multiply_few_f16(tile, rows);
    else
        multiply_few_bf16(tile, rows);
}

/* A group of rows against a pair of widened panels. */
ALWAYS_INLINE void multiply_group(const struct tile *tile, uint32_t rows)
{
    if (rows <= FEW_ROWS)
        multiply_few_f32(tile, rows);
    else if (rows == 9)
        multiply_rows(tile, WEIGHT_TYPE_F32, 9, PANELS);
    else if (rows == 10)
        multiply_rows(tile, WEIGHT_TYPE_F32, 10, PANELS);
    else if (rows == 11)
        multiply_rows(tile, WEIGHT_TYPE_F32, 11, PANELS);
    else
        multiply_rows(tile, WEIGHT_TYPE_F32, ROWS_TOGETHER, PANELS);
}

/* All rows over the columns of a chunk, in groups of nearly the same size. The first group fetches
 * what the next pair needs. One copy for all types. */
static __attribute__((noinline)) void multiply_wide(const struct tile *whole, uint32_t rows)
{
    struct tile tile = *whole;
    for (uint32_t left = rows; left > 0;) {
        uint32_t groups = (left + ROWS_TOGETHER - 1) / ROWS_TOGETHER;
        uint32_t count = (left + groups - 1) / groups;
        multiply_group(&tile, count);
        tile.input += count * tile.input_stride;
        tile.output += count * tile.output_stride;
        if (tile.chains != NULL)
            tile.chains += count * PANELS * PANEL_ROWS;
        tile.ahead_step = 0;
        left -= count;
    }
}

ALWAYS_INLINE void widen(const uint8_t *weights, uint32_t columns, const uint32_t type,
                         float (*output)[PANEL_ROWS])
{
    const uint64_t step = PANEL_ROWS * element_bytes(type);
    const uint32_t together = columns_together(type);
    for (uint32_t k = 0; k < columns; k++)
        _mm512_store_ps(output[k],
                        load_weights(weights + (k - k % together) * step, k % together, type));
}

/* A chunk of columns for all rows: the weights stay in the L1 cache. */
ALWAYS_INLINE void multiply_chunk(const struct tile *chunk, const uint32_t type, uint32_t rows)
{
    _Alignas(64) float wide[PANELS][CHUNK_COLUMNS][PANEL_ROWS];
    struct tile tile = *chunk;
    for (uint32_t p = 0; p < PANELS && type != WEIGHT_TYPE_F32; p++) {
        widen(chunk->weights[p], chunk->columns, type, wide[p]);
        tile.weights[p] = (const uint8_t *)wide[p];
    }
    multiply_wide(&tile, rows);
}

/* Chunk after chunk; between two of them the chains wait in a tile of their own, since rows of the
 * result may lie such that they evict each other. */
ALWAYS_INLINE void multiply_chunks(struct tile tile, uint32_t columns, const uint32_t type,
                                   uint32_t rows)
{
    _Alignas(64) float chains[MATMUL_TILE_ROWS * PANELS * PANEL_ROWS];
    const struct tile whole = tile;
    for (uint32_t first = 0; first < columns; first += CHUNK_COLUMNS) {
        bool last = columns - first <= CHUNK_COLUMNS;
        tile.columns = last ? columns - first : CHUNK_COLUMNS;
        tile.chains = first == 0 ? NULL : chains;
        tile.output = last ? whole.output : chains;
        tile.output_stride = last ? whole.output_stride : PANELS * PANEL_ROWS;
        multiply_chunk(&tile, type, rows);
        tile.input += tile.columns;
        for (uint32_t p = 0; p < PANELS; p++) {
            tile.weights[p] += (uint64_t)tile.columns * PANEL_ROWS * element_bytes(type);
            tile.ahead[p] += (uint64_t)tile.columns * PANEL_ROWS * element_bytes(type);
        }
    }
}

ALWAYS_INLINE struct tile tile_of(const void *panel, const struct matmul_share *share,
                                  const uint32_t type, const uint32_t panels)
{
    struct tile tile = {
        .input = share->input,
        .input_stride = share->columns,
        .columns = share->columns,
        .ahead_step = PANEL_ROWS * element_bytes(type),
        .output = share->output,
        .output_stride = share->output_stride,
    };
    for (uint32_t p = 0; p < panels; p++) {
        tile.weights[p] = (const uint8_t *)panel + p * share->panel_bytes;
        tile.ahead[p] = tile.weights[p] + panels * share->panel_bytes;
    }
    return tile;
}

/* The columns before `column`, whose chains go on from there. */
ALWAYS_INLINE void cut_columns(struct tile *first, struct tile *rest, uint32_t column,
                               const uint32_t type)
{
    first->columns = column;
    rest->columns -= column;
    rest->input += column;
    for (uint32_t p = 0; p < PANELS; p++) {
        rest->weights[p] += (uint64_t)column * PANEL_ROWS * element_bytes(type);
        rest->ahead[p] += (uint64_t)column * PANEL_ROWS * element_bytes(type);
    }
}

/* Rows that wait for memory: a little ahead in each panel, and from its end on in the panel after
 * the next. */
ALWAYS_INLINE void multiply_streamed(struct tile tile, const struct matmul_share *share,
                                     const uint32_t type)
{
    _Alignas(64) float chains[FEW_ROWS * PANELS * PANEL_ROWS];
    const uint32_t ahead_columns = FEW_AHEAD_BYTES / (PANEL_ROWS * element_bytes(type));
    uint32_t column = tile.columns > ahead_columns ? tile.columns - ahead_columns : 0;
    column -= column % columns_together(type);
    for (uint32_t p = 0; p < PANELS; p++)
        tile.ahead[p] = tile.weights[p] + FEW_AHEAD_BYTES;
    struct tile rest = tile;
    cut_columns(&tile, &rest, column, type);
    tile.output = chains;
    tile.output_stride = PANELS * PANEL_ROWS;
    multiply_few(&tile, share->rows, type);
    for (uint32_t p = 0; p < PANELS; p++)
        rest.ahead[p] += share->panel_bytes;
    rest.chains = chains;
    multiply_few(&rest, share->rows, type);
}

ALWAYS_INLINE void multiply_pair(const void *panel, const struct matmul_share *share,
                                 const uint32_t type)
{
    struct tile tile = tile_of(panel, share, type, PANELS);
    if (share->rows <= MATMUL_FEW_ROWS)
        multiply_streamed(tile, share, type);
    else if (share->rows > FEW_ROWS)
        multiply_chunks(tile, share->columns, type, share->rows);
    else
        multiply_few(&tile, share->rows, type);
}

/* The last panel of a matrix with an odd number of them, or its last columns: row by row. */
ALWAYS_INLINE void multiply_alone(const void *panel, const struct matmul_share *share,
                                  const uint32_t type)
{
    struct tile tile = tile_of(panel, share, type, 1);
    for (uint32_t row = 0; row < share->rows; row++) {
        multiply_rows(&tile, type, 1, 1);
        tile.input += tile.input_stride;
        tile.output += tile.output_stride;
        tile.ahead_step = 0;
    }
}

void matmul_f32_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_alone(panel, share, WEIGHT_TYPE_F32);
}

void matmul_f32_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_pair(panel, share, WEIGHT_TYPE_F32);
}

void matmul_f16_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_alone(panel, share, WEIGHT_TYPE_F16);
}

void matmul_f16_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_pair(panel, share, WEIGHT_TYPE_F16);
}

static void multiply_bf16_alone(const void *panel, const struct matmul_share *share)
{
    multiply_alone(panel, share, WEIGHT_TYPE_BF16);
}

static void multiply_bf16_pair(const void *panel, const struct matmul_share *share)
{
    multiply_pair(panel, share, WEIGHT_TYPE_BF16);
}

void matmul_bf16_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_flushing(multiply_bf16_alone, panel, share);
}

void matmul_bf16_pair_avx512(const void *panel, const struct matmul_share *share)
{
    multiply_flushing(multiply_bf16_pair, panel, share);
}
