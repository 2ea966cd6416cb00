/* Where the product of q, k and v goes: shared by the fused and the separate kernel. Heads stand in
 * the order queries, keys, values; a pair is dims j and j + head_dim / 2 of one head. */
#ifndef TANDEM_KERNELS_CUDA_HEADS_CUH
#define TANDEM_KERNELS_CUDA_HEADS_CUH

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/launch.h"

/* Of one row: where it stands, and where its keys and values go. */
struct row_place {
    const float *angles; /* [cos, sin][head_dim / 2] */
    uint64_t block;      /* offset of the block in the pool */
    uint32_t token;      /* in the block */
};

struct half_pair {
    __nv_bfloat16 low, high;
};

__device__ __forceinline__ struct row_place place_of(const struct kv_target &target, uint32_t row)
{
    const struct kv_geometry &g = target.geometry;
    const uint32_t position = target.positions[row];
    const uint64_t entry = kv_table_index(&g, target.logical_blocks, target.slots[row],
                                          target.layer, kv_logical_block(&g, position));
    struct row_place place;
    place.angles = target.rope + (uint64_t)position * g.head_dim;
    place.block = kv_block_offset(&g, (uint32_t)target.table[entry]);
    place.token = kv_token_in_block(&g, position);
    return place;
}

/* Of dim `dim` of this head at this row; the 8 dims of a vector follow each other. */
__device__ __forceinline__ __nv_bfloat16 *head_address(const struct kv_target &target,
                                                       const struct row_place &place, uint32_t row,
                                                       uint32_t head, uint32_t dim)
{
    const struct kv_geometry &g = target.geometry;
    if (head < target.heads)
        return target.queries + ((uint64_t)row * target.heads + head) * g.head_dim + dim;
    const bool is_value = head >= target.heads + g.kv_heads;
    const uint32_t kv_head = head - target.heads - (is_value ? g.kv_heads : 0);
    const uint64_t offset =
        is_value ? kv_v_head_offset(&g, 0, kv_head) : kv_k_head_offset(&g, 0, kv_head);
    return (__nv_bfloat16 *)(target.pool + place.block + offset) +
           kv_v_element(&g, place.token, dim);
}

/* Rotated, if it is a query or a key, and rounded. */
__device__ __forceinline__ struct half_pair turned(const struct kv_target &target,
                                                   const struct row_place &place, uint32_t head,
                                                   uint32_t j, float low, float high)
{
    const uint32_t half = target.geometry.head_dim / 2;
    if (head < target.heads + target.geometry.kv_heads) {
        const struct rotated r =
            rotate_of(low, high, __ldg(place.angles + j), __ldg(place.angles + half + j));
        low = r.low;
        high = r.high;
    }
    return {__float2bfloat16_rn(low), __float2bfloat16_rn(high)};
}

__device__ __forceinline__ bool is_finite_bf16(__nv_bfloat16 value)
{
    return (__bfloat16_as_ushort(value) & 0x7f80u) != 0x7f80u;
}

/* A key or value that is not finite marks its row. */
__device__ __forceinline__ void check_range(const struct kv_target &target, uint32_t row,
                                            uint32_t head, const struct half_pair &pair)
{
    if (head >= target.heads && (!is_finite_bf16(pair.low) || !is_finite_bf16(pair.high)))
        target.row_errors[row] = ROW_ERROR_KV_RANGE;
}

/* ---- 8 pairs of dims at a time: vectors `vector` and `vector` + head_dim / 16 of a head ---- */

struct vector_angles {
    float4 cosines[2], sines[2];
};

__device__ __forceinline__ struct vector_angles load_angles(const struct row_place &place,
                                                            uint32_t head_dim, uint32_t vector)
{
    const float4 *at = (const float4 *)place.angles + vector * 2;
    return {{__ldg(at), __ldg(at + 1)}, {__ldg(at + head_dim / 8), __ldg(at + head_dim / 8 + 1)}};
}

/* Queries and keys are rotated, values are not. */
__device__ __forceinline__ void turn_vectors(const struct vector_angles &angles, uint4 (&x)[2])
{
    const float4 *c = angles.cosines, *s = angles.sines;
    const float cosines[8] = {c[0].x, c[0].y, c[0].z, c[0].w, c[1].x, c[1].y, c[1].z, c[1].w};
    const float sines[8] = {s[0].x, s[0].y, s[0].z, s[0].w, s[1].x, s[1].y, s[1].z, s[1].w};
    float low[8], high[8];
    unpack_8(x[0], low);
    unpack_8(x[1], high);
    uint32_t first[4], second[4];
#pragma unroll
    for (uint32_t i = 0; i < 8; i += 2) {
        const struct rotated p = rotate_of(low[i], high[i], cosines[i], sines[i]);
        const struct rotated q = rotate_of(low[i + 1], high[i + 1], cosines[i + 1], sines[i + 1]);
        first[i / 2] = pack_2(__float2bfloat16_rn(p.low), __float2bfloat16_rn(q.low));
        second[i / 2] = pack_2(__float2bfloat16_rn(p.high), __float2bfloat16_rn(q.high));
    }
    x[0] = make_uint4(first[0], first[1], first[2], first[3]);
    x[1] = make_uint4(second[0], second[1], second[2], second[3]);
}

__device__ __forceinline__ bool is_finite_vector(const uint4 &v)
{
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    bool finite = true;
#pragma unroll
    for (uint32_t word : words)
        finite = finite && (word & 0x7f80u) != 0x7f80u && (word & 0x7f800000u) != 0x7f800000u;
    return finite;
}

/* A key or value of `kv_head` into the pool; one that is not finite marks its row. */
__device__ __forceinline__ void keep_vectors(const struct kv_target &target,
                                             const struct row_place &place, uint32_t row,
                                             uint32_t head, uint32_t vector, const uint4 (&x)[2])
{
    const uint32_t half = target.geometry.head_dim / 2;
    *(uint4 *)head_address(target, place, row, head, vector * 8) = x[0];
    *(uint4 *)head_address(target, place, row, head, half + vector * 8) = x[1];
    if (!is_finite_vector(x[0]) || !is_finite_vector(x[1]))
        target.row_errors[row] = ROW_ERROR_KV_RANGE;
}

/* `dim` counts the dims of all heads; that of `low`. */
__device__ __forceinline__ void place_pair(const struct kv_target &target,
                                           const struct row_place &place, uint32_t row,
                                           uint32_t dim, float low, float high)
{
    const uint32_t head = dim / target.geometry.head_dim, j = dim % target.geometry.head_dim;
    const struct half_pair pair = turned(target, place, head, j, round_bf16(low), round_bf16(high));
    check_range(target, row, head, pair);
    *head_address(target, place, row, head, j) = pair.low;
    *head_address(target, place, row, head, target.geometry.head_dim / 2 + j) = pair.high;
}

#endif
