/* Attention in the persistent step: an item is one segment of keys of one row and kv head, its keys
 * and values in slots of the ring. All scores of a segment are computed at once, a warp 16 keys at a
 * time; then the running maxima follow tile by tile, as attention_decode.cu has them, and the warps
 * share the dims of the output. The item with the row's own key rotates and stores that key and
 * value, waits for the other segments of its row and merges them in ascending order.
 *
 * The products q, k and v arrive unrotated; queries are rotated by every item that needs them.
 * Shared memory, in the place of the operand: [Q][P][maxima][own]. */
#ifndef TANDEM_KERNELS_CUDA_STREAM_ATTENTION_CUH
#define TANDEM_KERNELS_CUDA_STREAM_ATTENTION_CUH

#include "kernels/cuda/attention.cuh"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/stream_staging.cuh"

enum {
    SEGMENT_GROUPS = ATTENTION_SEGMENT_KEYS / 16,
    HEADS_MAX = 8, /* query heads of a kv head: columns of the products */
};

template <int DIM> struct attention_scratch {
    static constexpr uint32_t ROW = DIM * 2;
    static constexpr uint32_t P_ROW = ATTENTION_SEGMENT_KEYS * 2;
    static constexpr uint32_t P_AT = HEADS_MAX * ROW;
    static constexpr uint32_t MAXIMA_AT = P_AT + HEADS_MAX * P_ROW;
    static constexpr uint32_t OWN_AT = MAXIMA_AT + SEGMENT_GROUPS * HEADS_MAX * 4;
    static constexpr uint32_t BYTES = OWN_AT + HEADS_MAX * (DIM + 2) * 4;
    static_assert(BYTES <= STREAM_SCRATCH_BYTES, "the operand's place has room for it");
};

__device__ __forceinline__ float load_float(uint32_t address)
{
    float value;
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(value) : "r"(address) : "memory");
    return value;
}

struct attention_item {
    uint32_t row, kv_head, segment, tiles;
    uint32_t position; /* of the row */
    uint32_t segments; /* of the row */
    uint32_t group;    /* query heads of the kv head */
    bool last;         /* the segment of the row's own key */
};

/* Where a tile's keys and values lie. */
template <int DIM> struct attention_tiles {
    static constexpr uint32_t TILE_BYTES = ATTENTION_TILE_KEYS * DIM * 2;
    static constexpr uint32_t STAGES = 2 * TILE_BYTES / STREAM_STAGE_BYTES;
    uint32_t ring, first_slot, slots;

    __device__ __forceinline__ uint32_t slot(uint32_t stage) const
    {
        const uint32_t at = first_slot + stage;
        return at < slots ? at : at - slots;
    }
    __device__ __forceinline__ uint32_t keys(uint32_t tile) const
    {
        return ring + slot(tile * STAGES) * STREAM_STAGE_BYTES;
    }
    __device__ __forceinline__ uint32_t values(uint32_t tile) const
    {
        return STAGES == 1 ? keys(tile) + TILE_BYTES
                           : ring + slot(tile * STAGES + 1) * STREAM_STAGE_BYTES;
    }
};

/* What a thread knows of its 8 pairs of dims before they arrive. */
struct head_share {
    struct row_place place;
    uint32_t column, vector; /* query head of the group, then key, value; 8 dims of the lower half */
    uint32_t head;           /* of all: queries, keys, values */
    bool turns;              /* values do not */
    struct vector_angles angles;
};

template <int DIM>
__device__ __forceinline__ struct head_share share_of(const struct staging &staging,
                                                      const struct attention_item &item,
                                                      uint32_t layer)
{
    struct kv_target kv = staging.args.kv;
    kv.layer = layer;
    struct head_share share = {};
    share.column = staging.thread / (DIM / 16);
    share.vector = staging.thread % (DIM / 16);
    if (share.column >= item.group + (item.last ? 2 : 0))
        return share;
    share.head = share.column < item.group
                     ? item.kv_head * item.group + share.column
                     : kv.heads + (share.column - item.group) * kv.geometry.kv_heads + item.kv_head;
    share.turns = share.column <= item.group;
    share.place = place_of(kv, item.row);
    share.angles = load_angles(share.place, DIM, share.vector);
    return share;
}

