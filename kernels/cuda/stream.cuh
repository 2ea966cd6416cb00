/* What the roles of the persistent step share on the device: instructions, the ring, the layout of
 * shared memory, the look at words that other CTAs write. */
#ifndef TANDEM_KERNELS_CUDA_STREAM_CUH
#define TANDEM_KERNELS_CUDA_STREAM_CUH

#include "kernels/cuda/stream.h"

extern "C" {
#include "kernels/step.h"
}
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/instructions.cuh"

enum {
    STREAM_WARP = 32,
    STREAM_CHAIN_WARPS = 8, /* two groups of four */
    STREAM_STAGING_WARPS = NORM_WARPS,
    STREAM_STAGING_THREADS = NORM_THREADS,
    STREAM_THREADS = (STREAM_CHAIN_WARPS + STREAM_STAGING_WARPS + 1) * STREAM_WARP,
    STREAM_STAGING_BARRIER = 1, /* named barrier of the staging warps */
    PLANTED_CLOCKS = 4000,      /* how late a planted race makes the right thing */
};

/* ---- Instructions ---- */

__device__ __forceinline__ void barrier_init_count(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}

__device__ __forceinline__ void barrier_arrive(uint32_t barrier, uint32_t count)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count)
                 : "memory");
}

__device__ __forceinline__ bool barrier_passed(uint32_t barrier, uint32_t parity)
{
    uint32_t passed;
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
                 "selp.u32 %0, 1, 0, done;\n"
                 "}"
                 : "=r"(passed)
                 : "r"(barrier), "r"(parity)
                 : "memory");
    return passed != 0;
}

/* By one lane of a warp whose others are elsewhere. */
__device__ __forceinline__ void barrier_wait_alone(uint32_t barrier, uint32_t parity)
{
    while (!barrier_passed(barrier, parity))
        continue;
}

__device__ __forceinline__ void staging_meet()
{
    asm volatile("bar.sync %0, %1;" ::"n"((int)STREAM_STAGING_BARRIER), "n"((int)STREAM_STAGING_THREADS)
                 : "memory");
}

/* What this thread wrote and saw before what it writes and looks at next, for all CTAs. */
__device__ __forceinline__ void fence_device()
{
    asm volatile("fence.acq_rel.gpu;" ::: "memory");
}

/* C (64 weight rows x 8) += A B for 16 k, both operands in shared memory as matrices of 8 rows x 16
 * bytes; low words of the two descriptors. Row groups stand 128 bytes apart. */
__device__ __forceinline__ void group_step(float (&c)[4], uint32_t a, uint32_t b)
{
    asm volatile("{\n"
                 ".reg .b64 da, db;\n"
                 "mov.b64 da, {%4, %6};\n"
                 "mov.b64 db, {%5, %6};\n"
                 "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, da, db, 1, 1, "
                 "1, 0, 0;\n"
                 "}"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a), "r"(b), "r"(8));
}

/* Descriptor of matrices that stand `k_bytes` apart along k. */
__device__ __forceinline__ uint32_t descriptor(uint32_t address, uint32_t k_bytes)
{
    return address >> 4 | (k_bytes >> 4) << 16;
}

/* ---- Outputs ---- */

/* Rows of a pair of lanes become neighbours in a word: an even row group lane gets (row, row + 1) of
 * column 2 pair, its neighbour those of column 2 pair + 1. */
__device__ __forceinline__ uint32_t pair_rows(float first, float second, uint32_t lane)
{
    const bool odd = (lane >> 2 & 1) != 0;
    const float other = __shfl_xor_sync(~0u, odd ? first : second, 4);
    return odd ? pack_2(__float2bfloat16_rn(other), __float2bfloat16_rn(second))
               : pack_2(__float2bfloat16_rn(first), __float2bfloat16_rn(other));
}

/* ---- What tests plant ---- */

__device__ __forceinline__ bool is_planted(const struct stream_args &args, enum step_plant plant)
{
    return (args.planted & plant) != 0;
}

__device__ __forceinline__ void spin(uint32_t clocks)
{
    const uint32_t begin = (uint32_t)clock64();
    while ((uint32_t)clock64() - begin < clocks)
        continue;
    __syncwarp();
}

/* Up to 8,191 clocks by chance, the same for a warp. */
__device__ __forceinline__ void be_late(const struct stream_args &args)
{
    if (!is_planted(args, STEP_PLANT_DELAYS))
        return;
    uint32_t chance = (uniform((uint32_t)clock64()) ^ blockIdx.x * 0x9e3779b9u) * 0x85ebca6bu;
    spin((chance ^ chance >> 15) % 8192);
}

