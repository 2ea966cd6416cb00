/* The chain warps of the layer kernel: products, what becomes of them, norms.
 *
 * Gate and up have weights as left operand, a team of four warps for every 8 row groups of a round,
 * since a CTA owns many rows of them. Of the other products a CTA owns a few rows: there the
 * activations are the left operand, all rows for one team, so that no more is read from shared
 * memory than must be. */
#ifndef TANDEM_KERNELS_CUDA_LAYER_CHAIN_CUH
#define TANDEM_KERNELS_CUDA_LAYER_CHAIN_CUH

#include "kernels/cuda/layer.cuh"

template <int N> struct layer_chain {
    const struct layer_args &args;
    weight_ring<N> weights;
    row_ring<N> rows;
    uint32_t shared;
    uint32_t team, warp, lane; /* warp: of the team */
    uint32_t count;            /* rows that are there */
    uint32_t launch;           /* number of this launch */
    uint32_t residual[LAYER_GROUPS_MAX * 2]; /* of a thread's outputs: two columns each */
};

/* A round of a product. */
struct layer_round {
    uint32_t groups;
    uint32_t steps, weights_steps, rows_steps; /* of k: all, of a slot */
    uint32_t arrivals;                         /* of each warp, to give a slot back */
};

/* No use of the accumulators moves across. */
template <int C> __device__ __forceinline__ void hold_here(float (&c)[C])
{
#pragma unroll
    for (int i = 0; i < C; i++)
        asm volatile("" : "+f"(c[i])::"memory");
}

template <int C> __device__ __forceinline__ void clear(float (&c)[C])
{
#pragma unroll
    for (int i = 0; i < C; i++)
        c[i] = 0.0f;
    hold_here(c);
}

/* One chain over the whole k. What stands between two runs of steps is paid by all of them, since
 * the matrix units have little in store; so it is a handful of instructions. A run ends where a
 * slot of either ring does. FLAT: activations are the left operand. */
template <int N, bool FLAT, bool PLANTED, int BODY, int C>
__device__ __forceinline__ void run_steps(struct layer_chain<N> &chain,
                                          const struct layer_round &round, float (&c)[C])
{
    const uint32_t k_bytes = uniform(round.groups * 128), k_step = k_bytes >> 3;
    const uint32_t w_base = uniform((FLAT ? 0 : chain.team * 1024) >> 4 | (k_bytes >> 4) << 16);
    const uint32_t r_base = N << 16;
    const uint32_t run = round.weights_steps < round.rows_steps ? round.weights_steps
                                                                : round.rows_steps;
    const uint32_t shift = 31 - __clz((int)run); /* a power of two */
    const uint32_t times = uniform(run / BODY), runs = uniform(round.steps >> shift);
    const uint32_t w_runs = uniform(round.weights_steps >> shift);
    const uint32_t r_runs = uniform(round.rows_steps >> shift);
    const bool first_lane = chain.lane == 0;
    uint32_t w_left = 0, r_left = 0, w_given = 0, r_given = 0, w = 0, r = 0;
    clear(c);
    auto give_back = [&](uint32_t barrier) {
        if (first_lane && barrier != 0)
            barrier_arrive(barrier, round.arrivals);
        __syncwarp();
    };
#pragma unroll 1
    for (uint32_t left = runs; left > 0; left--) {
        if (w_left == 0) {
            barrier_wait(chain.weights.full(), chain.weights.parity);
            w = w_base + (chain.weights.stage() >> 4);
            w_left = w_runs;
        }
        if (r_left == 0) {
            barrier_wait(chain.rows.full(), chain.rows.parity);
            r = r_base + (chain.rows.stage() >> 4);
            r_left = r_runs;
            if (has_plant<PLANTED>(chain.args, STEP_PLANT_RING)) {
                give_back(chain.rows.empty());
                spin(PLANTED_CLOCKS);
            }
        }
#pragma unroll 1
        for (uint32_t time = 0; time < times; time++) {
            group_fence();
#pragma unroll
            for (int i = 0; i < BODY; i++) {
                const uint32_t wi = w + i * k_step, ri = r + i * 2 * N;
                wide_step(c, FLAT ? ri : wi, FLAT ? wi : ri);
            }
            group_commit();
            w += BODY * k_step;
            r += BODY * 2 * N;
            if (time == 0) { /* the steps before these are done with their slots */
                group_wait<1>();
                give_back(w_given);
                give_back(r_given);
            }
        }
        w_given = r_given = 0;
        if (--w_left == 0) {
            w_given = chain.weights.empty();
            chain.weights.advance();
        }
        if (--r_left == 0) {
            r_given = has_plant<PLANTED>(chain.args, STEP_PLANT_RING) ? 0 : chain.rows.empty();
            chain.rows.advance();
        }
    }
    group_wait<0>();
    hold_here(c);
    give_back(w_given);
    give_back(r_given);
}

