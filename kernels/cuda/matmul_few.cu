/* Products of up to 32 rows, bound by the read of the weights.
 *
 * A warp owns a tile of 16 weight rows and runs the whole chain over k on it, one accumulator per
 * output: the weights are the left operand, the activations (8 rows a tile) the right one. Weights
 * are packed so that a lane's part of a step is one vector, and reach shared memory by bulk copies
 * into a ring of the warp, which refills its own slots: no barrier of the CTA in the main loop. The
 * ring is filled before the kernel waits for its inputs, so the weight stream goes on across the
 * border between kernels.
 *
 * Grid: CTAs of 256 threads, one per multiprocessor; warp w < chains of CTA c takes the tiles
 * w * grid + c, then every chains * grid further. The other warps only normalise.
 * Shared memory: [operand of all k, where the chains share it][rings][barriers], about 130 KB at
 * most for 8 rows, so that the next kernel fits beside it.
 * Bytes moved: the product's weights once; limit 4.55 TB/s (read-only, measured on an H200). */
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/heads.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.h"

namespace
{

enum {
    WARP = 32,
    THREADS = 256,
    CHUNK_STEPS = 8, /* of one slot of a ring */
    STEP_BYTES = WARP * 16,
    CHUNK_BYTES = CHUNK_STEPS * STEP_BYTES,
    PAIR_BYTES = WARP * 16, /* of the operand: two steps of one tile of rows */
    RING_BYTES_MAX = 96 * 1024,
    SHARED_OPERAND_MAX = 128 * 1024,
    SLOTS_MAX = 16,
    HELD_VECTORS = 8, /* of a row, per lane, in registers while it is normalised */
};

struct few_call {
    struct few_args args;
    uint32_t chains;
    uint32_t slots;
};

/* A warp's view of its ring and of the tiles that it owns. */
template <int TILES, bool SHARED> struct chain {
    const struct few_call &call;
    uint32_t ring, barriers; /* shared addresses */
    uint32_t first_tile, tile_stride, chunks, total, lane;
    uint64_t policy;

    static constexpr uint32_t SLOT_BYTES =
        CHUNK_BYTES + (SHARED ? 0 : CHUNK_STEPS / 2 * TILES * PAIR_BYTES);

    __device__ uint32_t steps_of(uint32_t chunk) const
    {
        uint32_t left = call.args.product.columns / 16 - chunk * CHUNK_STEPS;
        return left < CHUNK_STEPS ? left : CHUNK_STEPS;
    }
    __device__ uint32_t tile_of(uint32_t index) const
    {
        return first_tile + index / chunks * tile_stride;
    }
    __device__ uint32_t slot_address(uint32_t index) const
    {
        return ring + index % call.slots * SLOT_BYTES;
    }
    __device__ uint32_t barrier_address(uint32_t index) const
    {
        return barriers + index % call.slots * 8;
    }
    __device__ void issue_weights(uint32_t index) const
    {
        const uint32_t chunk = index % chunks, steps = steps_of(chunk);
        const uint32_t bytes = steps * STEP_BYTES;
        const uint32_t operand_bytes = SHARED ? 0 : steps / 2 * TILES * PAIR_BYTES;
        const uint64_t step =
            (uint64_t)tile_of(index) * (call.args.product.columns / 16) + chunk * CHUNK_STEPS;
        barrier_expect(barrier_address(index), bytes + operand_bytes);
        bulk_copy_once(slot_address(index), call.args.product.packed + step * WARP, bytes,
                       barrier_address(index), policy);
    }
    __device__ void issue_operand(uint32_t index) const
    {
        if (SHARED)
            return;
        const uint32_t chunk = index % chunks;
        const uint8_t *from = (const uint8_t *)call.args.operand +
                              (uint64_t)chunk * (CHUNK_STEPS / 2) * TILES * PAIR_BYTES;
        bulk_copy(slot_address(index) + CHUNK_BYTES, from,
                  steps_of(chunk) / 2 * TILES * PAIR_BYTES, barrier_address(index));
    }
    __device__ void wait(uint32_t index) const
    {
        barrier_wait(barrier_address(index), index / call.slots & 1);
    }
};

/* A lane's part of a chunk: in registers before the chunk before it is computed. */
template <int TILES> struct fragments {
    uint4 weights[CHUNK_STEPS];
    uint4 operand[TILES == 1 ? CHUNK_STEPS / 2 : 1];
};

__device__ __forceinline__ uint4 load_shared(uint32_t address)
{
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(address)
                 : "memory");
    return v;
}

