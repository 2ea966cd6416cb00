/* The elementwise arithmetic that fused and separate kernels share, so that both have the same bits.
 * All of it takes matrix products that were rounded to bf16 already. Compiled with -fmad=false: what
 * is fused is written out. */
#ifndef TANDEM_KERNELS_CUDA_ELEMENTWISE_CUH
#define TANDEM_KERNELS_CUDA_ELEMENTWISE_CUH

#include <cuda_bf16.h>
#include <stdint.h>

#define LOG2_E 1.4426950408889634f

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
    float e = exp2_of(__fmul_rn(-gate, LOG2_E));
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

/* 1 / sqrt(mean of squares + epsilon) of one row by one warp. The order of the sum is contract:
 * lane l adds the squares of vectors l, l + 32, ... of 8 columns, ascending; then lanes at distance
 * 16, 8, 4, 2, 1. Every lane gets the same bits. */
__device__ __forceinline__ float norm_scale(const __nv_bfloat16 *row, uint32_t columns,
                                            float epsilon, uint32_t lane)
{
    float sum = 0.0f;
    for (uint32_t vector = lane; vector < columns / 8; vector += 32) {
        float values[8];
        unpack_8(__ldcg((const uint4 *)row + vector), values);
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum = __fmaf_rn(values[i], values[i], sum);
    }
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2)
        sum = __fadd_rn(sum, __shfl_xor_sync(~0u, sum, distance));
    return __frcp_rn(__fsqrt_rn(__fadd_rn(__fdiv_rn(sum, (float)columns), epsilon)));
}

/* Place of (row, k) in the order in which a matrix step reads its right operand: element index in a
 * buffer for up to 8 tiles rows. k + 1 of an even k follows directly. */
__device__ __forceinline__ uint32_t operand_index(uint32_t row, uint32_t k, uint32_t tiles)
{
    uint32_t lane = row % 8 * 4 + k % 8 / 2;
    uint32_t vector = (k / 32 * tiles + row / 8) * 32 + lane;
    return vector * 8 + k / 16 % 2 * 4 + k / 8 % 2 * 2 + k % 2;
}

#endif
