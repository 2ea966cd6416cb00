/* The same steps as attention_plain.c, 16 lanes wide. For the scores a lane is a key (K lies as
 * [dim][key]), for the output it is a dim. Six queries by 64 keys, or by 64 dims, make 24 sums:
 * each K or V vector is read and widened once for six multiply-adds, and a loop needs four loads
 * and six broadcasts for 24 of them. */
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/avx512.h"
#include "kernels/cpu/simd_avx512.h"

enum {
    BLOCK_QUERIES = 6,
    TILE_VECTORS = ATTENTION_TILE_KEYS / WIDE_FLOATS,
    WIDE_GROUPS = WIDE_FLOATS / ATTENTION_GROUP_KEYS,
};

ALWAYS_INLINE __m512 load_pool_wide(const void *values, uint64_t element, const uint32_t type)
{
    return type == KV_TYPE_F16 ? load_halves_wide((const uint16_t *)values + element)
                               : _mm512_loadu_ps((const float *)values + element);
}

/* Where the 16 keys of vector `v` of the tile at `first` begin. Vectors behind the last key repeat
 * it; what is garbage is masked later. */
ALWAYS_INLINE const void *wide_keys(const struct attention_share *share, uint32_t first, uint32_t v)
{
    uint32_t last = attention_last_group(share) / WIDE_GROUPS;
    uint32_t at = first / WIDE_FLOATS + v;
    return share->group_keys[(at < last ? at : last) * WIDE_GROUPS];
}

ALWAYS_INLINE void score_vectors(const struct attention_tile *tile, struct query_state *states,
                                 const uint32_t count, const uint32_t vectors, const uint32_t type)
{
    const struct attention_share *share = tile->share;
    const void *keys[TILE_VECTORS];
    const float *query[BLOCK_QUERIES];
    __m512 sums[BLOCK_QUERIES][TILE_VECTORS];
    for (uint32_t v = 0; v < vectors; v++)
        keys[v] = wide_keys(share, tile->first, v);
    for (uint32_t q = 0; q < count; q++) {
        query[q] = states[q].query;
        for (uint32_t v = 0; v < vectors; v++)
            sums[q][v] = _mm512_setzero_ps();
    }
    for (uint32_t dim = 0; dim < share->head_dim; dim++) {
        __m512 key[TILE_VECTORS];
        for (uint32_t v = 0; v < vectors; v++)
            key[v] = load_pool_wide(keys[v], (uint64_t)dim * share->key_stride, type);
        for (uint32_t q = 0; q < count; q++) {
            __m512 factor = _mm512_set1_ps(query[q][dim]);
            for (uint32_t v = 0; v < vectors; v++)
                sums[q][v] = _mm512_fmadd_ps(factor, key[v], sums[q][v]);
        }
        if (tile->prefetch)
            attention_prefetch_values(
                share, tile->first / ATTENTION_TILE_KEYS + ATTENTION_VALUES_AHEAD, dim, type);
    }
    for (uint32_t q = 0; q < count; q++)
        for (uint32_t v = 0; v < vectors; v++)
            _mm512_store_ps(states[q].probabilities + v * WIDE_FLOATS, sums[q][v]);
}

ALWAYS_INLINE void score_count(const struct attention_tile *tile, struct query_state *states,
                               const uint32_t count, const uint32_t type)
{
    if (states[count - 1].count > ATTENTION_TILE_KEYS / 2)
        score_vectors(tile, states, count, TILE_VECTORS, type);
    else
        score_vectors(tile, states, count, TILE_VECTORS / 2, type);
}

/* The scores that the query sees, -infinity behind them. */
ALWAYS_INLINE void load_scores(const struct query_state *state, __m512 *scores)
{
    for (uint32_t v = 0; v < TILE_VECTORS; v++) {
        uint32_t key = v * WIDE_FLOATS;
        __mmask16 mask = first_lanes_wide(state->count > key ? state->count - key : 0);
        scores[v] =
            _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), mask, state->probabilities + key);
    }
}

/* All queries of a block at once: first their new maxima and what these shrink, a lane each, then
 * the probabilities, so that nothing waits for the chain of a single query. */
