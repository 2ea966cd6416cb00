/* The staging warps of the persistent step: they wait for what the other CTAs computed, apply the
 * norm where there is one, and write the operand of the next product into shared memory. Their
 * threads stand to the columns of a row as those of norm_kernel do, so a norm has its bits. Between
 * heads and output they are attention (stream_attention.cuh). */
#ifndef TANDEM_KERNELS_CUDA_STREAM_STAGING_CUH
#define TANDEM_KERNELS_CUDA_STREAM_STAGING_CUH

#include "kernels/cuda/stream.cuh"

struct staging {
    const struct stream_args &args;
    struct stream_shared at;
    uint32_t thread, warp, lane; /* of the staging warps */
    uint32_t rows;
    uint32_t parity;      /* of the copies that this layer writes */
    uint32_t done_parity; /* of the chains' next product */
    uint32_t gate;        /* clock at which the chains were done with the last product */
    uint32_t turn;        /* of the two places for sums */
    struct ring_place place;
    float (*warp_sums)[STREAM_ROWS_MAX][STREAM_STAGING_WARPS]; /* [2] */

    /* Until the chains of this CTA have stored the outputs of product `kind`. */
    __device__ __forceinline__ void wait_chains(uint32_t kind)
    {
        if (groups_of(args, kind) > 0) {
            barrier_wait(at.done, done_parity);
            done_parity ^= 1;
        }
        gate = (uint32_t)clock64();
        place.advance(stream_stages(groups_of(args, kind), args.shape.product[kind].columns),
                      args.slots);
    }
    __device__ __forceinline__ void hold(uint32_t clocks) const
    {
        be_late(args);
        while ((uint32_t)clock64() - gate < clocks)
            continue;
        __syncwarp();
    }
    __device__ __forceinline__ void announce(uint32_t part) const
    {
        fence_async_shared();
        __syncwarp();
        if (lane == 0)
            barrier_arrive(at.parts + part * 8, 1);
        __syncwarp();
    }
};

/* A thread's vectors of every row; rows beyond the step's are zeros. */
template <int M, int VECTORS>
__device__ __forceinline__ void take_rows(const struct staging &staging, const uint8_t *written,
                                          uint4 (&x)[VECTORS][M])
{
    const struct stream_args &args = staging.args;
    const uint32_t columns = args.shape.product[STREAM_HEADS].columns, vectors = columns / 8;
#pragma unroll
    for (uint32_t j = 0; j < VECTORS; j++) {
        const uint32_t v = staging.thread + j * STREAM_STAGING_THREADS;
        if (written != NULL) {
            take_written<M>(written + v * M * 16, 16,
                            v < vectors ? (1u << staging.rows) - 1 : 0, x[j]);
            continue;
        }
#pragma unroll
        for (uint32_t row = 0; row < M; row++) {
            x[j][row] = {0, 0, 0, 0};
            if (v < vectors && row < staging.rows)
                x[j][row] = __ldcg((const uint4 *)(args.residual + (uint64_t)row * columns) + v);
        }
    }
}

/* The operand of heads, pairs or logits: the rows of the residual stream, normalised. `written`:
 * where they arrive; NULL: they are there, as the step begins. */
template <int M, int VECTORS>
__device__ __forceinline__ void stage_norm(struct staging &staging, const uint8_t *written,
                                           const float *weight, uint32_t pace)
{
    const struct stream_args &args = staging.args;
    const uint32_t columns = args.shape.product[STREAM_HEADS].columns, vectors = columns / 8;
    float (*sums)[STREAM_STAGING_WARPS] = staging.warp_sums[staging.turn ^= 1];
    struct norm_weights weights[VECTORS];
    uint4 x[VECTORS][M];
#pragma unroll
    for (uint32_t j = 0; j < VECTORS; j++) {
        const uint32_t v = staging.thread + j * STREAM_STAGING_THREADS;
        weights[j] = load_weights(weight, v < vectors ? v : 0);
    }
    staging.hold(pace);
    take_rows<M, VECTORS>(staging, written, x);
#pragma unroll
    for (uint32_t row = 0; row < M; row++) {
        float sum = 0.0f;
#pragma unroll
        for (uint32_t j = 0; j < VECTORS; j++)
            if (staging.thread + j * STREAM_STAGING_THREADS < vectors)
                sum = add_squares(sum, x[j][row]);
        sum = add_lanes(sum);
        if (staging.lane == 0)
            sums[row][staging.warp] = sum;
    }
    staging_meet();
#pragma unroll
    for (uint32_t row = 0; row < M; row++) {
        const float scale = norm_scale(sums[row], columns, args.norm_epsilon);
#pragma unroll
        for (uint32_t j = 0; j < VECTORS; j++) {
            const uint32_t v = staging.thread + j * STREAM_STAGING_THREADS;
            if (v < vectors)
                store_vector(staging.at.operand + (v * M + row) * 16,
                                normalised(x[j][row], scale, weights[j]));
        }
    }
    staging.announce(0);
    fence_device(); /* what this CTA has seen comes before what it looks at next */
}

/* The operand of output or down as it arrives, part by part. */
template <int M>
__device__ __forceinline__ void stage_plain(struct staging &staging, uint32_t kind,
                                            const uint8_t *written)
{
    const uint32_t vectors = staging.args.shape.product[kind].columns / 8 * M;
    const uint32_t parts = parts_of(kind, staging.args.shape.product[kind].columns, M);
    const bool there = staging.thread % M < staging.rows; /* a thread's vectors are of one row */
    for (uint32_t part = 0; part < parts; part++) {
        const uint32_t first = part * STREAM_PART_VECTORS + staging.thread;
        uint32_t wanted = 0;
        uint4 x[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if (first + i * STREAM_STAGING_THREADS < vectors)
                wanted |= 1u << i;
        take_written<4>(written + (uint64_t)first * 16, STREAM_STAGING_THREADS * 16,
                        there ? wanted : 0, x);
        const bool early = is_planted(staging.args, STEP_PLANT_OPERAND);
        if (early) {
            staging.announce(part);
            spin(PLANTED_CLOCKS);
        }
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            if ((wanted >> i & 1) != 0)
                store_vector(
                    staging.at.operand + (first + i * STREAM_STAGING_THREADS) * 16, x[i]);
        if (!early)
            staging.announce(part);
    }
    fence_device();
}

/* This CTA's part of the attended rows of the layer before becomes unwritten: all have read it, and
 * nobody writes there before this CTA's next outputs. */
template <int M> __device__ __forceinline__ void clear_attended(const struct staging &staging)
{
    const struct stream_args &args = staging.args;
    const uint32_t words = args.shape.product[STREAM_OUTPUT].columns / 2 * M;
    const uint32_t first = (uint32_t)((uint64_t)words * blockIdx.x / args.shape.ctas);
    const uint32_t end = (uint32_t)((uint64_t)words * (blockIdx.x + 1) / args.shape.ctas);
    for (uint32_t i = first + staging.thread; i < end; i += STREAM_STAGING_THREADS)
        tell_4(copy_of(args, staging.parity ^ 1) + args.exchange.attended + i * 4,
               STREAM_UNWRITTEN);
}

#endif
