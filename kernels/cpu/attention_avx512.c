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

/* Where the 16 keys of vector `v` of the tile at `first` begin. */
ALWAYS_INLINE const void *wide_keys(const struct attention_share *share, uint32_t first, uint32_t v)
{
    return share->group_keys[(first / WIDE_FLOATS + v) * WIDE_GROUPS];
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
    struct attention_ahead ahead = attention_values_ahead(
        share, tile->first / ATTENTION_TILE_KEYS + ATTENTION_VALUES_AHEAD, type);
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
            attention_fetch_step(share, &ahead);
    }
    for (uint32_t q = 0; q < count; q++)
        for (uint32_t v = 0; v < vectors; v++)
            _mm512_store_ps(states[q].probabilities + v * WIDE_FLOATS, sums[q][v]);
}

/* Vectors that hold the first `keys` keys of a tile. */
ALWAYS_INLINE uint32_t vectors_of(uint32_t keys)
{
    return (keys + WIDE_FLOATS - 1) / WIDE_FLOATS;
}

ALWAYS_INLINE void score_count(const struct attention_tile *tile, struct query_state *states,
                               const uint32_t count, const uint32_t type)
{
    switch (vectors_of(states[count - 1].count)) {
    case 1:
        score_vectors(tile, states, count, 1, type);
        break;
    case 2:
        score_vectors(tile, states, count, 2, type);
        break;
    case 3:
        score_vectors(tile, states, count, 3, type);
        break;
    default:
        score_vectors(tile, states, count, TILE_VECTORS, type);
        break;
    }
}

/* Scores of vector `v` that the query sees, -infinity behind them. */
ALWAYS_INLINE __m512 load_scores(const struct query_state *state, uint32_t v, const bool whole)
{
    const float *scores = state->probabilities + v * WIDE_FLOATS;
    if (whole)
        return _mm512_load_ps(scores);
    __mmask16 mask = first_lanes_wide(state->count - v * WIDE_FLOATS);
    return _mm512_mask_loadu_ps(_mm512_set1_ps(-INFINITY), mask, scores);
}

ALWAYS_INLINE __m256 largest_scores(const struct query_state *state, const bool whole)
{
    uint32_t vectors = whole ? TILE_VECTORS : vectors_of(state->count);
    __m512 largest = _mm512_set1_ps(-INFINITY);
    for (uint32_t v = 0; v < vectors; v++)
        largest = _mm512_max_ps(load_scores(state, v, whole), largest); /* drops a NaN */
    return _mm256_max_ps(_mm512_castps512_ps256(largest), _mm512_extractf32x8_ps(largest, 1));
}

/* Lane q: the largest lane of rows[q]. */
ALWAYS_INLINE __m256 largest_lanes(const __m256 *rows)
{
    __m256 pairs[4], fours[2];
    for (int i = 0; i < 4; i++)
        pairs[i] = _mm256_max_ps(_mm256_unpacklo_ps(rows[2 * i], rows[2 * i + 1]),
                                 _mm256_unpackhi_ps(rows[2 * i], rows[2 * i + 1]));
    for (int i = 0; i < 2; i++) {
        __m256d even = _mm256_castps_pd(pairs[2 * i]), odd = _mm256_castps_pd(pairs[2 * i + 1]);
        fours[i] = _mm256_max_ps(_mm256_castpd_ps(_mm256_unpacklo_pd(even, odd)),
                                 _mm256_castpd_ps(_mm256_unpackhi_pd(even, odd)));
    }
    return _mm256_max_ps(_mm256_permute2f128_ps(fours[0], fours[1], 0x20),
                         _mm256_permute2f128_ps(fours[0], fours[1], 0x31));
}

/* Lane q: the maximum of query q before the tile. One load: a vector that was stored lane by lane
 * would wait for all that came before. */
ALWAYS_INLINE __m256 load_maxima(const struct query_state *states, uint32_t count)
{
    const int stride = sizeof *states / sizeof states->maximum;
    const __m256i lanes = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 0, 0);
    __m256 mask = _mm256_castsi256_ps(first_lanes(count));
    return _mm256_mask_i32gather_ps(_mm256_set1_ps(-INFINITY), &states->maximum,
                                    _mm256_mullo_epi32(lanes, _mm256_set1_epi32(stride)), mask, 4);
}

