#include "kernels/cpu/device.h"

#include "kernels/cpu/memory.h"
#include "kernels/cpu/processors.h"

#include <cpuid.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static enum status cpu_memory_reserve(struct backend *backend, uint64_t bytes, void **out_memory)
{
    (void)backend;
    return memory_map(bytes, out_memory);
}

static void cpu_memory_release(struct backend *backend, void *memory, uint64_t bytes)
{
    (void)backend;
    memory_unmap(memory, bytes);
}

static void cpu_memory_discard(struct backend *backend, void *memory, uint64_t bytes)
{
    (void)backend;
    memory_drop(memory, bytes);
}

static void cpu_upload(struct backend *backend, void *memory, const void *host, uint64_t bytes)
{
    (void)backend;
    memcpy(memory, host, bytes);
}

static enum status cpu_download(struct backend *backend, void *host, const void *memory,
                                uint64_t bytes)
{
    (void)backend;
    memcpy(host, memory, bytes);
    return STATUS_OK;
}

/* Matrices that share their input stay apart: the operation takes several at once. */
static enum status cpu_matrix_join(struct backend *backend, struct matrix *const *parts,
                                   uint32_t count, enum matrix_join_order order, uint32_t head_dim)
{
    (void)backend;
    (void)parts;
    (void)count;
    (void)order;
    (void)head_dim;
    return STATUS_OK;
}

static void cpu_close(struct backend *backend)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    pool_close(cpu->pool);
    if (cpu->placement.kept)
        (void)sched_setaffinity(0, sizeof cpu->callers, &cpu->callers);
    free(cpu);
}

static const struct backend_operations cpu_operations = {
    .memory_reserve = cpu_memory_reserve,
    .memory_release = cpu_memory_release,
    .memory_discard = cpu_memory_discard,
    .upload = cpu_upload,
    .download = cpu_download,
    .matrix_load = cpu_matrix_load,
    .matrix_free = cpu_matrix_free,
    .matrix_join = cpu_matrix_join,
    .prepared_bytes = cpu_prepared_bytes,
    .attention_scratch_bytes = cpu_attention_scratch_bytes,
    .embed = cpu_embed,
    .gather = cpu_gather,
    .rmsnorm = cpu_rmsnorm,
    .prepare = cpu_prepare,
    .matmul = cpu_matmul,
    .rope = cpu_rope,
    .kv_write = cpu_kv_write,
    .attention = cpu_attention,
    .add = cpu_add,
    .silu_mul = cpu_silu_mul,
    .norm_prepare = cpu_norm_prepare,
    .silu_prepare = cpu_silu_prepare,
    .rope_write = cpu_rope_write,
    .sample = cpu_sample,
    .hash = cpu_hash,
    .close = cpu_close,
};

/* __builtin_cpu_supports() also asks whether the system saves the wide registers; clang 14 does not
 * know F16C there. */
static bool has_avx2(void)
{
    unsigned eax, ebx, ecx, edx;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

/* Processors with AVX-512 but without VNNI (before 2019) run the AVX2 kernels. */
static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}

static bool always(void)
{
    return true;
}

static bool has_avx512_bf16(void)
{
    return has_avx512() && __builtin_cpu_supports("avx512bf16");
}

/* Intel's cores make a vdpbf16ps in the time of four multiply-adds of fp32, and two of these have
 * the same bits. */
static bool has_quick_bf16(void)
{
    return has_avx512_bf16() && !__builtin_cpu_is("intel");
}

/* The system saves 8 KiB of tiles for a process that asks for it (Linux 5.16 and later). */
static bool has_amx(void)
{
    enum { FEATURES = 7, TILES = 1 << 24, TILES_OF_BYTES = 1 << 25 };
    enum { REQUEST_STATE = 0x1023, STATE_OF_TILES = 18 }; /* asm/prctl.h of such a system */
    unsigned eax, ebx, ecx, edx;
    return has_avx512() && __get_cpuid_count(FEATURES, 0, &eax, &ebx, &ecx, &edx) != 0 &&
           (edx & TILES) != 0 && (edx & TILES_OF_BYTES) != 0 &&
           syscall(SYS_arch_prctl, REQUEST_STATE, STATE_OF_TILES) == 0;
}

