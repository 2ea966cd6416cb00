#include "common/arena.h"

#include "common/check.h"

#include <string.h>
#include <sys/mman.h>

/* gcc says it with a macro, clang with a feature. */
#if defined(__SANITIZE_ADDRESS__)
#define IS_WATCHED 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define IS_WATCHED 1
#endif
#endif

#if defined(IS_WATCHED)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_POISON_MEMORY_REGION(address, bytes)   ((void)(address), (void)(bytes))
#define ASAN_UNPOISON_MEMORY_REGION(address, bytes) ((void)(address), (void)(bytes))
#endif

enum { ALIGNMENT = 64 };

enum status arena_init(struct arena *arena, size_t capacity)
{
    *arena = (struct arena){0};
    if (capacity == 0)
        return STATUS_OK;
    if (__builtin_add_overflow(capacity, ALIGNMENT - 1, &capacity))
        return STATUS_OUT_OF_MEMORY;
    capacity =
        capacity / ALIGNMENT * ALIGNMENT; /* so that a rounded piece fits where a piece does */
    void *base = mmap(NULL, capacity, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED)
        return STATUS_OUT_OF_MEMORY;
    *arena = (struct arena){.base = base, .capacity = capacity};
    ASAN_POISON_MEMORY_REGION(base, capacity);
    return STATUS_OK;
}

void arena_free(struct arena *arena)
{
    if (arena->base != NULL) {
        ASAN_UNPOISON_MEMORY_REGION(arena->base, arena->capacity);
        munmap(arena->base, arena->capacity);
    }
    *arena = (struct arena){0};
}

void *arena_alloc(struct arena *arena, size_t bytes)
{
    DEBUG_CHECK(arena->used % ALIGNMENT == 0);
    if (bytes > arena->capacity - arena->used)
        return NULL;
    uint8_t *memory = arena->base + arena->used;
    arena->used += (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
    if (arena->used > arena->used_max)
        arena->used_max = arena->used;
    ASAN_UNPOISON_MEMORY_REGION(memory, bytes);
    memset(memory, 0, bytes);
    return memory;
}

void *arena_alloc_array(struct arena *arena, size_t count, size_t size)
{
    size_t bytes;
    if (__builtin_mul_overflow(count, size, &bytes))
        return NULL;
    return arena_alloc(arena, bytes);
}

void arena_reset(struct arena *arena)
{
    ASAN_POISON_MEMORY_REGION(arena->base, arena->capacity);
    arena->used = 0;
}
