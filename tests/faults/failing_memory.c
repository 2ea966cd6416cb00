#include "faults/failing_memory.h"

#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <unistd.h>

void *__real_malloc(size_t bytes);
void *__real_calloc(size_t count, size_t bytes);
void *__real_realloc(void *memory, size_t bytes);
void *__real_aligned_alloc(size_t alignment, size_t bytes);
void __real_free(void *memory);
void *__real_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
int __real_munmap(void *address, size_t bytes);

void *__wrap_malloc(size_t bytes);
void *__wrap_calloc(size_t count, size_t bytes);
void *__wrap_realloc(void *memory, size_t bytes);
void *__wrap_aligned_alloc(size_t alignment, size_t bytes);
void __wrap_free(void *memory);
void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset);
int __wrap_munmap(void *address, size_t bytes);

/* Of the whole process: the wrapped functions have no argument to carry it. */
static struct {
    atomic_uint_fast64_t countdown; /* 0: nothing fails */
    atomic_int_fast64_t held;
    atomic_bool for_good, failed, spared;
} memory;

void memory_fail_at(uint64_t nth, bool for_good)
{
    memory.for_good = for_good;
    memory.failed = false;
    memory.countdown = nth;
}

bool memory_recovers(void)
{
    memory.countdown = 0;
    return memory.failed;
}

int64_t memory_blocks_held(void)
{
    return memory.held;
}

void memory_spare_others(bool spared)
{
    memory.spared = spared;
}

static bool is_refused(void)
{
    if (memory.countdown == 0)
        return false;
    if (memory.countdown > 1) {
        memory.countdown--;
        return false;
    }
    memory.failed = true;
    if (!memory.for_good)
        memory.countdown = 0;
    errno = ENOMEM;
    return true;
}

/* A mapping may be given back in parts. */
static int64_t pages(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    return (int64_t)((bytes + page - 1) / page);
}

static void *hold(void *taken)
{
    memory.held += taken != NULL;
    return taken;
}

void *memory_reallocate(void *old, size_t bytes)
{
    if (is_refused())
        return NULL;
    void *taken = __real_realloc(old, bytes);
    memory.held += old == NULL && taken != NULL;
    return taken;
}

void *__wrap_malloc(size_t bytes)
{
    return !memory.spared && is_refused() ? NULL : hold(__real_malloc(bytes));
}

void *__wrap_calloc(size_t count, size_t bytes)
{
    return !memory.spared && is_refused() ? NULL : hold(__real_calloc(count, bytes));
}

void *__wrap_aligned_alloc(size_t alignment, size_t bytes)
{
    return !memory.spared && is_refused() ? NULL : hold(__real_aligned_alloc(alignment, bytes));
}

void *__wrap_realloc(void *old, size_t bytes)
{
    if (!memory.spared && is_refused())
        return NULL;
    void *taken = __real_realloc(old, bytes);
    memory.held += old == NULL && taken != NULL;
    return taken;
}

void __wrap_free(void *taken)
{
    memory.held -= taken != NULL;
    __real_free(taken);
}

void *__wrap_mmap(void *address, size_t bytes, int protection, int flags, int file, off_t offset)
{
    if (!memory.spared && is_refused())
        return MAP_FAILED;
    void *taken = __real_mmap(address, bytes, protection, flags, file, offset);
    if (taken != MAP_FAILED)
        memory.held += pages(bytes);
    return taken;
}

int __wrap_munmap(void *address, size_t bytes)
{
    memory.held -= pages(bytes);
    return __real_munmap(address, bytes);
}
