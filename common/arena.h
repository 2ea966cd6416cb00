/* Bump allocator. One per lifetime: taken at start, reset per step, never freed piecewise. */
#ifndef TANDEM_COMMON_ARENA_H
#define TANDEM_COMMON_ARENA_H

#include "common/status.h"

#include <stddef.h>
#include <stdint.h>

struct arena {
    uint8_t *base; /* owned */
    size_t capacity, used, used_max;
};

/* Reserves `capacity` bytes (touched on use). STATUS_OUT_OF_MEMORY. A zeroed arena may be freed. */
MUST_USE enum status arena_init(struct arena *arena, size_t capacity);
void arena_free(struct arena *arena);

/* Zeroed memory aligned to 64 bytes, or NULL when the arena is full. */
void *arena_alloc(struct arena *arena, size_t bytes);

/* `count` items of `size`; NULL on overflow too. */
void *arena_alloc_array(struct arena *arena, size_t count, size_t size);

/* Gives everything back; contents become undefined (poisoned in sanitizer builds). */
void arena_reset(struct arena *arena);

#endif