/* Queries into Q, the own key and value into their tile and into the pool. */
template <int DIM, int M>
__device__ __forceinline__ void take_heads(const struct staging &staging,
                                           const struct attention_item &item,
                                           const struct head_share &share,
                                           const struct attention_tiles<DIM> &tiles)
{
    const struct kv_target &kv = staging.args.kv;
    if (share.column < item.group + (item.last ? 2 : 0)) {
        const uint8_t *from =
            copy_of(staging.args, staging.parity) + staging.args.exchange.heads +
            ((uint64_t)(share.head * (DIM / 8) + share.vector) * M + item.row) * 16;
        uint4 x[2];
        do {
            x[0] = look_16(from);
            x[1] = look_16(from + DIM / 16 * M * 16);
        } while (!is_written(x[0]) || !is_written(x[1]));
        if (share.turns)
            turn_vectors(share.angles, x);
        uint32_t to = staging.at.operand, row = share.column;
        if (share.column >= item.group) {
            const bool key = share.column == item.group;
            to = key ? tiles.keys(item.tiles - 1) : tiles.values(item.tiles - 1);
            row = item.position % ATTENTION_TILE_KEYS;
            keep_vectors(kv, share.place, item.row, share.head, share.vector, x);
        }
        store_vector(to + swizzled<DIM * 2>(row, share.vector), x[0]);
        store_vector(to + swizzled<DIM * 2>(row, share.vector + DIM / 16), x[1]);
    }
    __syncwarp();
}

/* Zeros: columns without a query, and values after the own one, which have never been written. */
template <int DIM>
__device__ __forceinline__ void clear_rest(const struct staging &staging,
                                           const struct attention_item &item,
                                           const struct attention_tiles<DIM> &tiles)
{
    constexpr uint32_t VECTORS = DIM / 8;
    const uint4 zero = {0, 0, 0, 0};
    for (uint32_t i = item.group * VECTORS + staging.thread; i < HEADS_MAX * VECTORS;
         i += STREAM_STAGING_THREADS)
        store_vector(staging.at.operand + i * 16, zero);
    const uint32_t first = item.position % ATTENTION_TILE_KEYS + 1;
    for (uint32_t i = first * VECTORS + staging.thread;
         item.last && i < ATTENTION_TILE_KEYS * VECTORS; i += STREAM_STAGING_THREADS)
        store_vector(tiles.values(item.tiles - 1) + i * 16, zero);
}

/* Scores of 16 keys, and their column maxima. */
template <int DIM>
__device__ __forceinline__ void score_group(const struct staging &staging,
                                            const struct attention_item &item, uint32_t keys,
                                            uint32_t group, float (&s)[1][4])
{
    float *maxima = (float *)__cvta_shared_to_generic(staging.at.operand +
                                                      attention_scratch<DIM>::MAXIMA_AT);
    const uint32_t key = item.segment * ATTENTION_SEGMENT_KEYS + group * 16 + staging.lane / 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
        s[0][i] = 0.0f;
    score<DIM, 1>(keys, staging.at.operand, group % 4, staging.lane, s);
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (key + i / 2 * 8 > item.position)
            s[0][i] = MINUS_INF;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        float largest = fmaxf(s[0][i], s[0][2 + i]);
#pragma unroll
        for (int distance = 4; distance < STREAM_WARP; distance *= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
        if (staging.lane < 4)
            maxima[group * HEADS_MAX + staging.lane * 2 + i] = largest;
    }
    __syncwarp();
}

/* The maxima of columns 2 (lane % 4) and + 1 after one more tile; out_factor brings what was summed
 * before to them. */
