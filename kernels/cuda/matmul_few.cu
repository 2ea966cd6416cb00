/* Products of up to 32 rows, bound by the read of the weights.
 *
 * A warp owns a tile of 16 weight rows and runs the whole chain over k on it, one accumulator per
 * output: the weights are the left operand, the activations (8 rows a tile) the right one. Weights
 * are packed so that a lane's part of a step is one vector, and reach shared memory by bulk copies
 * into a ring of the warp, which refills its own slots: no barrier of the CTA in the main loop. The
 * ring is filled before the kernel waits for its inputs, so the weight stream goes on across the
 * border between kernels. Where one chain per multiprocessor is all there is (output, down) the
 * time is that of its steps, so everything else stands between two steps: fragments are loaded
 * PAIRS - 1 pairs of steps ahead.
 *
 * Grid: CTAs of up to 256 threads, one per multiprocessor; warp w < chains of CTA c takes the tiles
 * w * grid + c, then every chains * grid further. The other warps only normalise.
 * Shared memory: [operand of all k, where the chains share it][rings][barriers], about 130 KB at
 * most for 8 rows, so that the next kernel fits beside it.
 * Bytes moved: the product's weights once; limit 4.55 TB/s (read-only, measured on an H200). */
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.h"

namespace
{

enum {
    WARP = 32,
    THREADS = NORM_THREADS,
    PAIR_WEIGHTS = 2 * WARP * 16, /* bytes of two steps */
    ROW_OPERAND = 64,             /* of a row, for two steps */
    COPY_BYTES = 16384,
    RING_BYTES_MAX = 96 * 1024,
    SHARED_OPERAND_MAX = 128 * 1024,
    LONE_OPERAND_MAX = 64 * 1024, /* where one chain would use it */
    SLOTS_MAX = 16,
    NORM_ROWS = 8, /* that a product normalises itself */
};

/* How a product is spread over the device. */
struct few_plan {
    uint32_t grid, threads, chains, shared_bytes;
    uint32_t slots; /* of a ring */
    uint32_t pairs; /* of steps in a slot, all of them in registers at a time */
    bool shared_operand;
};

struct few_call {
    struct few_args args;
    uint32_t chains;
    uint32_t slots;
};

/* A place in the stream of slots that a warp works through. */
struct cursor {
    uint32_t slot, parity, chunk, tile;
};

/* A warp's view of its ring and of the tiles that it owns. */
template <int TILES, bool SHARED> struct chain {
    const struct few_call &call;
    uint32_t ring, barriers; /* shared addresses */
    uint32_t tile_stride, chunks, lane;
    uint32_t slot_bytes, weight_bytes, operand_bytes; /* of a slot */
    uint64_t policy;

    __device__ void advance(struct cursor &at) const
    {
        if (++at.slot == call.slots) {
            at.slot = 0;
            at.parity ^= 1;
        }
        if (++at.chunk == chunks) {
            at.chunk = 0;
            at.tile += tile_stride;
        }
    }
    __device__ bool has(const struct cursor &at) const
    {
        return at.tile < call.args.product.tiles;
    }
    __device__ void issue_weights(const struct cursor &at) const
    {
        const uint32_t barrier = barriers + at.slot * 8;
        const uint8_t *from = (const uint8_t *)call.args.product.packed +
                              (uint64_t)(at.tile * chunks + at.chunk) * weight_bytes;
        barrier_expect(barrier, weight_bytes + operand_bytes);
        bulk_copy_once(ring + at.slot * slot_bytes, from, weight_bytes, barrier, policy);
    }
    __device__ void issue_operand(const struct cursor &at) const
    {
        if (!SHARED)
            bulk_copy(ring + at.slot * slot_bytes + weight_bytes,
                      (const uint8_t *)call.args.operand + at.chunk * operand_bytes, operand_bytes,
                      barriers + at.slot * 8);
    }
};

/* What a lane needs for two steps. */
template <int TILES> struct fragments {
    uint4 weights[2];
    uint4 operand[TILES];
};

__device__ __forceinline__ uint4 load_shared(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address));
    return v;
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

/* Addresses of this lane's part of the next pair. Lanes of rows that the operand does not have read
 * its last row; what comes of it is not used. */
struct feed {
    uint32_t weights, operand;
};

