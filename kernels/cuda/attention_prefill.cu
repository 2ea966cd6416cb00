/* Causal attention of spans of rows over the paged pool: prefill.
 *
 * A CTA of 8 warps serves one kv head and 128 columns: the query heads of a group at consecutive
 * positions, which start at a multiple of their number, so that all of them see the same last tile
 * of keys. A warp owns 16 columns as left operand and needs no other: S = Q K over a tile of 64
 * keys, maxima by two shuffles, P stays in registers as left operand of O += P V and of the sums P
 * x ones. Every 256 keys the segment is merged into the total. Tiles arrive by asynchronous copies,
 * STAGES - 1 ahead.
 *
 * Grid: (span x tile of positions, kv head), the longest first. 256 threads.
 * Shared memory: [Q][stages of K and V].
 * Bound by the matrix units: 4 x keys x queries x head_dim operations, half of them masked in the
 * last tile. */
#include "kernels/cuda/attention.cuh"

namespace
{

enum {
    WARP = 32,
    WARPS = 8,
    THREADS = WARP * WARPS,
    TILE = ATTENTION_TILE_KEYS,
    SEGMENT_TILES = ATTENTION_SEGMENT_KEYS / TILE,
    COLUMNS = WARPS * 16,
    STAGES = 3,
    KEY_TILES = TILE / 8,
};

template <int DIM> struct layout {
    static constexpr uint32_t Q = COLUMNS * DIM * 2;
    static constexpr uint32_t TILE_BYTES = TILE * DIM * 2;
    static constexpr uint32_t STAGE = 2 * TILE_BYTES;
    static constexpr uint32_t BYTES = Q + STAGES * STAGE;
};

/* What a CTA works on. */
struct work {
    uint32_t first_row;      /* of position `first_position` */
    uint32_t first_position; /* of those that are there */
    uint32_t tile_position;  /* of column 0 */
    uint32_t positions;      /* of the tile */
    uint32_t end;            /* one past the last position that is there */
    uint32_t kv_head;
    uint32_t group;
};

/* Softmax state of a warp's 16 columns: rows group and group + 8 of a fragment. */
template <int DIM> struct state {
    float largest[2];
    float sum[4];
    float output[DIM / 8][4];

    __device__ __forceinline__ void clear()
    {
        largest[0] = largest[1] = MINUS_INF;
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[i] = 0.0f;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                output[d][i] = 0.0f;
    }
};

template <int DIM>
__device__ __forceinline__ void merge(struct state<DIM> &total, const struct state<DIM> &segment)
{
    float old_factor[2], new_factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float largest = fmaxf(total.largest[i], segment.largest[i]);
        old_factor[i] = exp2_of(__fsub_rn(total.largest[i], largest));
        new_factor[i] = exp2_of(__fsub_rn(segment.largest[i], largest));
        total.largest[i] = largest;
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        total.sum[i] = merged(total.sum[i], old_factor[i / 2], segment.sum[i], new_factor[i / 2]);
#pragma unroll
    for (int d = 0; d < DIM / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            total.output[d][i] = merged(total.output[d][i], old_factor[i / 2], segment.output[d][i],
                                        new_factor[i / 2]);
}

/* S of this warp's columns against a tile of keys. */
template <int DIM>
__device__ __forceinline__ void score(uint32_t queries, uint32_t keys, uint32_t lane,
                                      float (&s)[KEY_TILES][4])
{
#pragma unroll
    for (int step = 0; step < DIM / 16; step++) {
        const uint4 a = load_matrices(queries + swizzled<DIM * 2>(lane % 16, step * 2 + lane / 16));
#pragma unroll
        for (int t = 0; t < KEY_TILES; t += 2) {
            const uint4 b = load_matrices(keys + swizzled<DIM * 2>(t * 8 + lane / 16 * 8 + lane % 8,
                                                                   step * 2 + lane / 8 % 2));
            mma_step(s[t], a, b.x, b.y);
            mma_step(s[t + 1], a, b.z, b.w);
        }
    }
}

/* Probabilities in place of S, and what was summed so far brought to the new maxima. */
template <int DIM>
__device__ __forceinline__ void soften(float scale, float (&s)[KEY_TILES][4],
                                       struct state<DIM> &segment)
{
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float largest = MINUS_INF;
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++)
            largest = fmaxf(largest, fmaxf(s[t][2 * i], s[t][2 * i + 1]));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        largest = fmaxf(segment.largest[i], __fmul_rn(scale, largest));
        factor[i] = exp2_of(__fsub_rn(segment.largest[i], largest));
        segment.largest[i] = largest;
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++)
#pragma unroll
            for (int j = 2 * i; j < 2 * i + 2; j++)
                s[t][j] = exp2_of(__fmaf_rn(s[t][j], scale, -largest));
    }
