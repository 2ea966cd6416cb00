/* Products of 5 to 192 rows that are bound by the read of the weights. Weights come in the order of
 * the persistent step (stream.h), activations as [k / 8][row][8 values]; both go through a ring of
 * shared memory by bulk copies, a stage of both at a time. Two groups of four warps take 8 row
 * groups of a round each (one group of warps where a CTA owns no more than that) and run one chain of
 * matrix steps per output over the whole k, weights as left operand: the bits of all other products.
 * What the outputs become (rows, gated rows, logits) is the kind's.
 *
 * Grid: one CTA per owner of weights. 288 threads: two groups of chain warps, a producer.
 * Shared memory: [barriers][ring][gated rows or slack].
 * Bytes moved: the weights once, limit 4.55 TB/s; the activations once per round from the L2. */
#include "kernels/cuda/wide.h"

#include "kernels/cuda/stream.cuh"
#include "kernels/cuda/wide_step.cuh"

namespace
{

enum {
    TEAMS = 2,
    THREADS = TEAMS * 128 + STREAM_WARP,
    PRODUCER = TEAMS * 4, /* its warp */
    SLOTS_MAX = 10,
    LONG_STEPS = 8, /* of a stage where a CTA owns many rows: what stands between two takes time */
    GATED_COLUMNS = STREAM_ROUND_GROUPS / 2 * 8, /* of a round */
    GATED_ROW = GATED_COLUMNS * 2 + 16,          /* bytes, padded against bank conflicts */
    CHAIN_BARRIER = 1,
    BARRIERS_BYTES = 256,
    SLACK_BYTES = 2048, /* matrices of row groups that are not there are read, never used */
    SHARED_MAX = STREAM_SHARED_MAX - 1024,
};

/* How a product goes through the ring. */
struct wide_plan {
    uint32_t steps; /* of k, of a stage */
    uint32_t weights_bytes, activations_bytes; /* of a stage */
    uint32_t stages; /* of a round */
    uint32_t rounds;
    uint32_t teams;
};

template <int N>
__device__ __forceinline__ struct wide_plan plan_of(const struct wide_args &args)
{
    const struct stream_product &product = args.shape.product[args.kind];
    const uint32_t groups = stream_groups(&product, blockIdx.x);
    const uint32_t round = stream_round(stream_groups(&product, 0), 0); /* the largest */
    struct wide_plan plan;
    plan.steps = args.stage_steps;
    plan.weights_bytes = plan.steps * round * STREAM_STEP_BYTES;
    plan.activations_bytes = plan.steps * 32 * N;
    plan.stages = product.columns / 16 / plan.steps;
    plan.rounds = (groups + STREAM_ROUND_GROUPS - 1) / STREAM_ROUND_GROUPS;
    plan.teams = round > 8 ? 2 : 1;
    return plan;
}

struct wide_place {
    uint32_t base, full, empty, stage_bytes, slots;
    uint32_t slot, lap;

    __device__ __forceinline__ uint32_t stage() const
    {
        return base + slot * stage_bytes;
    }
    __device__ __forceinline__ void advance()
    {
        if (++slot == slots) {
            slot = 0;
            lap++;
        }
    }
};

/* One lane: the weights run ahead of the activations until these are there. */
__device__ __forceinline__ void produce(const struct wide_args &args, const struct wide_plan &plan,
                                        struct wide_place at)
{
    const struct stream_product &product = args.shape.product[args.kind];
    const uint32_t groups = stream_groups(&product, blockIdx.x);
    const uint64_t policy = policy_evict_first();
    const uint8_t *weights =
        args.weights + stream_offset(&args.shape, blockIdx.x, args.layer, args.kind);
    struct wide_place behind = at;
    bool inputs = false;
    uint32_t issued = 0, followed = 0;
    auto follow = [&](uint32_t until) {
        for (; followed < until; followed++, behind.advance())
            bulk_copy(behind.stage() + plan.weights_bytes,
                      (const uint8_t *)args.activations +
                          (uint64_t)(followed % plan.stages) * plan.activations_bytes,
                      plan.activations_bytes, behind.full + behind.slot * 8);
    };
    for (uint32_t round = 0; round < plan.rounds; round++) {
        const uint32_t bytes = stream_round(groups, round) * STREAM_STEP_BYTES * plan.steps;
        for (uint32_t stage = 0; stage < plan.stages; stage++, issued++, at.advance()) {
            if (issued == at.slots && !inputs) {
                wait_for_inputs();
                inputs = true;
                follow(issued);
            }
            if (at.lap > 0)
                barrier_wait_alone(at.empty + at.slot * 8, (at.lap - 1) & 1);
            barrier_expect(at.full + at.slot * 8, bytes + plan.activations_bytes);
            bulk_copy_once(at.stage(), weights, bytes, at.full + at.slot * 8, policy);
            weights += bytes;
            if (inputs)
                follow(issued + 1);
        }
    }
    if (!inputs)
        wait_for_inputs();
    follow(issued);
}

struct wide_round {
    uint32_t first, groups; /* row groups of the product */
    uint32_t team, warp, lane;
    uint32_t rows;
};

__device__ __forceinline__ void chains_meet(uint32_t teams)
{
    asm volatile("bar.sync %0, %1;" ::"n"((int)CHAIN_BARRIER), "r"(teams * 128) : "memory");
}

/* silu(gate) x up: through shared memory, so that rows leave in whole vectors. */
template <int N>
__device__ __forceinline__ void put_gated(const struct wide_args &args, const struct wide_round &round,
                                          uint32_t gated, uint32_t teams, const float (&c)[N / 2])
{
    const uint32_t local = round.team * 8 + round.warp * 2, columns = round.groups / 2 * 8;
    if (local < round.groups) {
        const uint32_t at = gated + (local / 2 * 8 + round.lane / 4) * 2;
#pragma unroll
        for (uint32_t i = 0; i < N / 4; i++) {
            const uint32_t row = i / 2 * 8 + round.lane % 4 * 2 + i % 2, from = i / 2 * 4 + i % 2;
            const __nv_bfloat16 value =
                silu_mul_of(round_bf16(c[from]), round_bf16(c[from + 2]));
            asm volatile("st.shared.u16 [%0], %1;" ::"r"(at + row * GATED_ROW),
                         "h"(__bfloat16_as_ushort(value))
                         : "memory");
        }
    }
    chains_meet(teams);
    const uint32_t width = args.shape.product[args.kind].rows / 2;
    for (uint32_t i = threadIdx.x; i < round.rows * (columns / 8); i += teams * 128) {
        const uint32_t row = i / (columns / 8), vector = i % (columns / 8);
        const uint64_t to = args.out_blocks ? (uint64_t)(round.first / 2 + vector) * N + row
                                            : (uint64_t)row * (width / 8) + round.first / 2 + vector;
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(gated + row * GATED_ROW + vector * 16)
                     : "memory");
        ((uint4 *)args.gated)[to] = v;
    }
    chains_meet(teams);
}

