#include "bench/probe.h"

#include "common/check.h"
#include "common/clock.h"

#include <immintrin.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    BUFFER_BYTES = 256 << 20,
    CHUNK_BYTES = 1 << 20,
    HUGE_PAGE_BYTES = 2 << 20,
    CHAINS = 12, /* independent sums: hide the latency of a multiply-add on any core */
    TURNS = 20000,
    PROBES = 5,
};

/* Where results go that nobody reads, so that no loop is dropped. */
static _Atomic uint32_t sink;

/* A loop of TURNS times CHAINS multiply-adds; the products it made. Written out as a whole: sums in
 * an array end up in memory. */
typedef uint64_t (*multiply_loop)(void);

/* One multiply-add into each of the registers 0 to 11. */
#define EACH(step, r)                                                                              \
    step(r, 0) step(r, 1) step(r, 2) step(r, 3) step(r, 4) step(r, 5) step(r, 6) step(r, 7)        \
        step(r, 8) step(r, 9) step(r, 10) step(r, 11)
#define LOOP(step, r)                                                                              \
    EACH(ZERO, r)                                                                                  \
    "vpxor %%xmm15, %%xmm15, %%xmm15\n"                                                            \
    "1:\n" EACH(step, r) "dec %0\n"                                                                \
                         "jnz 1b\n"
#define ZERO(r, i)         "vpxor %%xmm" #i ", %%xmm" #i ", %%xmm" #i "\n"
#define FLOAT_STEP(r, i)   "vfmadd231ps %%" r "15, %%" r "15, %%" r #i "\n"
#define INTEGER_STEP(r, i) "vpdpwssd %%" r "15, %%" r "15, %%" r #i "\n"
#define BF16_STEP(r, i)    "vdpbf16ps %%" r "15, %%" r "15, %%" r #i "\n"
/* Before VNNI: products of pairs, then the addition. */
#define PAIR_STEP(r, i)                                                                            \
    "vpmaddwd %%" r "15, %%" r "15, %%" r "14\n"                                                   \
    "vpaddd %%" r "14, %%" r #i ", %%" r #i "\n"
#define SUMS                                                                                       \
    "xmm0", "xmm1", "xmm2", "xmm3", "xmm4", "xmm5", "xmm6", "xmm7", "xmm8", "xmm9", "xmm10",       \
        "xmm11", "xmm14", "xmm15", "cc"

static uint64_t integer_avx2(void)
{
    uint32_t turns = TURNS;
    __asm__ volatile(LOOP(PAIR_STEP, "ymm") : "+r"(turns) : : SUMS);
    return (uint64_t)TURNS * CHAINS * 16;
}

static uint64_t integer_avx512(void)
{
    uint32_t turns = TURNS;
    __asm__ volatile(LOOP(INTEGER_STEP, "zmm") : "+r"(turns) : : SUMS);
    return (uint64_t)TURNS * CHAINS * 32;
}

static uint64_t float_avx2(void)
{
    uint32_t turns = TURNS;
    __asm__ volatile(LOOP(FLOAT_STEP, "ymm") : "+r"(turns) : : SUMS);
    return (uint64_t)TURNS * CHAINS * 8;
}

static uint64_t float_avx512(void)
{
    uint32_t turns = TURNS;
    __asm__ volatile(LOOP(FLOAT_STEP, "zmm") : "+r"(turns) : : SUMS);
    return (uint64_t)TURNS * CHAINS * 16;
}

static uint64_t bf16_avx512(void)
{
    uint32_t turns = TURNS;
    __asm__ volatile(LOOP(BF16_STEP, "zmm") : "+r"(turns) : : SUMS);
    return (uint64_t)TURNS * CHAINS * 32;
}

struct multiply_job {
    multiply_loop loop;
    _Atomic uint64_t *products;
};

static void multiply_items(const void *context, uint32_t begin, uint32_t end)
{
    const struct multiply_job *job = context;
    for (uint32_t item = begin; item < end; item++)
        atomic_fetch_add(job->products, job->loop());
}

