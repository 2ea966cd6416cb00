/* Instructions of sm_90 that CUDA C++ has no name for, and the arithmetic of one matrix step.
 *
 * Layout of mma.m16n8k16 over a warp, lane = 4 group + pair (group 0..7, pair 0..3):
 *   A (16 x 16) a0 (row group, k 2pair), a1 (row group + 8), a2 (k + 8), a3 (both)
 *   B (16 x 8)  b0 (k 2pair, column group), b1 (k + 8)
 *   C (16 x 8)  c0 c1 (row group, columns 2pair, 2pair + 1), c2 c3 (row group + 8) */
#ifndef TANDEM_KERNELS_CUDA_INSTRUCTIONS_CUH
#define TANDEM_KERNELS_CUDA_INSTRUCTIONS_CUH

#include <cuda_bf16.h>
#include <stdint.h>

/* C += A B. Chained over ascending k this is the arithmetic of every matrix product:
 * docs/KERNELS.md. */
__device__ __forceinline__ void mma_step(float (&c)[4], const uint4 &a, uint32_t b0, uint32_t b1)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, "
        "{%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a.x), "r"(a.y), "r"(a.z), "r"(a.w), "r"(b0), "r"(b1));
}

/* One clock for the whole device; ticks coarsely, in steps of up to a microsecond. */
__device__ __forceinline__ uint64_t device_clock_ns()
{
    uint64_t ns;
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(ns));
    return ns;
}

__device__ __forceinline__ uint32_t shared_address(const void *pointer)
{
    return (uint32_t)__cvta_generic_to_shared(pointer);
}

/* Four 8 x 8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8. */
__device__ __forceinline__ uint4 load_matrices(uint32_t address)
{
    uint4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"(address)
                 : "memory");
    return r;
}

__device__ __forceinline__ uint4 load_matrices_transposed(uint32_t address)
{
    uint4 r;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r.x), "=r"(r.y), "=r"(r.z), "=r"(r.w)
                 : "r"(address)
                 : "memory");
    return r;
}

/* Two 8 x 8 matrices, each transposed on the way: lane i gives the address of row i % 8 of the
 * transpose of matrix i / 8 (lanes 0 to 15). */
__device__ __forceinline__ void store_matrices_transposed(uint32_t address, uint32_t m0,
                                                          uint32_t m1)
{
    asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};"
                 :
                 : "r"(address), "r"(m0), "r"(m1)
                 : "memory");
}

__device__ __forceinline__ void store_vector(uint32_t address, const uint4 &v)
{
    asm volatile("st.shared.v4.u32 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(v.x), "r"(v.y),
                 "r"(v.z), "r"(v.w)
                 : "memory");
}

/* 16 bytes from global to shared memory; zeros where `valid` is false. */
__device__ __forceinline__ void copy_16_async(uint32_t shared, const void *global, bool valid)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared), "l"(global), "r"(valid ? 16 : 0)
                 : "memory");
}

__device__ __forceinline__ void copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* All but the latest PENDING groups have arrived. */
template <int PENDING> __device__ __forceinline__ void copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* ---- Bulk copies that complete on a barrier in shared memory ---- */

__device__ __forceinline__ void barrier_init(uint32_t barrier)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
}

__device__ __forceinline__ void barrier_inits_visible()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ __forceinline__ void barrier_expect(uint32_t barrier, uint32_t bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
                 : "memory");
}

/* By whole warps. Lanes leave the loop one by one: a warp that stayed split would run what follows
 * in pieces. */
__device__ __forceinline__ void barrier_wait(uint32_t barrier, uint32_t parity)
{
    asm volatile("{\n"
                 ".reg .pred done;\n"
                 "again:\n"
                 "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
                 "@!done bra again;\n"
                 "}" ::"r"(barrier),
                 "r"(parity)
                 : "memory");
    __syncwarp();
}

/* Weights: read once a step, so they leave the cache first. */
__device__ __forceinline__ uint64_t policy_evict_first()
{
    uint64_t policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    return policy;
}

__device__ __forceinline__ void bulk_copy_once(uint32_t shared, const void *global, uint32_t bytes,
                                               uint32_t barrier, uint64_t policy)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
                 "[%0], [%1], %2, [%3], %4;" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier), "l"(policy)
                 : "memory");
}

__device__ __forceinline__ void bulk_copy(uint32_t shared, const void *global, uint32_t bytes,
                                          uint32_t barrier)
{
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], "
                 "%2, [%3];" ::"r"(shared),
                 "l"(global), "r"(bytes), "r"(barrier)
                 : "memory");
}

/* ---- Matrix steps of four warps ---- */

/* One value for all lanes, in a uniform register, where descriptors must be: by a reduction, whose
 * result the compiler leaves there. */
__device__ __forceinline__ uint32_t uniform(uint32_t value)
{
    return __reduce_or_sync(~0u, value);
}

/* Ordinary stores to shared memory before what matrix units and bulk copies do there. */
__device__ __forceinline__ void fence_async_shared()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

__device__ __forceinline__ void group_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ __forceinline__ void group_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> __device__ __forceinline__ void group_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Low word of the descriptor of an operand in shared memory, without its stride along k. */
__device__ __forceinline__ uint32_t low_word(uint32_t address)
{
    return address >> 4;
}

/* ---- Overlap of one kernel with the one before it ----
 *
 * Every kernel waits and lets the next one start after that. So when a kernel starts, the one before
 * it has passed its own wait: all kernels before that one are complete, and what they wrote may be
 * read at once; what the direct predecessor writes only after the wait. A norm lets products start
 * before its own wait: until theirs these read nothing but weights. */

__device__ __forceinline__ void wait_for_inputs()
{
    asm volatile("griddepcontrol.wait;" ::: "memory");
}

/* The next kernel may start as far as its own wait. */
__device__ __forceinline__ void let_next_start()
{
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

#endif