/* Steps without a fence between them are faster, so there are many where slots allow it. */
template <int N, bool FLAT, bool PLANTED, int C>
__device__ __forceinline__ void run_round(struct layer_chain<N> &chain,
                                          const struct layer_round &round, float (&c)[C])
{
    constexpr int MOST = 8; /* with 16 the compiler serialises them */
    if (FLAT && round.weights_steps % MOST == 0 && round.rows_steps % MOST == 0)
        run_steps<N, FLAT, PLANTED, MOST>(chain, round, c);
    else
        run_steps<N, FLAT, PLANTED, 4>(chain, round, c);
}

template <int N>
__device__ __forceinline__ struct layer_round round_of(const struct stream_product &product,
                                                       uint32_t index)
{
    struct layer_round round;
    round.groups = stream_round(stream_groups(&product, blockIdx.x), index);
    round.steps = product.columns / 16;
    round.weights_steps = stream_stage_steps(round.groups, product.columns);
    round.rows_steps = row_steps<N>(product.columns);
    round.arrivals = 1;
    return round;
}

/* The place of a round in both rings is behind this team, which has no part in it. */
template <int N>
__device__ __forceinline__ void pass_round(struct layer_chain<N> &chain,
                                           const struct layer_round &round)
{
    chain.weights.skip(round.steps / round.weights_steps);
    chain.rows.skip(round.steps / round.rows_steps);
}

/* ---- Gate and up ---- */

/* silu(gate) x up: through shared memory, so that rows leave in whole vectors. */
template <int N>
__device__ __forceinline__ void put_gated(const struct layer_chain<N> &chain, uint32_t first,
                                          uint32_t groups, const float (&c)[N / 2])
{
    const uint32_t local = chain.team * 8 + chain.warp * 2, vectors = groups / 2;
    const uint32_t gated = chain.shared + layer_layout<N>::GATED_AT;
    if (local < groups) {
        const uint32_t at = gated + (local / 2 * 8 + chain.lane / 4) * 2;
#pragma unroll
        for (uint32_t i = 0; i < N / 4; i++) {
            const uint32_t row = i / 2 * 8 + chain.lane % 4 * 2 + i % 2, from = i / 2 * 4 + i % 2;
            const __nv_bfloat16 value = silu_mul_of(round_bf16(c[from]), round_bf16(c[from + 2]));
            asm volatile("st.shared.u16 [%0], %1;" ::"r"(at + row * LAYER_GATED_ROW),
                         "h"(__bfloat16_as_ushort(value))
                         : "memory");
        }
    }
    chains_meet();
    for (uint32_t i = threadIdx.x; i < chain.count * vectors; i += LAYER_CHAIN_THREADS) {
        const uint32_t row = i % chain.count, vector = i / chain.count;
        uint4 v;
        asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                     : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                     : "r"(gated + row * LAYER_GATED_ROW + vector * 16)
                     : "memory");
        ((uint4 *)chain.args.gated)[(uint64_t)(first / 2 + vector) * N + row] = v;
    }
    chains_meet();
}