#pragma unroll
    for (int i = 0; i < 4; i++)
        segment.sum[i] = __fmul_rn(segment.sum[i], factor[i / 2]);
#pragma unroll
    for (int d = 0; d < DIM / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            segment.output[d][i] = __fmul_rn(segment.output[d][i], factor[i / 2]);
}

__device__ __forceinline__ uint32_t rounded(float low, float high)
{
    return pack_2(__float2bfloat16_rn(low), __float2bfloat16_rn(high));
}

/* O += P V and the sums, keys ascending. */
template <int DIM>
__device__ __forceinline__ void accumulate(uint32_t values, uint32_t lane,
                                           const float (&p)[KEY_TILES][4],
                                           struct state<DIM> &segment)
{
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        const float(&low)[4] = p[2 * step], (&high)[4] = p[2 * step + 1];
        const uint4 a = {rounded(low[0], low[1]), rounded(low[2], low[3]),
                         rounded(high[0], high[1]), rounded(high[2], high[3])};
        const uint32_t key = step * 16 + lane / 8 % 2 * 8 + lane % 8;
#pragma unroll
        for (int d = 0; d < DIM / 8; d += 2) {
            const uint4 b =
                load_matrices_transposed(values + swizzled<DIM * 2>(key, d + lane / 16));
            mma_step(segment.output[d], a, b.x, b.y);
            mma_step(segment.output[d + 1], a, b.z, b.w);
        }
        mma_step(segment.sum, a, ONES, ONES);
    }
}

/* Keys after the column's own position do not count. */
__device__ __forceinline__ void mask(const struct work &work, uint32_t first_key, uint32_t column,
                                     uint32_t lane, float (&s)[KEY_TILES][4])
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t offset = (column + lane / 4 + i / 2 * 8) / work.group;
        const uint32_t last = work.tile_position + (offset < work.positions ? offset : 0);
#pragma unroll
        for (int t = 0; t < KEY_TILES; t++)
            if (first_key + t * 8 + lane % 4 * 2 + i % 2 > last)
                s[t][i] = MINUS_INF;
    }
}

/* Row of the step that a column stands for; false where there is none. */
__device__ __forceinline__ bool column_row(const struct work &work, uint32_t column,
                                           uint32_t *out_row)
{
    const uint32_t offset = column / work.group, position = work.tile_position + offset;
    *out_row = work.first_row + position - work.first_position;
    return offset < work.positions && position >= work.first_position && position < work.end;
}

template <int DIM>
__device__ void load_queries(const struct kv_target &kv, const struct work &work, uint8_t *shared)
{
    constexpr uint32_t VECTORS = DIM / 8;
    for (uint32_t i = threadIdx.x; i < COLUMNS * VECTORS; i += THREADS) {
        const uint32_t column = i / VECTORS, vector = i % VECTORS;
        uint32_t row;
        uint4 value = {0, 0, 0, 0};
        if (column_row(work, column, &row)) {
            const uint32_t head = work.kv_head * work.group + column % work.group;
            value = __ldcg((const uint4 *)(kv.queries + ((uint64_t)row * kv.heads + head) * DIM) +
                           vector);
        }
        *(uint4 *)(shared + swizzled<DIM * 2>(column, vector)) = value;
    }
}

template <int DIM>
__device__ void put_outputs(const struct attention_launch &launch, const struct work &work,
                            uint32_t first_column, uint32_t lane, const struct state<DIM> &total)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t column = first_column + lane / 4 + i * 8;
        uint32_t row;
        if (!column_row(work, column, &row))
            continue;
        const uint32_t head = work.kv_head * work.group + column % work.group;
        const uint32_t width = launch.kv.heads * DIM;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            const uint32_t k = head * DIM + d * 8 + lane % 4 * 2;
            const uint64_t at = launch.out_rows == 0 ? (uint64_t)row * width + k
                                                     : operand_index(row, k, launch.out_rows);
            *(uint32_t *)(launch.output + at) =
                pack_2(divided(total.output[d][2 * i], total.sum[2 * i]),
                       divided(total.output[d][2 * i + 1], total.sum[2 * i + 1]));
        }
    }
}