/* From the widest to the one that runs everywhere. */
static const struct isa_level {
    uint32_t isa; /* enum cpu_isa */
    const struct cpu_kernels *kernels;
    bool (*present)(void);
    bool (*pays)(void); /* if it is not asked for by name */
    const char *missing;
} isa_levels[] = {
    {CPU_ISA_AMX, &cpu_kernels_amx, has_amx, has_amx,
     "AMX with INT8, or the system does not save its tiles"},
    {CPU_ISA_AVX512_BF16, &cpu_kernels_avx512_bf16, has_avx512_bf16, has_quick_bf16,
     "AVX-512 with BW, DQ, VL, VNNI and BF16"},
    {CPU_ISA_AVX512, &cpu_kernels_avx512, has_avx512, has_avx512,
     "AVX-512 with BW, DQ, VL and VNNI"},
    {CPU_ISA_AVX2, &cpu_kernels_avx2, has_avx2, has_avx2, "AVX2 with FMA and F16C"},
    {CPU_ISA_PLAIN, &cpu_kernels_plain, always, always, ""},
};

static const struct cpu_kernels *choose_kernels(uint32_t isa, struct text *why)
{
    for (size_t i = 0; i < sizeof isa_levels / sizeof *isa_levels; i++) {
        const struct isa_level *level = &isa_levels[i];
        if (isa == CPU_ISA_AUTO && level->pays())
            return level->kernels;
        if (isa != level->isa)
            continue;
        if (level->present())
            return level->kernels;
        text_set(why, "this processor has no %s", level->missing);
    }
    return NULL;
}

/* Threads stay on their cores, if they are to be pinned, or on their nodes, where there are
 * several. The caller's never stays on a core: threads that it starts later inherit its processors.
 */
static void keep_threads(struct cpu_backend *cpu, bool pin)
{
    const struct placement *placement = &cpu->placement;
    for (uint32_t i = 0; i < placement->count && (pin || placement->kept); i++) {
        uint32_t thread = placement_first_thread(placement, i);
        for (; thread < placement->place[i].threads_end; thread++) {
            cpu_set_t core;
            CPU_ZERO(&core);
            CPU_SET(placement->core_of[thread], &core);
            if (thread > 0)
                pool_keep(cpu->pool, thread, pin ? &core : &placement->place[i].processors);
        }
    }
    if (placement->kept)
        (void)sched_setaffinity(0, sizeof(cpu_set_t), &placement->place[0].processors);
}

/* The weights of each node's threads lie on that node. */
static void place_threads(struct cpu_backend *cpu, const struct processors *processors,
                          const struct backend_options *options, uint32_t threads)
{
    struct placement *placement = &cpu->placement;
    int processor = sched_getcpu();
    placement_find(processors, threads, processor >= 0 ? (uint32_t)processor : 0, placement);
    if (placement->kept && sched_getaffinity(0, sizeof cpu->callers, &cpu->callers) != 0)
        placement->kept = false; /* it could not be given back */
    for (uint32_t i = 0; i < placement->count; i++)
        cpu->weights[i] =
            (struct memory_runs){.on_node = placement->kept, .node = placement->place[i].node};
    keep_threads(cpu, options->pin_threads != 0);
}

enum status cpu_open(const struct backend_options *options, struct backend **out_backend,
                     struct text *why)
{
    const struct cpu_kernels *kernels = choose_kernels(options->cpu_isa, why);
    if (kernels == NULL)
        return STATUS_UNSUPPORTED;
    struct processors processors;
    processors_find(&processors);
    uint32_t threads = options->threads != 0 ? options->threads : processors.paid;
    threads = threads < POOL_THREADS_MAX ? threads : POOL_THREADS_MAX;
    struct cpu_backend *cpu = calloc(1, sizeof *cpu);
    if (cpu == NULL) {
        text_set(why, "out of memory");
        return STATUS_OUT_OF_MEMORY;
    }
    enum status status = pool_open(threads, &cpu->pool);
    if (status != STATUS_OK) {
        text_set(why, "cannot start %u threads: %s", threads, status_text(status));
        free(cpu);
        return status;
    }
    place_threads(cpu, &processors, options, threads);
    cpu->kernels = kernels;
    cpu->base = (struct backend){
        .operations = &cpu_operations,
        .kind = BACKEND_CPU,
        .kv_order = KV_ORDER_CPU,
        .name = kernels->name,
        .threads = threads,
    };
    *out_backend = &cpu->base;
    return STATUS_OK;
}