template <int N, bool PLANTED>
__device__ __forceinline__ void run_pairs(struct layer_chain<N> &chain)
{
    const struct stream_product &product = chain.args.shape.product[STREAM_PAIRS];
    const uint32_t rounds = rounds_of(stream_groups(&product, blockIdx.x));
#pragma unroll 1
    for (uint32_t index = 0; index < rounds; index++) {
        struct layer_round round = round_of<N>(product, index);
        float c[N / 2];
        round.arrivals = round.groups > 8 ? 1 : 2;
        if (chain.team * 8 < round.groups)
            run_round<N, false, PLANTED>(chain, round, c);
        else
            pass_round(chain, round);
        put_gated<N>(chain, stream_first(&product, blockIdx.x) + index * STREAM_ROUND_GROUPS,
                     round.groups, c);
    }
}

/* ---- Output, down, heads ---- */

/* Calls put(word of two columns, index of the thread's words, row, first column). */
template <int COLUMNS, int N, typename PUT>
__device__ __forceinline__ void each_word(const struct layer_chain<N> &chain, uint32_t first,
                                          uint32_t groups, PUT put)
{
#pragma unroll
    for (uint32_t i = 0; i < COLUMNS / 4; i++) {
        const uint32_t row = chain.warp * 16 + i % 2 * 8 + chain.lane / 4;
        if (i / 2 < groups && row < chain.count)
            put(i, row, (first + i / 2) * 8 + chain.lane % 4 * 2);
    }
}

/* The residual stream of the CTA's columns, which output and down add to. */
template <int COLUMNS, int N>
__device__ __forceinline__ void take_residual(struct layer_chain<N> &chain)
{
    const struct stream_product &product = chain.args.shape.product[STREAM_OUTPUT];
    each_word<COLUMNS>(
        chain, stream_first(&product, blockIdx.x), stream_groups(&product, blockIdx.x),
        [&](uint32_t i, uint32_t row, uint32_t column) {
            chain.residual[i] = __ldcg((const uint32_t *)(chain.args.residual +
                                                          (uint64_t)row * product.rows + column));
        });
}

__device__ __forceinline__ uint32_t add_word(uint32_t residual, float low, float high)
{
    return pack_2(residual_of(__ushort_as_bfloat16((unsigned short)residual), low),
                  residual_of(__ushort_as_bfloat16((unsigned short)(residual >> 16)), high));
}

template <int N, bool PLANTED, int COLUMNS>
__device__ __forceinline__ void run_flat_of(struct layer_chain<N> &chain, uint32_t kind)
{
    const struct layer_args &args = chain.args;
    const struct stream_product &product = args.shape.product[kind];
    const uint32_t first = stream_first(&product, blockIdx.x);
    if (stream_groups(&product, blockIdx.x) == 0)
        return;
    struct layer_round round = round_of<N>(product, 0);
    round.arrivals = 2;
    if (chain.team > 0) {
        pass_round(chain, round);
        return;
    }
    float c[COLUMNS / 2];
    run_round<N, true, PLANTED>(chain, round, c);
    const bool down = kind == STREAM_DOWN, normed = !down || products_of(args) == LAYER_PRODUCTS;
    each_word<COLUMNS>(chain, first, round.groups, [&](uint32_t i, uint32_t row, uint32_t column) {
        const float low = c[i * 2], high = c[i * 2 + 1];
        if (kind == STREAM_HEADS) {
            *(uint32_t *)(args.heads + (uint64_t)row * product.rows + column) =
                pack_2(__float2bfloat16_rn(low), __float2bfloat16_rn(high));
            return;
        }
        const uint32_t word = add_word(chain.residual[i], low, high);
        chain.residual[i] = word;
        if (normed && layer_layout<N>::EXCHANGED)
            tell_4(exchanged_row(args, down, row) + column * 2, word);
        if (down || !layer_layout<N>::EXCHANGED)
            *(uint32_t *)(args.residual + (uint64_t)row * product.rows + column) = word;
    });
}

