/* One kernel from attention to attention for steps of 5 to 64 rows: output, residual and norm,
 * gate and up with the gating, down, residual and norm, heads of the next layer.
 *
 * A CTA owns the same row groups of every product (stream.h) and has two rings of slots, one for
 * weights and one for activations, each with a producer warp. Weights are streamed across the
 * borders between the products: they wait for room alone. Activations wait for the barrier of the
 * grid behind which they are there. A residual stream that is whole is normalised, a CTA for a row,
 * and the grid meets again.
 *
 * Why all CTAs run at the same time: there are no more than multiprocessors, each fits once, the
 * kernel before this one ends without it, and the next one starts when all CTAs of this one have.
 *
 * Order of memory: outputs are ordinary stores. The chain warps of a CTA meet, then one thread
 * fences for the device and adds to the counter of the barrier. Who waits reads the counter
 * (acquire): a producer then fences what ordinary stores wrote against its bulk copies; the chain
 * warps that normalise meet behind the thread that waited, and read past the first cache. To 32
 * rows the residual stream goes another way to them: words that are their own flag (stream.h). They
 * have one reader, which makes them unwritten before the barrier behind which they are written
 * again. Any buffer is written again only behind a barrier at which all arrive after their last
 * read of it.
 *
 * Grid: one CTA per owner of weights. 320 threads: eight chain warps (layer_chain.cuh), producers
 * of weights and of activations.
 * Shared memory: [barriers, sums][ring of weights][ring of activations][gated rows].
 * Bytes moved: the weights once, limit 4.55 TB/s; the activations of every product from the L2 for
 * every CTA, of which some 68 bytes a clock arrive. */
#include "kernels/cuda/layer_chain.cuh"