template <int DIM>
__device__ __forceinline__ void follow_maxima(const struct staging &staging, uint32_t tile,
                                              float (&largest)[2], float (&out_factor)[2])
{
    const float2 *maxima = (const float2 *)__cvta_shared_to_generic(
        staging.at.operand + attention_scratch<DIM>::MAXIMA_AT +
        (tile * 4 * HEADS_MAX + staging.lane % 4 * 2) * 4);
    float most[2] = {MINUS_INF, MINUS_INF};
#pragma unroll
    for (uint32_t group = 0; group < 4; group++) {
        const float2 of_group = maxima[group * HEADS_MAX / 2];
        most[0] = fmaxf(most[0], of_group.x);
        most[1] = fmaxf(most[1], of_group.y);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const float next = fmaxf(largest[i], __fmul_rn(staging.args.scale, most[i]));
        out_factor[i] = exp2_of(__fsub_rn(largest[i], next));
        largest[i] = next;
    }
}

/* P of 16 keys of tile `tile`. */
template <int DIM>
__device__ __forceinline__ void soften_group(const struct staging &staging, uint32_t group,
                                             float (&v)[4])
{
    const uint32_t p = staging.at.operand + attention_scratch<DIM>::P_AT, lane = staging.lane;
    float largest[2] = {MINUS_INF, MINUS_INF}, factor[2];
#pragma unroll 1
    for (uint32_t tile = 0; tile <= group / 4; tile++)
        follow_maxima<DIM>(staging, tile, largest, factor);
#pragma unroll
    for (int i = 0; i < 4; i++)
        v[i] = exp2_of(__fmaf_rn(v[i], staging.args.scale, -largest[i % 2]));
    store_matrices_transposed(
        p + swizzled<attention_scratch<DIM>::P_ROW>(lane % 8, group * 2 + lane / 8 % 2),
        pack_2(__float2bfloat16_rn(v[0]), __float2bfloat16_rn(v[1])),
        pack_2(__float2bfloat16_rn(v[2]), __float2bfloat16_rn(v[3])));
}

/* What a warp keeps of a segment: 16 dims of the output, or the sums. */
struct segment_state {
    float value[4];
    float largest[2];
};

/* Over all keys of the segment, ascending. */
template <int DIM>
__device__ __forceinline__ void accumulate_segment(const struct staging &staging,
                                                   const struct attention_item &item,
                                                   const struct attention_tiles<DIM> &tiles,
                                                   bool sums, struct segment_state &state)
{
    const uint32_t p = staging.at.operand + attention_scratch<DIM>::P_AT, lane = staging.lane;
    const uint32_t dims = sums ? 0 : staging.warp;
    state = {{0.0f, 0.0f, 0.0f, 0.0f}, {MINUS_INF, MINUS_INF}};
#pragma unroll 1
    for (uint32_t tile = 0; tile < item.tiles; tile++) {
        const uint32_t values = tiles.values(tile);
        float factor[2];
        uint4 a[4], b[4];
#pragma unroll
        for (uint32_t step = 0; step < 4; step++) {
            a[step] = load_matrices_transposed(
                values + swizzled<DIM * 2>(step * 16 + lane / 16 * 8 + lane % 8,
                                           dims * 2 + lane / 8 % 2));
            b[step] = load_matrices(p + swizzled<attention_scratch<DIM>::P_ROW>(
                                            lane % 8, (tile * 4 + step) * 2 + lane / 8 % 2));
            if (sums)
                a[step] = {ONES, ONES, ONES, ONES};
        }
        follow_maxima<DIM>(staging, tile, state.largest, factor);
#pragma unroll
        for (int i = 0; i < 4; i++)
            state.value[i] = __fmul_rn(state.value[i], factor[i % 2]);
#pragma unroll
        for (uint32_t step = 0; step < 4; step++)
            mma_step(state.value, a[step], b[step].x, b[step].y);
    }
}

/* The state of the segment, [column](largest, sum, output[DIM]): to shared memory where this CTA
 * merges the row, else to whoever does. */
