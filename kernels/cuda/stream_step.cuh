/* The kernel of the persistent step; instances in stream_rows_<n>.cu.
 *
 * One CTA per multiprocessor, for all layers and the logits of a step of up to 4 rows. A CTA owns
 * the same row groups of every product (stream.h) and three kinds of warps: a producer that streams
 * its weights into a ring without ever looking at a dependency (stream_producer.cuh), chain warps
 * that run the products (stream_chain.cuh), and staging warps that wait for the other CTAs' outputs
 * and turn them into the next operand (stream_staging.cuh, stream_attention.cuh). Outputs travel
 * through the L2; there is no barrier of the grid.
 *
 * Why all CTAs run at the same time: there are no more than multiprocessors, each fits once, and
 * what ran before ends without them.
 *
 * Order of memory: who reads polls the words themselves, so a word is its own flag. A buffer is made
 * unwritten one layer before it is written again. The words' owner does that before it stores an
 * output that everybody needs to get there, with a fence between; readers fence between what they
 * saw and their next look.
 *
 * Shared memory: ring of 16 KB slots (10 to 13), the operand, barriers: all there is. 544 threads.
 * Bytes moved: weights, keys and values once; limit 4.55 TB/s. */
#ifndef TANDEM_KERNELS_CUDA_STREAM_STEP_CUH
#define TANDEM_KERNELS_CUDA_STREAM_STEP_CUH

#include "kernels/cuda/stream_attention.cuh"
#include "kernels/cuda/stream_chain.cuh"
#include "kernels/cuda/stream_producer.cuh"

/* Between heads and output: attention, then the attended rows. */
template <int M, int DIM>
__device__ __forceinline__ void pass_attention(struct staging &staging,
                                               const struct stream_items &items, uint32_t layer)
{
    if (layer == 0)
        barrier_wait(staging.at.listed, 0);
    const bool attended = attend<DIM, M>(staging, items, layer);
    clear_attended<M>(staging);
    if (!attended)
        staging.hold(staging.args.pace.attended);
}

/* The staging warps' way through the step, product by product: one copy of the code for all. */
template <int M, int VECTORS, int DIM>
__device__ __forceinline__ void run_staging(struct staging &staging,
                                            const struct stream_items &items)
{
    const struct stream_args &args = staging.args;
    const struct stream_exchange &exchange = args.exchange;
    const uint32_t width = args.shape.product[STREAM_HEADS].columns;
    const uint32_t products = args.shape.layers * STREAM_LOGITS;
    wait_for_inputs();
    staging.rows = args.counts->rows;
    staging.parity = *exchange.parity;
#pragma unroll 1
    for (uint32_t i = 0; i <= products; i++) {
        const uint32_t layer = i / STREAM_LOGITS;
        const uint32_t kind = i < products ? i % STREAM_LOGITS : (uint32_t)STREAM_LOGITS;
        const uint8_t *copy = copy_of(args, staging.parity);
        if (kind == STREAM_LOGITS)
            let_next_start();
        if (blockIdx.x == 0 && staging.thread == 0 && i % STREAM_LOGITS == 0)
            *args.progress = layer;
        if (kind == STREAM_OUTPUT)
            pass_attention<M, DIM>(staging, items, layer);
        if (kind == STREAM_OUTPUT || kind == STREAM_DOWN) {
            if (kind == STREAM_DOWN)
                staging.hold(args.pace.gated);
            if (groups_of(args, kind) > 0)
                stage_plain<M>(staging, kind,
                               copy + (kind == STREAM_OUTPUT ? exchange.attended : exchange.gated));
        } else {
            const bool middle = kind == STREAM_PAIRS;
            const uint8_t *written = copy + (middle ? exchange.middle : exchange.next);
            stage_norm<M, VECTORS>(staging, i == 0 ? NULL : written,
                                   args.norms + (uint64_t)(2 * layer + (middle ? 1 : 0)) * width,
                                   middle ? args.pace.middle : args.pace.next);
        }
        if (kind != STREAM_HEADS) /* for those attention waits */
            staging.wait_chains(kind);
        staging.parity ^= kind == STREAM_DOWN ? 1 : 0;
    }
    if (blockIdx.x == 0 && staging.thread == 0)
        *exchange.parity = staging.parity; /* all have begun this step long ago */
}

__device__ __forceinline__ void open_barriers(const struct stream_args &args,
                                              const struct stream_shared &at)
{
    for (uint32_t slot = 0; slot < args.slots; slot++) {
        barrier_init_count(at.full + slot * 8, 1);
        barrier_init_count(at.empty + slot * 8, STREAM_CHAIN_WARPS);
    }
    for (uint32_t part = 0; part < STREAM_PARTS_MAX; part++)
        barrier_init_count(at.parts + part * 8, STREAM_STAGING_WARPS);
    barrier_init_count(at.done, STREAM_CHAIN_WARPS);
    barrier_init_count(at.listed, 1);
    barrier_inits_visible();
}

/* M: rows of the operands; VECTORS: of 8 columns, of a row, for a staging thread. */
template <int M, int VECTORS, int DIM>
__global__ void __launch_bounds__(STREAM_THREADS, 1)
    stream_kernel(const __grid_constant__ struct stream_args args)
{
    extern __shared__ __align__(1024) uint8_t shared[];
    __shared__ struct stream_items items;
    __shared__ float warp_sums[2][STREAM_ROWS_MAX][STREAM_STAGING_WARPS];
    static_assert(STREAM_CHAIN_WARPS == STREAM_STAGING_WARPS, "either gives a slot back");
    const struct stream_shared at = shared_of(args, shared);
    const uint32_t warp = uniform(threadIdx.x / STREAM_WARP);
    if (threadIdx.x == 0)
        open_barriers(args, at);
    __syncthreads();
    if (warp < STREAM_CHAIN_WARPS) {
        run_chains<M>(args, at, items);
    } else if (warp < STREAM_CHAIN_WARPS + STREAM_STAGING_WARPS) {
        const uint32_t thread = threadIdx.x - STREAM_CHAIN_WARPS * STREAM_WARP;
        struct staging staging = {args, at, thread, warp - STREAM_CHAIN_WARPS,
                                  thread % STREAM_WARP, 0, 0, 0, 0, 0, {0, 0}, warp_sums};
        run_staging<M, VECTORS, DIM>(staging, items);
    } else {
        produce<DIM>(args, at, items);
    }
}

#endif
