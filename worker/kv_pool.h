/* The memory of the paged KV cache. Who owns which block is the coordinator's business; this is
 * only the room. Reserved as a whole at start, taken from the system page by page when first
 * written. */
#ifndef TANDEM_WORKER_KV_POOL_H
#define TANDEM_WORKER_KV_POOL_H

#include "common/geometry.h"
#include "common/status.h"
#include "common/text.h"
#include "kernels/backend.h"

#include <stdbool.h>
#include <stdint.h>

struct kv_pool {
    struct backend *backend; /* borrowed */
    struct kv_geometry geometry;
    uint32_t blocks; /* physical, of one layer each; a multiple of geometry.layers */
    uint64_t bytes;
    void *memory; /* owned backend memory */
    bool touched; /* something may have been written since the last discard */
};

/* Reserves room for kv_pool_blocks(geometry, pool_bytes) blocks. STATUS_INVALID if there is not one
 * logical block or more than a block table can name, STATUS_OUT_OF_MEMORY; with the reason in
 * `why`. Close with kv_pool_close(). */
MUST_USE enum status kv_pool_open(struct backend *backend, const struct kv_geometry *geometry,
                                  uint64_t pool_bytes, struct kv_pool *out_pool, struct text *why);

/* Accepts a zeroed object. */
void kv_pool_close(struct kv_pool *pool);

/* Forgets all contents and gives the memory back to the system; the room stays reserved. Free if
 * nothing was written. */
void kv_pool_discard(struct kv_pool *pool);

/* Fills a block with NaN, so that a key or value that is read before it was written shows in the
 * answer. */
void kv_pool_poison(struct kv_pool *pool, uint32_t block);

#endif