__device__ __forceinline__ void store_shared(uint32_t address, uint32_t value)
{
    asm volatile("st.shared.u32 [%0], %1;" ::"r"(address), "r"(value) : "memory");
}

template <int TILES>
__device__ __forceinline__ void load_fragments(uint32_t slot, uint32_t operand, uint32_t lane,
                                               struct fragments<TILES> &f)
{
#pragma unroll
    for (int step = 0; step < CHUNK_STEPS; step++)
        f.weights[step] = load_shared(slot + step * STEP_BYTES + lane * 16);
    if (TILES == 1) {
#pragma unroll
        for (int pair = 0; pair < CHUNK_STEPS / 2; pair++)
            f.operand[pair] = load_shared(operand + pair * PAIR_BYTES + lane * 16);
    }
}

template <int TILES>
__device__ __forceinline__ void compute(const struct fragments<TILES> &f, uint32_t operand,
                                        uint32_t lane, uint32_t steps, float (&c)[TILES][4])
{
#pragma unroll
    for (int pair = 0; pair < CHUNK_STEPS / 2; pair++) {
        if (2 * pair >= steps)
            break;
#pragma unroll
        for (int tile = 0; tile < TILES; tile++) {
            const uint4 b = TILES == 1
                                ? f.operand[pair % (TILES == 1 ? CHUNK_STEPS / 2 : 1)]
                                : load_shared(operand + (pair * TILES + tile) * PAIR_BYTES +
                                              lane * 16);
            mma_step(c[tile], f.weights[2 * pair], b.x, b.y);
            mma_step(c[tile], f.weights[2 * pair + 1], b.z, b.w);
        }
    }
}

