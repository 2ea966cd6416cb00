#include "kernels/cpu/avx2.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/simd_avx2.h"

/* True where one of 8 halves is infinite or NaN. */
static bool not_finite(__m128i halves)
{
    const __m128i exponent = _mm_set1_epi16(0x7c00);
    __m128i full = _mm_cmpeq_epi16(_mm_and_si128(halves, exponent), exponent);
    return _mm_movemask_epi8(full) != 0;
}

static bool write_halves(const struct kv_row_share *share)
{
    uint16_t *output = share->output;
    bool finite = true;
    for (uint32_t dim = 0; dim < share->head_dim; dim += VECTOR_FLOATS) {
        __m128i halves = _mm256_cvtps_ph(_mm256_loadu_ps(share->input + dim),
                                         _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
        finite = finite && !not_finite(halves);
        if (share->stride == 1) {
            _mm_storeu_si128((__m128i *)(output + dim), halves);
            continue;
        }
        uint16_t lanes[VECTOR_FLOATS];
        _mm_storeu_si128((__m128i *)lanes, halves);
        for (uint32_t i = 0; i < VECTOR_FLOATS; i++)
            output[(uint64_t)(dim + i) * share->stride] = lanes[i];
    }
    return finite;
}

static bool write_floats(const struct kv_row_share *share)
{
    float *output = share->output;
    bool finite = true;
    for (uint32_t dim = 0; dim < share->head_dim; dim++) {
        float value = share->input[dim];
        output[(uint64_t)dim * share->stride] = value;
        finite = finite && fabsf(value) <= FINITE_MAX;
    }
    return finite;
}

bool kv_write_row_avx2(const struct kv_row_share *share)
{
    return share->type == KV_TYPE_F16 ? write_halves(share) : write_floats(share);
}
