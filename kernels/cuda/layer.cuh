/* What the roles of the layer kernel share: the rings, the barriers of the grid, instructions. */
#ifndef TANDEM_KERNELS_CUDA_LAYER_CUH
#define TANDEM_KERNELS_CUDA_LAYER_CUH

#include "kernels/cuda/layer.h"
#include "kernels/cuda/stream.cuh"
#include "kernels/cuda/wide_step.cuh"

enum {
    LAYER_CHAIN_WARPS = 8, /* two teams of four */
    LAYER_CHAIN_THREADS = LAYER_CHAIN_WARPS * STREAM_WARP,
    LAYER_THREADS = LAYER_CHAIN_THREADS + 2 * STREAM_WARP,
    LAYER_HEAD_BYTES = 512, /* barriers of the slots, sums of the norm */
    LAYER_SUMS_AT = 384,
    LAYER_GATED_ROW = STREAM_ROUND_GROUPS / 2 * 16 + 16, /* bytes, padded against bank conflicts */
    LAYER_CHAIN_BARRIER = 1,
    LAYER_PRODUCTS = 4,
    LAYER_COPIES = 3, /* of weights, in flight: queued ones make every other request wait */
    LAYER_EARLY = 2,  /* slots of down that are filled before all have their gated rows */
};

static_assert((int)LAYER_CHAIN_THREADS == NORM_THREADS, "the chain warps normalise");

/* The products of a launch, in the order of the weights. */
enum layer_product { LAYER_OUTPUT, LAYER_PAIRS, LAYER_DOWN, LAYER_HEADS };

__device__ __forceinline__ uint32_t kind_of(uint32_t product)
{
    return product == LAYER_HEADS ? (uint32_t)STREAM_HEADS : product + (uint32_t)STREAM_OUTPUT;
}

__device__ __forceinline__ uint32_t products_of(const struct layer_args &args)
{
    return args.layer + 1 < args.shape.layers ? LAYER_PRODUCTS : LAYER_PRODUCTS - 1;
}

__device__ __forceinline__ uint32_t rounds_of(uint32_t groups)
{
    return (groups + STREAM_ROUND_GROUPS - 1) / STREAM_ROUND_GROUPS;
}

/* What a CTA has room for beside the gated rows: slots of either ring. */
template <int N> struct layer_layout {
    static constexpr uint32_t ROW_STEPS = N <= 32 ? 32 : 16; /* of k, of a slot */
    static constexpr uint32_t ROW_SLOT = ROW_STEPS * 32 * N;
    static constexpr uint32_t ROW_SLOTS = N == 48 ? 4 : 3;
    static constexpr uint32_t WEIGHT_SLOT = STREAM_STAGE_BYTES;
    static constexpr uint32_t WEIGHT_SLOTS = N == 16 ? 10 : 7;
    static constexpr uint32_t WEIGHTS_AT = LAYER_HEAD_BYTES;
    static constexpr uint32_t ROWS_AT = WEIGHTS_AT + WEIGHT_SLOTS * WEIGHT_SLOT;
    static constexpr uint32_t GATED_AT = ROWS_AT + ROW_SLOTS * ROW_SLOT;
    static constexpr uint32_t BYTES = GATED_AT + N * LAYER_GATED_ROW;
    /* few rows: who normalises looks for the words themselves; more: a barrier is faster */
    static constexpr bool EXCHANGED = N <= LAYER_EXCHANGED_MAX;
    static_assert(BYTES <= STREAM_SHARED_MAX, "fits");
    static_assert((WEIGHT_SLOTS + ROW_SLOTS) * 16 <= LAYER_SUMS_AT, "the barriers have room");
};

/* Steps of k that a slot of activations holds. */
template <int N> __device__ __forceinline__ uint32_t row_steps(uint32_t columns)
{
    uint32_t steps = layer_layout<N>::ROW_STEPS;
    while ((columns / 16 & (steps - 1)) != 0)
        steps /= 2;
    return steps;
}

/* A ring, with a place in its endless sequence of slots. The two barriers of a slot stand side by
 * side. */
