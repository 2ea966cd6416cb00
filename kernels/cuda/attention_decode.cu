/* Causal attention of single rows over the paged pool: decoding.
 *
 * A CTA of 4 warps serves one kv head and 8 columns: a column is one query head of the group. Keys
 * come in tiles of 64 at absolute positions. Warp w takes the keys 16 w .. 16 w + 15 of a tile as
 * left operand of S = K Q (columns are queries), the column maxima meet in shared memory, P =
 * exp2(S - max) is rounded to bf16 and stored as [column][key]; then warp w owns a quarter of the
 * dims of O += V P, and the sums l of P run through the same chain against ones, so their order is
 * that of O. Every 256 keys the segment is merged into the total. Decoding with few rows spreads
 * the segments of a row over CTAs; the last to arrive merges them in ascending order.
 *
 * Grid: (row x kv head, split). 128 threads. The order of all sums is that of
 * attention_prefill.cu. How many tiles are on their way at a time depends on the number of CTAs
 * alone and changes no bit.
 * Shared memory: [Q][P][maxima][sums][stages of K and V].
 * Bytes moved: keys and values of each (row, kv head) once; limit 4.55 TB/s. */
#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/heads.cuh"

namespace
{

enum {
    WARP = 32,
    WARPS = 4,
    THREADS = WARP * WARPS,
    TILE = ATTENTION_TILE_KEYS,
    SEGMENT = ATTENTION_SEGMENT_KEYS,
    GROUP_MAX = 8, /* columns of decoding */
};

/* What a CTA works on. */
struct work {
    uint32_t slot;
    uint32_t first_row;      /* of position `first_position` */
    uint32_t first_position; /* of those that are there */
    uint32_t tile_position;  /* position of column 0; a multiple of `positions` */
    uint32_t positions;      /* columns / group */
    uint32_t end;            /* one past the last position that is there */
    uint32_t kv_head;
    bool splits;    /* the segments are spread over CTAs, */
    bool owns_last; /* this one has that with the row's own key */
};

/* False: nothing to do. Reads what the first kernel of the step wrote (counts, positions, slots),
 * which is not the one before this. A CTA without work leaves without waiting: there is always one
 * that waits. */
__device__ __forceinline__ bool find_work(const struct attention_launch &launch, struct work &work)
{
    work.first_row = blockIdx.x / launch.kv_heads;
    work.kv_head = blockIdx.x % launch.kv_heads;
    if (work.first_row >= *launch.count)
        return false;
    work.slot = launch.kv.slots[work.first_row];
    work.first_position = work.tile_position = launch.kv.positions[work.first_row];
    work.positions = 1;
    work.end = work.first_position + 1;
    const uint32_t segments = (work.end + SEGMENT - 1) / SEGMENT;
    work.splits = gridDim.y > 1 && segments > 1;
    work.owns_last = !work.splits || (segments - 1) % gridDim.y == blockIdx.y;
    return blockIdx.y < segments;
}

template <int DIM, int COLUMN_TILES, int STAGES> struct layout {
    static constexpr uint32_t COLUMNS = COLUMN_TILES * 8;
    static constexpr uint32_t ROW = DIM * 2; /* bytes of a key */
    static constexpr uint32_t Q = COLUMNS * ROW;
    static constexpr uint32_t P = COLUMNS * TILE * 2;
    static constexpr uint32_t MAXIMA = WARPS * COLUMNS * 4;
    static constexpr uint32_t SUMS = COLUMNS * 4;
    static constexpr uint32_t TILE_BYTES = TILE * ROW;
    static constexpr uint32_t STAGE = 2 * TILE_BYTES;
    static constexpr uint32_t P_AT = Q, MAXIMA_AT = P_AT + P, SUMS_AT = MAXIMA_AT + MAXIMA;
    static constexpr uint32_t STAGES_AT = (SUMS_AT + SUMS + 127) / 128 * 128;
    static constexpr uint32_t BYTES = STAGES_AT + STAGES * STAGE;
};

/* Softmax state of one segment or of the total; columns 2 pair and 2 pair + 1 of each tile. */
template <int DIM, int COLUMN_TILES> struct state {
    static constexpr int DIM_TILES = DIM / 64;                   /* of 16 dims, per warp */
    static constexpr int SUM_TILES = (COLUMN_TILES + 3) / WARPS; /* whose sums this warp keeps */
    float largest[COLUMN_TILES][2];
    float output[DIM_TILES][COLUMN_TILES][4];
    float sum[SUM_TILES][4];

    __device__ void clear()
    {
#pragma unroll
        for (int t = 0; t < COLUMN_TILES; t++) {
            largest[t][0] = largest[t][1] = MINUS_INF;
#pragma unroll
            for (int d = 0; d < DIM_TILES; d++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    output[d][t][i] = 0.0f;
        }
#pragma unroll
        for (int t = 0; t < SUM_TILES; t++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[t][i] = 0.0f;
    }
};

template <int DIM, int COLUMN_TILES>
__device__ void merge(struct state<DIM, COLUMN_TILES> &total,
                      const struct state<DIM, COLUMN_TILES> &segment, uint32_t warp)
{
#pragma unroll
    for (int t = 0; t < COLUMN_TILES; t++) {
        float old_factor[2], new_factor[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float largest = fmaxf(total.largest[t][i], segment.largest[t][i]);
            old_factor[i] = exp2_of(__fsub_rn(total.largest[t][i], largest));
            new_factor[i] = exp2_of(__fsub_rn(segment.largest[t][i], largest));
            total.largest[t][i] = largest;
        }
#pragma unroll
        for (int d = 0; d < total.DIM_TILES; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                total.output[d][t][i] = merged(total.output[d][t][i], old_factor[i % 2],
                                               segment.output[d][t][i], new_factor[i % 2]);
        if (t % WARPS == (int)warp) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                total.sum[t / WARPS][i] = merged(total.sum[t / WARPS][i], old_factor[i % 2],
                                                 segment.sum[t / WARPS][i], new_factor[i % 2]);
        }
    }
}

/* Keys after the column's own position do not count. */
template <int COLUMN_TILES>
__device__ __forceinline__ void mask(uint32_t first_key, const struct work &work, uint32_t group,
                                     uint32_t lane, float (&s)[COLUMN_TILES][4])
{
    const uint32_t key = first_key + lane / 4;
#pragma unroll
    for (int t = 0; t < COLUMN_TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t column = t * 8 + lane % 4 * 2 + i % 2;
            const uint32_t offset = column / group;
            const uint32_t last =
                offset < work.positions ? work.tile_position + offset : work.tile_position;
            if (key + i / 2 * 8 > last)
                s[t][i] = MINUS_INF;
        }
}

/* Column maxima over the tile: this warp's by shuffles, all warps' through shared memory. */
template <int COLUMN_TILES>
__device__ __forceinline__ void share_maxima(float *maxima, uint32_t warp, uint32_t lane,
                                             const float (&s)[COLUMN_TILES][4])
{
#pragma unroll
    for (int t = 0; t < COLUMN_TILES; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float largest = fmaxf(s[t][i], s[t][2 + i]);
#pragma unroll
            for (int distance = 4; distance < WARP; distance *= 2)
                largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
            if (lane < 4)
                maxima[warp * COLUMN_TILES * 8 + t * 8 + lane * 2 + i] = largest;
        }
}

/* New maxima, P to shared memory, and what was summed so far brought to the new maxima. */
template <int DIM, int COLUMN_TILES>
__device__ __forceinline__ void soften(const float *maxima, uint32_t probabilities, float scale,
                                       float (&s)[COLUMN_TILES][4],
                                       struct state<DIM, COLUMN_TILES> &segment)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int t = 0; t < COLUMN_TILES; t++) {
        float factor[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float tile_largest = MINUS_INF;
#pragma unroll
            for (int w = 0; w < WARPS; w++)
                tile_largest =
                    fmaxf(tile_largest, maxima[w * COLUMN_TILES * 8 + t * 8 + lane % 4 * 2 + i]);
            const float largest = fmaxf(segment.largest[t][i], __fmul_rn(scale, tile_largest));
            factor[i] = exp2_of(__fsub_rn(segment.largest[t][i], largest));
            segment.largest[t][i] = largest;
#pragma unroll
            for (int j = i; j < 4; j += 2)
                s[t][j] = exp2_of(__fmaf_rn(s[t][j], scale, -largest));
        }
#pragma unroll
        for (int d = 0; d < segment.DIM_TILES; d++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                segment.output[d][t][i] = __fmul_rn(segment.output[d][t][i], factor[i % 2]);
        if (t % WARPS == (int)warp) {
#pragma unroll
            for (int i = 0; i < 4; i++)
                segment.sum[t / WARPS][i] = __fmul_rn(segment.sum[t / WARPS][i], factor[i % 2]);
        }
        const uint32_t low = pack_2(__float2bfloat16_rn(s[t][0]), __float2bfloat16_rn(s[t][1]));
        const uint32_t high = pack_2(__float2bfloat16_rn(s[t][2]), __float2bfloat16_rn(s[t][3]));
        store_matrices_transposed(probabilities +
                                      swizzled<TILE * 2>(t * 8 + lane % 8, warp * 2 + lane / 8 % 2),
                                  low, high);
    }
}

/* O += V P over this warp's dims, and the sums of this warp's columns, keys ascending. */
template <int DIM, int COLUMN_TILES>
__device__ __forceinline__ void accumulate(uint32_t values, uint32_t probabilities, uint32_t warp,
                                           uint32_t lane, struct state<DIM, COLUMN_TILES> &segment)
{
    const uint4 ones = {ONES, ONES, ONES, ONES};
#pragma unroll
    for (int step = 0; step < TILE / 16; step++) {
        uint4 a[segment.DIM_TILES];
#pragma unroll
        for (int d = 0; d < segment.DIM_TILES; d++)
            a[d] = load_matrices_transposed(
                values + swizzled<DIM * 2>(step * 16 + lane / 16 * 8 + lane % 8,
                                           (warp * segment.DIM_TILES + d) * 2 + lane / 8 % 2));
#pragma unroll
        for (int t = 0; t < COLUMN_TILES; t += 2) {
            const uint32_t row = COLUMN_TILES == 1 ? lane % 8 : t * 8 + lane / 16 * 8 + lane % 8;
            const uint4 b =
                load_matrices(probabilities + swizzled<TILE * 2>(row, step * 2 + lane / 8 % 2));
#pragma unroll
            for (int u = 0; u < (COLUMN_TILES == 1 ? 1 : 2); u++) {
                const int column_tile = (t + u) % COLUMN_TILES;
                const uint32_t b0 = u == 0 ? b.x : b.z, b1 = u == 0 ? b.y : b.w;
#pragma unroll
                for (int d = 0; d < segment.DIM_TILES; d++)
                    mma_step(segment.output[d][column_tile], a[d], b0, b1);
                if (column_tile % WARPS == (int)warp)
                    mma_step(segment.sum[column_tile / WARPS], ones, b0, b1);
            }
        }
    }
}

/* ---- What the kernel before this one makes: queries, and the row's own key and value ---- */

/* A thread's share, one pair of vectors of one head, as far as it is known before the wait. */
struct taken {
    const uint4 *from[2];
    struct row_place place;
    struct vector_angles angles;
    uint32_t column, vector;
    bool there; /* this thread has one, */
    bool own;   /* of the key (column GROUP_MAX) or the value (the next), */
    bool fresh; /* which is in the products alone, not in the pool */
};

template <int DIM>
__device__ __forceinline__ struct taken find_taken(const struct attention_launch &launch,
                                                   const struct work &work)
{
    constexpr uint32_t PAIRS = DIM / 16; /* of vectors, of a head */
    static_assert((GROUP_MAX + 2) * PAIRS <= THREADS, "a thread has one pair at most");
    const struct kv_target &kv = launch.kv;
    const uint32_t group = kv.heads / launch.kv_heads;
    struct taken t = {};
    t.column = threadIdx.x / PAIRS;
    t.vector = threadIdx.x % PAIRS;
    t.own = t.column >= GROUP_MAX;
    t.fresh = launch.products != NULL;
    t.there = t.column < GROUP_MAX + (work.owns_last ? 2 : 0);
    if (!t.there || (!t.own && t.column >= group))
        return t;
    const uint32_t heads = kv.heads + 2 * launch.kv_heads;
    const uint32_t head = t.own ? kv.heads + (t.column - GROUP_MAX) * launch.kv_heads + work.kv_head
                                : work.kv_head * group + t.column;
    t.place = place_of(kv, work.first_row);
    if (t.fresh) {
        t.from[0] =
            (const uint4 *)(launch.products + ((uint64_t)work.first_row * heads + head) * DIM) +
            t.vector;
        t.from[1] = t.from[0] + PAIRS;
        t.angles = load_angles(t.place, DIM, t.vector);
    } else {
        for (uint32_t i = 0; i < 2; i++)
            t.from[i] = (const uint4 *)head_address(kv, t.place, work.first_row, head,
                                                    (t.vector + i * PAIRS) * 8);
    }
    return t;
}

/* After the wait: queries to shared memory; key and value into the pool, where they come from
 * products, and into `stage`, that of their tile, where it is not 0. */
template <int DIM, int STAGES>
__device__ __forceinline__ void put_taken(const struct attention_launch &launch,
                                          const struct work &work, const struct taken &t,
                                          uint32_t base, uint32_t stage)
{
    constexpr uint32_t PAIRS = DIM / 16;
    if (!t.there)
        return;
    uint4 x[2] = {};
    if (t.from[0] != NULL) {
        x[0] = __ldcg(t.from[0]);
        x[1] = __ldcg(t.from[1]);
        if (t.fresh && t.column != GROUP_MAX + 1) /* no value */
            turn_vectors(t.angles, x);
    }
    const bool is_value = t.column == GROUP_MAX + 1;
    const uint32_t row = t.own ? work.first_position % TILE : t.column;
    const uint32_t to = t.own ? stage + (is_value ? layout<DIM, 1, STAGES>::TILE_BYTES : 0) : base;
    if (t.own && t.fresh)
        keep_vectors(launch.kv, t.place, work.first_row,
                     launch.kv.heads + (t.column - GROUP_MAX) * launch.kv_heads + work.kv_head,
                     t.vector, x);
    if (t.own && stage == 0)
        return;
    store_vector(to + swizzled<DIM * 2>(row, t.vector), x[0]);
    store_vector(to + swizzled<DIM * 2>(row, t.vector + PAIRS), x[1]);
}

__device__ __forceinline__ void put_output(const struct attention_launch &launch, uint32_t row,
                                           uint32_t head, uint32_t dim, __nv_bfloat16 value)
{
    launch.output[output_place(launch, row, head * launch.kv.geometry.head_dim + dim)] = value;
}

/* The sums meet in shared memory, then every warp finishes its dims. */
template <int DIM, int COLUMN_TILES>
__device__ void finish(const struct attention_launch &launch, const struct work &work,
                       uint32_t group, float *sums, const struct state<DIM, COLUMN_TILES> &total)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
#pragma unroll
    for (int t = 0; t < COLUMN_TILES; t++)
        if (t % WARPS == (int)warp && lane < 4) {
            sums[t * 8 + lane * 2] = total.sum[t / WARPS][0];
            sums[t * 8 + lane * 2 + 1] = total.sum[t / WARPS][1];
        }
    __syncthreads();
#pragma unroll
    for (int t = 0; t < COLUMN_TILES; t++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t column = t * 8 + lane % 4 * 2 + i % 2;
            const uint32_t position = work.tile_position + column / group;
            if (column / group >= work.positions || position < work.first_position ||
                position >= work.end)
                continue;
#pragma unroll
            for (int d = 0; d < total.DIM_TILES; d++)
                put_output(launch, work.first_row + position - work.first_position,
                           work.kv_head * group + column % group,
                           (warp * total.DIM_TILES + d) * 16 + lane / 4 + i / 2 * 8,
                           divided(total.output[d][t][i], sums[column]));
        }
}

/* One segment's state for the last of the row's CTAs: [column](largest, sum, output[DIM]). */
template <int DIM, int COLUMN_TILES>
__device__ void store_partial(float *partial, const struct state<DIM, COLUMN_TILES> &segment)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    static_assert(COLUMN_TILES == 1, "decoding");
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float *column = partial + (lane % 4 * 2 + i % 2) * (DIM + 2);
#pragma unroll
        for (int d = 0; d < segment.DIM_TILES; d++)
            __stcg(column + 2 + (warp * segment.DIM_TILES + d) * 16 + lane / 4 + i / 2 * 8,
                   segment.output[d][0][i]);
        if (warp == 0 && lane < 4 && i < 2) {
            __stcg(column, segment.largest[0][i]);
            __stcg(column + 1, segment.sum[0][i]);
        }
    }
}

