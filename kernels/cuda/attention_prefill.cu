/* Causal attention of spans of rows over the paged pool: prefill.
 *
 * A CTA of 8 warps serves one kv head and 128 columns: the query heads of a group at consecutive
 * positions, which start at a multiple of their number, so that all of them see the same last tile
 * of keys. A warp owns 16 columns as left operand and needs no other: S = Q K over a tile of 64
 * keys, maxima by two shuffles, P stays in registers as left operand of O += P V and of the sums P
 * x ones. Every 256 keys the segment is merged into the total, which waits in shared memory: that
 * leaves registers for a second CTA on the multiprocessor. Tiles arrive by asynchronous copies,
 * STAGES - 1 ahead.
 *
 * Grid: (kv head, span x tile of positions), the longest first. 256 threads.
 * Shared memory: [Q][stages of K and V][totals].
 * Bound by the matrix units: 4 x keys x queries x head_dim operations, half of them masked in the
 * last tile. */
#include "kernels/cuda/attention.cuh"

namespace
{

enum {
    WARP = 32,
    WARPS = 8, /* two groups of four */
    THREADS = WARP * WARPS,
    TILE = ATTENTION_TILE_KEYS,
    SEGMENT_TILES = ATTENTION_SEGMENT_KEYS / TILE,
    COLUMNS = WARPS * 16,
    STAGES = 3,
    KEY_TILES = TILE / 8,
    ONES_BYTES = 16 * 8 * 2, /* the right operand of the sums */
    HALF_BYTES = TILE * 128,           /* of 64 dims of a tile of keys */
    ROWS_OF_128 = (1 << 30) | 1024 / 16, /* high word of a descriptor: vectors permuted in rows of 128
                                            bytes, 8 rows follow each other */
};

template <int DIM> struct layout {
    static constexpr uint32_t Q = COLUMNS * DIM * 2;
    static constexpr uint32_t TILE_BYTES = TILE * DIM * 2;
    static constexpr uint32_t STAGE = 2 * TILE_BYTES;
    static constexpr uint32_t ONES_AT = Q + STAGES * STAGE;
    static constexpr uint32_t TOTALS_AT = ONES_AT + ONES_BYTES;
    static constexpr uint32_t TOTAL_VALUES = 2 + 2 + DIM / 2; /* maxima, sums, output of a thread */
    static constexpr uint32_t BYTES = TOTALS_AT + TOTAL_VALUES * THREADS * 4;
    static constexpr int CTAS = DIM == 64 ? 2 : 1; /* of a multiprocessor */
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

/* What a thread keeps of the segments before, in shared memory. */
template <int DIM> struct kept {
    float *at; /* [value][THREADS], of this thread */

    __device__ __forceinline__ float &largest(int i) const
    {
        return at[i * THREADS];
    }
    __device__ __forceinline__ float &sum(int i) const
    {
        return at[(2 + i) * THREADS];
    }
    __device__ __forceinline__ float &output(int d, int i) const
    {
        return at[(4 + d * 4 + i) * THREADS];
    }
};

/* `first`: nothing is kept yet. */
template <int DIM>
__device__ __forceinline__ void merge(const struct kept<DIM> &total, bool first,
                                      const struct state<DIM> &segment)
{
    float old_factor[2], new_factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float before = first ? MINUS_INF : total.largest(i);
        const float largest = fmaxf(before, segment.largest[i]);
        old_factor[i] = exp2_of(__fsub_rn(before, largest));
        new_factor[i] = exp2_of(__fsub_rn(segment.largest[i], largest));
        total.largest(i) = largest;
        /* the columns of a fragment of sums are all the same */
        total.sum(i) = merged(first ? 0.0f : total.sum(i), old_factor[i], segment.sum[2 * i],
                              new_factor[i]);
    }
#pragma unroll
    for (int d = 0; d < DIM / 8; d++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            total.output(d, i) = merged(first ? 0.0f : total.output(d, i), old_factor[i / 2],
                                        segment.output[d][i], new_factor[i / 2]);
}

/* ---- Matrix steps of four warps: 64 columns (16 a warp, laid out as mma_step has them) ---- */

/* C (64 x 64) += A B for 16 k; low words of the descriptors of rows of 128 bytes. */
__device__ __forceinline__ void multiply_shared(float (&c)[8][4], uint32_t a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 da, db;\n"
                 "mov.b64 da, {%32, %34};\n"
                 "mov.b64 db, {%33, %34};\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "da, db, 1, 1, 1, 0, 0;\n"
                 "}"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
                   "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
                   "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
                   "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
                   "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
                 : "r"(a), "r"(b), "r"(ROWS_OF_128));
}

/* C (64 x DIM) += A B for 16 k: A in registers, B has a row of 128 bytes for each k; of 128 columns
 * those from 64 on stand HALF_BYTES further. */
__device__ __forceinline__ void multiply_values(float (&c)[8][4], const uint4 &a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 db;\n"
                 "mov.b64 db, {%36, %37};\n"
                 "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "{%32,%33,%34,%35}, db, 1, 1, 1, 1;\n"
                 "}"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
                   "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
                   "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
                   "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
                   "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b), "r"(ROWS_OF_128));
}

__device__ __forceinline__ void multiply_values(float (&c)[16][4], const uint4 &a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 db;\n"
                 "mov.b64 db, {%68, %69};\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "{%64,%65,%66,%67}, db, 1, 1, 1, 1;\n"
                 "}"
                 : "+f"(c[0][0]), "+f"(c[0][1]), "+f"(c[0][2]), "+f"(c[0][3]),
                   "+f"(c[1][0]), "+f"(c[1][1]), "+f"(c[1][2]), "+f"(c[1][3]),
                   "+f"(c[2][0]), "+f"(c[2][1]), "+f"(c[2][2]), "+f"(c[2][3]),
                   "+f"(c[3][0]), "+f"(c[3][1]), "+f"(c[3][2]), "+f"(c[3][3]),
                   "+f"(c[4][0]), "+f"(c[4][1]), "+f"(c[4][2]), "+f"(c[4][3]),
                   "+f"(c[5][0]), "+f"(c[5][1]), "+f"(c[5][2]), "+f"(c[5][3]),
                   "+f"(c[6][0]), "+f"(c[6][1]), "+f"(c[6][2]), "+f"(c[6][3]),
                   "+f"(c[7][0]), "+f"(c[7][1]), "+f"(c[7][2]), "+f"(c[7][3]),
                   "+f"(c[8][0]), "+f"(c[8][1]), "+f"(c[8][2]), "+f"(c[8][3]),
                   "+f"(c[9][0]), "+f"(c[9][1]), "+f"(c[9][2]), "+f"(c[9][3]),
                   "+f"(c[10][0]), "+f"(c[10][1]), "+f"(c[10][2]), "+f"(c[10][3]),
                   "+f"(c[11][0]), "+f"(c[11][1]), "+f"(c[11][2]), "+f"(c[11][3]),
                   "+f"(c[12][0]), "+f"(c[12][1]), "+f"(c[12][2]), "+f"(c[12][3]),
                   "+f"(c[13][0]), "+f"(c[13][1]), "+f"(c[13][2]), "+f"(c[13][3]),
                   "+f"(c[14][0]), "+f"(c[14][1]), "+f"(c[14][2]), "+f"(c[14][3]),
                   "+f"(c[15][0]), "+f"(c[15][1]), "+f"(c[15][2]), "+f"(c[15][3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b), "r"(ROWS_OF_128));
}

/* C (64 x 8) += A x ones. */
__device__ __forceinline__ void add_up(float (&c)[4], const uint4 &a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 db;\n"
                 "mov.b64 db, {%8, %9};\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3}, "
                 "{%4,%5,%6,%7}, db, 1, 1, 1, 0;\n"
                 "}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b), "r"(8));
}

/* S of 64 columns against a tile of keys. */
template <int DIM>
__device__ __forceinline__ void score(uint32_t queries, uint32_t keys, float (&s)[KEY_TILES][4])
{
    const uint32_t a = uniform(low_word(queries)), b = uniform(low_word(keys));
    group_fence();
#pragma unroll
    for (uint32_t step = 0; step < DIM / 16; step++) {
        const uint32_t half = step / 4, inside = step % 4 * 32;
        multiply_shared(s, a + low_word(half * COLUMNS * 128 + inside),
                        b + low_word(half * HALF_BYTES + inside));
    }
    group_commit();
    group_wait<0>();
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
__device__ __forceinline__ void accumulate(uint32_t values, uint32_t ones,
                                           const float (&p)[KEY_TILES][4],
                                           struct state<DIM> &segment)
{
    uint4 a[TILE / 16];
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        const float(&low)[4] = p[2 * step], (&high)[4] = p[2 * step + 1];
        a[step] = {rounded(low[0], low[1]), rounded(low[2], low[3]), rounded(high[0], high[1]),
                   rounded(high[2], high[3])};
    }
    const uint32_t b = uniform(low_word(values) | (uint32_t)(HALF_BYTES >> 4) << 16);
    const uint32_t all_ones = uniform(low_word(ones) | (128u >> 4) << 16);
    group_fence();
#pragma unroll
    for (uint32_t step = 0; step < TILE / 16; step++) {
        multiply_values(segment.output, a[step], b + low_word(step * 16 * 128));
        add_up(segment.sum, a[step], all_ones);
    }
    group_commit();
    group_wait<0>();
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
        *(uint4 *)(shared + vector / 8 * COLUMNS * 128 + swizzled<128>(column, vector % 8)) = value;
    }
    if (threadIdx.x < ONES_BYTES / 16)
        ((uint4 *)(shared + layout<DIM>::ONES_AT))[threadIdx.x] = {ONES, ONES, ONES, ONES};
}

