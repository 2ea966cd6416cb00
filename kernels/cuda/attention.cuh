/* What attention of prefill and of decoding share. The order of their sums is one: tiles of 64 keys
 * at absolute positions in segments of 256, both products as chains of matrix steps over ascending
 * keys, the sums of the probabilities by the same chain, segments merged in ascending order. Which
 * operand is the left one does not change a bit. */
#ifndef TANDEM_KERNELS_CUDA_ATTENTION_CUH
#define TANDEM_KERNELS_CUDA_ATTENTION_CUH

#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.h"

#define ONES      0x3f803f80u /* two bf16 1.0 */
#define MINUS_INF __int_as_float((int)0xff800000u)

/* Rows of 16-byte vectors with the vectors permuted, so that 8 rows of one column of vectors lie in
 * different banks. */
template <uint32_t ROW> __device__ __forceinline__ uint32_t swizzled(uint32_t row, uint32_t vector)
{
    return row * ROW + ((vector ^ row % 8) * 16);
}

/* What a thread needs to find keys: it copies the vectors at one place of every key that it copies.
 * The pool has the vectors of a token permuted as `swizzled` wants them. Looking a tile up in the
 * block table takes a way to the L2, so it is done a tile ahead. HALVES: dims from 64 on stand behind
 * those of all keys below 64 instead of in the row of their key. */
template <int DIM, int THREADS, bool HALVES = false> struct source {
    static constexpr uint32_t VECTORS = DIM / 8;
    static constexpr uint32_t KEYS = THREADS / VECTORS, TURNS = ATTENTION_TILE_KEYS / KEYS;
    struct found {
        uint32_t block[TURNS];
    };
    const struct kv_geometry geometry;
    const int32_t *table; /* of the slot and layer */
    const uint8_t *keys;  /* of the kv head and vector in block 0 */
    uint64_t v_offset;
    uint32_t block_shift, token_mask;
    struct found next = {}; /* the tile that is copied next, as the loops over tiles keep it */

    __device__ source(const struct kv_target &kv, uint32_t slot, uint32_t kv_head)
        : geometry(kv.geometry)
    {
        const struct kv_geometry &g = kv.geometry;
        table = kv.table + kv_table_index(&g, kv.logical_blocks, slot, kv.layer, 0);
        keys = kv.pool + kv_k_head_offset(&g, 0, kv_head) + threadIdx.x % VECTORS * 16;
        v_offset = kv_v_offset(&g);
        block_shift = 31 - __clz((int)g.block_tokens); /* a power of two */
        token_mask = g.block_tokens - 1;
    }

    /* The blocks of this thread's keys of a tile. */
    __device__ __forceinline__ struct found look_up(uint32_t first_key, uint32_t end) const
    {
        struct found found = {};
#pragma unroll
        for (uint32_t i = 0; i < TURNS; i++) {
            const uint32_t position = first_key + threadIdx.x / VECTORS + i * KEYS;
            if (position < end)
                found.block[i] = (uint32_t)table[position >> block_shift];
        }
        return found;
    }

    /* One tile of keys and values into a stage; rows from `end` on are zeros, that of position
     * `skipped` stays as it is. */
    __device__ __forceinline__ void load(const struct found &found, uint32_t first_key, uint32_t end,
                                         uint32_t stage, uint32_t skipped = UINT32_MAX) const
    {
        const uint32_t vector = threadIdx.x % VECTORS;
        const uint32_t row = HALVES ? 128 : DIM * 2;
        const uint32_t in_row = HALVES ? vector / 8 * ATTENTION_TILE_KEYS * 128 + vector % 8 * 16
                                       : vector * 16;
#pragma unroll
        for (uint32_t i = 0; i < TURNS; i++) {
            const uint32_t key = threadIdx.x / VECTORS + i * KEYS, position = first_key + key;
            const uint64_t offset = kv_block_offset(&geometry, found.block[i]) +
                                    (position & token_mask) * (DIM * 2);
            const uint32_t to = stage + key * row + in_row;
            if (position == skipped)
                continue;
            copy_16_async(to, keys + offset, position < end);
            copy_16_async(to + ATTENTION_TILE_KEYS * DIM * 2, keys + offset + v_offset,
                          position < end);
        }
    }
};

/* Where the output of (row, k) goes. */
__device__ __forceinline__ uint64_t output_place(const struct attention_launch &launch, uint32_t row,
                                                 uint32_t k)
{
    if (launch.out_rows == 0)
        return (uint64_t)row * launch.kv.heads * launch.kv.geometry.head_dim + k;
    if (launch.out_blocks)
        return ((uint64_t)(k / 8) * launch.out_rows + row) * 8 + k % 8;
    return operand_index(row, k, launch.out_rows);
}

/* The merge of one value of a segment into the total's; factors are exp2(old maximum - new). */
__device__ __forceinline__ float merged(float total, float total_factor, float segment,
                                        float segment_factor)
{
    return __fmaf_rn(segment, segment_factor, __fmul_rn(total, total_factor));
}

__device__ __forceinline__ __nv_bfloat16 divided(float output, float sum)
{
    return __float2bfloat16_rn(__fadd_rn(__fmul_rn(output, __frcp_rn(sum)), 0.0f));
}

/* S of the 16 keys of `warp` in a tile against all columns. */
template <int DIM, int COLUMN_TILES>
__device__ __forceinline__ void score(uint32_t keys, uint32_t queries, uint32_t warp, uint32_t lane,
                                      float (&s)[COLUMN_TILES][4])
{
    const uint32_t row = warp * 16 + lane % 16, half = lane / 16;
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        const uint4 a = load_matrices(keys + swizzled<DIM * 2>(row, step * 2 + half));
        if (COLUMN_TILES == 1) {
            /* lanes 16 and up repeat: their two matrices are not used */
            const uint4 b =
                load_matrices(queries + swizzled<DIM * 2>(lane % 8, step * 2 + lane / 8 % 2));
            mma_step(s[0], a, b.x, b.y);
        } else {
#pragma unroll
            for (int t = 0; t < COLUMN_TILES; t += 2) {
                const uint4 b =
                    load_matrices(queries + swizzled<DIM * 2>(t * 8 + lane / 16 * 8 + lane % 8,
                                                              step * 2 + lane / 8 % 2));
                mma_step(s[t], a, b.x, b.y);
                mma_step(s[(t + 1) % COLUMN_TILES], a, b.z, b.w);
            }
        }
    }
}

#endif