/* Products per second of the best turn in about `seconds`. */
static double multiply_rate(struct pool *pool, multiply_loop loop, double seconds)
{
    double best = 0;
    uint64_t end = clock_now_ns() + (uint64_t)(seconds * 1e9), start;
    do {
        _Atomic uint64_t products = 0;
        struct multiply_job job = {loop, &products};
        start = clock_now_ns();
        pool_run(pool, multiply_items, &job, pool_threads(pool) * 8, 1);
        double rate = (double)products / ((double)(clock_now_ns() - start) * 1e-9);
        best = rate > best ? rate : best;
    } while (start < end);
    return best;
}

__attribute__((target("avx2"))) static void read_items(const void *context, uint32_t begin,
                                                       uint32_t end)
{
    const uint8_t *first = (const uint8_t *)context + (uint64_t)begin * CHUNK_BYTES;
    const uint8_t *last = (const uint8_t *)context + (uint64_t)end * CHUNK_BYTES;
    __m256i sums[4] = {_mm256_setzero_si256()};
    for (const uint8_t *at = first; at < last; at += sizeof sums) {
        for (int i = 0; i < 4; i++)
            sums[i] = _mm256_xor_si256(sums[i], _mm256_load_si256((const __m256i *)at + i));
    }
    sums[0] =
        _mm256_xor_si256(_mm256_xor_si256(sums[0], sums[1]), _mm256_xor_si256(sums[2], sums[3]));
    atomic_fetch_add(&sink, (uint32_t)_mm256_extract_epi32(sums[0], 0));
}

/* Of a buffer of `bytes`, a multiple of CHUNK_BYTES; each thread reads its own part each time. */
static double read_rate(struct pool *pool, uint64_t bytes, double seconds)
{
    double best = 0;
    uint64_t whole = (bytes + HUGE_PAGE_BYTES - 1) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES;
    void *buffer = aligned_alloc(HUGE_PAGE_BYTES, whole);
    CHECK(buffer != NULL);
    (void)madvise(buffer, whole, MADV_HUGEPAGE); /* as weights have them */
    memset(buffer, 1, whole);
    uint64_t end = clock_now_ns() + (uint64_t)(seconds * 1e9), start;
    do {
        start = clock_now_ns();
        pool_run(pool, read_items, buffer, (uint32_t)(bytes / CHUNK_BYTES), 1);
        double rate = (double)bytes / ((double)(clock_now_ns() - start) * 1e-9);
        best = rate > best ? rate : best;
    } while (start < end);
    free(buffer);
    return best;
}

static uint64_t round_up_chunks(uint64_t bytes)
{
    return (bytes + CHUNK_BYTES - 1) / CHUNK_BYTES * CHUNK_BYTES;
}

struct probe probe_machine(struct pool *pool, uint64_t again_bytes, double seconds)
{
    bool wide = __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512bw");
    CHECK(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"));
    struct probe probe = {
        .read_bytes_per_s = read_rate(pool, BUFFER_BYTES, seconds / PROBES),
        .again_bytes_per_s = read_rate(pool, round_up_chunks(again_bytes), seconds / PROBES),
        .integer_macs_per_s =
            multiply_rate(pool, wide ? integer_avx512 : integer_avx2, seconds / PROBES),
        .float_macs_per_s = multiply_rate(pool, wide ? float_avx512 : float_avx2, seconds / PROBES),
    };
    if (wide && __builtin_cpu_supports("avx512bf16"))
        probe.bf16_macs_per_s = multiply_rate(pool, bf16_avx512, seconds / PROBES);
    if (probe.bf16_macs_per_s < probe.float_macs_per_s)
        probe.bf16_macs_per_s = probe.float_macs_per_s;
    return probe;
}

void probe_print(const struct probe *probe, const struct pool *pool)
{
    printf("probe: read %.1f GB/s, again %.1f GB/s, integer %.1f GMAC/s, fp32 %.1f GMAC/s, bf16 "
           "%.1f GMAC/s, "
           "%u threads\n",
           probe->read_bytes_per_s * 1e-9, probe->again_bytes_per_s * 1e-9,
           probe->integer_macs_per_s * 1e-9, probe->float_macs_per_s * 1e-9,
           probe->bf16_macs_per_s * 1e-9, pool_threads(pool));
    fflush(stdout);
}