template <int TILES>
__device__ __forceinline__ void load_pair(struct feed feed, int pair, uint32_t pair_operand,
                                          struct fragments<TILES> &f)
{
    f.weights[0] = load_shared(feed.weights + pair * PAIR_WEIGHTS);
    f.weights[1] = load_shared(feed.weights + pair * PAIR_WEIGHTS + PAIR_WEIGHTS / 2);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        f.operand[tile] = load_shared(feed.operand + pair * pair_operand + tile * 8 * ROW_OPERAND);
}

template <int TILES>
__device__ __forceinline__ void compute_pair(const struct fragments<TILES> &f, float (&c)[TILES][4])
{
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        mma_step(c[tile], f.weights[0], f.operand[tile].x, f.operand[tile].y);
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        mma_step(c[tile], f.weights[1], f.operand[tile].z, f.operand[tile].w);
}

/* What an epilogue needs from memory, fetched before the chain runs. */
template <int TILES> struct ahead {
    __nv_bfloat16 residual[TILES][4];
    struct row_place place[TILES][2];
};

template <int TILES>
__device__ __forceinline__ void fetch_ahead(const struct few_args &args, uint32_t tile,
                                            uint32_t rows, uint32_t lane,
                                            struct ahead<TILES> &ahead)
{
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = t * 8 + lane % 4 * 2 + i;
            if (row >= rows)
                continue;
            if (args.output == FEW_TO_RESIDUAL) {
                const uint64_t base = (uint64_t)row * args.product.rows + tile * 16 + lane / 4;
                ahead.residual[t][i] = args.residual_out[base];
                ahead.residual[t][2 + i] = args.residual_out[base + 8];
            } else if (args.output == FEW_TO_HEADS) {
                ahead.place[t][i] = place_of(args.kv, row);
            }
        }
}

/* One output pair: rows `low` and `high` of the tile at one row of activations. */
struct output_pair {
    uint32_t row;           /* of the activations */
    uint32_t first, second; /* natural rows of the product */
    float low, high;
};

__device__ __forceinline__ void put_pair(const struct few_args &args,
                                         const struct output_pair &pair,
                                         const struct row_place &place,
                                         const __nv_bfloat16 (&residual)[2])
{
    const struct product &product = args.product;
    const uint32_t row = pair.row, first = pair.first, second = pair.second;
    const float low = pair.low, high = pair.high;
    const uint64_t base = (uint64_t)row * product.rows;
    switch (args.output) {
    case FEW_TO_HEADS:
        place_pair(args.kv, place, row, first, low, high);
        break;
    case FEW_TO_RESIDUAL:
        args.residual_out[base + first] = residual_of(residual[0], low);
        args.residual_out[base + second] = residual_of(residual[1], high);
        break;
    case FEW_TO_GATED:
        args.gated[operand_index(row, first, args.operand_rows)] =
            silu_mul_of(round_bf16(low), round_bf16(high));
        break;
    case FEW_TO_LOGITS:
        if (first < product.rows)
            args.logits[base + first] = low;
        if (second < product.rows)
            args.logits[base + second] = high;
        break;
    default:
        if (first < product.rows)
            args.rows_out[base + first] = __float2bfloat16_rn(low);
        if (second < product.rows)
            args.rows_out[base + second] = __float2bfloat16_rn(high);
        break;
    }
}

template <int TILES>
__device__ void put_tile(const struct few_args &args, const struct ahead<TILES> &ahead,
                         uint32_t tile, uint32_t rows, uint32_t lane, float (&c)[TILES][4])
{
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const struct output_pair pair = {
                t * 8 + lane % 4 * 2 + i, product_row(&args.product, tile, lane / 4),
                product_row(&args.product, tile, lane / 4 + 8), c[t][i], c[t][2 + i]};
            const __nv_bfloat16 residual[2] = {ahead.residual[t][i], ahead.residual[t][2 + i]};
            if (pair.row < rows)
                put_pair(args, pair, ahead.place[t][i], residual);
            c[t][i] = c[t][2 + i] = 0.0f;
        }
}

/* ---- The operand that the chains of a CTA share ---- */

__device__ __forceinline__ void put_operand(uint32_t operand, uint32_t row, uint32_t rows,
                                            uint32_t vector, const uint4 &value)
{
    const uint32_t words[4] = {value.x, value.y, value.z, value.w};
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        store_shared(operand + operand_index(row, vector * 8 + 2 * i, rows) * 2, words[i]);
}