/* All segments of one row, ascending, by the CTA that arrived last. */
template <int DIM>
__device__ void merge_partials(const struct attention_launch &launch, const struct work &work,
                               uint32_t group, const float *partials, uint32_t segments)
{
    const uint32_t stride = GROUP_MAX * (DIM + 2);
    for (uint32_t i = threadIdx.x; i < group * DIM; i += THREADS) {
        const float *column = partials + i / DIM * (DIM + 2);
        float largest = MINUS_INF, sum = 0.0f, output = 0.0f;
        for (uint32_t s = 0; s < segments; s++) {
            const float *from = column + (uint64_t)s * stride;
            const float next = __ldcg(from), both = fmaxf(largest, next);
            const float old_factor = exp2_of(__fsub_rn(largest, both));
            const float new_factor = exp2_of(__fsub_rn(next, both));
            sum = merged(sum, old_factor, __ldcg(from + 1), new_factor);
            output = merged(output, old_factor, __ldcg(from + 2 + i % DIM), new_factor);
            largest = both;
        }
        put_output(launch, work.first_row, work.kv_head * group + i / DIM, i % DIM,
                   divided(output, sum));
    }
}

/* Leaves the segment's partial state behind; true in all threads of the row's last CTA. */
__device__ bool arrive_last(uint32_t *arrivals, uint32_t expected)
{
    __shared__ uint32_t order;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        order = atomicAdd(arrivals, 1u);
        if (order + 1 == expected)
            *arrivals = 0;
    }
    __syncthreads();
    __threadfence();
    return order + 1 == expected;
}