template <int DIM>
__device__ void put_outputs(const struct attention_launch &launch, const struct work &work,
                            uint32_t first_column, uint32_t lane, const struct kept<DIM> &total)
{
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uint32_t column = first_column + lane / 4 + i * 8;
        uint32_t row;
        if (!column_row(work, column, &row))
            continue;
        const uint32_t head = work.kv_head * work.group + column % work.group;
#pragma unroll
        for (int d = 0; d < DIM / 8; d++) {
            const uint32_t k = head * DIM + d * 8 + lane % 4 * 2;
            *(uint32_t *)(launch.output + output_place(launch, row, k)) =
                pack_2(divided(total.output(d, 2 * i), total.sum(i)),
                       divided(total.output(d, 2 * i + 1), total.sum(i)));
        }
    }
}

/* False where the CTA has no position. */
__device__ __forceinline__ bool find_work(const struct attention_launch &launch, uint32_t head_dim,
                                          struct work &work)
{
    const struct attention_span span = launch.spans[blockIdx.y % launch.span_count];
    const uint32_t tile = launch.span_tiles - 1 - blockIdx.y / launch.span_count;
    work.group = launch.kv.heads / launch.kv_heads;
    work.positions = attention_tile_positions(head_dim, work.group);
    work.first_row = span.first_row;
    work.first_position = span.first_position;
    work.tile_position = (span.first_position / work.positions + tile) * work.positions;
    work.kv_head = blockIdx.x;
    const uint32_t end = span.first_position + span.count;
    const uint32_t tile_end = work.tile_position + work.positions;
    work.end = end < tile_end ? end : tile_end;
    return work.tile_position < end;
}

