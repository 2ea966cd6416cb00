/* Shape and addresses of the paged KV cache: the only place where these formulas stand, for C and
 * CUDA.
 *
 * A block holds the keys and values of `block_tokens` consecutive positions of one sequence in ONE
 * layer: K in front, V at v_offset. Inside K and inside V the order is head-major, so that one
 * head's tokens are one run. Within a head the order is the backend's:
 *   KV_ORDER_CPU   K [head_dim][block_tokens] (lanes are keys), V [block_tokens][head_dim]
 *   KV_ORDER_CUDA  K [block_tokens][head_dim],                  V [block_tokens][head_dim], vectors
 *                  of 8 dims permuted: v of token t stands at v xor t mod 8, so that a run copied
 * as it is lies in shared memory without bank conflicts (head_dim a multiple of 64)
 *
 * The block table maps [slot][layer][logical block] -> physical block; KV_BLOCK_UNMAPPED where
 * there is none. Offsets are 64-bit: a pool may be larger than 2 GiB. */
#ifndef TANDEM_COMMON_GEOMETRY_H
#define TANDEM_COMMON_GEOMETRY_H

#include "common/host_device.h"

#include <stdint.h>

enum kv_order { KV_ORDER_CPU = 1, KV_ORDER_CUDA = 2 };
enum kv_type { KV_TYPE_F16 = 1, KV_TYPE_F32 = 2, KV_TYPE_BF16 = 3 };
enum {
    KV_BLOCK_UNMAPPED = -1,
    KV_BLOCK_TOKENS_DEFAULT = 16,
    KV_BLOCK_TOKENS_MULTIPLE = 8, /* keys of a dim are read as whole vectors */
};

struct kv_geometry {
    uint32_t layers;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t block_tokens;
    uint32_t type;  /* enum kv_type */
    uint32_t order; /* enum kv_order */
};

ON_HOST_AND_DEVICE static inline uint32_t kv_element_bytes(const struct kv_geometry *g)
{
    return g->type == KV_TYPE_F32 ? 4u : 2u;
}

/* Elements of K (or V) of one token in one layer. */
ON_HOST_AND_DEVICE static inline uint32_t kv_dim(const struct kv_geometry *g)
{
    return g->kv_heads * g->head_dim;
}

/* Elements of K (or V) of one head in one block. */
ON_HOST_AND_DEVICE static inline uint64_t kv_head_elements(const struct kv_geometry *g)
{
    return (uint64_t)g->block_tokens * g->head_dim;
}

/* Bytes from the start of a block to its V. */
ON_HOST_AND_DEVICE static inline uint64_t kv_v_offset(const struct kv_geometry *g)
{
    return kv_head_elements(g) * g->kv_heads * kv_element_bytes(g);
}

ON_HOST_AND_DEVICE static inline uint64_t kv_block_bytes(const struct kv_geometry *g)
{
    return 2 * kv_v_offset(g);
}

/* Bytes from the start of the pool to physical block `block`. */
ON_HOST_AND_DEVICE static inline uint64_t kv_block_offset(const struct kv_geometry *g,
                                                          uint32_t block)
{
    return block * kv_block_bytes(g);
}

/* Bytes from the start of the pool to the run of one head's K, or V, in a block. */
ON_HOST_AND_DEVICE static inline uint64_t kv_k_head_offset(const struct kv_geometry *g,
                                                           uint32_t block, uint32_t head)
{
    return kv_block_offset(g, block) + kv_head_elements(g) * head * kv_element_bytes(g);
}

ON_HOST_AND_DEVICE static inline uint64_t kv_v_head_offset(const struct kv_geometry *g,
                                                           uint32_t block, uint32_t head)
{
    return kv_k_head_offset(g, block, head) + kv_v_offset(g);
}

/* Element index of (token in block, dim) inside a head's run of V. */
ON_HOST_AND_DEVICE static inline uint32_t kv_v_element(const struct kv_geometry *g, uint32_t token,
                                                       uint32_t dim)
{
    const uint32_t permuted = g->order == KV_ORDER_CUDA && g->head_dim % 64 == 0 ? token % 8 : 0;
    return token * g->head_dim + (dim ^ permuted * 8);
}

/* The same inside a head's run of K. */
ON_HOST_AND_DEVICE static inline uint32_t kv_k_element(const struct kv_geometry *g, uint32_t token,
                                                       uint32_t dim)
{
    return g->order == KV_ORDER_CPU ? dim * g->block_tokens + token : kv_v_element(g, token, dim);
}

/* Blocks per layer that hold `tokens` positions. */
ON_HOST_AND_DEVICE static inline uint32_t kv_blocks_for(const struct kv_geometry *g,
                                                        uint32_t tokens)
{
    return tokens / g->block_tokens + (tokens % g->block_tokens != 0 ? 1u : 0u);
}

/* Positions that `logical_blocks` blocks of one layer hold. */
ON_HOST_AND_DEVICE static inline uint32_t kv_positions_of(const struct kv_geometry *g,
                                                          uint32_t logical_blocks)
{
    return logical_blocks * g->block_tokens;
}

/* Logical block of a sequence that holds `position`. */
ON_HOST_AND_DEVICE static inline uint32_t kv_logical_block(const struct kv_geometry *g,
                                                           uint32_t position)
{
    return position / g->block_tokens;
}

/* Place of `position` inside its block; 0 is the border where a new block begins. */
ON_HOST_AND_DEVICE static inline uint32_t kv_token_in_block(const struct kv_geometry *g,
                                                            uint32_t position)
{
    return position % g->block_tokens;
}

/* Positions that `blocks` blocks of one layer hold. */
ON_HOST_AND_DEVICE static inline uint64_t kv_positions(const struct kv_geometry *g, uint64_t blocks)
{
    return blocks * g->block_tokens;
}

/* Physical blocks of a pool of `pool_bytes`: a multiple of `layers`, since a logical block takes
 * one per layer. */
ON_HOST_AND_DEVICE static inline uint64_t kv_pool_blocks(const struct kv_geometry *g,
                                                         uint64_t pool_bytes)
{
    return pool_bytes / (kv_block_bytes(g) * g->layers) * g->layers;
}

/* Positions that a pool of `blocks` physical blocks holds, of all sequences together. */
ON_HOST_AND_DEVICE static inline uint64_t kv_pool_positions(const struct kv_geometry *g,
                                                            uint64_t blocks)
{
    return blocks / g->layers * g->block_tokens;
}

/* Index into the block table [slot][layer][logical block]; `logical_blocks` is its innermost
 * extent. */
ON_HOST_AND_DEVICE static inline uint64_t kv_table_index(const struct kv_geometry *g,
                                                         uint32_t logical_blocks, uint32_t slot,
                                                         uint32_t layer, uint32_t logical)
{
    return ((uint64_t)slot * g->layers + layer) * logical_blocks + logical;
}

/* Entries of the table of `slots` slots. */
ON_HOST_AND_DEVICE static inline uint64_t kv_table_entries(const struct kv_geometry *g,
                                                           uint32_t logical_blocks, uint32_t slots)
{
    return kv_table_index(g, logical_blocks, slots, 0, 0);
}

#endif
