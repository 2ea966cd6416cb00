#include "kernels/cpu/avx2.h"
#include "kernels/cpu/flushing.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/simd_avx2.h"

/* Float panels with AVX2: one fused chain per output. Many rows keep ROWS_TOGETHER of them x 16
 * weight rows in registers. One row alone would be two chains, whose latency is more than a core
 * takes to read the weights, so few rows take two panels at a time. */
enum {
    ROWS_TOGETHER = 6,          /* x 1 panel: 12 accumulators, 2 weights, 1 activation */
    FEW_ROWS = MATMUL_FEW_ROWS, /* x 2 panels: 12 accumulators, 1 weight, 3 activations */
    PANELS = 2,
    HALVES = PANEL_ROWS / VECTOR_FLOATS,
    PREFETCH_BYTES = 2048,
    FEW_AHEAD_BYTES = 6 << 10, /* of each panel: a quarter of an L1 cache or more */
};

/* Columns that lie interleaved in one vector. */
ALWAYS_INLINE uint32_t columns_together(const uint32_t type)
{
    return type == WEIGHT_TYPE_BF16 ? 2 : 1;
}

/* Column `which` of those that lie together at `columns`, rows 0..7 or, `high` 1, 8..15. */
ALWAYS_INLINE __m256 load_weights(const uint8_t *columns, uint32_t which, uint32_t high,
                                  const uint32_t type)
{
    if (type == WEIGHT_TYPE_F32)
        return _mm256_loadu_ps((const float *)columns + high * VECTOR_FLOATS);
    if (type == WEIGHT_TYPE_F16)
        return load_halves((const uint16_t *)columns + high * VECTOR_FLOATS);
    __m256i words = _mm256_loadu_si256((const __m256i *)columns + high);
    if (which == 0)
        return _mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32((int)0xffff0000)));
    return _mm256_castsi256_ps(_mm256_slli_epi32(words, 16));
}

ALWAYS_INLINE uint64_t column_bytes(const uint32_t type)
{
    return PANEL_ROWS * (type == WEIGHT_TYPE_F32 ? sizeof(float) : sizeof(uint16_t));
}

ALWAYS_INLINE void multiply_rows(const uint8_t *panel, const float *input, uint32_t columns,
                                 float *output, const uint32_t type, const uint32_t rows)
{
    __m256 sums[ROWS_TOGETHER][HALVES];
    for (uint32_t row = 0; row < rows; row++)
        sums[row][0] = sums[row][1] = _mm256_setzero_ps();
    for (uint64_t first = 0; first < columns; first += columns_together(type)) {
        const uint8_t *weights = panel + first * column_bytes(type);
        _mm_prefetch((const char *)(weights + PREFETCH_BYTES), _MM_HINT_T0);
        for (uint32_t i = 0; i < columns_together(type); i++) {
            __m256 low = load_weights(weights, i, 0, type);
            __m256 high = load_weights(weights, i, 1, type);
            for (uint32_t row = 0; row < rows; row++) {
                __m256 x = _mm256_broadcast_ss(input + (uint64_t)row * columns + first + i);
                sums[row][0] = _mm256_fmadd_ps(x, low, sums[row][0]);
                sums[row][1] = _mm256_fmadd_ps(x, high, sums[row][1]);
            }
        }
    }
    for (uint32_t row = 0; row < rows; row++) {
        _mm256_storeu_ps(output + row * PANEL_ROWS, sums[row][0]);
        _mm256_storeu_ps(output + row * PANEL_ROWS + VECTOR_FLOATS, sums[row][1]);
    }
}

ALWAYS_INLINE void multiply(const void *panel, const struct matmul_share *share,
                            const uint32_t type)
{
    uint32_t row = 0;
    for (; row + ROWS_TOGETHER <= share->rows; row += ROWS_TOGETHER)
        multiply_rows(panel, share->input + (uint64_t)row * share->columns, share->columns,
                      share->output + row * PANEL_ROWS, type, ROWS_TOGETHER);
    const float *input = share->input + (uint64_t)row * share->columns;
    float *output = share->output + row * PANEL_ROWS;
    switch (share->rows - row) {
    case 5:
        multiply_rows(panel, input, share->columns, output, type, 5);
        break;
    case 4:
        multiply_rows(panel, input, share->columns, output, type, 4);
        break;
    case 3:
        multiply_rows(panel, input, share->columns, output, type, 3);
        break;
    case 2:
        multiply_rows(panel, input, share->columns, output, type, 2);
        break;
    case 1:
        multiply_rows(panel, input, share->columns, output, type, 1);
        break;
    default:
        break;
    }
}

