/* The walk over the tiles of a segment that the vector versions of attention share: which queries
 * see which keys of a tile. Queries come in blocks that fill the registers; the keys of a tile stay
 * in the L1 cache while all blocks use them. The loops themselves are an instruction set's own. */
#ifndef TANDEM_KERNELS_CPU_ATTENTION_TILES_H
#define TANDEM_KERNELS_CPU_ATTENTION_TILES_H

#include "kernels/cpu/kernels.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

/* The loops are compiled for one instruction set each: nothing of them may be shared at link time.
 */
#define ATTENTION_INLINE static inline __attribute__((always_inline))

enum { ATTENTION_LINE_BYTES = 64 };

struct query_state {
    _Alignas(64) float probabilities[ATTENTION_TILE_KEYS]; /* scores at first */
    float lanes[ATTENTION_LANES];                          /* sum by key mod 16 */
    const float *query;
    float *output;  /* O[head_dim] of the share's partial result */
    uint32_t keys;  /* of the segment */
    uint32_t count; /* of the current tile */
    float maximum;
    float shrink; /* by the current tile, of everything before it */
};

/* The keys first .. first + 63 of the segment. */
struct attention_tile {
    const struct attention_share *share;
    uint32_t first;
    bool prefetch; /* the first block of queries fetches for all */
};

struct attention_range {
    uint32_t from, to; /* keys from .. to - 1 of the tile */
    uint32_t dim;      /* and the dims from here on */
};

struct attention_loops {
    uint32_t block; /* queries that are computed together, at most */
    /* Scores of `count` queries with the tile's keys, as many as the last query sees; what lies
     * behind a query's own count may be anything. */
    void (*score)(const struct attention_tile *tile, struct query_state *states, uint32_t count);
    /* Scores to probabilities, 0 behind the query's count. */
    void (*soften)(struct query_state *state, float scale);
    /* Adds the values of the range; the first call of a tile, from == 0, shrinks before. */
    void (*add)(const struct attention_tile *tile, struct query_state *states, uint32_t count,
                struct attention_range range);
};

/* The last group of 8 keys that a row of the share sees. */
ATTENTION_INLINE uint32_t attention_last_group(const struct attention_share *share)
{
    return (attention_keys_of(share, share->rows - 1) - 1) / ATTENTION_GROUP_KEYS;
}

/* Blocks are scattered, so the processor cannot guess what comes next. While the scores of a tile
 * go over the dims, its values are fetched: of each of the 8 groups an eighth of the lines that a
 * dim stands for. */
ATTENTION_INLINE void attention_prefetch_values(const struct attention_tile *tile, uint32_t dim,
                                                const uint32_t type)
{
    enum { GROUPS = ATTENTION_TILE_KEYS / ATTENTION_GROUP_KEYS };
    const struct attention_share *share = tile->share;
    const uint32_t lines = type == KV_TYPE_F16 ? 2 : 4;
    uint32_t last = attention_last_group(share);
    uint32_t group = tile->first / ATTENTION_GROUP_KEYS + dim % GROUPS;
    const char *values = share->group_values[group < last ? group : last];
    values += dim / GROUPS * lines * ATTENTION_LINE_BYTES;
    for (uint32_t line = 0; line < lines; line++)
        _mm_prefetch(values + line * ATTENTION_LINE_BYTES, _MM_HINT_T0);
}

/* And while its values are added, key by key, the keys of the next tile: of each run of 16 a
 * sixteenth of the dims. After the last tile comes the first one of the next kv head. */
