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
    /* Scores of `count` queries to probabilities; what lies behind a query's own count may be
     * anything. */
    void (*soften)(struct query_state *states, uint32_t count, float scale);
    /* Adds the values of the range; the first call of a tile, from == 0, shrinks before. */
    void (*add)(const struct attention_tile *tile, struct query_state *states, uint32_t count,
                struct attention_range range);
};

/* The last group of 8 keys that a row of the share sees. */
ATTENTION_INLINE uint32_t attention_last_group(const struct attention_share *share)
{
    return (attention_keys_of(share, share->rows - 1) - 1) / ATTENTION_GROUP_KEYS;
}

/* Blocks are scattered, so the processor cannot guess what comes next, and with few queries a tile
 * takes less time than it takes to arrive: values are fetched a tile ahead while scores are made,
 * keys two tiles ahead while values are added, into the second cache. After the last tile come the
 * first ones of the next kv head. A share of one row that no other one fetched for begins with a
 * burst; several rows use a key long enough for the next ones to arrive. */
enum { ATTENTION_TILE_GROUPS = ATTENTION_TILE_KEYS / ATTENTION_GROUP_KEYS };
enum { ATTENTION_VALUES_AHEAD = 1, ATTENTION_KEYS_AHEAD = 2 }; /* tiles */

/* Where a group of 8 keys of a tile begins, tiles being counted on into the next kv head; NULL
 * where there is nothing. */
ATTENTION_INLINE const char *attention_group_at(const struct attention_share *share,
                                                const void *const *groups, uint32_t tile,
                                                uint32_t group)
{
    uint32_t last = attention_last_group(share), tiles = last / ATTENTION_TILE_GROUPS + 1;
    bool further = tile >= tiles;
    uint32_t index = (further ? tile - tiles : tile) * ATTENTION_TILE_GROUPS + group;
    if (index > last || (further && share->next_keys == 0))
        return NULL;
    return (const char *)groups[index] + (further ? share->next_keys : 0);
}

/* What is fetched during the steps of a loop over a tile: the keys or the values of a tile ahead,
 * in pieces that begin where a group of 8 keys does. Runs of lines in order make the processor's
 * own prefetch go along, which holds more requests than a program can. An address is found once a
 * piece: with few queries a step has hardly room for more than its products. */
struct attention_ahead {
    const void *const *groups;  /* of the share: group_keys or group_values */
    uint32_t tile, group;       /* of the next piece */
    uint32_t group_step;        /* from a piece to the next */
    uint32_t piece_steps, left; /* steps of a piece; what is left of them */
    uint32_t step_bytes, line_step;
    const char *at; /* of the next step; NULL where the piece lies nowhere */
};

/* Values, for a loop over the dims: a step for as many lines as a dim stands for. */
ATTENTION_INLINE struct attention_ahead attention_values_ahead(const struct attention_share *share,
                                                               uint32_t tile, const uint32_t type)
{
    return (struct attention_ahead){
        .groups = share->group_values,
        .tile = tile,
        .group_step = 1,
        .piece_steps = share->head_dim / ATTENTION_TILE_GROUPS,
        .step_bytes = (type == KV_TYPE_F16 ? 2 : 4) * ATTENTION_LINE_BYTES,
        .line_step = ATTENTION_LINE_BYTES,
    };
}

/* Keys, for a loop over the keys: a step for a sixteenth of the dims of a run of 16 keys. */
ATTENTION_INLINE struct attention_ahead attention_keys_ahead(const struct attention_share *share,
                                                             uint32_t tile, const uint32_t type)
{
    enum { RUN_KEYS = 16, RUN_GROUPS = 2 };
    uint32_t dim_bytes = share->key_stride * (type == KV_TYPE_F16 ? 2 : 4);
    return (struct attention_ahead){
        .groups = share->group_keys,
        .tile = tile,
        .group_step = RUN_GROUPS,
        .piece_steps = RUN_KEYS,
        .step_bytes = share->head_dim / RUN_KEYS * dim_bytes,
        .line_step = dim_bytes > ATTENTION_LINE_BYTES ? dim_bytes : ATTENTION_LINE_BYTES,
    };
}

ATTENTION_INLINE void attention_fetch_step(const struct attention_share *share,
                                           struct attention_ahead *ahead)
{
    if (ahead->left == 0) {
        ahead->at = attention_group_at(share, ahead->groups, ahead->tile, ahead->group);
        ahead->group += ahead->group_step;
        ahead->left = ahead->piece_steps;
    }
    ahead->left--;
    if (ahead->at == NULL)
        return;
    for (uint32_t offset = 0; offset < ahead->step_bytes; offset += ahead->line_step)
        _mm_prefetch(ahead->at + offset, _MM_HINT_T1);
    ahead->at += ahead->step_bytes;
}

ATTENTION_INLINE void attention_fetch_start(const struct attention_share *share)
{
    for (uint32_t tile = 0; tile < ATTENTION_KEYS_AHEAD; tile++) {
        struct attention_ahead keys = attention_keys_ahead(share, tile, share->type);
        for (uint32_t key = 0; key < ATTENTION_TILE_KEYS; key++)
            attention_fetch_step(share, &keys);
    }
    for (uint32_t tile = 0; tile < ATTENTION_VALUES_AHEAD; tile++) {
        struct attention_ahead values = attention_values_ahead(share, tile, share->type);
        for (uint32_t dim = 0; dim < share->head_dim; dim++)
            attention_fetch_step(share, &values);
    }
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
        loops->soften(states + at, count, tile->share->scale);
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
    if (!share->fetched && share->rows == 1)
        attention_fetch_start(share);
    attention_states_open(share, states);
    for (uint32_t first = 0; first < keys; first += ATTENTION_TILE_KEYS) {
        struct attention_tile tile = {.share = share, .first = first};
        attention_walk_tile(loops, &tile, states, queries);
    }
    attention_states_close(share, states, queries);
}

#endif
