/* Where the product of q, k and v goes: shared by the fused and the separate kernel. */
#ifndef TANDEM_KERNELS_CUDA_HEADS_CUH
#define TANDEM_KERNELS_CUDA_HEADS_CUH

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/launch.h"

__device__ __forceinline__ bool is_finite_bf16(__nv_bfloat16 value)
{
    return (__bfloat16_as_ushort(value) & 0x7f80u) != 0x7f80u;
}

/* Elements `low` and `high` are dims j and j + head_dim / 2 of `head`: queries first, then keys,
 * then values. */
__device__ __forceinline__ void place_pair(const struct kv_target &target, uint32_t row,
                                           uint32_t head, uint32_t j, float low, float high)
{
    const struct kv_geometry &g = target.geometry;
    const uint32_t half = g.head_dim / 2, position = target.positions[row];
    low = round_bf16(low);
    high = round_bf16(high);
    if (head < target.heads + g.kv_heads) {
        const float *angle = target.rope + (uint64_t)position * g.head_dim;
        struct rotated r = rotate_of(low, high, angle[j], angle[half + j]);
        low = r.low;
        high = r.high;
    }
    const __nv_bfloat16 first = __float2bfloat16_rn(low), second = __float2bfloat16_rn(high);
    if (head < target.heads) {
        __nv_bfloat16 *query = target.queries + ((uint64_t)row * target.heads + head) * g.head_dim;
        query[j] = first;
        query[half + j] = second;
        return;
    }
    if (!is_finite_bf16(first) || !is_finite_bf16(second))
        target.row_errors[row] = ROW_ERROR_KV_RANGE;
    const uint32_t kv_head = (head - target.heads) % g.kv_heads;
    const uint32_t block = (uint32_t)target.table[kv_table_index(
        &g, target.logical_blocks, target.slots[row], target.layer,
        kv_logical_block(&g, position))];
    const uint32_t token = kv_token_in_block(&g, position);
    if (head < target.heads + g.kv_heads) {
        __nv_bfloat16 *keys = (__nv_bfloat16 *)(target.pool + kv_k_head_offset(&g, block, kv_head));
        keys[kv_k_element(&g, token, j)] = first;
        keys[kv_k_element(&g, token, half + j)] = second;
    } else {
        __nv_bfloat16 *values =
            (__nv_bfloat16 *)(target.pool + kv_v_head_offset(&g, block, kv_head));
        values[kv_v_element(&g, token, j)] = first;
        values[kv_v_element(&g, token, half + j)] = second;
    }
}

#endif
