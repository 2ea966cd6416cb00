/* The chain warps of the persistent step: two groups of four that run the products. A group takes 8
 * row groups (64 weight rows) of a round, one accumulator per output over the whole k, both
 * operands straight from shared memory; then it finishes its outputs and stores them for the other
 * CTAs. The rows of output and down are the same, so their group keeps the residual stream of these
 * rows in registers. */
#ifndef TANDEM_KERNELS_CUDA_STREAM_CHAIN_CUH
#define TANDEM_KERNELS_CUDA_STREAM_CHAIN_CUH

#include "kernels/cuda/stream.cuh"

enum { BODY_STEPS = 16 };

/* One round of a product, as a group of warps sees it. */
struct chain_round {
    uint32_t kind;
    uint32_t first;      /* row group of the product that the round begins with */
    uint32_t groups;     /* of the round */
    uint32_t steps;      /* of k */
    uint32_t arrivals;   /* of each warp, to give a slot back */
    uint32_t part_steps; /* steps from one part of the operand to the next; 0: all is there */
};

template <int M> struct chain {
    const struct stream_args &args;
    struct stream_shared at;
    uint32_t team, warp, lane; /* team: 0 or 1; warp: in the team */
    uint32_t rows;
    uint32_t parity;       /* of the copy that this layer writes */
    uint32_t part_parity;  /* bit i: of part i */
    struct ring_place place;
    float residual[4]; /* rows lane / 4 and + 8 of the warp's 16, columns 2 (lane % 4) and + 1 */

    __device__ __forceinline__ void release(uint32_t slot, uint32_t arrivals) const
    {
        __syncwarp();
        if (lane == 0)
            barrier_arrive(at.empty + slot * 8, arrivals);
        __syncwarp();
    }
    /* Waits for parts of the operand one by one. */
    __device__ __forceinline__ void wait_part(uint32_t part) const
    {
        barrier_wait(at.parts + part * 8, part_parity >> part & 1);
    }
};

/* The chain of one round, STEPS steps at a time, `times` times a slot: code that runs once in a
 * while waits for its instructions, so there is little of it. A slot goes back once the first steps
 * of the next one are on their way. */
template <int M, int STEPS>
__device__ __forceinline__ void run_steps(struct chain<M> &chain, const struct chain_round &round,
                                          uint32_t times, float (&c)[4])
{
    constexpr int TOGETHER = STEPS < 8 ? STEPS : 8;
    const uint32_t k_bytes = uniform(round.groups * 128);
    const uint32_t team_bytes = round.groups > 8 ? chain.team * 1024 : 0;
    uint32_t b = uniform(descriptor(chain.at.operand, M * 16));
    uint32_t next_part = round.part_steps != 0 ? 0 : ~0u, part = 0, before = 0;
    const bool early = is_planted(chain.args, STEP_PLANT_RING);
    bool ready = false;
    c[0] = c[1] = c[2] = c[3] = 0.0f;
#pragma unroll 1
    for (uint32_t step = 0; step < round.steps;) {
        const uint32_t slot = chain.place.slot;
        if (step == next_part) { /* before the ring: then all that stood in the slot was used */
            chain.wait_part(part++);
            next_part += round.part_steps;
        }
        if (!ready)
            barrier_wait(chain.at.full + slot * 8, chain.place.lap & 1);
        uint32_t a = uniform(
            descriptor(chain.at.ring + slot * STREAM_STAGE_BYTES + team_bytes, k_bytes));
        chain.place.advance(1, chain.args.slots);
        if (early) {
            chain.release(slot, round.arrivals);
            spin(PLANTED_CLOCKS);
        }
#pragma unroll 1
        for (uint32_t time = 0; time < times; time++) {
            group_fence();
#pragma unroll
            for (int i = 0; i < STEPS; i++) {
                group_step(c, a + i * (k_bytes >> 3), b + i * 2 * M);
                if (i % TOGETHER == TOGETHER - 1)
                    group_commit();
                if (i != TOGETHER - 1 || time > 0)
                    continue;
                group_wait<1>();
                if (step > 0 && !early)
                    chain.release(before, round.arrivals);
            }
            a += STEPS * (k_bytes >> 3);
            b += STEPS * 2 * M;
        }
        step += times * STEPS;
        before = slot;
        ready = step < round.steps &&
                uniform(barrier_passed(chain.at.full + chain.place.slot * 8,
                                       chain.place.lap & 1)) != 0;
    }
    group_wait<0>();
    if (!early)
        chain.release(before, round.arrivals);
}