/* Of one segment; tiles from `end` to `last` are fetched for the next. */
struct tiles {
    uint32_t first, end, last;
};

/* One segment of keys, from its first tile to the last tile that any column sees. */
template <int DIM, int COLUMN_TILES, int STAGES>
__device__ void run_segment(const struct attention_launch &launch, const struct work &work,
                            struct source<DIM, THREADS> &source, const struct tiles &tiles,
                            uint8_t *shared, struct state<DIM, COLUMN_TILES> &segment)
{
    const uint32_t group = launch.kv.heads / launch.kv_heads;
    using place = layout<DIM, COLUMN_TILES, STAGES>;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t base = shared_address(shared);
    float *maxima = (float *)(shared + place::MAXIMA_AT);
    segment.clear();
    for (uint32_t tile = tiles.first; tile < tiles.end; tile++) {
        const uint32_t stage = base + place::STAGES_AT + tile % STAGES * place::STAGE;
        copy_wait<STAGES - 2>();
        __syncthreads(); /* the tile has arrived, and nobody reads the stage that is refilled */
        const uint32_t ahead = tile + STAGES - 1;
        if (ahead < tiles.last) {
            source.load(source.next, ahead * TILE, work.end,
                        base + place::STAGES_AT + ahead % STAGES * place::STAGE);
            source.next = source.look_up((ahead + 1) * TILE, work.end);
        }
        copy_commit();
        float s[COLUMN_TILES][4] = {};
        score<DIM, COLUMN_TILES>(stage, base, warp, lane, s);
        if ((tile + 1) * TILE > work.tile_position)
            mask<COLUMN_TILES>(tile * TILE + warp * 16, work, group, lane, s);
        share_maxima<COLUMN_TILES>(maxima, warp, lane, s);
        __syncthreads();
        soften<DIM, COLUMN_TILES>(maxima, base + place::P_AT, launch.scale, s, segment);
        __syncthreads();
        accumulate<DIM, COLUMN_TILES>(stage + place::TILE_BYTES, base + place::P_AT, warp, lane,
                                      segment);
    }
}

