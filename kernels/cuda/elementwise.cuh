/* The elementwise arithmetic that fused and separate kernels share, so that both have the same
 * bits. All of it takes matrix products that were rounded to bf16 already. Compiled with
 * -fmad=false: what is fused is written out. */
#ifndef TANDEM_KERNELS_CUDA_ELEMENTWISE_CUH
#define TANDEM_KERNELS_CUDA_ELEMENTWISE_CUH

#include "kernels/constants.h"

#include <cuda_bf16.h>
#include <stdint.h>

__device__ __forceinline__ float round_bf16(float value)
{
    return __bfloat162float(__float2bfloat16_rn(value));
}

__device__ __forceinline__ float exp2_of(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* silu(gate) x up, each factor rounded. */
__device__ __forceinline__ __nv_bfloat16 silu_mul_of(float gate, float up)
{
    float e = exp2_of(__fmul_rn(-gate, (float)LOG2_E));
    float silu = __fdiv_rn(gate, __fadd_rn(1.0f, e));
    return __float2bfloat16_rn(__fmul_rn(round_bf16(silu), up));
}

/* A rotated pair (dim, dim + head_dim / 2). */
struct rotated {
    float low, high;
};

__device__ __forceinline__ struct rotated rotate_of(float low, float high, float cosine, float sine)
{
    struct rotated r;
    r.low = __fsub_rn(__fmul_rn(low, cosine), __fmul_rn(high, sine));
    r.high = __fadd_rn(__fmul_rn(high, cosine), __fmul_rn(low, sine));
    return r;
}

/* The residual stream is bf16: `product` was rounded, the sum is rounded again. */
__device__ __forceinline__ __nv_bfloat16 residual_of(__nv_bfloat16 residual, float product)
{
    return __float2bfloat16_rn(__fadd_rn(__bfloat162float(residual), round_bf16(product)));
}

__device__ __forceinline__ __nv_bfloat16 norm_of(float value, float scale, float weight)
{
    return __float2bfloat16_rn(__fmul_rn(round_bf16(__fmul_rn(value, scale)), weight));
}

/* Values of a 16-byte vector. */
__device__ __forceinline__ void unpack_8(const uint4 &vector, float (&values)[8])
{
    const uint32_t words[4] = {vector.x, vector.y, vector.z, vector.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        values[2 * i] = __uint_as_float(words[i] << 16);
        values[2 * i + 1] = __uint_as_float(words[i] & 0xffff0000u);
    }
}

__device__ __forceinline__ uint32_t pack_2(__nv_bfloat16 low, __nv_bfloat16 high)
{
    return (uint32_t)__bfloat16_as_ushort(low) | (uint32_t)__bfloat16_as_ushort(high) << 16;
}

/* The sum of squares of a row, in an order that is contract: vector v (8 columns) belongs to lane
 * v % 32 of warp v / 32 % NORM_WARPS; a lane adds its vectors ascending, lanes meet at distance 16,
 * 8, 4, 2, 1, and the warps are added ascending. So it is the work of one CTA of NORM_THREADS. */
enum { NORM_WARPS = 8, NORM_THREADS = 32 * NORM_WARPS };

__device__ __forceinline__ float add_squares(float sum, const uint4 &vector)
{
    float values[8];
    unpack_8(vector, values);
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum = __fmaf_rn(values[i], values[i], sum);
    return sum;
}

__device__ __forceinline__ float add_lanes(float sum)
{
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, distance));
    return sum;
}

/* 1 / sqrt(mean + epsilon) from the sums of the warps. */
__device__ __forceinline__ float norm_scale(const float *warp_sums, uint32_t columns, float epsilon)
{
    float sum = warp_sums[0];
#pragma unroll
    for (int warp = 1; warp < NORM_WARPS; warp++)
        sum = __fadd_rn(sum, warp_sums[warp]);
    return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)columns), epsilon)));
}

struct norm_weights {
    float4 low, high; /* of the 8 columns of a vector */
};

__device__ __forceinline__ struct norm_weights load_weights(const float *weights, uint32_t vector)
{
    const float4 *at = (const float4 *)weights + vector * 2;
    return {__ldg(at), __ldg(at + 1)};
}

__device__ __forceinline__ uint4 normalised(const uint4 &vector, float scale,
                                            const struct norm_weights &w)
{
    float v[8];
    unpack_8(vector, v);
    return make_uint4(pack_2(norm_of(v[0], scale, w.low.x), norm_of(v[1], scale, w.low.y)),
                      pack_2(norm_of(v[2], scale, w.low.z), norm_of(v[3], scale, w.low.w)),
                      pack_2(norm_of(v[4], scale, w.high.x), norm_of(v[5], scale, w.high.y)),
                      pack_2(norm_of(v[6], scale, w.high.z), norm_of(v[7], scale, w.high.w)));
}

/* Place of (row, k) in the order in which a matrix step reads its right operand: element index in a
 * buffer of `rows` rows, 16 bytes for each (32 k, row, lane % 4). k + 1 of an even k follows
 * directly. */
__device__ __forceinline__ uint32_t operand_index(uint32_t row, uint32_t k, uint32_t rows)
{
    const uint32_t vector = (k / 32 * rows + row) * 4 + k % 8 / 2;
    return vector * 8 + k / 16 % 2 * 4 + k / 8 % 2 * 2 + k % 2;
}

#endif
