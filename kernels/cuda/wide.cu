/* Products of 17 to 128 rows that are bound by the read of the weights: gate and up with the gating,
 * and the logits. Weights come in the order of the persistent step (stream.h), activations as
 * [k / 8][row][8 values]; both go through a ring of shared memory in stages of 64 k by bulk copies.
 * Two groups of four warps take 8 row groups of a round each and run one chain of matrix steps per
 * output over the whole k, weights as left operand: the bits of all other products.
 *
 * Grid: one CTA per owner of weights. 288 threads: two groups of chain warps, a producer.
 * Shared memory: [ring][gated rows][barriers], all there is.
 * Bytes moved: the weights once, limit 4.55 TB/s; the activations once per round from the L2. */
#include "kernels/cuda/wide.h"

#include "kernels/cuda/stream.cuh"

namespace
{

enum {
    TEAMS = 2,
    CHAIN_THREADS = TEAMS * 128,
    THREADS = CHAIN_THREADS + STREAM_WARP,
    STAGE_STEPS = 4,
    STAGE_K = 16 * STAGE_STEPS,
    SLOTS_MAX = 10,
    GATED_COLUMNS = STREAM_ROUND_GROUPS / 2 * 8, /* of a round */
    GATED_ROW = GATED_COLUMNS * 2 + 16,          /* bytes, padded against bank conflicts */
    CHAIN_BARRIER = 1,
    BARRIERS_BYTES = 256,
};

template <int N> struct layout {
    static constexpr uint32_t ACTIVATIONS = STAGE_K * N * 2;
    static constexpr uint32_t STAGE = STREAM_STAGE_BYTES + ACTIVATIONS;
    static constexpr uint32_t GATED = N * GATED_ROW;
    static constexpr uint32_t ROOM = STREAM_SHARED_MAX - GATED - BARRIERS_BYTES - 1024;
    static constexpr uint32_t SLOTS = ROOM / STAGE < SLOTS_MAX ? ROOM / STAGE : (uint32_t)SLOTS_MAX;
    static constexpr uint32_t BYTES = SLOTS * STAGE + GATED + BARRIERS_BYTES;
};

/* C (64 weight rows x N) += A B for 16 k; low words of the descriptors, row groups 128 bytes apart
 * in both. */
__device__ __forceinline__ void wide_step(float (&c)[32], uint32_t a, uint32_t b)
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
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
                   "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
                   "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
                   "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31])
                 : "r"(a), "r"(b), "r"(8));
}

__device__ __forceinline__ void wide_step(float (&c)[64], uint32_t a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 da, db;\n"
                 "mov.b64 da, {%64, %66};\n"
                 "mov.b64 db, {%65, %66};\n"
                 "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
                 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,"
                 "%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31,"
                 "%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,"
                 "%48,%49,%50,%51,%52,%53,%54,%55,%56,%57,%58,%59,%60,%61,%62,%63}, "
                 "da, db, 1, 1, 1, 0, 0;\n"
                 "}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]),
                   "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]),
                   "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
                   "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]),
                   "+f"(c[16]), "+f"(c[17]), "+f"(c[18]), "+f"(c[19]),
                   "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
                   "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]),
                   "+f"(c[28]), "+f"(c[29]), "+f"(c[30]), "+f"(c[31]),
                   "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
                   "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]),
                   "+f"(c[40]), "+f"(c[41]), "+f"(c[42]), "+f"(c[43]),
                   "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
                   "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]),
                   "+f"(c[52]), "+f"(c[53]), "+f"(c[54]), "+f"(c[55]),
                   "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),
                   "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
                 : "r"(a), "r"(b), "r"(8));
}

struct wide_place {
    uint32_t base, full, empty, slot, lap;

    template <int N> __device__ __forceinline__ uint32_t stage() const
    {
        return base + slot * layout<N>::STAGE;
    }
    template <int N> __device__ __forceinline__ void advance()
    {
        if (++slot == layout<N>::SLOTS) {
            slot = 0;
            lap++;
        }
    }
};