ATTENTION_INLINE void attention_prefetch_keys(const struct attention_tile *tile, uint32_t key,
                                              const uint32_t type)
{
    enum { RUN_KEYS = 16, RUNS = ATTENTION_TILE_KEYS / RUN_KEYS, RUN_GROUPS = 2 };
    const struct attention_share *share = tile->share;
    uint32_t last = attention_last_group(share), dims = share->head_dim / RUN_KEYS;
    uint32_t group = key % RUNS * RUN_GROUPS;
    uint32_t tile_group = (tile->first + ATTENTION_TILE_KEYS) / ATTENTION_GROUP_KEYS;
    uint64_t dim_bytes = (uint64_t)share->key_stride * (type == KV_TYPE_F16 ? 2 : 4);
    uint32_t step =
        dim_bytes < ATTENTION_LINE_BYTES ? (uint32_t)(ATTENTION_LINE_BYTES / dim_bytes) : 1;
    uint64_t further = tile_group <= last ? 0 : share->next_keys;
    group += tile_group <= last ? tile_group : 0;
    if (group > last || (tile_group > last && further == 0))
        return;
    const char *keys = (const char *)share->group_keys[group] + further;
    uint32_t first = key / RUNS * dims;
    for (uint32_t dim = first; dim < first + dims; dim += step)
        _mm_prefetch(keys + dim * dim_bytes, _MM_HINT_T0);
}

ATTENTION_INLINE void attention_states_open(const struct attention_share *share,
                                            struct query_state *states)
{
    uint32_t floats = attention_partial_floats(share->head_dim);
    for (uint32_t row = 0; row < share->rows; row++) {
        for (uint32_t head = 0; head < share->heads; head++) {
            uint32_t i = row * share->heads + head;
            struct query_state *state = &states[i];
            state->query =
                share->queries + row * share->row_stride + (uint64_t)head * share->head_dim;
            state->output = share->partial + (uint64_t)i * floats;
            state->keys = attention_keys_of(share, row);
            state->maximum = -INFINITY;
            memset(state->lanes, 0, sizeof state->lanes);
            memset(state->output, 0, share->head_dim * sizeof *state->output);
        }
    }
}

/* Values of the block: together as far as the first query sees, then those that see further. */
ATTENTION_INLINE void attention_add_block(const struct attention_loops *loops,
                                          const struct attention_tile *tile,
                                          struct query_state *states, uint32_t count)
{
    uint32_t from = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (states[i].count > from)
            loops->add(tile, states + i, count - i,
                       (struct attention_range){from, states[i].count, 0});
        from = states[i].count;
    }
}

ATTENTION_INLINE void attention_walk_tile(const struct attention_loops *loops,
                                          struct attention_tile *tile, struct query_state *states,
                                          uint32_t queries)
{
    uint32_t at = 0;
    while (states[at].keys <= tile->first) /* the last query sees a key of every tile */
        at++;
    uint32_t blocks = (queries - at + loops->block - 1) / loops->block;
    tile->prefetch = true;
    for (; blocks > 0; blocks--) {
        uint32_t count = (queries - at) / blocks;
        for (uint32_t i = at; i < at + count; i++) {
            uint32_t left = states[i].keys - tile->first;
            states[i].count = left < ATTENTION_TILE_KEYS ? left : ATTENTION_TILE_KEYS;
        }
        loops->score(tile, states + at, count);
        for (uint32_t i = at; i < at + count; i++)
            loops->soften(&states[i], tile->share->scale);
        attention_add_block(loops, tile, states + at, count);
        tile->prefetch = false;
        at += count;
    }
}

ATTENTION_INLINE void attention_states_close(const struct attention_share *share,
                                             struct query_state *states, uint32_t queries)
{
    for (uint32_t i = 0; i < queries; i++) {
        float *lanes = states[i].lanes;
        for (uint32_t distance = ATTENTION_LANES / 2; distance >= 1; distance /= 2)
            for (uint32_t lane = 0; lane < distance; lane++)
                lanes[lane] += lanes[lane + distance];
        states[i].output[attention_maximum_at(share->head_dim)] = states[i].maximum;
        states[i].output[attention_sum_at(share->head_dim)] = lanes[0];
    }
}

ATTENTION_INLINE void attention_walk(const struct attention_share *share,
                                     const struct attention_loops *loops)
{
    struct query_state states[ATTENTION_QUERIES_MAX];
    uint32_t queries = share->rows * share->heads;
    uint32_t keys = attention_keys_of(share, share->rows - 1);
    attention_states_open(share, states);
    for (uint32_t first = 0; first < keys; first += ATTENTION_TILE_KEYS) {
        struct attention_tile tile = {.share = share, .first = first};
        attention_walk_tile(loops, &tile, states, queries);
    }
    attention_states_close(share, states, queries);
}

#endif