/* ---- Words between CTAs ---- */

__device__ __forceinline__ uint4 look_16(const uint8_t *from)
{
    uint4 v;
    asm volatile("ld.relaxed.gpu.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(from)
                 : "memory");
    return v;
}

__device__ __forceinline__ uint32_t look_4(const void *from)
{
    uint32_t v;
    asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(from) : "memory");
    return v;
}

__device__ __forceinline__ void tell_4(void *to, uint32_t value)
{
    asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(value) : "memory");
}

__device__ __forceinline__ bool is_written(const uint4 &v)
{
    return v.x != STREAM_UNWRITTEN && v.y != STREAM_UNWRITTEN && v.z != STREAM_UNWRITTEN &&
           v.w != STREAM_UNWRITTEN;
}

/* COUNT vectors of 16 bytes, `stride` bytes apart, once all are written. Bit i of `wanted`: vector
 * i; the others are zeros. */
template <int COUNT>
__device__ __forceinline__ void take_written(const uint8_t *from, uint64_t stride, uint32_t wanted,
                                             uint4 (&v)[COUNT])
{
    uint32_t missing = wanted;
#pragma unroll
    for (int i = 0; i < COUNT; i++)
        v[i] = {0, 0, 0, 0};
    while (missing != 0) {
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if ((missing >> i & 1) != 0)
                v[i] = look_16(from + i * stride);
#pragma unroll
        for (int i = 0; i < COUNT; i++)
            if ((missing >> i & 1) != 0 && is_written(v[i]))
                missing &= ~(1u << i);
    }
    __syncwarp();
}

/* ---- Shared memory ---- */

/* [ring][operand][slack][full][empty][parts][done][listed]; addresses of the shared window. */
struct stream_shared {
    uint32_t ring, operand, full, empty, parts, done, listed;
};

__device__ __forceinline__ struct stream_shared shared_of(const struct stream_args &args,
                                                          const uint8_t *base)
{
    struct stream_shared at;
    at.ring = shared_address(base);
    at.operand = at.ring + args.slots * STREAM_STAGE_BYTES;
    at.full = at.operand + args.operand_bytes + STREAM_OPERAND_SLACK;
    at.empty = at.full + args.slots * 8;
    at.parts = at.empty + args.slots * 8;
    at.done = at.parts + STREAM_PARTS_MAX * 8;
    at.listed = at.done + 8;
    return at;
}

/* A place in the endless sequence of slots. */
struct ring_place {
    uint32_t slot, lap; /* lap: times that the ring was gone around */

    __device__ __forceinline__ void advance(uint32_t count, uint32_t slots)
    {
        for (slot += count; slot >= slots; slot -= slots)
            lap++;
    }
};

/* Attention's work of this CTA, the same in every layer. */
struct stream_items {
    uint32_t count;
    uint32_t stages; /* slots of keys and values in a layer */
    struct {
        uint8_t row, kv_head, segment, tiles;
    } item[STREAM_ITEMS_MAX];
};

/* ---- Parts of an operand ---- */

enum { STREAM_PART_VECTORS = 4 * STREAM_STAGING_THREADS };

/* Rows normalised by the staging warps are one part, others one per STREAM_PART_VECTORS. */
__device__ __forceinline__ uint32_t parts_of(uint32_t kind, uint32_t columns, uint32_t rows)
{
    const uint32_t vectors = columns / 8 * rows;
    return kind == STREAM_OUTPUT || kind == STREAM_DOWN
               ? (vectors + STREAM_PART_VECTORS - 1) / STREAM_PART_VECTORS
               : 1;
}

__device__ __forceinline__ uint32_t groups_of(const struct stream_args &args, uint32_t kind)
{
    return stream_groups(&args.shape.product[kind], blockIdx.x);
}

/* Which group of chain warps serves a round that needs but one: output and down share theirs, since
 * it keeps the residual stream of their rows. */
__device__ __forceinline__ uint32_t lone_group(uint32_t kind)
{
    return kind == STREAM_OUTPUT || kind == STREAM_DOWN ? 1 : 0;
}

__device__ __forceinline__ uint8_t *copy_of(const struct stream_args &args, uint32_t parity)
{
    return args.exchange.base + (uint64_t)parity * args.exchange.bytes;
}

#endif