static void soften(struct query_state *states, uint32_t count, float scale)
{
    _Alignas(64) float before[WIDE_FLOATS] = {0}, risen[WIDE_FLOATS] = {0}, shrink[WIDE_FLOATS];
    for (uint32_t q = 0; q < count; q++) {
        __m512 scores[TILE_VECTORS], largest = _mm512_set1_ps(-INFINITY);
        load_scores(&states[q], scores);
        for (uint32_t v = 0; v < TILE_VECTORS; v++)
            largest = _mm512_max_ps(scores[v], largest); /* drops a NaN */
        float scaled = scale * largest_lane(_mm256_max_ps(_mm512_castps512_ps256(largest),
                                                          _mm512_extractf32x8_ps(largest, 1)));
        before[q] = states[q].maximum;
        risen[q] = scaled > states[q].maximum ? scaled : states[q].maximum;
    }
    _mm512_store_ps(shrink,
                    exp2_wide(_mm512_sub_ps(_mm512_load_ps(before), _mm512_load_ps(risen))));
    for (uint32_t q = 0; q < count; q++) {
        struct query_state *state = &states[q];
        __m512 scores[TILE_VECTORS];
        load_scores(state, scores);
        __m512 lanes = _mm512_mul_ps(_mm512_loadu_ps(state->lanes), _mm512_set1_ps(shrink[q]));
        for (uint32_t v = 0; v < TILE_VECTORS; v++) {
            __m512 exponent =
                _mm512_fmadd_ps(scores[v], _mm512_set1_ps(scale), _mm512_set1_ps(-risen[q]));
            __m512 probability = exp2_wide(exponent); /* 0 where nothing is */
            _mm512_store_ps(state->probabilities + v * WIDE_FLOATS, probability);
            lanes = _mm512_add_ps(lanes, probability);
        }
        _mm512_storeu_ps(state->lanes, lanes);
        state->maximum = risen[q];
        state->shrink = shrink[q];
    }
}

/* `vectors` x 16 dims of the output from range.dim on. */
ALWAYS_INLINE void add_dims(const struct attention_tile *tile, struct query_state *states,
                            const uint32_t count, struct attention_range range,
                            const uint32_t vectors, const uint32_t type)
{
    const struct attention_share *share = tile->share;
    __m512 sums[BLOCK_QUERIES][TILE_VECTORS];
    for (uint32_t q = 0; q < count; q++) {
        __m512 shrink = _mm512_set1_ps(range.from == 0 ? states[q].shrink : 1.0f);
        for (uint32_t v = 0; v < vectors; v++)
            sums[q][v] = _mm512_mul_ps(
                _mm512_loadu_ps(states[q].output + range.dim + v * WIDE_FLOATS), shrink);
    }
    for (uint32_t key = range.from; key < range.to; key++) {
        uint64_t element = (uint64_t)(key % ATTENTION_GROUP_KEYS) * share->head_dim + range.dim;
        const void *values = share->group_values[(tile->first + key) / ATTENTION_GROUP_KEYS];
        __m512 value[TILE_VECTORS];
        for (uint32_t v = 0; v < vectors; v++)
            value[v] = load_pool_wide(values, element + v * WIDE_FLOATS, type);
        for (uint32_t q = 0; q < count; q++) {
            __m512 factor = _mm512_set1_ps(states[q].probabilities[key]);
            for (uint32_t v = 0; v < vectors; v++)
                sums[q][v] = _mm512_fmadd_ps(factor, value[v], sums[q][v]);
        }
        if (tile->prefetch && range.dim == 0)
            attention_prefetch_keys(share, tile->first / ATTENTION_TILE_KEYS + ATTENTION_KEYS_AHEAD,
                                    key, type);
    }
    for (uint32_t q = 0; q < count; q++)
        for (uint32_t v = 0; v < vectors; v++)
            _mm512_storeu_ps(states[q].output + range.dim + v * WIDE_FLOATS, sums[q][v]);
}

