#include "kernels/cpu/avx2.h"
#include "kernels/cpu/simd_avx2.h"

ALWAYS_INLINE __m256 silu_mul(__m256 gate, __m256 up)
{
    __m256 negative = _mm256_xor_ps(gate, _mm256_set1_ps(-0.0f));
    __m256 sigmoid_inverse = _mm256_add_ps(_mm256_set1_ps(1.0f), exp_vector(negative));
    return _mm256_mul_ps(_mm256_div_ps(gate, sigmoid_inverse), up);
}

void silu_mul_row_avx2(const float *gate, const float *up, uint32_t columns, float *output)
{
    uint32_t k = 0;
    for (; k + VECTOR_FLOATS <= columns; k += VECTOR_FLOATS)
        _mm256_storeu_ps(output + k, silu_mul(_mm256_loadu_ps(gate + k), _mm256_loadu_ps(up + k)));
    if (k < columns) {
        __m256i mask = first_lanes(columns - k);
        __m256 result =
            silu_mul(_mm256_maskload_ps(gate + k, mask), _mm256_maskload_ps(up + k, mask));
        _mm256_maskstore_ps(output + k, mask, result);
    }
}