/* One output pair: rows `low` and `high` of the tile at one row of activations. */
__device__ __forceinline__ void put_pair(const struct few_args &args, uint32_t tile, uint32_t group,
                                         uint32_t row, float low, float high)
{
    const struct product &product = args.product;
    const uint32_t first = product_row(&product, tile, group);
    const uint32_t second = product_row(&product, tile, group + 8);
    const uint64_t base = (uint64_t)row * product.rows;
    switch (args.output) {
    case FEW_TO_HEADS:
        place_pair(args.kv, row, first / product.head_dim, first % product.head_dim, low, high);
        break;
    case FEW_TO_RESIDUAL:
        args.residual_out[base + first] = residual_of(args.residual_out[base + first], low);
        args.residual_out[base + second] = residual_of(args.residual_out[base + second], high);
        break;
    case FEW_TO_GATED:
        args.gated[operand_index(row, first, args.row_tiles)] =
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
__device__ void put_tile(const struct few_args &args, uint32_t tile, uint32_t rows, uint32_t lane,
                         const float (&c)[TILES][4])
{
#pragma unroll
    for (int t = 0; t < TILES; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t row = t * 8 + lane % 4 * 2 + i;
            if (row < rows)
                put_pair(args, tile, lane / 4, row, c[t][i], c[t][2 + i]);
        }
}

/* Row `row` of the residual stream, normalised, into the shared operand; zeros past the last. */
template <int TILES>
__device__ void normalise(const struct few_args &args, uint32_t row, uint32_t rows, uint32_t lane,
                          uint32_t operand)
{
    const uint32_t columns = args.product.columns;
    if (row >= rows) {
        for (uint32_t k = lane * 2; k < columns; k += 2 * WARP)
            store_shared(operand + operand_index(row, k, TILES) * 2, 0);
        return;
    }
    const uint32_t from = args.rows_taken != NULL ? args.rows_taken[row] : row;
    const __nv_bfloat16 *source = args.residual + (uint64_t)from * columns;
    const float scale = norm_scale(source, columns, args.norm_epsilon, lane);
    for (uint32_t vector = lane; vector < columns / 8; vector += WARP) {
        float values[8];
        unpack_8(__ldcg((const uint4 *)source + vector), values);
        const float4 *weights = (const float4 *)args.norm_weight + vector * 2;
        const float4 w0 = __ldg(weights), w1 = __ldg(weights + 1);
        const float w[8] = {w0.x, w0.y, w0.z, w0.w, w1.x, w1.y, w1.z, w1.w};
#pragma unroll
        for (uint32_t i = 0; i < 8; i += 2)
            store_shared(operand + operand_index(row, vector * 8 + i, TILES) * 2,
                         pack_2(norm_of(values[i], scale, w[i]),
                                norm_of(values[i + 1], scale, w[i + 1])));
    }
}

/* Fills the shared operand; every thread of the CTA sees it afterwards. */
template <int TILES>
__device__ void make_operand(const struct few_args &args, uint32_t rows, uint32_t operand,
                             uint32_t barrier)
{
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    if (args.operand == NULL) {
        for (uint32_t row = warp; row < TILES * 8; row += THREADS / WARP)
            normalise<TILES>(args, row, rows, lane, operand);
        __syncthreads();
        return;
    }
    if (threadIdx.x == 0) {
        const uint32_t bytes = args.product.columns / 32 * TILES * PAIR_BYTES;
        barrier_expect(barrier, bytes);
        for (uint32_t done = 0; done < bytes; done += CHUNK_BYTES)
            bulk_copy(operand + done, (const uint8_t *)args.operand + done,
                      bytes - done < CHUNK_BYTES ? bytes - done : CHUNK_BYTES, barrier);
    }
    barrier_wait(barrier, 0);
}

template <int TILES, bool SHARED>
__device__ void run_chain(const struct chain<TILES, SHARED> &chain, uint32_t operand, uint32_t rows)
{
    const struct few_args &args = chain.call.args;
    struct fragments<TILES> now, next;
    float c[TILES][4] = {};
    if (chain.total == 0)
        return;
    const uint32_t chunk_operand = CHUNK_STEPS / 2 * TILES * PAIR_BYTES;
    auto operand_of = [&](uint32_t index) {
        return SHARED ? operand + index % chain.chunks * chunk_operand
                      : chain.slot_address(index) + CHUNK_BYTES;
    };
    chain.wait(0);
    load_fragments<TILES>(chain.slot_address(0), operand_of(0), chain.lane, now);
    for (uint32_t index = 0; index < chain.total; index++) {
        if (index + 1 < chain.total) {
            chain.wait(index + 1);
            load_fragments<TILES>(chain.slot_address(index + 1), operand_of(index + 1), chain.lane,
                                  next);
        }
        const uint32_t chunk = index % chain.chunks;
        compute<TILES>(now, operand_of(index), chain.lane, chain.steps_of(chunk), c);
        __syncwarp();
        if (chain.lane == 0 && index + chain.call.slots < chain.total) {
            chain.issue_weights(index + chain.call.slots);
            chain.issue_operand(index + chain.call.slots);
        }
        if (chunk + 1 == chain.chunks) {
            put_tile<TILES>(args, chain.tile_of(index), rows, chain.lane, c);
#pragma unroll
            for (int t = 0; t < TILES; t++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    c[t][i] = 0.0f;
        }
        now = next;
    }
}

template <int TILES, bool SHARED>
__global__ void __launch_bounds__(THREADS, 1)
    few_rows_kernel(const __grid_constant__ struct few_call call)
{
    extern __shared__ __align__(128) uint8_t shared[];
    const struct product &product = call.args.product;
    const uint32_t warp = threadIdx.x / WARP, lane = threadIdx.x % WARP;
    const uint32_t base = shared_address(shared);
    const uint32_t operand_bytes = SHARED ? product.columns / 32 * TILES * PAIR_BYTES : 0;
    const uint32_t ring_bytes = call.slots * chain<TILES, SHARED>::SLOT_BYTES;
    const uint32_t barriers = base + operand_bytes + call.chains * ring_bytes;
    const uint32_t first_tile = warp * gridDim.x + blockIdx.x;
    const uint32_t stride = call.chains * gridDim.x;
    const bool works = warp < call.chains && first_tile < product.tiles;
    const uint32_t chunks = (product.columns / 16 + CHUNK_STEPS - 1) / CHUNK_STEPS;
    const uint32_t tiles = works ? (product.tiles - first_tile + stride - 1) / stride : 0;
    const struct chain<TILES, SHARED> chain = {call,
                                               base + operand_bytes + warp * ring_bytes,
                                               barriers + 8 + warp * call.slots * 8,
                                               first_tile,
                                               stride,
                                               chunks,
                                               tiles * chunks,
                                               lane,
                                               policy_evict_first()};
    const uint32_t ahead = chain.total < call.slots ? chain.total : call.slots;
    if (threadIdx.x == 0)
        barrier_init(barriers);
    if (lane == 0 && works) {
        for (uint32_t slot = 0; slot < call.slots; slot++)
            barrier_init(chain.barrier_address(slot));
        barrier_inits_visible();
        for (uint32_t index = 0; index < ahead; index++)
            chain.issue_weights(index);
    }
    __syncthreads();
    let_next_start();
    wait_for_inputs();
    if (call.args.progress != NULL && blockIdx.x == 0 && threadIdx.x == 0)
        *call.args.progress = call.args.progress_value;
    const uint32_t rows = *call.args.count;
    if (lane == 0)
        for (uint32_t index = 0; index < ahead; index++)
            chain.issue_operand(index);
    if (SHARED)
        make_operand<TILES>(call.args, rows, base, barriers);
    run_chain<TILES, SHARED>(chain, base, rows);
}

template <int TILES, bool SHARED>
cudaError_t launch(const struct few_call &call, const struct few_plan &plan, cudaStream_t stream)
{
    return launch_overlapped(few_rows_kernel<TILES, SHARED>, dim3(plan.grid), plan.threads,
                             plan.shared_bytes, stream, call);
}

struct few_plan plan_of(const struct few_args &args, uint32_t multiprocessors)
{
    const struct product &product = args.product;
    struct few_plan plan = {};
    plan.chains = (product.tiles + multiprocessors - 1) / multiprocessors;
    plan.chains = plan.chains < THREADS / WARP ? plan.chains : THREADS / WARP;
    plan.grid = product.tiles < multiprocessors ? product.tiles : multiprocessors;
    const uint32_t operand_bytes = product.columns / 32 * args.row_tiles * PAIR_BYTES;
    plan.shared_operand =
        args.operand == NULL || (plan.chains > 1 && operand_bytes <= SHARED_OPERAND_MAX);
    plan.threads = args.operand == NULL ? THREADS : plan.chains * WARP;
    const uint32_t slot_bytes =
        CHUNK_BYTES + (plan.shared_operand ? 0 : CHUNK_STEPS / 2 * args.row_tiles * PAIR_BYTES);
    plan.slots = RING_BYTES_MAX / (plan.chains * slot_bytes);
    plan.slots = plan.slots < SLOTS_MAX ? plan.slots : SLOTS_MAX;
    plan.shared_bytes = (plan.shared_operand ? operand_bytes : 0) +
                        plan.chains * plan.slots * (slot_bytes + 8) + 8;
    return plan;
}

template <int TILES, bool SHARED> cudaError_t raise_limit()
{
    return cudaFuncSetAttribute(few_rows_kernel<TILES, SHARED>,
                                cudaFuncAttributeMaxDynamicSharedMemorySize, 227 * 1024);
}

} // namespace

cudaError_t few_prepare()
{
    cudaError_t results[] = {raise_limit<1, true>(), raise_limit<1, false>(),
                             raise_limit<2, true>(), raise_limit<2, false>(),
                             raise_limit<4, true>(), raise_limit<4, false>()};
    for (cudaError_t result : results)
        if (result != cudaSuccess)
            return result;
    return cudaSuccess;
}

cudaError_t few_launch(const struct few_args *args, uint32_t multiprocessors, cudaStream_t stream)
{
    const struct few_plan plan = plan_of(*args, multiprocessors);
    const struct few_call call = {*args, plan.chains, plan.slots};
    switch (args->row_tiles * 2 + (plan.shared_operand ? 1 : 0)) {
    case 3:
        return launch<1, true>(call, plan, stream);
    case 2:
        return launch<1, false>(call, plan, stream);
    case 5:
        return launch<2, true>(call, plan, stream);
    case 4:
        return launch<2, false>(call, plan, stream);
    case 9:
        return launch<4, true>(call, plan, stream);
    default:
        return launch<4, false>(call, plan, stream);
    }
}
