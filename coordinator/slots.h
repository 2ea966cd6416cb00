/* Rows of the block table and what they hold: which request owns a slot, its generation, its
 * blocks. Invariants: (1) a slot is free, held or retiring; (2) it retires, with its blocks, until
 * the last plan that names it was answered, or its epoch is fenced; (3) its generation rises at
 * each use and never goes back; (4) its logical blocks 0 .. logical_blocks-1 are mapped in every
 * layer, the rest in none. */
#ifndef TANDEM_COORDINATOR_SLOTS_H
#define TANDEM_COORDINATOR_SLOTS_H

#include "coordinator/block_table.h"
#include "coordinator/blocks.h"
#include "proto/limits.h"

#include <stdbool.h>
#include <stdint.h>

#define SLOT_NONE UINT32_MAX

enum slot_state { SLOT_FREE, SLOT_HELD, SLOT_RETIRING };

struct slot {
    enum slot_state state;
    uint32_t generation;
    uint32_t owner;          /* index of the request, while held */
    uint32_t logical_blocks; /* mapped */
    uint64_t last_step;      /* newest plan of this epoch that names it; 0 = none */
    uint32_t next_retiring;  /* list of `retiring` */
};

struct slots {
    struct slot *rows; /* [capacity] */
    uint32_t capacity;
    uint32_t *free_list; /* [free_count], LIFO */
    uint32_t free_count, held_count;
    uint64_t answered;                        /* newest answered step of this epoch */
    uint32_t retiring[LIMIT_PLANS_IN_FLIGHT]; /* heads, by last_step modulo the plans in flight */
    struct blocks blocks;
    struct block_table table;
    int32_t *scratch; /* [layers] */
};

struct slots_config {
    struct kv_geometry geometry;
    uint32_t slots;
    uint32_t logical_blocks; /* per slot and layer */
    uint32_t pool_blocks;    /* physical */
    struct random *shuffle;  /* NULL: the free list in order */
};

/* Memory is the arena's. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status slots_init(struct slots *slots, struct arena *arena,
                                const struct slots_config *config);

/* A free slot with a fresh generation and no blocks. STATUS_OK or STATUS_FULL. */
MUST_USE enum status slots_take(struct slots *slots, uint32_t owner, uint32_t *out_slot);

/* Logical blocks that a slot lacks to hold `tokens` positions. */
uint32_t slots_lacking(const struct slots *slots, uint32_t slot, uint32_t tokens);

/* Takes what a held slot lacks for `tokens` positions; all or nothing. STATUS_OK or STATUS_FULL. */
MUST_USE enum status slots_cover(struct slots *slots, uint32_t slot, uint32_t tokens);

/* Plan `step` names the slot. */
void slots_name(struct slots *slots, uint32_t slot, uint64_t step);

/* Ends the generation: free now if no unanswered plan names it, retiring otherwise. */
void slots_release(struct slots *slots, uint32_t slot);

/* Plan `step` was answered (the next one in order): what retired for it is free. */
void slots_answered(struct slots *slots, uint64_t step);

/* The epoch is over: everything is free, steps count from 1 again. */
void slots_clear(struct slots *slots);

/* Invariants 1, 2 and 4 and the ledger's; O(everything). */
bool slots_is_sound(const struct slots *slots);

#endif