/* The rows of the residual stream, at most NORM_ROWS, normalised by all threads. A
 * thread keeps its first vector of each row; wider rows are read twice. */
__device__ void normalise(const struct few_args &args, uint32_t operand,
                          const struct norm_weights &weights)
{
    __shared__ float warp_sums[NORM_ROWS][NORM_WARPS];
    const uint32_t thread = threadIdx.x, columns = args.product.columns, vectors = columns / 8;
    uint4 first[NORM_ROWS] = {};
    float sums[NORM_ROWS] = {};
    auto source = [&](uint32_t row) {
        const uint32_t from = args.rows_taken != NULL ? args.rows_taken[row] : row;
        return (const uint4 *)(args.residual + (uint64_t)from * columns);
    };
#pragma unroll
    for (uint32_t row = 0; row < NORM_ROWS; row++)
        if (row < args.operand_rows && thread < vectors)
            first[row] = __ldcg(source(row) + thread);
#pragma unroll
    for (uint32_t row = 0; row < NORM_ROWS; row++) {
        if (row >= args.operand_rows)
            break;
        if (thread < vectors)
            sums[row] = add_squares(0.0f, first[row]);
        for (uint32_t v = thread + THREADS; v < vectors; v += THREADS)
            sums[row] = add_squares(sums[row], __ldcg(source(row) + v));
        sums[row] = add_lanes(sums[row]);
        if (thread % WARP == 0)
            warp_sums[row][thread / WARP] = sums[row];
    }
    __syncthreads();
    let_next_start(); /* its weights must not stand in the way of the rows */
#pragma unroll
    for (uint32_t row = 0; row < NORM_ROWS; row++) {
        if (row >= args.operand_rows)
            break;
        const float scale = norm_scale(warp_sums[row], columns, args.norm_epsilon);
        if (thread < vectors)
            put_operand(operand, row, args.operand_rows, thread,
                        normalised(first[row], scale, weights));
        for (uint32_t v = thread + THREADS; v < vectors; v += THREADS)
            put_operand(
                operand, row, args.operand_rows, v,
                normalised(__ldcg(source(row) + v), scale, load_weights(args.norm_weight, v)));
    }
    __syncthreads();
}

/* The operand as it was prepared, for all chains. */
__device__ void copy_operand(const struct few_args &args, uint32_t operand, uint32_t barrier)
{
    if (threadIdx.x == 0) {
        const uint32_t bytes = args.product.columns / 32 * args.operand_rows * ROW_OPERAND;
        barrier_expect(barrier, bytes);
        for (uint32_t done = 0; done < bytes; done += COPY_BYTES)
            bulk_copy(operand + done, (const uint8_t *)args.operand + done,
                      bytes - done < COPY_BYTES ? bytes - done : (uint32_t)COPY_BYTES, barrier);
    }
    barrier_wait(barrier, 0);
    let_next_start();
}

/* ---- The chain ---- */

/* Works through all slots from `at` on; `refill` is the first that is not in the ring yet. */
template <int TILES, bool SHARED, int PAIRS>
__device__ __forceinline__ void run_chain(const struct chain<TILES, SHARED> &chain,
                                          struct cursor at, struct cursor refill, uint32_t operand,
                                          uint32_t rows, struct ahead<TILES> &ahead)
{
    struct fragments<TILES> f[PAIRS];
    float c[TILES][4] = {};
    const uint32_t pair_operand = chain.call.args.operand_rows * ROW_OPERAND;
    const uint32_t row = chain.lane / 4 < chain.call.args.operand_rows
                             ? chain.lane / 4
                             : chain.call.args.operand_rows - 1;
    const uint32_t lane_operand = row * ROW_OPERAND + chain.lane % 4 * 16;
    auto feed_of = [&](const struct cursor &place) {
        const uint32_t slot = chain.ring + place.slot * chain.slot_bytes;
        return feed{slot + chain.lane * 16,
                    lane_operand + (SHARED ? operand + place.chunk * PAIRS * pair_operand
                                           : slot + chain.weight_bytes)};
    };
    struct feed feed = feed_of(at), next_feed = feed;
    bool more = true;
    barrier_wait(chain.barriers + at.slot * 8, at.parity);
    if (!SHARED)
        let_next_start();
#pragma unroll
    for (int pair = 0; pair < PAIRS - 1; pair++)
        load_pair<TILES>(feed, pair, pair_operand, f[pair]);
    while (more) {
        struct cursor following = at;
        compute_pair<TILES>(f[0], c);
        load_pair<TILES>(feed, PAIRS - 1, pair_operand, f[PAIRS - 1]);
        chain.advance(following);
        more = chain.has(following);
        if (more) {
            next_feed = feed_of(following);
            barrier_wait(chain.barriers + following.slot * 8, following.parity);
        }
#pragma unroll
        for (int pair = 1; pair < PAIRS; pair++) {
            compute_pair<TILES>(f[pair], c);
            load_pair<TILES>(next_feed, pair - 1, pair_operand, f[pair - 1]);
        }
        feed = next_feed;
        __syncwarp(); /* all lanes have read the slot */
        if (chain.has(refill)) {
            if (chain.lane == 0) {
                chain.issue_weights(refill);
                chain.issue_operand(refill);
            }
            __syncwarp();
            chain.advance(refill);
        }
        if (at.chunk + 1 == chain.chunks) {
            put_tile<TILES>(chain.call.args, ahead, at.tile, rows, chain.lane, c);
            if (more)
                fetch_ahead<TILES>(chain.call.args, following.tile, rows, chain.lane, ahead);
        }
        at = following;
    }
}

