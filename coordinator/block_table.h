/* The block table [slot][layer][logical block] -> physical block, KV_BLOCK_UNMAPPED where there is
 * none: the coordinator's own copy, from which blocks are given back. What the worker reads is the
 * copy in the segment of its epoch; nothing is ever read back from there. */
#ifndef TANDEM_COORDINATOR_BLOCK_TABLE_H
#define TANDEM_COORDINATOR_BLOCK_TABLE_H

#include "common/arena.h"
#include "common/geometry.h"
#include "common/status.h"

#include <stdint.h>

struct block_table {
    struct kv_geometry geometry;
    uint32_t slots, logical_blocks; /* extents beside the layers */
    int32_t *entries;
};

/* Every entry unmapped. Memory is the arena's. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status block_table_init(struct block_table *table, struct arena *arena,
                                      const struct kv_geometry *geometry, uint32_t slots,
                                      uint32_t logical_blocks);

int32_t block_table_get(const struct block_table *table, uint32_t slot, uint32_t layer,
                        uint32_t logical);

/* Maps one logical block in all layers, blocks[0 .. layers). STATUS_EXISTS without a change if one
 * of the entries is mapped: a table row is append-only while its slot generation lives. */
MUST_USE enum status block_table_map(struct block_table *table, uint32_t slot, uint32_t logical,
                                     const int32_t *blocks);

/* The first entries of one layer's row, contiguous by logical block. Borrowed until the next
 * change. */
const int32_t *block_table_row(const struct block_table *table, uint32_t slot, uint32_t layer);

/* Unmaps the first `count` entries of a slot in every layer. */
void block_table_clear(struct block_table *table, uint32_t slot, uint32_t count);

#endif