/* The last 8 dims of a head_dim that is no multiple of 16. */
ALWAYS_INLINE void add_last_dims(const struct attention_tile *tile, struct query_state *states,
                                 const uint32_t count, struct attention_range range,
                                 const uint32_t type)
{
    const struct attention_share *share = tile->share;
    __m256 sums[BLOCK_QUERIES];
    for (uint32_t q = 0; q < count; q++) {
        __m256 shrink = _mm256_set1_ps(range.from == 0 ? states[q].shrink : 1.0f);
        sums[q] = _mm256_mul_ps(_mm256_loadu_ps(states[q].output + range.dim), shrink);
    }
    for (uint32_t key = range.from; key < range.to; key++) {
        uint64_t element = (uint64_t)(key % ATTENTION_GROUP_KEYS) * share->head_dim + range.dim;
        const void *values = share->group_values[(tile->first + key) / ATTENTION_GROUP_KEYS];
        __m256 value = type == KV_TYPE_F16 ? load_halves((const uint16_t *)values + element)
                                           : _mm256_loadu_ps((const float *)values + element);
        for (uint32_t q = 0; q < count; q++)
            sums[q] = _mm256_fmadd_ps(_mm256_set1_ps(states[q].probabilities[key]), value, sums[q]);
    }
    for (uint32_t q = 0; q < count; q++)
        _mm256_storeu_ps(states[q].output + range.dim, sums[q]);
}

ALWAYS_INLINE void add_count(const struct attention_tile *tile, struct query_state *states,
                             const uint32_t count, struct attention_range range,
                             const uint32_t type)
{
    uint32_t head_dim = tile->share->head_dim;
    for (; range.dim + TILE_VECTORS * WIDE_FLOATS <= head_dim;
         range.dim += TILE_VECTORS * WIDE_FLOATS)
        add_dims(tile, states, count, range, TILE_VECTORS, type);
    for (; range.dim + WIDE_FLOATS <= head_dim; range.dim += WIDE_FLOATS)
        add_dims(tile, states, count, range, 1, type);
    if (range.dim < head_dim)
        add_last_dims(tile, states, count, range, type);
}

/* A loop for each number of queries, so that the sums stay in registers. */
ALWAYS_INLINE void score_type(const struct attention_tile *tile, struct query_state *states,
                              uint32_t count, const uint32_t type)
{
    switch (count) {
    case 1:
        score_count(tile, states, 1, type);
        break;
    case 2:
        score_count(tile, states, 2, type);
        break;
    case 3:
        score_count(tile, states, 3, type);
        break;
    case 4:
        score_count(tile, states, 4, type);
        break;
    case 5:
        score_count(tile, states, 5, type);
        break;
    default:
        score_count(tile, states, BLOCK_QUERIES, type);
        break;
    }
}

ALWAYS_INLINE void add_type(const struct attention_tile *tile, struct query_state *states,
                            uint32_t count, struct attention_range range, const uint32_t type)
{
    switch (count) {
    case 1:
        add_count(tile, states, 1, range, type);
        break;
    case 2:
        add_count(tile, states, 2, range, type);
        break;
    case 3:
        add_count(tile, states, 3, range, type);
        break;
    case 4:
        add_count(tile, states, 4, range, type);
        break;
    case 5:
        add_count(tile, states, 5, range, type);
        break;
    default:
        add_count(tile, states, BLOCK_QUERIES, range, type);
        break;
    }
}

static void score_f16(const struct attention_tile *tile, struct query_state *states, uint32_t count)
{
    score_type(tile, states, count, KV_TYPE_F16);
}

static void score_f32(const struct attention_tile *tile, struct query_state *states, uint32_t count)
{
    score_type(tile, states, count, KV_TYPE_F32);
}

static void add_f16(const struct attention_tile *tile, struct query_state *states, uint32_t count,
                    struct attention_range range)
{
    add_type(tile, states, count, range, KV_TYPE_F16);
}

static void add_f32(const struct attention_tile *tile, struct query_state *states, uint32_t count,
                    struct attention_range range)
{
    add_type(tile, states, count, range, KV_TYPE_F32);
}

/* Sixteen keys of one dim are one run in blocks of 16 tokens and more. */
void attention_segment_avx512(const struct attention_share *share)
{
    static const struct attention_loops f16 = {BLOCK_QUERIES, score_f16, soften, add_f16};
    static const struct attention_loops f32 = {BLOCK_QUERIES, score_f32, soften, add_f32};
    if (share->key_stride < WIDE_FLOATS)
        attention_segment_avx2(share);
    else
        attention_walk(share, share->type == KV_TYPE_F16 ? &f16 : &f32);
}