/* Probabilities of a query under its new maximum. */
ALWAYS_INLINE void soften_query(struct query_state *state, float scale, const bool whole)
{
    uint32_t vectors = whole ? TILE_VECTORS : vectors_of(state->count);
    __m512 factor = _mm512_set1_ps(scale), negative = _mm512_set1_ps(-state->maximum);
    __m512 lanes = _mm512_mul_ps(_mm512_loadu_ps(state->lanes), _mm512_set1_ps(state->shrink));
    for (uint32_t v = 0; v < vectors; v++) {
        __m512 exponent = _mm512_fmadd_ps(load_scores(state, v, whole), factor, negative);
        __m512 probability = exp2_wide(exponent); /* 0 where nothing is */
        _mm512_store_ps(state->probabilities + v * WIDE_FLOATS, probability);
        lanes = _mm512_add_ps(lanes, probability);
    }
    _mm512_storeu_ps(state->lanes, lanes);
}

/* All queries of a block at once: first their new maxima and what these shrink, a lane each, then
 * the probabilities, so that nothing waits for the chain of a single query. */
ALWAYS_INLINE void soften_block(struct query_state *states, uint32_t count, float scale,
                                const bool whole)
{
    __m256 rows[VECTOR_FLOATS];
    for (uint32_t q = 0; q < VECTOR_FLOATS; q++)
        rows[q] = q < count ? largest_scores(&states[q], whole) : _mm256_set1_ps(-INFINITY);
    __m256 before = load_maxima(states, count);
    __m256 scaled = _mm256_mul_ps(_mm256_set1_ps(scale), largest_lanes(rows));
    __m256 risen = _mm256_max_ps(scaled, before);
    _Alignas(32) float maxima[VECTOR_FLOATS], shrink[VECTOR_FLOATS];
    _mm256_store_ps(maxima, risen);
    _mm256_store_ps(shrink, exp2_vector(_mm256_sub_ps(before, risen)));
    for (uint32_t q = 0; q < count; q++) {
        states[q].maximum = maxima[q];
        states[q].shrink = shrink[q];
        soften_query(&states[q], scale, whole);
    }
}

/* Tiles that all queries of a full block see as a whole are the rule. */
static void soften(struct query_state *states, uint32_t count, float scale)
{
    bool whole = states[0].count == ATTENTION_TILE_KEYS;
    if (whole && count == BLOCK_QUERIES)
        soften_block(states, BLOCK_QUERIES, scale, true);
    else
        soften_block(states, count, scale, false);
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
    struct attention_ahead ahead =
        attention_keys_ahead(share, tile->first / ATTENTION_TILE_KEYS + ATTENTION_KEYS_AHEAD, type);
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
            attention_fetch_step(share, &ahead);
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

void attention_merge_avx512(const float *segment, uint32_t head_dim, float *state)
{
    float *maximum = &state[attention_maximum_at(head_dim)];
    float *sum = &state[attention_sum_at(head_dim)];
    float segment_maximum = segment[attention_maximum_at(head_dim)];
    float risen = segment_maximum > *maximum ? segment_maximum : *maximum;
    __m512 shrink = exp2_wide(_mm512_set1_ps(*maximum - risen));
    __m512 weight = exp2_wide(_mm512_set1_ps(segment_maximum - risen));
    for (uint32_t dim = 0; dim < head_dim; dim += WIDE_FLOATS) {
        __mmask16 mask = first_lanes_wide(head_dim - dim);
        __m512 shrunk = _mm512_mul_ps(_mm512_maskz_loadu_ps(mask, state + dim), shrink);
        __m512 added = _mm512_maskz_loadu_ps(mask, segment + dim);
        _mm512_mask_storeu_ps(state + dim, mask, _mm512_fmadd_ps(added, weight, shrunk));
    }
    *sum = fmaf(segment[attention_sum_at(head_dim)], _mm512_cvtss_f32(weight),
                *sum * _mm512_cvtss_f32(shrink));
    *maximum = risen;
}

void attention_finish_avx512(const float *state, uint32_t head_dim, float *output)
{
    __m512 sum = _mm512_set1_ps(state[attention_sum_at(head_dim)]);
    for (uint32_t dim = 0; dim < head_dim; dim += WIDE_FLOATS) {
        __mmask16 mask = first_lanes_wide(head_dim - dim);
        __m512 values = _mm512_maskz_loadu_ps(mask, state + dim);
        _mm512_mask_storeu_ps(output + dim, mask, _mm512_div_ps(values, sum));
    }
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
