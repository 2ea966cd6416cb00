#include "kernels/cpu/avx512.h"
#include "kernels/cpu/simd_avx512.h"

void silu_mul_row_avx512(const float *gate, const float *up, uint32_t columns, float *output)
{
    for (uint32_t k = 0; k < columns; k += WIDE_FLOATS) {
        __mmask16 mask = first_lanes_wide(columns - k);
        __m512 x = _mm512_maskz_loadu_ps(mask, gate + k);
        __m512 negative = _mm512_xor_ps(x, _mm512_set1_ps(-0.0f));
        __m512 sigmoid_inverse = _mm512_add_ps(_mm512_set1_ps(1.0f), exp_wide(negative));
        __m512 factor = _mm512_maskz_loadu_ps(mask, up + k);
        _mm512_mask_storeu_ps(output + k, mask,
                              _mm512_mul_ps(_mm512_div_ps(x, sigmoid_inverse), factor));
    }
}
