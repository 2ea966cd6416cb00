#include "worker/kv_pool.h"

#include "common/check.h"

#include <inttypes.h>
#include <string.h>

/* All bits set is a NaN in F16, BF16 and F32 alike. */
enum { POISON_BYTE = 0xff, POISON_CHUNK_BYTES = 4096 };

enum status kv_pool_open(struct backend *backend, const struct kv_geometry *geometry,
                         uint64_t pool_bytes, struct kv_pool *out_pool, struct text *why)
{
    uint64_t blocks = kv_pool_blocks(geometry, pool_bytes);
    if (blocks == 0 || blocks > INT32_MAX) {
        text_set(why,
                 "a pool of %" PRIu64 " bytes makes %" PRIu64 " blocks of %" PRIu64
                 " bytes; one for each of %" PRIu32 " layers to %d are needed",
                 pool_bytes, blocks, kv_block_bytes(geometry), geometry->layers, INT32_MAX);
        return STATUS_INVALID;
    }
    struct kv_pool pool = {
        .backend = backend,
        .geometry = *geometry,
        .blocks = (uint32_t)blocks,
        .bytes = kv_block_offset(geometry, (uint32_t)blocks),
    };
    enum status status = backend->operations->memory_reserve(backend, pool.bytes, &pool.memory);
    if (status != STATUS_OK) {
        text_set(why, "cannot reserve %" PRIu64 " bytes for the KV pool: %s", pool.bytes,
                 status_text(status));
        return status;
    }
    *out_pool = pool;
    return STATUS_OK;
}

void kv_pool_close(struct kv_pool *pool)
{
    if (pool->backend != NULL)
        pool->backend->operations->memory_release(pool->backend, pool->memory, pool->bytes);
    *pool = (struct kv_pool){0};
}

void kv_pool_discard(struct kv_pool *pool)
{
    if (!pool->touched)
        return;
    pool->backend->operations->memory_discard(pool->backend, pool->memory, pool->bytes);
    pool->touched = false;
}

void kv_pool_poison(struct kv_pool *pool, uint32_t block)
{
    CHECK(block < pool->blocks);
    uint8_t poison[POISON_CHUNK_BYTES];
    memset(poison, POISON_BYTE, sizeof poison);
    uint8_t *bytes = (uint8_t *)pool->memory + kv_block_offset(&pool->geometry, block);
    for (uint64_t left = kv_block_bytes(&pool->geometry); left > 0;) {
        uint64_t part = left < sizeof poison ? left : sizeof poison;
        pool->backend->operations->upload(pool->backend, bytes, poison, part);
        bytes += part;
        left -= part;
    }
    pool->touched = true;
}