template <int DIM>
__device__ __forceinline__ void put_state(const struct staging &staging,
                                          const struct attention_item &item, uint32_t index,
                                          uint32_t column, float value)
{
    const uint32_t at = column * (DIM + 2) + index;
    if (column >= item.group)
        return;
    if (item.last) {
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(staging.at.operand +
                                                     attention_scratch<DIM>::OWN_AT + at * 4),
                     "f"(value)
                     : "memory");
        return;
    }
    const uint32_t kv_heads = staging.args.kv.geometry.kv_heads;
    const uint64_t state =
        (((uint64_t)staging.parity * STREAM_ROWS_MAX + item.row) * kv_heads + item.kv_head) *
            STREAM_SEGMENTS_MAX +
        item.segment;
    tell_4(staging.args.exchange.partials + state * item.group * (DIM + 2) + at,
           __float_as_uint(value));
}

/* Warps share the dims; the sums are the next warp's, or the first one's on top. */
template <int DIM>
__device__ __forceinline__ void put_states(const struct staging &staging,
                                           const struct attention_item &item,
                                           const struct attention_tiles<DIM> &tiles)
{
    constexpr uint32_t DIM_WARPS = DIM / 16;
    const uint32_t lane = staging.lane;
#pragma unroll 1
    for (uint32_t part = staging.warp; part <= DIM_WARPS; part += STREAM_STAGING_WARPS) {
        const bool sums = part == DIM_WARPS;
        struct segment_state state;
        accumulate_segment<DIM>(staging, item, tiles, sums, state);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            const uint32_t column = lane % 4 * 2 + i % 2;
            if (!sums)
                put_state<DIM>(staging, item, 2 + part * 16 + lane / 4 + i / 2 * 8, column,
                               state.value[i]);
            else if (lane < 4)
                put_state<DIM>(staging, item, i / 2, column,
                               i < 2 ? state.largest[i] : state.value[i % 2]);
        }
        __syncwarp();
    }
}

/* A row's segments into its attended row, ascending: a thread owns one dim of one column at a time.
 * Segments of other CTAs arrive in fours; each is made unwritten again. */
template <int DIM, int M>
__device__ __forceinline__ void merge_segments(const struct staging &staging,
                                               const struct attention_item &item)
{
    const struct stream_args &args = staging.args;
    const uint32_t kv_heads = args.kv.geometry.kv_heads, stride = item.group * (DIM + 2);
    float *others = args.exchange.partials +
                    (((uint64_t)staging.parity * STREAM_ROWS_MAX + item.row) * kv_heads +
                     item.kv_head) *
                        STREAM_SEGMENTS_MAX * stride;
    const uint32_t own = staging.at.operand + attention_scratch<DIM>::OWN_AT;
    for (uint32_t i = staging.thread; i < item.group * DIM; i += STREAM_STAGING_THREADS) {
        const uint32_t column = i / DIM * (DIM + 2), dim = i % DIM;
        float largest = MINUS_INF, sum = 0.0f, output = 0.0f;
        auto add = [&](float next, float next_sum, float next_output) {
            const float both = fmaxf(largest, next);
            const float old_factor = exp2_of(__fsub_rn(largest, both));
            const float new_factor = exp2_of(__fsub_rn(next, both));
            sum = merged(sum, old_factor, next_sum, new_factor);
            output = merged(output, old_factor, next_output, new_factor);
            largest = both;
        };
        for (uint32_t first = 0; first < item.segment; first += 4) {
            uint32_t state[4][3];
            bool missing = true;
            while (missing) {
                missing = false;
#pragma unroll
                for (uint32_t j = 0; j < 4; j++)
#pragma unroll
                    for (uint32_t k = 0; k < 3; k++) {
                        const uint32_t segment = first + j < item.segment ? first + j : first;
                        state[j][k] = look_4(others + segment * stride + column +
                                             (k < 2 ? k : 2 + dim));
                    }
#pragma unroll
                for (uint32_t j = 0; j < 4; j++)
#pragma unroll
                    for (uint32_t k = 0; k < 3; k++)
                        missing = missing || state[j][k] == STREAM_UNWRITTEN;
            }
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                if (first + j < item.segment)
                    add(__uint_as_float(state[j][0]), __uint_as_float(state[j][1]),
                        __uint_as_float(state[j][2]));
        }
        add(load_float(own + column * 4), load_float(own + column * 4 + 4),
            load_float(own + (column + 2 + dim) * 4));
        const uint32_t value = __bfloat16_as_ushort(divided(output, sum));
        const uint32_t next = __shfl_down_sync(~0u, value, 1);
        const uint32_t k = (item.kv_head * item.group + i / DIM) * DIM + dim;
        if (dim % 2 == 0)
            tell_4(copy_of(args, staging.parity) + args.exchange.attended +
                       ((uint64_t)(k / 8) * M + item.row) * 16 + k % 8 * 2,
                   value | next << 16);
    }
    staging_meet(); /* all have read */
    for (uint32_t i = staging.thread; i < item.segment * stride; i += STREAM_STAGING_THREADS)
        tell_4(others + i, STREAM_UNWRITTEN);
}

