/* The producer of the persistent step: a warp that copies weights, and keys and values, into the
 * ring, as far ahead as there is room. It knows no dependency but the room: what it copies was
 * written before the step. Few copies are in flight at a time, since queued ones make every other
 * request of the multiprocessor wait. */
#ifndef TANDEM_KERNELS_CUDA_STREAM_PRODUCER_CUH
#define TANDEM_KERNELS_CUDA_STREAM_PRODUCER_CUH

#include "kernels/cuda/stream.cuh"

struct producer {
    const struct stream_args &args;
    struct stream_shared at;
    uint64_t policy;
    uint32_t lane;
    uint32_t issued;
    struct ring_place place;

    /* Waits for the room and for its turn; the barrier of the slot expects `bytes`. */
    __device__ __forceinline__ void open(uint32_t bytes)
    {
        const struct stream_pace &pace = args.pace;
        const uint32_t slots = args.slots;
        if (place.lap > 0)
            barrier_wait(at.empty + place.slot * 8, (place.lap - 1) & 1);
        struct ring_place further = place;
        further.advance(pace.free_slots, slots);
        const bool filled = further.lap > 0 &&
                            !barrier_passed(at.empty + further.slot * 8, (further.lap - 1) & 1);
        const uint32_t most = filled ? pace.copies_filled : pace.copies;
        if (issued >= most) {
            const bool before = place.slot < most;
            barrier_wait(at.full + (place.slot + (before ? slots : 0) - most) * 8,
                               (place.lap - (before ? 1 : 0)) & 1);
        }
        if (lane == 0)
            barrier_expect(at.full + place.slot * 8, bytes);
        __syncwarp();
    }
    __device__ __forceinline__ void close()
    {
        issued++;
        place.advance(1, args.slots);
    }
    __device__ __forceinline__ void product(uint32_t kind, uint32_t layer)
    {
        const struct stream_product &product = args.shape.product[kind];
        const uint8_t *from = args.weights + stream_offset(&args.shape, blockIdx.x, layer, kind);
        const uint32_t groups = groups_of(args, kind), steps = product.columns / 16;
        for (uint32_t round = 0; round * STREAM_ROUND_GROUPS < groups; round++) {
            const uint32_t together = stream_round(groups, round);
            const uint32_t most = stream_stage_steps(together, product.columns);
            const uint32_t bytes = most * together * STREAM_STEP_BYTES;
            for (uint32_t step = 0; step < steps; step += most) {
                open(bytes);
                if (lane == 0)
                    bulk_copy_once(at.ring + place.slot * STREAM_STAGE_BYTES, from, bytes,
                                   at.full + place.slot * 8, policy);
                __syncwarp();
                from += bytes;
                close();
            }
        }
    }
};

/* A run of keys that lie together: a block, or the part of one that a tile needs. Lane i copies run i
 * of a segment. */
struct key_run {
    const uint8_t *keys;
    uint32_t keys_in_run, tile;
    bool there;
};

template <int DIM>
__device__ __forceinline__ struct key_run run_of(const struct producer &producer, uint32_t layer,
                                                 const struct stream_items &items, uint32_t index)
{
    const struct kv_target &kv = producer.args.kv;
    const struct kv_geometry &g = kv.geometry;
    struct key_run run = {};
    if (index >= items.count)
        return run;
    const uint32_t row = items.item[index].row;
    run.keys_in_run = g.block_tokens < ATTENTION_TILE_KEYS ? g.block_tokens
                                                           : (uint32_t)ATTENTION_TILE_KEYS;
    const uint32_t offset = producer.lane * run.keys_in_run;
    const uint32_t first = items.item[index].segment * ATTENTION_SEGMENT_KEYS + offset;
    run.there = offset < ATTENTION_SEGMENT_KEYS && first <= kv.positions[row];
    run.tile = offset / ATTENTION_TILE_KEYS;
    if (!run.there)
        return run;
    const uint64_t entry = kv_table_index(&g, kv.logical_blocks, kv.slots[row], layer,
                                          kv_logical_block(&g, first));
    run.keys = kv.pool +
               kv_k_head_offset(&g, (uint32_t)kv.table[entry], items.item[index].kv_head) +
               kv_token_in_block(&g, first) * DIM * 2;
    return run;
}