template <int DIM>
__global__ void __launch_bounds__(THREADS, layout<DIM>::CTAS)
    prefill_kernel(const __grid_constant__ struct attention_launch launch)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    using place = layout<DIM>;
    const uint32_t warp = uniform(threadIdx.x / WARP), lane = threadIdx.x % WARP;
    const uint32_t base = shared_address(shared), stages = base + place::Q;
    struct work work;
    wait_for_inputs();
    let_next_start();
    if (!find_work(launch, DIM, work))
        return;
    const uint32_t slot = launch.spans[blockIdx.y % launch.span_count].slot;
    struct source<DIM, THREADS, true> source(launch.kv, slot, work.kv_head);
    const uint32_t tiles = (work.end + TILE - 1) / TILE;
    for (uint32_t tile = 0; tile < STAGES - 1; tile++) {
        if (tile < tiles)
            source.load(source.look_up(tile * TILE, work.end), tile * TILE, work.end,
                        stages + tile * place::STAGE);
        copy_commit();
    }
    source.next = source.look_up((STAGES - 1) * TILE, work.end);
    load_queries<DIM>(launch.kv, work, shared);
    const struct kept<DIM> total = {(float *)(shared + place::TOTALS_AT) + threadIdx.x};
    struct state<DIM> segment;
    segment.clear();
    for (uint32_t tile = 0; tile < tiles; tile++) {
        const uint32_t stage = stages + tile % STAGES * place::STAGE, ahead = tile + STAGES - 1;
        copy_wait<STAGES - 2>();
        fence_async_shared();
        __syncthreads(); /* the tile has arrived, and nobody reads the stage that is refilled */
        if (ahead < tiles) {
            source.load(source.next, ahead * TILE, work.end, stages + ahead % STAGES * place::STAGE);
            source.next = source.look_up((ahead + 1) * TILE, work.end);
        }
        copy_commit();
        float s[KEY_TILES][4] = {};
        score<DIM>(base + warp / 4 * 64 * 128, stage, s);
        if ((tile + 1) * TILE > work.tile_position)
            mask(work, tile * TILE, warp * 16, lane, s);
        soften<DIM>(launch.scale, s, segment);
        accumulate<DIM>(stage + place::TILE_BYTES, base + place::ONES_AT, s, segment);
        if ((tile + 1) % SEGMENT_TILES == 0 || tile + 1 == tiles) {
            merge<DIM>(total, tile < SEGMENT_TILES, segment);
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
    const dim3 grid(launch->kv_heads, launch->span_count * launch->span_tiles);
    if (launch->kv.geometry.head_dim == 64)
        return launch_overlapped(prefill_kernel<64>, grid, THREADS, layout<64>::BYTES, stream,
                                 *launch);
    return launch_overlapped(prefill_kernel<128>, grid, THREADS, layout<128>::BYTES, stream,
                             *launch);
}