/* Fills the ring with weights; `refill` moves on to the first that has no place yet. */
template <int TILES, bool SHARED>
__device__ __forceinline__ void start_ring(const struct chain<TILES, SHARED> &chain,
                                           struct cursor &refill)
{
    if (chain.lane == 0) {
        for (uint32_t slot = 0; slot < chain.call.slots; slot++)
            barrier_init(chain.barriers + slot * 8);
        barrier_inits_visible();
    }
    for (uint32_t slot = 0; slot < chain.call.slots; slot++, chain.advance(refill))
        if (chain.lane == 0 && chain.has(refill))
            chain.issue_weights(refill);
    __syncwarp();
}

/* The operand beside the weights that are in the ring. */
template <int TILES, bool SHARED>
__device__ __forceinline__ void start_operand(const struct chain<TILES, SHARED> &chain,
                                              struct cursor at)
{
    for (uint32_t slot = 0; slot < chain.call.slots && chain.has(at); slot++, chain.advance(at))
        if (chain.lane == 0)
            chain.issue_operand(at);
    __syncwarp();
}

template <int TILES, bool SHARED, int PAIRS>
__global__ void __launch_bounds__(THREADS, 1)
    few_rows_kernel(const __grid_constant__ struct few_call call)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const struct few_args &args = call.args;
    const struct product &product = args.product;
    /* by a shuffle, so that the compiler knows that it is one for all lanes */
    const uint32_t warp = __shfl_sync(~0u, threadIdx.x / WARP, 0), lane = threadIdx.x % WARP;
    const uint32_t base = shared_address(shared);
    const uint32_t pairs = product.columns / 32;
    const uint32_t operand_bytes = SHARED ? pairs * args.operand_rows * ROW_OPERAND : 0;
    const uint32_t weight_slot = PAIRS * PAIR_WEIGHTS;
    const uint32_t operand_slot = SHARED ? 0 : PAIRS * args.operand_rows * ROW_OPERAND;
    const uint32_t ring_bytes = call.slots * (weight_slot + operand_slot);
    const uint32_t barriers = base + operand_bytes + call.chains * ring_bytes;
    const struct chain<TILES, SHARED> chain = {
        call, base + operand_bytes + warp *ring_bytes, barriers + 8 + warp *call.slots * 8,
            call.chains *gridDim.x, pairs / PAIRS, lane, weight_slot + operand_slot, weight_slot,
            operand_slot, policy_evict_first()
    };
    const struct cursor first = {0, 0, 0, warp * gridDim.x + blockIdx.x};
    const bool works = warp < call.chains && chain.has(first);
    struct cursor refill = first;
    if (threadIdx.x == 0)
        barrier_init(barriers);
    if (works)
        start_ring(chain, refill);
    const bool norm = SHARED && TILES == 1 && args.operand == NULL;
    struct norm_weights weights = {};
    if (norm && threadIdx.x < product.columns / 8)
        weights = load_weights(args.norm_weight, threadIdx.x);
    uint32_t rows = 0;
    struct ahead<TILES> ahead = {
    };
    if (args.settled) {
        rows = *args.count;
        if (works)
            fetch_ahead<TILES>(args, first.tile, rows, lane, ahead);
    }
    __syncthreads();
    wait_for_inputs();
    if (args.progress != NULL && blockIdx.x == 0 && threadIdx.x == 0)
        *args.progress = args.progress_value;
    if (works && !SHARED)
        start_operand(chain, first);
    if (!args.settled) {
        rows = *args.count;
        if (works)
            fetch_ahead<TILES>(args, first.tile, rows, lane, ahead);
    }
    if (norm)
        normalise(args, base, weights);
    else if (SHARED)
        copy_operand(args, base, barriers);
    if (works)
        run_chain<TILES, SHARED, PAIRS>(chain, first, refill, base, rows, ahead);
    else
        let_next_start();
}