/* The first tiles into the stages, but for position `skipped`. */
template <int DIM, int COLUMN_TILES, int STAGES>
__device__ void fill_stages(const struct source<DIM, THREADS> &source, const struct tiles &tiles,
                            uint32_t end, uint32_t skipped, uint8_t *shared)
{
    using place = layout<DIM, COLUMN_TILES, STAGES>;
    for (uint32_t tile = tiles.first; tile < tiles.end; tile++)
        source.load(source.look_up(tile * TILE, end), tile * TILE, end,
                    shared_address(shared) + place::STAGES_AT + tile % STAGES * place::STAGE,
                    skipped);
}

/* As many groups of copies as the loop over tiles counts on; all that was asked for is in the
 * first. */
template <int STAGES> __device__ __forceinline__ void commit_stages()
{
#pragma unroll
    for (int i = 0; i < STAGES - 1; i++)
        copy_commit();
}

/* Keys that earlier steps wrote are fetched before the wait. The row's own one goes to its place
 * among them after it; where its tile is not among the first, it comes back from the pool. */
template <int DIM, int STAGES>
__device__ void start_decode(const struct attention_launch &launch, const struct work &work,
                             const struct source<DIM, THREADS> &source, uint32_t first,
                             uint32_t end, uint8_t *shared)
{
    using place = layout<DIM, 1, STAGES>;
    const uint32_t base = shared_address(shared), own = work.first_position / TILE;
    const uint32_t filled = first + STAGES - 1 < end ? first + STAGES - 1 : end;
    const uint32_t stage = own < filled ? base + place::STAGES_AT + own % STAGES * place::STAGE : 0;
    const struct taken taken = find_taken<DIM>(launch, work);
    fill_stages<DIM, 1, STAGES>(source, {first, filled, filled}, work.end, work.first_position,
                                shared);
    wait_for_inputs();
    let_next_start();
    put_taken<DIM, STAGES>(launch, work, taken, base, stage);
    commit_stages<STAGES>();
}