namespace
{

/* One lane. Weights wait for room alone, but for those of down: who has all of gate and up leaves
 * the memory to those who have not, since down begins when all are done. */
template <int N>
__device__ __forceinline__ void copy_weights(const struct layer_args &args, uint32_t shared)
{
    weight_ring<N> ring = weights_of<N>(shared), behind = ring;
    const uint64_t policy = policy_evict_first();
    const uint32_t products = products_of(args);
    const uint8_t *from =
        args.weights + stream_offset(&args.shape, blockIdx.x, args.layer, STREAM_OUTPUT);
    uint32_t issued = 0, launch = 0;
    for (uint32_t i = 0; i < products; i++) {
        const struct stream_product &product = args.shape.product[kind_of(i)];
        const uint32_t groups = stream_groups(&product, blockIdx.x);
        for (uint32_t round = 0; round < rounds_of(groups); round++) {
            const uint32_t together = stream_round(groups, round);
            const uint32_t steps = stream_stage_steps(together, product.columns);
            const uint32_t bytes = steps * together * STREAM_STEP_BYTES;
            for (uint32_t step = 0; step < product.columns / 16; step += steps, ring.advance()) {
                if (i == LAYER_PAIRS && step + steps == product.columns / 16) {
                    wait_for_inputs(); /* this launch is not over before these weights are there */
                    launch = look_4(&args.signals->launches);
                }
                if (i == LAYER_DOWN && step == LAYER_EARLY * steps)
                    grid_wait(args, LAYER_GATED, launch);
                if (issued >= layer_layout<N>::WEIGHT_SLOTS)
                    barrier_wait_alone(ring.empty(), ring.parity ^ 1);
                if (issued++ >= LAYER_COPIES) {
                    barrier_wait_alone(behind.full(), behind.parity);
                    behind.advance();
                }
                barrier_expect(ring.full(), bytes);
                bulk_copy_once(ring.stage(), from, bytes, ring.full(), policy);
                from += bytes;
            }
        }
    }
}

/* One lane. */
template <int N, bool PLANTED>
__device__ __forceinline__ void copy_rows(const struct layer_args &args, uint32_t shared)
{
    const __nv_bfloat16 *sources[LAYER_PRODUCTS] = {args.attended, args.normed, args.gated,
                                                    args.normed};
    const enum layer_barrier barriers[LAYER_PRODUCTS] = {LAYER_NORMED_FFN, LAYER_NORMED_FFN,
                                                         LAYER_GATED, LAYER_NORMED_HEADS};
    row_ring<N> ring = rows_of<N>(shared);
    const uint32_t products = products_of(args);
    uint32_t issued = 0, launch = 0;
    bool launch_known = false;
    wait_for_inputs();
    for (uint32_t i = 0; i < products; i++) {
        const struct stream_product &product = args.shape.product[kind_of(i)];
        const uint32_t steps = row_steps<N>(product.columns), bytes = steps * 32 * N;
        const uint32_t rounds = rounds_of(stream_groups(&product, blockIdx.x));
        if (i == LAYER_PAIRS && !launch_known) /* a CTA that owns nothing of output */
            launch = look_4(&args.signals->launches);
        if (i > LAYER_OUTPUT && !has_plant<PLANTED>(args, STEP_PLANT_OPERAND)) {
            grid_wait(args, barriers[i], launch);
            fence_async_global();
        }
        for (uint32_t round = 0; round < rounds; round++) {
            const uint8_t *from = (const uint8_t *)sources[i];
            for (uint32_t step = 0; step < product.columns / 16; step += steps, ring.advance()) {
                if (issued++ >= layer_layout<N>::ROW_SLOTS)
                    barrier_wait_alone(ring.empty(), ring.parity ^ 1);
                if (i == LAYER_OUTPUT && step + steps == product.columns / 16) {
                    launch = look_4(&args.signals->launches); /* as above */
                    launch_known = true;
                }
                barrier_expect(ring.full(), bytes);
                bulk_copy(ring.stage(), from, bytes, ring.full());
                from += bytes;
            }
        }
    }
}

template <int N, bool PLANTED>
__global__ void __launch_bounds__(LAYER_THREADS, 1)
    layer_kernel(const __grid_constant__ struct layer_args args)
{
    extern __shared__ __align__(1024) uint8_t base[];
    const uint32_t shared = uniform(shared_address(base)); /* once */
    const uint32_t warp = uniform(threadIdx.x / STREAM_WARP);
    if (threadIdx.x == 0) {
        weights_of<N>(shared).open();
        rows_of<N>(shared).open();
        barrier_inits_visible();
    }
    __syncthreads();
    if (warp < LAYER_CHAIN_WARPS) {
        run_chains<N, PLANTED>(args, shared);
    } else if (threadIdx.x % STREAM_WARP == 0) {
        if (warp == LAYER_CHAIN_WARPS)
            copy_weights<N>(args, shared);
        else
            copy_rows<N, PLANTED>(args, shared);
    }
}

struct layer_instance {
    void (*kernel)(struct layer_args);
    uint32_t shared_bytes;
};

template <int N> struct layer_instance instance_for()
{
    return {layer_kernel<N, false>, layer_layout<N>::BYTES};
}

/* Plants: one instance with an exchange and one without. */
struct layer_instance instance_of(const struct layer_args &args)
{
    if (args.planted != 0 && args.rows == 16)
        return {layer_kernel<16, true>, layer_layout<16>::BYTES};
    if (args.planted != 0 && args.rows == 64)
        return {layer_kernel<64, true>, layer_layout<64>::BYTES};
    return args.rows == 16   ? instance_for<16>()
           : args.rows == 32 ? instance_for<32>()
           : args.rows == 48 ? instance_for<48>()
                             : instance_for<64>();
}

} // namespace

uint32_t layer_rows(uint32_t instance)
{
    static const uint32_t rows[LAYER_INSTANCES] = {16, 32, 48, LAYER_ROWS_MAX};
    return rows[instance];
}

bool layer_serves(const struct stream_shape *shape, uint32_t multiprocessors)
{
    const uint32_t kinds[] = {STREAM_HEADS, STREAM_OUTPUT, STREAM_DOWN};
    for (uint32_t kind : kinds)
        if (stream_groups(&shape->product[kind], 0) > LAYER_GROUPS_MAX)
            return false;
    return shape->ctas <= multiprocessors &&
           shape->product[STREAM_PAIRS].columns <= LAYER_COLUMNS_MAX;
}

cudaError_t layer_prepare(const struct layer_args *args)
{
    const struct layer_instance instance = instance_of(*args);
    return cudaFuncSetAttribute(instance.kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                (int)instance.shared_bytes);
}

cudaError_t layer_launch(const struct layer_args *args, cudaStream_t stream)
{
    const struct layer_instance instance = instance_of(*args);
    return launch_overlapped(instance.kernel, dim3(args->shape.ctas), LAYER_THREADS,
                             instance.shared_bytes, stream, *args);
}