template <uint32_t SLOTS, uint32_t BYTES> struct layer_ring {
    uint32_t barriers, base;
    uint32_t slot, parity;

    __device__ __forceinline__ uint32_t stage() const
    {
        return base + slot * BYTES;
    }
    __device__ __forceinline__ uint32_t full() const
    {
        return barriers + slot * 16;
    }
    __device__ __forceinline__ uint32_t empty() const
    {
        return barriers + slot * 16 + 8;
    }
    __device__ __forceinline__ void advance()
    {
        slot++;
        if (slot == SLOTS) {
            slot = 0;
            parity ^= 1;
        }
    }
    __device__ __forceinline__ void skip(uint32_t count)
    {
        for (slot += count; slot >= SLOTS; slot -= SLOTS)
            parity ^= 1;
    }
    __device__ __forceinline__ void open() const
    {
        for (uint32_t i = 0; i < SLOTS; i++) {
            barrier_init_count(barriers + i * 16, 1);
            barrier_init_count(barriers + i * 16 + 8, LAYER_CHAIN_WARPS);
        }
    }
};

template <int N>
using weight_ring = layer_ring<layer_layout<N>::WEIGHT_SLOTS, layer_layout<N>::WEIGHT_SLOT>;
template <int N> using row_ring = layer_ring<layer_layout<N>::ROW_SLOTS, layer_layout<N>::ROW_SLOT>;

template <int N> __device__ __forceinline__ weight_ring<N> weights_of(uint32_t shared)
{
    return {shared, shared + layer_layout<N>::WEIGHTS_AT, 0, 0};
}

template <int N> __device__ __forceinline__ row_ring<N> rows_of(uint32_t shared)
{
    return {shared + layer_layout<N>::WEIGHT_SLOTS * 16, shared + layer_layout<N>::ROWS_AT, 0, 0};
}

/* ---- Barriers of the grid ---- */

__device__ __forceinline__ void chains_meet()
{
    asm volatile("bar.sync %0, %1;" ::"n"((int)LAYER_CHAIN_BARRIER), "n"((int)LAYER_CHAIN_THREADS)
                 : "memory");
}

/* Bulk copies of what ordinary stores wrote to global memory, by whichever CTA. */
__device__ __forceinline__ void fence_async_global()
{
    asm volatile("fence.proxy.async.global;" ::: "memory");
}

/* All chain warps: what they stored is there for who waits. */
__device__ __forceinline__ void grid_arrive(const struct layer_args &args,
                                            enum layer_barrier barrier)
{
    chains_meet();
    if (threadIdx.x == 0) {
        fence_device();
        asm volatile("red.relaxed.gpu.global.add.u32 [%0], 1;" ::"l"(
                         &args.signals->barrier[barrier].arrived)
                     : "memory");
    }
    __syncwarp();
}

/* One lane. `launch`: number of this launch. */
__device__ __forceinline__ void grid_wait(const struct layer_args &args, enum layer_barrier barrier,
                                          uint32_t launch)
{
    const uint32_t all = (launch + 1) * args.shape.ctas;
    uint32_t arrived;
    do {
        asm volatile("ld.acquire.gpu.global.u32 %0, [%1];"
                     : "=r"(arrived)
                     : "l"(&args.signals->barrier[barrier].arrived)
                     : "memory");
    } while ((int32_t)(arrived - all) < 0);
}

/* A row on its way from its owners to the CTA that normalises it. */
__device__ __forceinline__ uint8_t *exchanged_row(const struct layer_args &args, bool down,
                                                  uint32_t row)
{
    const uint32_t width = args.shape.product[STREAM_PAIRS].columns;
    return (uint8_t *)(args.exchange + (uint64_t)((down ? LAYER_EXCHANGED_MAX : 0) + row) * width);
}

/* PLANTED: an instance for tests. */
template <bool PLANTED>
__device__ __forceinline__ bool has_plant(const struct layer_args &args, enum step_plant plant)
{
    return PLANTED && (args.planted & plant) != 0;
}

/* Up to 8,191 clocks by chance, the same for a warp. */
template <bool PLANTED> __device__ __forceinline__ void come_late(const struct layer_args &args)
{
    if (!has_plant<PLANTED>(args, STEP_PLANT_DELAYS))
        return;
    uint32_t chance = (uniform((uint32_t)clock64()) ^ blockIdx.x * 0x9e3779b9u) * 0x85ebca6bu;
    spin((chance ^ chance >> 15) % 8192);
}

#endif