/* False where the CTA has no position. */
__device__ __forceinline__ bool find_work(const struct attention_launch &launch, uint32_t head_dim,
                                          struct work &work)
{
    const struct attention_span span = launch.spans[blockIdx.x % launch.span_count];
    const uint32_t tile = launch.span_tiles - 1 - blockIdx.x / launch.span_count;
    work.group = launch.kv.heads / launch.kv_heads;
    work.positions = attention_tile_positions(head_dim, work.group);
    work.first_row = span.first_row;
    work.first_position = span.first_position;
    work.tile_position = (span.first_position / work.positions + tile) * work.positions;
    work.kv_head = blockIdx.y;
    const uint32_t end = span.first_position + span.count;
    const uint32_t tile_end = work.tile_position + work.positions;
    work.end = end < tile_end ? end : tile_end;
    return work.tile_position < end;
}

template <int DIM>
__global__ void __launch_bounds__(THREADS, 1)
    prefill_kernel(const __grid_constant__ struct attention_launch launch)
{
    extern __shared__ __align__(128) uint8_t shared[];
    using place = layout<DIM>;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t base = shared_address(shared), stages = base + place::Q;
    struct work work;
    wait_for_inputs();
    let_next_start();
    if (!find_work(launch, DIM, work))
        return;
    const uint32_t slot = launch.spans[blockIdx.x % launch.span_count].slot;
    const struct source<DIM, THREADS> source(launch.kv, slot, work.kv_head);
    const uint32_t tiles = (work.end + TILE - 1) / TILE;
    for (uint32_t tile = 0; tile < STAGES - 1; tile++) {
        if (tile < tiles)
            source.load(tile * TILE, work.end, stages + tile * place::STAGE);
        copy_commit();
    }
    load_queries<DIM>(launch.kv, work, shared);
    struct state<DIM> total, segment;
    total.clear();
    segment.clear();
    for (uint32_t tile = 0; tile < tiles; tile++) {
        const uint32_t stage = stages + tile % STAGES * place::STAGE, ahead = tile + STAGES - 1;
        copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile has arrived, and nobody reads the stage that is refilled */
        if (ahead < tiles)
            source.load(ahead * TILE, work.end, stages + ahead % STAGES * place::STAGE);
        copy_commit();
        float s[KEY_TILES][4] = {};
        score<DIM>(base + warp * 16 * DIM * 2, stage, lane, s);
        if ((tile + 1) * TILE > work.tile_position)
            mask(work, tile * TILE, warp * 16, lane, s);
        soften<DIM>(launch.scale, s, segment);
        accumulate<DIM>(stage + place::TILE_BYTES, lane, s, segment);
        if ((tile + 1) % SEGMENT_TILES == 0 || tile + 1 == tiles) {
            merge<DIM>(total, segment);
            segment.clear();
        }
    }
    put_outputs<DIM>(launch, work, warp * 16, lane, total);
}

} // namespace

ON_HOST_AND_DEVICE uint32_t attention_tile_positions(uint32_t head_dim, uint32_t group)
{
    (void)head_dim;
    uint32_t positions = 1;
    while (positions < TILE && positions * 2 * group <= COLUMNS)
        positions *= 2;
    return positions;
}

cudaError_t attention_prefill_prepare()
{
    const cudaFuncAttribute limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    const cudaError_t error = cudaFuncSetAttribute(prefill_kernel<64>, limit, layout<64>::BYTES);
    return error != cudaSuccess
               ? error
               : cudaFuncSetAttribute(prefill_kernel<128>, limit, layout<128>::BYTES);
}

cudaError_t attention_prefill(const struct attention_launch *launch, cudaStream_t stream)
{
    const dim3 grid(launch->span_count * launch->span_tiles, launch->kv_heads);
    if (launch->kv.geometry.head_dim == 64)
        return launch_overlapped(prefill_kernel<64>, grid, THREADS, layout<64>::BYTES, stream,
                                 *launch);
    return launch_overlapped(prefill_kernel<128>, grid, THREADS, layout<128>::BYTES, stream,
                             *launch);
}
