#include "kernels/cpu/avx512.h"
#include "kernels/cpu/simd_avx512.h"

void rmsnorm_row_avx512(const float *input, const float *weight, uint32_t columns, float epsilon,
                        float *output)
{
    __m512 sum = _mm512_setzero_ps();
    uint32_t k = 0;
    for (; k + WIDE_FLOATS <= columns; k += WIDE_FLOATS) {
        __m512 x = _mm512_loadu_ps(input + k);
        sum = _mm512_fmadd_ps(x, x, sum);
    }
    if (k < columns) { /* lanes beyond the row add zero */
        __m512 x = _mm512_maskz_loadu_ps(first_lanes_wide(columns - k), input + k);
        sum = _mm512_fmadd_ps(x, x, sum);
    }
    float inverse = 1.0f / sqrtf(tree_sum_wide(sum) / (float)columns + epsilon);
    for (k = 0; k < columns; k += WIDE_FLOATS) {
        __mmask16 mask = first_lanes_wide(columns - k);
        __m512 scaled =
            _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, input + k), _mm512_set1_ps(inverse));
        _mm512_mask_storeu_ps(output + k, mask,
                              _mm512_mul_ps(scaled, _mm512_maskz_loadu_ps(mask, weight + k)));
    }
}