template <int DIM>
__device__ __forceinline__ struct attention_item item_of(const struct stream_args &args,
                                                         const struct stream_items &items,
                                                         uint32_t index)
{
    struct attention_item item;
    item.row = items.item[index].row;
    item.kv_head = items.item[index].kv_head;
    item.segment = items.item[index].segment;
    item.tiles = items.item[index].tiles;
    item.position = args.kv.positions[item.row];
    item.segments = item.position / ATTENTION_SEGMENT_KEYS + 1;
    item.group = args.kv.heads / args.kv.geometry.kv_heads;
    item.last = item.segment + 1 == item.segments;
    return item;
}

/* One item, from its heads on. */
template <int DIM, int M>
__device__ __forceinline__ void attend_item(struct staging &staging,
                                            const struct attention_item &item,
                                            const struct head_share &share)
{
    using tiles_of = struct attention_tiles<DIM>;
    const tiles_of tiles = {staging.at.ring, staging.place.slot, staging.args.slots};
    const uint32_t stages = item.tiles * tiles_of::STAGES;
    const uint32_t groups = item.tiles * 4;
    float s[2][1][4];
    for (uint32_t stage = 0; stage < stages; stage++) {
        struct ring_place at = staging.place;
        at.advance(stage, staging.args.slots);
        barrier_wait(staging.at.full + at.slot * 8, at.lap & 1);
    }
    clear_rest<DIM>(staging, item, tiles);
    staging.hold(staging.args.pace.heads);
    take_heads<DIM, M>(staging, item, share, tiles);
    staging_meet();
    if (staging.warp < groups)
        score_group<DIM>(staging, item, tiles.keys(staging.warp / 4), staging.warp, s[0]);
    const uint32_t second = staging.warp + STREAM_STAGING_WARPS; /* of this warp's groups */
    if (second < groups)
        score_group<DIM>(staging, item, tiles.keys(second / 4), second, s[1]);
    staging_meet();
    if (staging.warp < groups)
        soften_group<DIM>(staging, staging.warp, s[0][0]);
    if (second < groups)
        soften_group<DIM>(staging, second, s[1][0]);
    staging_meet();
    put_states<DIM>(staging, item, tiles);
    fence_async_shared(); /* the own key and value, before the slots are filled anew */
    __syncwarp();
    for (uint32_t stage = 0; stage < stages; stage++)
        if (staging.lane == 0)
            barrier_arrive(staging.at.empty + tiles.slot(stage) * 8, 1);
    __syncwarp();
    staging.place.advance(stages, staging.args.slots);
    staging_meet();
    if (item.last)
        merge_segments<DIM, M>(staging, item);
    staging_meet(); /* the scratch is free again */
}

/* All of this CTA's attention of one layer; `false` if there is none. */
template <int DIM, int M>
__device__ __forceinline__ bool attend(struct staging &staging, const struct stream_items &items,
                                       uint32_t layer)
{
    const struct stream_args &args = staging.args;
    if (items.count == 0) {
        staging.wait_chains(STREAM_HEADS);
        return false;
    }
#pragma unroll 1
    for (uint32_t i = 0; i < items.count; i++) {
        const struct attention_item item = item_of<DIM>(args, items, i);
        const struct head_share share = share_of<DIM>(staging, item, layer);
        if (i == 0)
            staging.wait_chains(STREAM_HEADS);
        attend_item<DIM, M>(staging, item, share);
    }
    fence_device();
    return true;
}

#endif