template <int M>
__device__ __forceinline__ void run_round(struct chain<M> &chain, const struct chain_round &round,
                                          float (&c)[4])
{
    const uint32_t steps = stream_stage_steps(round.groups, round.steps * 16);
    if (steps >= BODY_STEPS)
        run_steps<M, BODY_STEPS>(chain, round, steps / BODY_STEPS, c);
    else
        run_steps<M, 4>(chain, round, steps / 4, c);
}

/* ---- Outputs ---- */

/* Writes the word of k = 8 group + (lane's pair of rows) into one copy, and makes the other one
 * unwritten. */
template <int M>
__device__ __forceinline__ void tell(const struct chain<M> &chain, uint32_t buffer, uint32_t parity,
                                     uint32_t group, uint32_t word)
{
    const uint32_t row = chain.lane >> 2, column = chain.lane % 4 * 2 + row % 2;
    const uint32_t offset = buffer + group * 16 * M + column * 16 + (row & 6) * 2;
    if (column < chain.rows)
        tell_4(copy_of(chain.args, parity) + offset, word);
    if (column < M && !is_planted(chain.args, STEP_PLANT_EXCHANGE))
        tell_4(copy_of(chain.args, parity ^ 1) + offset, STREAM_UNWRITTEN);
}

template <int M>
__device__ __forceinline__ void put_residual(struct chain<M> &chain, uint32_t kind, uint32_t group,
                                             uint32_t groups, const float (&c)[4])
{
    const struct stream_exchange &exchange = chain.args.exchange;
    const bool down = kind == STREAM_DOWN;
#pragma unroll
    for (int i = 0; i < 4; i++)
        chain.residual[i] =
            __bfloat162float(residual_of(__float2bfloat16_rn(chain.residual[i]), c[i]));
#pragma unroll
    for (uint32_t half = 0; half < 2; half++) {
        const uint32_t word =
            pair_rows(chain.residual[2 * half], chain.residual[2 * half + 1], chain.lane);
        if (half < groups)
            tell(chain, down ? exchange.next : exchange.middle, chain.parity ^ (down ? 1 : 0),
                 group + half, word);
    }
}

template <int M>
__device__ __forceinline__ void put_logits(const struct chain<M> &chain, uint32_t group,
                                           uint32_t groups, const float (&c)[4])
{
    const uint32_t most = chain.args.shape.product[STREAM_LOGITS].rows;
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = (group + i / 2) * 8 + chain.lane / 4;
        const uint32_t column = chain.lane % 4 * 2 + i % 2;
        if (i / 2 < groups && row < most && column < chain.rows)
            chain.args.logits[(uint64_t)column * most + row] = c[i];
    }
}

/* This warp's two row groups of a round. */
template <int M>
__device__ __forceinline__ void put_round(struct chain<M> &chain, const struct chain_round &round,
                                          const float (&c)[4])
{
    const struct stream_exchange &exchange = chain.args.exchange;
    const uint32_t local = (round.groups > 8 ? chain.team * 8 : 0) + chain.warp * 2;
    if (local >= round.groups)
        return;
    const uint32_t group = round.first + local, groups = round.groups - local;
    switch (round.kind) {
    case STREAM_HEADS: {
        const uint32_t low = pair_rows(c[0], c[1], chain.lane);
        const uint32_t high = pair_rows(c[2], c[3], chain.lane);
        tell(chain, exchange.heads, chain.parity, group, low);
        if (groups > 1)
            tell(chain, exchange.heads, chain.parity, group + 1, high);
        break;
    }
    case STREAM_PAIRS: {
        const float first =
            __bfloat162float(silu_mul_of(round_bf16(c[0]), round_bf16(c[2])));
        const float second =
            __bfloat162float(silu_mul_of(round_bf16(c[1]), round_bf16(c[3])));
        tell(chain, exchange.gated, chain.parity, group / 2,
             pair_rows(first, second, chain.lane));
        break;
    }
    case STREAM_LOGITS:
        put_logits(chain, group, groups, c);
        break;
    default:
        put_residual(chain, round.kind, group, groups, c);
        break;
    }
}