/* One tile of keys, then of values. Both lie in one slot where they fit. */
template <int DIM>
__device__ __forceinline__ void copy_tile(struct producer &producer, const struct key_run &run,
                                          uint32_t tile)
{
    constexpr uint32_t ROW = DIM * 2, TILE_BYTES = ATTENTION_TILE_KEYS * ROW;
    constexpr bool TOGETHER = 2 * TILE_BYTES <= STREAM_STAGE_BYTES;
    const bool mine = run.there && run.tile == tile;
    const uint32_t bytes = run.keys_in_run * ROW, values = kv_v_offset(&producer.args.kv.geometry);
    const uint32_t runs = (uint32_t)__popc(__ballot_sync(~0u, mine));
    const uint32_t all = __reduce_max_sync(~0u, mine ? bytes : 0) * runs;
    const uint32_t inside = producer.lane * bytes % TILE_BYTES;
    for (uint32_t half = 0; half < (TOGETHER ? 1 : 2); half++) {
        producer.open(all * (TOGETHER ? 2 : 1));
        const uint32_t barrier = producer.at.full + producer.place.slot * 8;
        const uint32_t to = producer.at.ring + producer.place.slot * STREAM_STAGE_BYTES + inside;
        if (mine && (TOGETHER || half == 0))
            bulk_copy(to, run.keys, bytes, barrier);
        if (mine && (TOGETHER || half == 1))
            bulk_copy(to + (TOGETHER ? TILE_BYTES : 0), run.keys + values, bytes, barrier);
        __syncwarp();
        producer.close();
    }
}

/* Deals (segment, row, kv head) out, segments of all rows first: whoever merges a row's segments
 * comes last, so it never waits for work that stands behind its own. The last CTAs come first: they
 * own fewer weights. */
__device__ __forceinline__ void list_items(const struct stream_args &args,
                                           struct stream_items &items, uint32_t stages_of_tile)
{
    const uint32_t rows = args.counts->rows, kv_heads = args.kv.geometry.kv_heads;
    uint32_t next = args.shape.ctas - 1 - blockIdx.x, base = 0;
    items.count = items.stages = 0;
    bool more = true;
    for (uint32_t segment = 0; more; segment++) {
        more = false;
        for (uint32_t row = 0; row < rows; row++) {
            const uint32_t keys = args.kv.positions[row] + 1;
            if (keys <= segment * ATTENTION_SEGMENT_KEYS)
                continue;
            more = true;
            const uint32_t left = keys - segment * ATTENTION_SEGMENT_KEYS;
            const uint32_t most = ATTENTION_SEGMENT_KEYS / ATTENTION_TILE_KEYS;
            const uint32_t tiles = (left + ATTENTION_TILE_KEYS - 1) / ATTENTION_TILE_KEYS;
            for (; next < base + kv_heads && items.count < STREAM_ITEMS_MAX;
                 next += args.shape.ctas, items.count++) {
                items.item[items.count] = {(uint8_t)row, (uint8_t)(next - base), (uint8_t)segment,
                                           (uint8_t)(tiles < most ? tiles : most)};
                items.stages += (tiles < most ? tiles : most) * stages_of_tile;
            }
            base += kv_heads;
        }
    }
}

template <int DIM>
__device__ __forceinline__ void produce(const struct stream_args &args,
                                        const struct stream_shared &at, struct stream_items &items)
{
    struct producer producer = {args, at, policy_evict_first(), threadIdx.x % STREAM_WARP, 0,
                                {0, 0}};
    const uint32_t products = args.shape.layers * STREAM_LOGITS;
    struct key_run first = {};
#pragma unroll 1
    for (uint32_t i = 0; i <= products; i++) {
        const uint32_t layer = i / STREAM_LOGITS;
        const uint32_t kind = i < products ? i % STREAM_LOGITS : (uint32_t)STREAM_LOGITS;
        if (i > 0 && kind == STREAM_HEADS) /* ahead of its use */
            first = run_of<DIM>(producer, layer, items, 0);
        producer.product(kind, layer);
        if (i == 0) { /* the weights do not depend on the step, positions do */
            wait_for_inputs();
            if (producer.lane == 0) {
                list_items(args, items, 4 * ATTENTION_TILE_KEYS * DIM / STREAM_STAGE_BYTES);
                barrier_arrive(at.listed, 1);
            }
            __syncwarp();
            first = run_of<DIM>(producer, layer, items, 0);
        }
        for (uint32_t j = 0; kind == STREAM_HEADS && j < items.count; j++) {
            const struct key_run run = j == 0 ? first : run_of<DIM>(producer, layer, items, j);
            for (uint32_t tile = 0; tile < items.item[j].tiles; tile++)
                copy_tile<DIM>(producer, run, tile);
        }
    }
}

#endif
