#include "kernels/cpu/avx2.h"
#include "kernels/cpu/simd_avx2.h"

void rmsnorm_row_avx2(const float *input, const float *weight, uint32_t columns, float epsilon,
                      float *output)
{
    __m256 low = _mm256_setzero_ps(), high = _mm256_setzero_ps();
    uint32_t k = 0;
    for (; k + 2 * VECTOR_FLOATS <= columns; k += 2 * VECTOR_FLOATS) {
        __m256 a = _mm256_loadu_ps(input + k), b = _mm256_loadu_ps(input + k + VECTOR_FLOATS);
        low = _mm256_fmadd_ps(a, a, low);
        high = _mm256_fmadd_ps(b, b, high);
    }
    if (k < columns) { /* lanes beyond the row add zero */
        uint32_t rest = columns - k;
        uint32_t rest_high = rest > VECTOR_FLOATS ? rest - VECTOR_FLOATS : 0;
        __m256 a = _mm256_maskload_ps(input + k, first_lanes(rest));
        __m256 b = _mm256_maskload_ps(input + k + VECTOR_FLOATS, first_lanes(rest_high));
        low = _mm256_fmadd_ps(a, a, low);
        high = _mm256_fmadd_ps(b, b, high);
    }
    float inverse = 1.0f / sqrtf(tree_sum(low, high) / (float)columns + epsilon);
    for (k = 0; k + VECTOR_FLOATS <= columns; k += VECTOR_FLOATS) {
        __m256 scaled = _mm256_mul_ps(_mm256_loadu_ps(input + k), _mm256_set1_ps(inverse));
        _mm256_storeu_ps(output + k, _mm256_mul_ps(scaled, _mm256_loadu_ps(weight + k)));
    }
    for (; k < columns; k++)
        output[k] = input[k] * inverse * weight[k];
}
