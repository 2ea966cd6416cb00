/* Memory that is fetched into the L2 cache while something else is computed: keys and values during
 * products of several rows, which leave the memory idle most of the time. A few lines at each step
 * of a loop: the processor holds only so many requests, and loads wait behind those that are too
 * many. */
#ifndef TANDEM_KERNELS_CPU_FETCH_H
#define TANDEM_KERNELS_CPU_FETCH_H

#include "kernels/ops.h"

enum {
    FETCH_LINE_BYTES = 64,
    FETCH_PIECES_MAX = 1024,
    /* For one attention: what the second caches of two threads hold, and what they hand on to a
     * third one that is not crowded. */
    FETCH_BYTES_SECOND = 2 << 20,
    FETCH_BYTES_THIRD = 8 << 20,
};

/* Pieces of equal length, one after the other. */
struct fetch_walk {
    const uint8_t *const *piece; /* the first of those that were not begun */
    uint32_t pieces;             /* that were not begun */
    uint32_t piece_bytes;
    uint32_t step_bytes;       /* whole lines */
    const uint8_t *at, *until; /* what is left of the piece that was begun */
};

/* Spreads the rest of the walk over `steps` steps, evenly. */
static inline void fetch_pace(struct fetch_walk *walk, uint64_t steps)
{
    uint64_t bytes = (uint64_t)walk->pieces * walk->piece_bytes, line = FETCH_LINE_BYTES;
    walk->step_bytes = (uint32_t)((bytes / line + steps - 1) / steps * line);
}

/* The next step; nothing where the walk has ended. */
static inline void fetch_step(struct fetch_walk *walk)
{
    if (walk->at >= walk->until) {
        if (walk->pieces == 0)
            return;
        walk->pieces--;
        walk->at = *walk->piece++;
        walk->until = walk->at + walk->piece_bytes;
    }
    const uint8_t *to = walk->at + walk->step_bytes;
    for (; walk->at < to && walk->at < walk->until; walk->at += FETCH_LINE_BYTES)
        __builtin_prefetch(walk->at, 0, 2);
}

/* Blocks that the attention reads; 0 where they are more than `bytes_max`: of these many would be
 * gone again before they are read. */
uint32_t fetch_count(const struct kv_reads *reads, uint64_t bytes_max);

/* Addresses of blocks first .. first + count - 1 of these into `pieces`; as many as are mapped. */
uint32_t fetch_list(const struct kv_reads *reads, uint32_t first, uint32_t count,
                    const uint8_t **pieces);

#endif