template <int DIM, int STAGES>
__device__ void decode_split(const struct attention_launch &launch, const struct work &work,
                             struct source<DIM, THREADS> &source, uint8_t *shared)
{
    const uint32_t item = blockIdx.x, tiles = (work.end + TILE - 1) / TILE;
    const uint32_t segments = (work.end + SEGMENT - 1) / SEGMENT;
    const uint32_t group = launch.kv.heads / launch.kv_heads;
    float *partials =
        launch.partials + (uint64_t)item * launch.segments_max * GROUP_MAX * (DIM + 2);
    struct state<DIM, 1> segment;
    for (uint32_t s = blockIdx.y; s < segments; s += gridDim.y) {
        const uint32_t first = s * (SEGMENT / TILE);
        const uint32_t end = first + SEGMENT / TILE < tiles ? first + SEGMENT / TILE : tiles;
        if (s == blockIdx.y) {
            start_decode<DIM, STAGES>(launch, work, source, first, end, shared);
        } else {
            __syncthreads();
            const uint32_t filled = first + STAGES - 1 < end ? first + STAGES - 1 : end;
            fill_stages<DIM, 1, STAGES>(source, {first, filled, filled}, work.end, UINT32_MAX,
                                        shared);
            commit_stages<STAGES>();
        }
        source.next = source.look_up((first + STAGES - 1) * TILE, work.end);
        run_segment<DIM, 1, STAGES>(launch, work, source, {first, end, end}, shared, segment);
        copy_wait<0>();
        store_partial<DIM, 1>(partials + (uint64_t)s * GROUP_MAX * (DIM + 2), segment);
    }
    if (arrive_last(launch.arrivals + item, segments < gridDim.y ? segments : gridDim.y))
        merge_partials<DIM>(launch, work, group, partials, segments);
}

