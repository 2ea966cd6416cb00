#include "kernels/cpu/memory.h"

#include "common/check.h"

#include <limits.h>
#include <linux/mempolicy.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RUN_BYTES = 64 << 20, HUGE_PAGE_BYTES = 2 << 20, CACHE_LINE_BYTES = 64 };

enum status memory_map(uint64_t bytes, void **out_memory)
{
    if (bytes == 0)
        bytes = 1;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return STATUS_OUT_OF_MEMORY;
    if (bytes >= RUN_BYTES) /* a KV pool: read in blocks of a few KiB, each of another page */
        (void)madvise(memory, bytes, MADV_HUGEPAGE);
    *out_memory = memory;
    return STATUS_OK;
}

void memory_unmap(void *memory, uint64_t bytes)
{
    if (memory != NULL)
        CHECK(munmap(memory, bytes == 0 ? 1 : bytes) == 0);
}

void memory_drop(void *memory, uint64_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    uintptr_t begin = ((uintptr_t)memory + page - 1) / page * page;
    uintptr_t end = ((uintptr_t)memory + bytes) / page * page;
    if (begin < end)
        CHECK(madvise((void *)begin, end - begin, MADV_DONTNEED) == 0);
}

static uint64_t round_up(uint64_t value, uint64_t unit)
{
    return (value + unit - 1) / unit * unit;
}

/* Refused: the node has no memory, a cpuset forbids it, or a sandbox allows no memory policies. */
static void prefer_node(void *memory, uint64_t bytes, uint32_t node)
{
    unsigned long nodes = 1ul << node;
    CHECK(node < sizeof nodes * CHAR_BIT);
    (void)syscall(SYS_mbind, memory, bytes, MPOL_PREFERRED, &nodes, sizeof nodes * CHAR_BIT + 1, 0);
}

/* Starts and ends at a huge page. Refused advice leaves small pages. */
static enum status run_map(const struct memory_runs *runs, uint64_t bytes,
                           struct memory_run **out_run)
{
    struct memory_run *run = calloc(1, sizeof *run);
    if (run == NULL)
        return STATUS_OUT_OF_MEMORY;
    run->bytes = round_up(bytes > RUN_BYTES ? bytes : RUN_BYTES, HUGE_PAGE_BYTES);
    void *memory = NULL;
    enum status status = memory_map(run->bytes + HUGE_PAGE_BYTES, &memory);
    if (status != STATUS_OK) {
        free(run);
        return status;
    }
    uintptr_t begin = (uintptr_t)memory, base = round_up(begin, HUGE_PAGE_BYTES);
    uintptr_t end = begin + run->bytes + HUGE_PAGE_BYTES;
    run->base = (uint8_t *)base;
    if (base > begin)
        memory_unmap(memory, base - begin);
    if (end > base + run->bytes)
        memory_unmap(run->base + run->bytes, end - base - run->bytes);
    (void)madvise(run->base, run->bytes, MADV_HUGEPAGE);
    if (runs->on_node)
        prefer_node(run->base, run->bytes, runs->node);
    *out_run = run;
    return STATUS_OK;
}

enum status memory_cut(struct memory_runs *runs, uint64_t bytes, void **out_memory)
{
    struct memory_run *run = runs->newest;
    uint64_t piece = round_up(bytes, CACHE_LINE_BYTES);
    if (run == NULL || run->bytes - run->used < piece) {
        enum status status = run_map(runs, piece, &run);
        if (status != STATUS_OK)
            return status;
        run->previous = runs->newest;
        runs->newest = run;
    }
    *out_memory = run->base + run->used;
    run->used += piece;
    run->pieces++;
    return STATUS_OK;
}

void memory_return(struct memory_runs *runs, void *memory)
{
    if (memory == NULL)
        return;
    struct memory_run **link = &runs->newest;
    while ((uint8_t *)memory < (*link)->base || (uint8_t *)memory >= (*link)->base + (*link)->bytes)
        link = &(*link)->previous;
    struct memory_run *run = *link;
    CHECK(run->pieces > 0);
    if (--run->pieces > 0)
        return;
    *link = run->previous;
    memory_unmap(run->base, run->bytes);
    free(run);
}
