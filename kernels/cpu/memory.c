#include "kernels/cpu/memory.h"

#include "common/check.h"

#include <stddef.h>
#include <sys/mman.h>
#include <unistd.h>

enum status memory_map(uint64_t bytes, void **out_memory)
{
    if (bytes == 0)
        bytes = 1;
    void *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED)
        return STATUS_OUT_OF_MEMORY;
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