/* All rounds of one product. */
template <int M>
__device__ __forceinline__ void run_product(struct chain<M> &chain, uint32_t kind)
{
    const struct stream_product &product = chain.args.shape.product[kind];
    const uint32_t groups = groups_of(chain.args, kind);
    const uint32_t parts = parts_of(kind, product.columns, M);
    bool took_part = false;
    be_late(chain.args);
    for (uint32_t index = 0; index * STREAM_ROUND_GROUPS < groups; index++) {
        struct chain_round round;
        round.kind = kind;
        round.first = stream_first(&product, blockIdx.x) +
                      index * STREAM_ROUND_GROUPS;
        round.groups = stream_round(groups, index);
        round.steps = product.columns / 16;
        round.arrivals = round.groups > 8 ? 1 : 2;
        if (round.groups <= 8 && chain.team != lone_group(kind)) {
            chain.place.advance(stream_round_stages(round.groups, product.columns),
                                chain.args.slots);
            continue;
        }
        round.part_steps = took_part ? 0 : parts == 1 ? round.steps : 2048 / 4 / M;
        float c[4];
        run_round(chain, round, c);
        put_round(chain, round, c);
        took_part = true;
    }
    if (groups == 0)
        return;
    for (uint32_t part = 0; part < parts && !took_part; part++)
        chain.wait_part(part); /* the two teams and the staging warps go product by product */
    chain.part_parity ^= (1u << parts) - 1;
    __syncwarp();
    if (chain.lane == 0)
        barrier_arrive(chain.at.done, 1);
    if (took_part)
        fence_device(); /* what became unwritten is so before anything that this warp tells next */
}

/* The residual stream of this warp's rows as the step begins. */
template <int M> __device__ __forceinline__ void take_residual(struct chain<M> &chain)
{
    const struct stream_product &product = chain.args.shape.product[STREAM_OUTPUT];
    const uint32_t first =
        stream_first(&product, blockIdx.x) + chain.warp * 2;
    const uint32_t end = stream_first(&product, blockIdx.x + 1);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t column = chain.lane % 4 * 2 + i % 2, group = first + i / 2;
        chain.residual[i] = 0.0f;
        if (column < chain.rows && group < end)
            chain.residual[i] = __bfloat162float(
                chain.args
                    .residual[(uint64_t)column * product.rows + group * 8 + chain.lane / 4]);
    }
}

template <int M>
__device__ __forceinline__ void run_chains(const struct stream_args &args,
                                           const struct stream_shared &at,
                                           const struct stream_items &items)
{
    const uint32_t warp = uniform(threadIdx.x / STREAM_WARP);
    struct chain<M> chain = {args, at, warp / 4, warp % 4, threadIdx.x % STREAM_WARP, 0, 0, 0,
                             {0, 0}, {}};
    wait_for_inputs();
    chain.rows = uniform(args.counts->rows);
    chain.parity = uniform(*args.exchange.parity);
    take_residual(chain);
    const uint32_t products = args.shape.layers * STREAM_LOGITS;
    uint32_t attention_stages = 0;
#pragma unroll 1
    for (uint32_t i = 0; i <= products; i++) { /* one copy of the code for all kinds */
        const uint32_t kind = i < products ? i % STREAM_LOGITS : (uint32_t)STREAM_LOGITS;
        if (i == STREAM_OUTPUT) { /* not before: heads may need more slots than there are */
            barrier_wait(at.listed, 0);
            attention_stages = uniform(items.stages);
        }
        if (kind == STREAM_OUTPUT)
            chain.place.advance(attention_stages, args.slots);
        run_product(chain, kind);
        chain.parity ^= kind == STREAM_DOWN ? 1 : 0;
    }
}

#endif
