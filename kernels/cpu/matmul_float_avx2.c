#include "kernels/cpu/avx2.h"
#include "kernels/cpu/flushing.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/simd_avx2.h"

/* A register block of ROWS_TOGETHER activation rows x 16 weight rows: 12 accumulators, 2 weights, 1
 * activation. */
enum { ROWS_TOGETHER = 6, PREFETCH_BYTES = 2048 };

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

ALWAYS_INLINE void multiply_rows(const uint8_t *panel, const float *input, uint32_t columns,
                                 float *output, const uint32_t type, const uint32_t rows)
{
    __m256 sums[ROWS_TOGETHER][2];
    for (uint32_t row = 0; row < rows; row++)
        sums[row][0] = sums[row][1] = _mm256_setzero_ps();
    const uint64_t step_bytes = PANEL_ROWS * (type == WEIGHT_TYPE_F32 ? 4 : 2);
    for (uint64_t first = 0; first < columns; first += columns_together(type)) {
        const uint8_t *weights = panel + first * step_bytes;
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

void matmul_f32_avx2(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_F32);
}

void matmul_f16_avx2(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_F16);
}

static void multiply_bf16(const void *panel, const struct matmul_share *share)
{
    multiply(panel, share, WEIGHT_TYPE_BF16);
}

void matmul_bf16_avx2(const void *panel, const struct matmul_share *share)
{
    multiply_flushing(multiply_bf16, panel, share);
}