/* CTAS: of a multiprocessor. */
template <int DIM, int STAGES, int CTAS>
__global__ void __launch_bounds__(THREADS, CTAS)
    decode_kernel(const __grid_constant__ struct attention_launch launch)
{
    extern __shared__ __align__(128) uint8_t shared[];
    using place = layout<DIM, 1, STAGES>;
    struct work work;
    if (!find_work(launch, work))
        return;
    const uint32_t group = launch.kv.heads / launch.kv_heads;
    const uint32_t tiles = (work.end + TILE - 1) / TILE;
    struct source<DIM, THREADS> source(launch.kv, work.slot, work.kv_head);
    if (work.splits) {
        decode_split<DIM, STAGES>(launch, work, source, shared);
        return;
    }
    source.next = source.look_up((STAGES - 1) * TILE, work.end);
    start_decode<DIM, STAGES>(launch, work, source, 0, tiles, shared);
    struct state<DIM, 1> total, segment;
    total.clear();
    for (uint32_t first = 0; first < tiles; first += SEGMENT / TILE) {
        const uint32_t end = first + SEGMENT / TILE < tiles ? first + SEGMENT / TILE : tiles;
        run_segment<DIM, 1, STAGES>(launch, work, source, {first, end, tiles}, shared, segment);
        merge<DIM, 1>(total, segment, threadIdx.x / WARP);
    }
    finish<DIM, 1>(launch, work, group, (float *)(shared + place::SUMS_AT), total);
}

