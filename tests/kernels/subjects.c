#include "kernels/subjects.h"

#include "common/check.h"
#include "common/random.h"

#include <stdio.h>

#define CPU_SUBJECT(isa_name, isa, count)                                                          \
    {                                                                                              \
        "cpu-" isa_name ", " #count " threads", "cpu",                                             \
        {                                                                                          \
            .kind = BACKEND_CPU, .cpu_isa = isa, .threads = count                                  \
        }                                                                                          \
    }

/* The first of a family is the reference of its bits. */
const struct subject subjects[] = {
    CPU_SUBJECT("plain", CPU_ISA_PLAIN, 1),
    CPU_SUBJECT("plain", CPU_ISA_PLAIN, 3),
    CPU_SUBJECT("avx2", CPU_ISA_AVX2, 1),
    CPU_SUBJECT("avx2", CPU_ISA_AVX2, 2),
    CPU_SUBJECT("avx2", CPU_ISA_AVX2, 3),
    CPU_SUBJECT("avx2", CPU_ISA_AVX2, 4),
    CPU_SUBJECT("avx512", CPU_ISA_AVX512, 1),
    CPU_SUBJECT("avx512", CPU_ISA_AVX512, 2),
    CPU_SUBJECT("avx512", CPU_ISA_AVX512, 3),
    CPU_SUBJECT("avx512", CPU_ISA_AVX512, 8),
    CPU_SUBJECT("avx512-bf16", CPU_ISA_AVX512_BF16, 1),
    CPU_SUBJECT("avx512-bf16", CPU_ISA_AVX512_BF16, 2),
    CPU_SUBJECT("avx512-bf16", CPU_ISA_AVX512_BF16, 3),
    CPU_SUBJECT("amx", CPU_ISA_AMX, 1),
    CPU_SUBJECT("amx", CPU_ISA_AMX, 2),
    CPU_SUBJECT("amx", CPU_ISA_AMX, 3),
};
const size_t subject_count = sizeof subjects / sizeof *subjects;

struct backend *subject_open(const struct subject *subject)
{
    struct backend *backend = NULL;
    struct reason reason;
    enum status status = backend_open(&subject->options, &backend, reason_init(&reason));
    if (status == STATUS_UNSUPPORTED) {
        fprintf(stderr, "%s not on this machine: %s\n", subject->name, reason.storage);
        return NULL;
    }
    CHECK(status == STATUS_OK);
    return backend;
}

void *subject_memory(struct backend *backend, uint64_t bytes)
{
    void *memory = NULL;
    CHECK(backend->operations->memory_reserve(backend, bytes, &memory) == STATUS_OK);
    return memory;
}

void *subject_upload(struct backend *backend, const void *host, uint64_t bytes)
{
    void *memory = subject_memory(backend, bytes);
    backend->operations->upload(backend, memory, host, bytes);
    return memory;
}

void subject_download(struct backend *backend, void *host, const void *memory, uint64_t bytes)
{
    CHECK(backend->operations->download(backend, host, memory, bytes) == STATUS_OK);
}

void fill_values(float *values, size_t count, uint64_t seed)
{
    struct random random = {seed};
    for (size_t i = 0; i < count; i++) {
        values[i] = (float)(random_next(&random) >> 40) * 0x1p-23f - 1.0f;
        if (i % 37 == 11)
            values[i] *= 20.0f;
    }
}