template <int N, bool PLANTED>
__device__ __forceinline__ void run_flat(struct layer_chain<N> &chain, uint32_t kind)
{
    const uint32_t groups = stream_groups(&chain.args.shape.product[kind], 0);
    if (groups <= 2)
        run_flat_of<N, PLANTED, 16>(chain, kind);
    else if (groups == 3)
        run_flat_of<N, PLANTED, 24>(chain, kind);
    else
        run_flat_of<N, PLANTED, 32>(chain, kind);
}

/* ---- Norm ---- */

/* Vector `at` of a row of the residual stream, where it is `there`. An exchanged one is looked at
 * until it is written; it has one reader, who makes it unwritten again. */
template <int N, bool PLANTED>
__device__ __forceinline__ uint4 take_vector(const struct layer_args &args, bool down, uint32_t row,
                                             uint32_t at, bool there)
{
    uint4 value[1] = {};
    if (layer_layout<N>::EXCHANGED) {
        uint8_t *from = exchanged_row(args, down, row) + at * 16;
        take_written<1>(from, 0, there ? 1 : 0, value);
        if (there && !has_plant<PLANTED>(args, STEP_PLANT_EXCHANGE))
            *(uint4 *)from = {STREAM_UNWRITTEN, STREAM_UNWRITTEN, STREAM_UNWRITTEN,
                              STREAM_UNWRITTEN};
        __syncwarp();
    } else if (there) {
        const uint32_t width = args.shape.product[STREAM_PAIRS].columns;
        value[0] = __ldcg((const uint4 *)(args.residual + (uint64_t)row * width) + at);
    }
    return value[0];
}

/* The scale of a row from the sums of the warps. */
__device__ __forceinline__ float scale_of(uint32_t shared, uint32_t columns, float epsilon,
                                          float sum)
{
    const uint32_t at = shared + LAYER_SUMS_AT;
    float sums[NORM_WARPS];
    sum = add_lanes(sum);
    if (threadIdx.x % STREAM_WARP == 0)
        asm volatile("st.shared.f32 [%0], %1;" ::"r"(at + threadIdx.x / STREAM_WARP * 4), "f"(sum)
                     : "memory");
    __syncwarp();
    chains_meet();
#pragma unroll
    for (uint32_t i = 0; i < NORM_WARPS; i++)
        asm volatile("ld.shared.f32 %0, [%1];" : "=f"(sums[i]) : "r"(at + i * 4) : "memory");
    return norm_scale(sums, columns, epsilon);
}

/* Row by row, a CTA each: the arithmetic of norm_kernel. */
template <int N, bool PLANTED>
__device__ __forceinline__ void run_norm(struct layer_chain<N> &chain, const float *weight,
                                         bool down)
{
    constexpr uint32_t MOST = LAYER_COLUMNS_MAX / 8 / NORM_THREADS; /* vectors of a thread */
    const struct layer_args &args = chain.args;
    const uint32_t columns = args.shape.product[STREAM_PAIRS].columns, vectors = columns / 8;
    const uint32_t thread = threadIdx.x;
    if (blockIdx.x >= chain.count)
        return;
    const struct norm_weights weights = load_weights(weight, thread < vectors ? thread : 0);
    if (!layer_layout<N>::EXCHANGED) {
        if (thread == 0)
            grid_wait(args, down ? LAYER_ADDED_DOWN : LAYER_ADDED_OUTPUT, chain.launch);
        __syncwarp();
        chains_meet();
    }
#pragma unroll 1
    for (uint32_t row = blockIdx.x; row < chain.count; row += args.shape.ctas) {
        uint4 *to = (uint4 *)args.normed + row;
        uint4 value[MOST] = {};
        float sum = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < MOST && i * NORM_THREADS < vectors; i++) {
            const uint32_t v = thread + i * NORM_THREADS;
            value[i] = take_vector<N, PLANTED>(args, down, row, v, v < vectors);
            sum = v < vectors ? add_squares(sum, value[i]) : sum;
        }
        const float scale = scale_of(chain.shared, columns, args.norm_epsilon, sum);
#pragma unroll
        for (uint32_t i = 0; i < MOST && thread + i * NORM_THREADS < vectors; i++) {
            const uint32_t v = thread + i * NORM_THREADS;
            to[(uint64_t)v * N] =
                normalised(value[i], scale, i == 0 ? weights : load_weights(weight, v));
        }
        __syncwarp();
        chains_meet(); /* the sums are free */
    }
}

