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

/* The head_dim elements of this head at this row. */
__device__ __forceinline__ __nv_bfloat16 *head_address(const struct kv_target &target,
                                                       const struct row_place &place, uint32_t row,
                                                       uint32_t head)
{
    const struct kv_geometry &g = target.geometry;
    if (head < target.heads)
        return target.queries + ((uint64_t)row * target.heads + head) * g.head_dim;
    const bool is_value = head >= target.heads + g.kv_heads;
    const uint32_t kv_head = head - target.heads - (is_value ? g.kv_heads : 0);
    const uint64_t offset =
        is_value ? kv_v_head_offset(&g, 0, kv_head) : kv_k_head_offset(&g, 0, kv_head);
    return (__nv_bfloat16 *)(target.pool + place.block + offset) + kv_v_element(&g, place.token, 0);
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

/* `dim` counts the dims of all heads; that of `low`. */
__device__ __forceinline__ void place_pair(const struct kv_target &target,
                                           const struct row_place &place, uint32_t row,
                                           uint32_t dim, float low, float high)
{
    const uint32_t head = dim / target.geometry.head_dim, j = dim % target.geometry.head_dim;
    const struct half_pair pair = turned(target, place, head, j, round_bf16(low), round_bf16(high));
    __nv_bfloat16 *to = head_address(target, place, row, head);
    check_range(target, row, head, pair);
    to[j] = pair.low;
    to[target.geometry.head_dim / 2 + j] = pair.high;
}

#endif
