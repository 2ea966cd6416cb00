/* Cuts one reservation of backend memory into page-aligned pieces. A first pass measures, a second
 * one places. */
#ifndef TANDEM_WORKER_REGION_H
#define TANDEM_WORKER_REGION_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { REGION_ALIGNMENT = 4096 };

/* Hands out a reservation piece by piece; with base NULL it only measures. */
struct region {
    uint8_t *base;
    uint64_t used;
    bool overflow;
};

static inline void *region_take(struct region *region, uint64_t count, uint64_t item_bytes)
{
    uint64_t bytes, end;
    if (__builtin_mul_overflow(count, item_bytes, &bytes) ||
        __builtin_add_overflow(region->used, bytes, &end) ||
        __builtin_add_overflow(end, (uint64_t)REGION_ALIGNMENT - 1, &end)) {
        region->overflow = true;
        return NULL;
    }
    void *piece = region->base == NULL ? NULL : region->base + region->used;
    region->used = end / REGION_ALIGNMENT * REGION_ALIGNMENT;
    return piece;
}

#endif