/* ---- Host ---- */

using kernel_of_few = void (*)(struct few_call);

/* [log2 tiles][shared operand][log2 pairs - 1] */
const kernel_of_few KERNELS[3][2][3] = {
    {{few_rows_kernel<1, false, 2>, few_rows_kernel<1, false, 4>, few_rows_kernel<1, false, 8>},
     {few_rows_kernel<1, true, 2>, few_rows_kernel<1, true, 4>, few_rows_kernel<1, true, 8>}},
    {{few_rows_kernel<2, false, 2>, few_rows_kernel<2, false, 4>, NULL},
     {few_rows_kernel<2, true, 2>, few_rows_kernel<2, true, 4>, NULL}},
    {{few_rows_kernel<4, false, 2>, few_rows_kernel<4, false, 4>, NULL},
     {few_rows_kernel<4, true, 2>, few_rows_kernel<4, true, 4>, NULL}},
};

/* Many pairs where a chain is alone on its multiprocessor: less is to be done between steps. */
uint32_t pairs_of(const struct few_args &args, uint32_t chains)
{
    const uint32_t pairs = args.product.columns / 32;
    if (pairs % 8 == 0 && args.row_tiles == 1 && chains <= 2)
        return 8;
    return pairs % 4 == 0 ? 4 : 2;
}

struct few_plan plan_of(const struct few_args &args, uint32_t multiprocessors)
{
    const struct product &product = args.product;
    const uint32_t pairs = product.columns / 32;
    struct few_plan plan = {};
    plan.chains = (product.tiles + multiprocessors - 1) / multiprocessors;
    plan.chains = plan.chains < THREADS / WARP ? plan.chains : THREADS / WARP;
    plan.grid = product.tiles < multiprocessors ? product.tiles : multiprocessors;
    const uint32_t operand_bytes = pairs * args.operand_rows * ROW_OPERAND;
    plan.shared_operand =
        args.operand == NULL ||
        operand_bytes <= (plan.chains > 1 ? SHARED_OPERAND_MAX : LONE_OPERAND_MAX);
    plan.threads = args.operand == NULL ? (uint32_t)THREADS : plan.chains * WARP;
    plan.pairs = pairs_of(args, plan.chains);
    const uint32_t slot_bytes =
        plan.pairs * (PAIR_WEIGHTS + (plan.shared_operand ? 0 : args.operand_rows * ROW_OPERAND));
    plan.slots = RING_BYTES_MAX / (plan.chains * slot_bytes);
    plan.slots = plan.slots < SLOTS_MAX ? plan.slots : (uint32_t)SLOTS_MAX;
    plan.slots = plan.slots > 2 ? plan.slots : 2; /* one is read while the next arrives */
    plan.shared_bytes =
        (plan.shared_operand ? operand_bytes : 0) + plan.chains * plan.slots * (slot_bytes + 8) + 8;
    return plan;
}

} // namespace

cudaError_t few_prepare()
{
    for (const auto &of_tiles : KERNELS)
        for (const auto &of_place : of_tiles)
            for (kernel_of_few kernel : of_place) {
                const cudaError_t error =
                    kernel == NULL
                        ? cudaSuccess
                        : cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                               226 * 1024);
                if (error != cudaSuccess)
                    return error;
            }
    return cudaSuccess;
}

cudaError_t few_launch(const struct few_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    const struct few_plan plan = plan_of(*args, multiprocessors);
    const struct few_call call = {*args, plan.chains, plan.slots};
    const kernel_of_few kernel = KERNELS[args->row_tiles / 2][plan.shared_operand][plan.pairs / 4];
    return launch_overlapped(kernel, dim3(plan.grid), plan.threads, plan.shared_bytes, stream,
                             call);
}
