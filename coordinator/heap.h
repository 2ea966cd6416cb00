/* Binary heap of small integers by a 64-bit key, smallest first; equal keys: smaller item first.
 * Each item is in it at most once and can be moved or removed by name. Two uses in the core: the
 * queue (requests by sequence) and the timers (requests and calls by deadline). */
#ifndef TANDEM_COORDINATOR_HEAP_H
#define TANDEM_COORDINATOR_HEAP_H

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

struct heap_entry {
    uint64_t key;
    uint32_t item;
};

struct heap {
    struct heap_entry *entries; /* [count] in heap order */
    uint32_t *places;           /* [capacity] by item: index in `entries` + 1, 0 = absent */
    uint32_t count, capacity;
};

/* Items are 0 .. capacity-1. Memory is the arena's. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status heap_init(struct heap *heap, struct arena *arena, uint32_t capacity);

/* Inserts, or moves if it is there. O(log n). */
void heap_set(struct heap *heap, uint32_t item, uint64_t key);

/* O(log n); absent items are ignored. */
void heap_remove(struct heap *heap, uint32_t item);

bool heap_contains(const struct heap *heap, uint32_t item);

/* The entry with the smallest key, or NULL. Borrowed until the next change. */
const struct heap_entry *heap_first(const struct heap *heap);

/* How many entries have a smaller key. O(n), contiguous: for a client's question, never for a step.
 */
uint32_t heap_rank(const struct heap *heap, uint64_t key);

/* Whether order and places agree; O(n). */
bool heap_is_sound(const struct heap *heap);

#endif