template <int N>
__device__ __forceinline__ void put_logits(const struct wide_args &args,
                                           const struct wide_round &round, const float (&c)[N / 2])
{
    const uint32_t local = round.team * 8 + round.warp * 2;
    const uint32_t most = args.shape.product[args.kind].rows;
#pragma unroll
    for (uint32_t i = 0; i < N / 2; i++) {
        const uint32_t half = i / 2 % 2, row = i / 4 * 8 + round.lane % 4 * 2 + i % 2;
        const uint32_t output = (round.first + local + half) * 8 + round.lane / 4;
        if (local + half < round.groups && output < most && row < round.rows)
            args.logits[(uint64_t)row * most + output] = c[i];
    }
}

/* Rounded, in natural order, two outputs a word. */
template <int N>
__device__ __forceinline__ void put_rows(const struct wide_args &args,
                                         const struct wide_round &round, const float (&c)[N / 2])
{
    const uint32_t local = round.team * 8 + round.warp * 2;
    const uint32_t most = args.shape.product[args.kind].rows;
    const uint32_t row_in_group = round.lane / 4, odd = row_in_group % 2;
#pragma unroll
    for (uint32_t i = 0; i < N / 8; i++)
#pragma unroll
        for (uint32_t half = 0; half < 2; half++) {
            const uint32_t word =
                pair_rows(c[i * 4 + half * 2], c[i * 4 + half * 2 + 1], round.lane);
            const uint32_t row = i * 8 + round.lane % 4 * 2 + odd;
            const uint32_t output = (round.first + local + half) * 8 + row_in_group - odd;
            if (local + half < round.groups && output < most && row < round.rows)
                *(uint32_t *)(args.rows_out + (uint64_t)row * most + output) = word;
        }
}

/* One chain over the whole k, BODY steps without a fence between them. */
template <int N, int BODY>
__device__ __forceinline__ void run_chain(const struct wide_round &round,
                                          const struct wide_plan &plan, struct wide_place &at,
                                          float (&c)[N / 2])
{
    const uint32_t k_bytes = uniform(round.groups * 128);
    const uint32_t team_bytes = round.team * 1024, times = plan.steps / BODY;
    uint32_t before = 0;
#pragma unroll
    for (uint32_t i = 0; i < N / 2; i++)
        c[i] = 0.0f;
    auto release = [&]() {
        if (round.lane == 0)
            barrier_arrive(at.empty + before * 8, 1);
        __syncwarp();
    };
#pragma unroll 1
    for (uint32_t stage = 0; stage < plan.stages; stage++) {
        barrier_wait(at.full + at.slot * 8, at.lap & 1);
        const uint32_t place = at.stage();
        uint32_t a = uniform(descriptor(place + team_bytes, k_bytes));
        uint32_t b = uniform(descriptor(place + plan.weights_bytes, N * 16));
#pragma unroll 1
        for (uint32_t time = 0; time < times; time++) {
            group_fence();
#pragma unroll
            for (uint32_t i = 0; i < BODY; i++)
                wide_step(c, a + i * (k_bytes >> 3), b + i * 2 * N);
            group_commit();
            if (time == 0) {
                group_wait<1>();
                if (stage > 0)
                    release();
            }
            a += BODY * (k_bytes >> 3);
            b += BODY * 2 * N;
        }
        before = at.slot;
        at.advance();
    }
    group_wait<0>();
    release();
}