/* ---- The way through the layer ---- */

/* A product, then its barrier. PLANTED can have them the other way round. */
template <bool PLANTED, typename RUN>
__device__ __forceinline__ void run_and_arrive(const struct layer_args &args,
                                               enum layer_barrier barrier, RUN run)
{
    const bool early = has_plant<PLANTED>(args, STEP_PLANT_EXCHANGE);
    if (early) {
        grid_arrive(args, barrier);
        spin(PLANTED_CLOCKS);
    }
    run();
    if (!early)
        grid_arrive(args, barrier);
}

/* Output or down, and the norm after it. */
template <int N, bool PLANTED>
__device__ __forceinline__ void run_added(struct layer_chain<N> &chain, bool down,
                                          const float *norm)
{
    const struct layer_args &args = chain.args;
    const uint32_t kind = down ? STREAM_DOWN : STREAM_OUTPUT;
    if (layer_layout<N>::EXCHANGED)
        run_flat<N, PLANTED>(chain, kind);
    else
        run_and_arrive<PLANTED>(args, down ? LAYER_ADDED_DOWN : LAYER_ADDED_OUTPUT,
                                [&]() { run_flat<N, PLANTED>(chain, kind); });
    come_late<PLANTED>(args);
    if (norm != NULL)
        run_norm<N, PLANTED>(chain, norm, down);
    grid_arrive(args, down ? LAYER_NORMED_HEADS : LAYER_NORMED_FFN);
}

template <int N, bool PLANTED>
__device__ __forceinline__ void run_chains(const struct layer_args &args, uint32_t shared)
{
    const uint32_t warp = uniform(threadIdx.x / STREAM_WARP);
    const uint32_t width = args.shape.product[STREAM_PAIRS].columns;
    const float *norms = args.norms + (uint64_t)(2 * args.layer + 1) * width;
    wait_for_inputs();
    let_next_start();
    struct layer_chain<N> chain = {
        args,     weights_of<N>(shared), rows_of<N>(shared),
        shared,   warp / 4,              warp % 4,
        threadIdx.x % STREAM_WARP,       *args.count,
        look_4(&args.signals->launches), {}};
    if (blockIdx.x == 0 && threadIdx.x == 0)
        *args.progress = args.layer + 1;
    if (chain.team == 0) {
        if (stream_groups(&args.shape.product[STREAM_OUTPUT], 0) <= 2)
            take_residual<16>(chain);
        else
            take_residual<32>(chain);
    }
    const uint32_t products = products_of(args);
#pragma unroll 1
    for (uint32_t product = 0; product < products; product++) {
        come_late<PLANTED>(args);
        if (product == LAYER_PAIRS)
            run_and_arrive<PLANTED>(args, LAYER_GATED, [&]() { run_pairs<N, PLANTED>(chain); });
        else if (product == LAYER_HEADS)
            run_flat<N, PLANTED>(chain, STREAM_HEADS);
        else
            run_added<N, PLANTED>(chain, product == LAYER_DOWN,
                                  product == LAYER_OUTPUT           ? norms
                                  : products == LAYER_PRODUCTS ? norms + width
                                                               : NULL);
    }
    if (blockIdx.x == 0 && threadIdx.x == 0) /* all have read it long ago */
        args.signals->launches = chain.launch + 1;
}

#endif