/* Columns of both panels of a unit, and how far ahead of them to fetch. */
struct span {
    uint64_t first, last, ahead;
};

/* Continues the chains of few rows over a span of columns. */
ALWAYS_INLINE void multiply_span(const uint8_t *panel, const struct matmul_share *share,
                                 struct span span, __m256 (*sums)[PANELS * HALVES],
                                 const uint32_t type, const uint32_t rows)
{
    for (uint64_t first = span.first; first < span.last; first += columns_together(type)) {
        const uint8_t *weights = panel + first * column_bytes(type);
        for (uint32_t p = 0; p < PANELS; p++)
            _mm_prefetch((const char *)weights + p * share->panel_bytes + span.ahead, _MM_HINT_T0);
#pragma GCC unroll 2
        for (uint32_t i = 0; i < columns_together(type); i++) {
            __m256 x[FEW_ROWS];
#pragma GCC unroll 3
            for (uint32_t row = 0; row < rows; row++)
                x[row] = _mm256_broadcast_ss(share->input + row * share->columns + first + i);
#pragma GCC unroll 4
            for (uint32_t v = 0; v < PANELS * HALVES; v++) {
                __m256 w =
                    load_weights(weights + v / HALVES * share->panel_bytes, i, v % HALVES, type);
#pragma GCC unroll 3
                for (uint32_t row = 0; row < rows; row++)
                    sums[row][v] = _mm256_fmadd_ps(x[row], w, sums[row][v]);
            }
        }
    }
}

/* A little ahead in each panel, and from its end on in the panel after the next. */
ALWAYS_INLINE void multiply_pair_rows(const uint8_t *panel, const struct matmul_share *share,
                                      const uint32_t type, const uint32_t rows)
{
    const uint64_t ahead_columns = FEW_AHEAD_BYTES / column_bytes(type), columns = share->columns;
    uint64_t cut = columns > ahead_columns ? columns - ahead_columns : 0;
    __m256 sums[FEW_ROWS][PANELS * HALVES];
#pragma GCC unroll 3
    for (uint32_t row = 0; row < rows; row++)
        sums[row][0] = sums[row][1] = sums[row][2] = sums[row][3] = _mm256_setzero_ps();
    multiply_span(panel, share, (struct span){0, cut, FEW_AHEAD_BYTES}, sums, type, rows);
    multiply_span(panel, share, (struct span){cut, columns, FEW_AHEAD_BYTES + share->panel_bytes},
                  sums, type, rows);
#pragma GCC unroll 3
    for (uint32_t row = 0; row < rows; row++) {
        float *output = share->output + row * share->output_stride;
#pragma GCC unroll 4
        for (uint32_t v = 0; v < PANELS * HALVES; v++)
            _mm256_storeu_ps(output + v * VECTOR_FLOATS, sums[row][v]);
    }
}

ALWAYS_INLINE void multiply_pair(const void *panel, const struct matmul_share *share,
                                 const uint32_t type)
{
    if (share->rows == 1)
        multiply_pair_rows(panel, share, type, 1);
    else if (share->rows == 2)
        multiply_pair_rows(panel, share, type, 2);
    else
        multiply_pair_rows(panel, share, type, FEW_ROWS);
}

void matmul_f32_avx2(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_F32);
}

void matmul_f32_pair_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_pair(panel, share, WEIGHT_TYPE_F32);
}

void matmul_f16_avx2(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_F16);
}

void matmul_f16_pair_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_pair(panel, share, WEIGHT_TYPE_F16);
}

static void multiply_bf16(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_BF16);
}

void matmul_bf16_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_flushing(multiply_bf16, panel, share);
}

static void multiply_bf16_pair(const void *panel, const struct matmul_share *share)
{
    multiply_pair(panel, share, WEIGHT_TYPE_BF16);
}

void matmul_bf16_pair_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_flushing(multiply_bf16_pair, panel, share);
}