/* One lane: the weights run ahead of the activations until these are there. */
template <int N>
__device__ __forceinline__ void produce(const struct wide_args &args, struct wide_place at)
{
    const struct stream_product &product = args.shape.product[args.kind];
    const uint32_t groups = stream_groups(&product, blockIdx.x);
    const uint32_t stages = product.columns / STAGE_K;
    const uint64_t policy = policy_evict_first();
    const uint8_t *weights =
        args.weights + stream_offset(&args.shape, blockIdx.x, args.layer, args.kind);
    const uint32_t rounds = (groups + STREAM_ROUND_GROUPS - 1) / STREAM_ROUND_GROUPS;
    struct wide_place behind = at;
    bool inputs = false;
    uint32_t issued = 0, followed = 0;
    auto follow = [&](uint32_t until) {
        for (; followed < until; followed++, behind.advance<N>())
            bulk_copy(behind.stage<N>() + STREAM_STAGE_BYTES,
                      (const uint8_t *)args.activations +
                          (uint64_t)(followed % stages) * layout<N>::ACTIVATIONS,
                      layout<N>::ACTIVATIONS, behind.full + behind.slot * 8);
    };
    for (uint32_t round = 0; round < rounds; round++) {
        const uint32_t bytes = stream_round(groups, round) * STREAM_STEP_BYTES * STAGE_STEPS;
        for (uint32_t stage = 0; stage < stages; stage++, issued++, at.advance<N>()) {
            if (issued == layout<N>::SLOTS && !inputs) {
                wait_for_inputs();
                inputs = true;
                follow(issued);
            }
            if (at.lap > 0)
                barrier_wait_alone(at.empty + at.slot * 8, (at.lap - 1) & 1);
            barrier_expect(at.full + at.slot * 8, bytes + layout<N>::ACTIVATIONS);
            bulk_copy_once(at.stage<N>(), weights, bytes, at.full + at.slot * 8, policy);
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

/* silu(gate) x up: through shared memory, so that rows leave in whole vectors. */
template <int N>
__device__ __forceinline__ void put_gated(const struct wide_args &args, const struct wide_round &round,
                                          uint32_t gated, const float (&c)[N / 2])
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
    asm volatile("bar.sync %0, %1;" ::"n"((int)CHAIN_BARRIER), "n"((int)CHAIN_THREADS) : "memory");
    const uint32_t width = args.shape.product[args.kind].rows / 2;
    for (uint32_t i = threadIdx.x; i < round.rows * (columns / 8); i += CHAIN_THREADS) {
        const uint32_t row = i / (columns / 8), vector = i % (columns / 8);
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(gated + row * GATED_ROW + vector * 16)
                     : "memory");
        *(uint4 *)(args.gated + (uint64_t)row * width + round.first * 4 + vector * 8) = v;
    }
    asm volatile("bar.sync %0, %1;" ::"n"((int)CHAIN_BARRIER), "n"((int)CHAIN_THREADS) : "memory");
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

/* One chain over the whole k. */
template <int N>
__device__ __forceinline__ void run_chain(const struct wide_round &round, uint32_t stages,
                                          struct wide_place &at, float (&c)[N / 2])
{
    const uint32_t k_bytes = uniform(round.groups * 128);
    const uint32_t team_bytes = round.team * 1024;
    uint32_t before = 0;
#pragma unroll
    for (uint32_t i = 0; i < N / 2; i++)
        c[i] = 0.0f;
#pragma unroll 1
    for (uint32_t stage = 0; stage < stages; stage++) {
        barrier_wait(at.full + at.slot * 8, at.lap & 1);
        const uint32_t place = at.stage<N>();
        const uint32_t a = uniform(descriptor(place + team_bytes, k_bytes));
        const uint32_t b = uniform(descriptor(place + STREAM_STAGE_BYTES, N * 16));
        group_fence();
#pragma unroll
        for (uint32_t i = 0; i < STAGE_STEPS; i++)
            wide_step(c, a + i * (k_bytes >> 3), b + i * 2 * N);
        group_commit();
        group_wait<1>();
        if (stage > 0 && round.lane == 0)
            barrier_arrive(at.empty + before * 8, 1);
        __syncwarp();
        before = at.slot;
        at.advance<N>();
    }
    group_wait<0>();
    if (round.lane == 0)
        barrier_arrive(at.empty + before * 8, 1);
    __syncwarp();
}

template <int N>
__global__ void __launch_bounds__(THREADS, 1)
    wide_kernel(const __grid_constant__ struct wide_args args)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    const uint32_t warp = uniform(threadIdx.x / STREAM_WARP);
    const uint32_t gated = shared_address(shared) + layout<N>::SLOTS * layout<N>::STAGE;
    const uint32_t barriers = gated + layout<N>::GATED;
    struct wide_place at = {shared_address(shared), barriers, barriers + SLOTS_MAX * 8, 0, 0};
    if (threadIdx.x == 0) {
        for (uint32_t slot = 0; slot < layout<N>::SLOTS; slot++) {
            barrier_init_count(at.full + slot * 8, 1);
            barrier_init_count(at.empty + slot * 8, CHAIN_THREADS / STREAM_WARP);
        }
        barrier_inits_visible();
    }
    __syncthreads();
    if (warp == CHAIN_THREADS / STREAM_WARP) {
        if (threadIdx.x % STREAM_WARP == 0)
            produce<N>(args, at);
        return;
    }
    wait_for_inputs();
    let_next_start();
    const struct stream_product &product = args.shape.product[args.kind];
    const uint32_t groups = stream_groups(&product, blockIdx.x);
    struct wide_round round = {0, 0, warp / 4, warp % 4, threadIdx.x % STREAM_WARP, *args.count};
    const uint32_t rounds = (groups + STREAM_ROUND_GROUPS - 1) / STREAM_ROUND_GROUPS;
#pragma unroll 1
    for (uint32_t index = 0; index < rounds; index++) {
        float c[N / 2];
        round.first = stream_first(&product, blockIdx.x) + index * STREAM_ROUND_GROUPS;
        round.groups = stream_round(groups, index);
        run_chain<N>(round, product.columns / STAGE_K, at, c);
        if (args.kind == STREAM_PAIRS)
            put_gated<N>(args, round, gated, c);
        else
            put_logits<N>(args, round, c);
    }
}

} // namespace

uint32_t wide_rows(uint32_t rows)
{
    return rows <= 64 ? 64 : rows <= WIDE_ROWS_MAX ? WIDE_ROWS_MAX : 0;
}

cudaError_t wide_prepare()
{
    const cudaFuncAttribute limit = cudaFuncAttributeMaxDynamicSharedMemorySize;
    const cudaError_t error = cudaFuncSetAttribute(wide_kernel<64>, limit, layout<64>::BYTES);
    return error != cudaSuccess
               ? error
               : cudaFuncSetAttribute(wide_kernel<128>, limit, layout<128>::BYTES);
}

cudaError_t wide_launch(const struct wide_args *args, cudaStream_t stream)
{
    const dim3 grid(args->shape.ctas);
    if (args->rows <= 64)
        return launch_overlapped(wide_kernel<64>, grid, THREADS, layout<64>::BYTES, stream, *args);
    return launch_overlapped(wide_kernel<128>, grid, THREADS, layout<128>::BYTES, stream, *args);
}