struct instance {
    void (*kernel)(struct attention_launch);
    uint32_t shared_bytes;
};

template <int DIM, int STAGES, int CTAS> struct instance instance_for()
{
    return {decode_kernel<DIM, STAGES, CTAS>, layout<DIM, 1, STAGES>::BYTES};
}

/* By the number of CTAs, but for heads of 128 dims. */
enum instances { FEW, SOME, MANY, HEADS_OF_128, INSTANCES };

struct instance instance_at(uint32_t index)
{
    return index == FEW    ? instance_for<64, 4, 3>()
           : index == SOME ? instance_for<64, 3, 4>()
           : index == MANY ? instance_for<64, 2, 6>()
                           : instance_for<128, 3, 2>();
}

/* Few items: more tiles on their way to each. More items than run at once: as many of them as the
 * registers allow, unless that leaves most of the device idle at the end. */
uint32_t choose(const struct attention_launch &launch)
{
    constexpr uint32_t MOST = 6; /* of MANY, on a multiprocessor */
    const uint32_t items = launch.rows * launch.kv_heads, processors = launch.multiprocessors;
    const uint32_t last = items % (MOST * processors);
    if (launch.kv.geometry.head_dim != 64)
        return HEADS_OF_128;
    if (2 * items <= 3 * processors)
        return FEW;
    return items > 4 * processors && (last == 0 || 2 * last > MOST * processors) ? MANY : SOME;
}

} // namespace

cudaError_t attention_decode_prepare()
{
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < INSTANCES && error == cudaSuccess; i++)
        error =
            cudaFuncSetAttribute(instance_at(i).kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                 (int)instance_at(i).shared_bytes);
    return error;
}

cudaError_t attention_decode(const struct attention_launch *launch, cudaStream_t stream)
{
    const struct instance instance = instance_at(choose(*launch));
    return launch_overlapped(instance.kernel, dim3(launch->rows * launch->kv_heads, launch->splits),
                             THREADS, instance.shared_bytes, stream, *launch);
}