template <int N>
__device__ __forceinline__ void run_rounds(const struct wide_args &args,
                                           const struct wide_plan &plan, struct wide_place at,
                                           uint32_t gated)
{
    const struct stream_product &product = args.shape.product[args.kind];
    const uint32_t groups = stream_groups(&product, blockIdx.x);
    const uint32_t warp = uniform(threadIdx.x / STREAM_WARP);
    struct wide_round round = {0, 0, warp / 4, warp % 4, threadIdx.x % STREAM_WARP, *args.count};
#pragma unroll 1
    for (uint32_t index = 0; index < plan.rounds; index++) {
        float c[N / 2];
        round.first = stream_first(&product, blockIdx.x) + index * STREAM_ROUND_GROUPS;
        round.groups = stream_round(groups, index);
        if (plan.steps % 16 == 0)
            run_chain<N, 16>(round, plan, at, c);
        else
            run_chain<N, 4>(round, plan, at, c);
        if (args.kind == STREAM_PAIRS)
            put_gated<N>(args, round, gated, plan.teams, c);
        else if (args.kind == STREAM_LOGITS)
            put_logits<N>(args, round, c);
        else
            put_rows<N>(args, round, c);
    }
}

template <int N>
__global__ void __launch_bounds__(THREADS, 1)
    wide_kernel(const __grid_constant__ struct wide_args args)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t warp = uniform(threadIdx.x / STREAM_WARP);
    const struct wide_plan plan = plan_of<N>(args);
    const uint32_t stage_bytes = plan.weights_bytes + plan.activations_bytes;
    const uint32_t barriers = uniform(shared_address(shared)), base = barriers + BARRIERS_BYTES;
    const uint32_t gated = base + args.slots * stage_bytes;
    const struct wide_place at = {base,       barriers, barriers + SLOTS_MAX * 8, stage_bytes,
                                  args.slots, 0,        0};
    if (threadIdx.x == 0) {
        for (uint32_t slot = 0; slot < args.slots; slot++) {
            barrier_init_count(at.full + slot * 8, 1);
            barrier_init_count(at.empty + slot * 8, plan.teams * 4);
        }
        barrier_inits_visible();
    }
    __syncthreads();
    if (warp == PRODUCER) {
        if (threadIdx.x % STREAM_WARP == 0)
            produce(args, plan, at);
    } else if (warp < plan.teams * 4) {
        wait_for_inputs();
        let_next_start();
        run_rounds<N>(args, plan, at, gated);
    }
}

using wide_kernel_type = void (*)(struct wide_args);

/* Rows of the activations that the kernel is compiled for. */
const uint32_t SIZES[] = {16, 32, 48, 64, 96, 128, WIDE_ROWS_MAX};

wide_kernel_type kernel_of(uint32_t rows)
{
    return rows <= 16    ? wide_kernel<16>
           : rows <= 32  ? wide_kernel<32>
           : rows <= 48  ? wide_kernel<48>
           : rows <= 64  ? wide_kernel<64>
           : rows <= 96  ? wide_kernel<96>
           : rows <= 128 ? wide_kernel<128>
                         : wide_kernel<WIDE_ROWS_MAX>;
}

uint32_t end_bytes(const struct wide_args &args)
{
    return args.kind == STREAM_PAIRS ? args.rows * GATED_ROW : (uint32_t)SLACK_BYTES;
}

} // namespace

uint32_t wide_rows(uint32_t rows)
{
    for (uint32_t size : SIZES)
        if (rows <= size)
            return size;
    return 0;
}

cudaError_t wide_prepare()
{
    for (uint32_t rows : SIZES) {
        const cudaError_t error = cudaFuncSetAttribute(
            kernel_of(rows), cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_MAX);
        if (error != cudaSuccess)
            return error;
    }
    return cudaSuccess;
}

cudaError_t wide_launch(const struct wide_args *order, cudaStream_t stream)
{
    struct wide_args args = *order;
    const struct stream_product *product = &args.shape.product[args.kind];
    const uint32_t groups = stream_round(stream_groups(product, 0), 0);
    uint32_t steps = stream_stage_steps(groups, product->columns);
    if (groups > 8 && product->columns % (16 * LONG_STEPS) == 0)
        steps = LONG_STEPS;
    const uint32_t most = args.rows <= 32 ? 32 : args.rows <= 128 ? 16 : 4; /* several have room */
    args.stage_steps = steps < most ? steps : most;
    const uint32_t stage = args.stage_steps * (groups * STREAM_STEP_BYTES + 32 * args.rows);
    const uint32_t fixed = end_bytes(args) + BARRIERS_BYTES;
    const uint32_t room = (SHARED_MAX - fixed) / stage;
    args.slots = room < SLOTS_MAX ? room : (uint32_t)SLOTS_MAX;
    return launch_overlapped(kernel_of(args.rows), dim3(args.shape.ctas), THREADS,
                             args.slots * stage + fixed, stream, args);
}
