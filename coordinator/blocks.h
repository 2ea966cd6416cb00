/* Who holds which KV block: the coordinator's ledger, which the worker obeys.
 * Invariants: (1) a physical block is free, held or retiring, exactly one of them;
 * (2) the blocks of one logical block, one per layer, are taken together or not at all;
 * (3) a block retires until the worker answered the last plan that names it, or its epoch is
 * fenced: the device may still read it; (4) free + held + retiring = total. */
#ifndef TANDEM_COORDINATOR_BLOCKS_H
#define TANDEM_COORDINATOR_BLOCKS_H

#include "common/arena.h"
#include "common/random.h"
#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

struct blocks {
    int32_t *free_list; /* [free_count], the last one is taken next (LIFO) */
    uint8_t *states;    /* [total] */
    uint32_t total, layers;
    uint32_t free_count, held_count, retiring_count;
};

/* Free list 0, 1, .. total-1, so that the highest block is taken first; `shuffle` (may be NULL)
 * permutes it. `total` is a multiple of `layers`. Memory is the arena's. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status blocks_init(struct blocks *blocks, struct arena *arena, uint32_t total,
                                 uint32_t layers, struct random *shuffle);

/* Takes one block per layer, out_blocks[0 .. layers). All or nothing. STATUS_OK or STATUS_FULL. */
MUST_USE enum status blocks_take(struct blocks *blocks, int32_t *out_blocks);

/* Held -> retiring, and retiring -> free. STATUS_INVALID without a change if one of the blocks is
 * not in the expected state (double release) or not a block. */
MUST_USE enum status blocks_retire(struct blocks *blocks, const int32_t *list, uint32_t count);
MUST_USE enum status blocks_free(struct blocks *blocks, const int32_t *list, uint32_t count);

/* Logical blocks that blocks_take can give now. */
uint32_t blocks_free_logical(const struct blocks *blocks);
/* The same when everything that retires now has come back. */
uint32_t blocks_soon_logical(const struct blocks *blocks);

/* Invariants 1 and 4 from scratch; O(total). */
bool blocks_is_balanced(const struct blocks *blocks);

#endif
