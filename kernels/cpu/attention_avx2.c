/* The same steps as attention_plain.c, 8 lanes wide. For the scores a lane is a key (K lies as
 * [dim][key]), for the output it is a dim. Three queries by four vectors make 12 sums: enough to
 * hide the latency of a chain and few enough for 16 registers; each K or V vector is read and
 * widened once for three multiply-adds. */
#include "kernels/cpu/attention_tiles.h"
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/simd_avx2.h"

enum {
    BLOCK_QUERIES = 3,
    TILE_VECTORS = ATTENTION_TILE_KEYS / VECTOR_FLOATS,
    WIDTH_MAX = 8,
};

/* Vectors of keys, or of dims, that are computed together. */
ALWAYS_INLINE uint32_t width_for(const uint32_t count)
{
    return count == 1 ? WIDTH_MAX : 4;
}

ALWAYS_INLINE __m256 load_pool(const void *values, uint64_t element, const uint32_t type)
{
    return type == KV_TYPE_F16 ? load_halves((const uint16_t *)values + element)
                               : _mm256_loadu_ps((const float *)values + element);
}

/* Scores of `width` groups of 8 keys from vector `from` of the tile on. Groups behind the last key
 * repeat it; what is garbage is masked later. */
ALWAYS_INLINE void score_vectors(const struct attention_tile *tile, struct query_state *states,
                                 uint32_t from, const uint32_t count, const uint32_t type)
{
    const struct attention_share *share = tile->share;
    const uint32_t width = width_for(count);
    uint32_t last = attention_last_group(share);
    const void *keys[WIDTH_MAX];
    const float *query[BLOCK_QUERIES];
    __m256 sums[BLOCK_QUERIES][WIDTH_MAX];
    for (uint32_t v = 0; v < width; v++) {
        uint32_t group = tile->first / ATTENTION_GROUP_KEYS + from + v;
        keys[v] = share->group_keys[group < last ? group : last];
    }
    for (uint32_t q = 0; q < count; q++) {
        query[q] = states[q].query;
        for (uint32_t v = 0; v < width; v++)
            sums[q][v] = _mm256_setzero_ps();
    }
    struct attention_ahead ahead = attention_values_ahead(
        share, tile->first / ATTENTION_TILE_KEYS + ATTENTION_VALUES_AHEAD, type);
    for (uint32_t dim = 0; dim < share->head_dim; dim++) {
        uint64_t element = (uint64_t)dim * share->key_stride;
        __m256 factor[BLOCK_QUERIES];
        for (uint32_t q = 0; q < count; q++)
            factor[q] = _mm256_broadcast_ss(query[q] + dim);
        for (uint32_t v = 0; v < width; v++) {
            __m256 key = load_pool(keys[v], element, type);
            for (uint32_t q = 0; q < count; q++)
                sums[q][v] = _mm256_fmadd_ps(factor[q], key, sums[q][v]);
        }
        if (tile->prefetch && from == 0)
            attention_fetch_step(share, &ahead);
    }
    for (uint32_t q = 0; q < count; q++)
        for (uint32_t v = 0; v < width; v++)
            _mm256_store_ps(states[q].probabilities + (from + v) * VECTOR_FLOATS, sums[q][v]);
}

ALWAYS_INLINE void score_count(const struct attention_tile *tile, struct query_state *states,
                               const uint32_t count, const uint32_t type)
{
    const uint32_t width = width_for(count);
    for (uint32_t v = 0; v * VECTOR_FLOATS < states[count - 1].count; v += width)
        score_vectors(tile, states, v, count, type);
}

/* The scores of vector `v` that the query sees, -infinity behind them. */
ALWAYS_INLINE __m256 load_scores(const struct query_state *state, uint32_t v, const bool all)
{
    uint32_t key = v * VECTOR_FLOATS;
    if (all)
        return _mm256_load_ps(state->probabilities + key);
    __m256i mask = first_lanes(state->count > key ? state->count - key : 0);
    __m256 loaded = _mm256_maskload_ps(state->probabilities + key, mask);
    return _mm256_blendv_ps(_mm256_set1_ps(-INFINITY), loaded, _mm256_castsi256_ps(mask));
}

/* The largest score, or the state's maximum where that is larger, scaled. */
ALWAYS_INLINE float risen_maximum(const struct query_state *state, float scale, const bool all)
{
    __m256 largest = _mm256_set1_ps(-INFINITY);
    for (uint32_t v = 0; v < TILE_VECTORS; v++)
        largest = _mm256_max_ps(load_scores(state, v, all), largest); /* drops a NaN */
    float scaled = scale * largest_lane(largest);
    return scaled > state->maximum ? scaled : state->maximum;
}

/* Scores to probabilities, 0 where nothing is. */
ALWAYS_INLINE void weigh_scores(struct query_state *state, float scale, const bool all)
{
    const __m256 shrink = _mm256_set1_ps(state->shrink), risen = _mm256_set1_ps(-state->maximum);
    __m256 low = _mm256_mul_ps(_mm256_loadu_ps(state->lanes), shrink);
    __m256 high = _mm256_mul_ps(_mm256_loadu_ps(state->lanes + VECTOR_FLOATS), shrink);
    for (uint32_t v = 0; v < TILE_VECTORS; v += 2) {
        __m256 a = load_scores(state, v, all), b = load_scores(state, v + 1, all);
        a = exp2_vector(_mm256_fmadd_ps(a, _mm256_set1_ps(scale), risen));
        b = exp2_vector(_mm256_fmadd_ps(b, _mm256_set1_ps(scale), risen));
        _mm256_store_ps(state->probabilities + v * VECTOR_FLOATS, a);
        _mm256_store_ps(state->probabilities + (v + 1) * VECTOR_FLOATS, b);
        low = _mm256_add_ps(low, a);
        high = _mm256_add_ps(high, b);
    }
    _mm256_storeu_ps(state->lanes, low);
    _mm256_storeu_ps(state->lanes + VECTOR_FLOATS, high);
}

/* All queries of a block at once: first their new maxima and what these shrink, a lane each, then
 * the probabilities, so that nothing waits for the chain of a single query. */
static void soften(struct query_state *states, uint32_t count, float scale)
{
    _Alignas(32) float before[VECTOR_FLOATS] = {0}, risen[VECTOR_FLOATS] = {0};
    _Alignas(32) float shrink[VECTOR_FLOATS];
    for (uint32_t q = 0; q < count; q++) {
        bool all = states[q].count == ATTENTION_TILE_KEYS;
        before[q] = states[q].maximum;
        risen[q] =
            all ? risen_maximum(&states[q], scale, true) : risen_maximum(&states[q], scale, false);
    }
    _mm256_store_ps(shrink,
                    exp2_vector(_mm256_sub_ps(_mm256_load_ps(before), _mm256_load_ps(risen))));
    for (uint32_t q = 0; q < count; q++) {
        states[q].maximum = risen[q];
        states[q].shrink = shrink[q];
        if (states[q].count == ATTENTION_TILE_KEYS)
            weigh_scores(&states[q], scale, true);
        else
            weigh_scores(&states[q], scale, false);
    }
}

/* `width` x 8 dims of the output from range.dim on. */
ALWAYS_INLINE void add_dims(const struct attention_tile *tile, struct query_state *states,
                            const uint32_t count, struct attention_range range,
                            const uint32_t width, const uint32_t type)
{
    const struct attention_share *share = tile->share;
    __m256 sums[BLOCK_QUERIES][WIDTH_MAX];
    for (uint32_t q = 0; q < count; q++) {
        __m256 shrink = _mm256_set1_ps(range.from == 0 ? states[q].shrink : 1.0f);
        for (uint32_t v = 0; v < width; v++)
            sums[q][v] = _mm256_mul_ps(
                _mm256_loadu_ps(states[q].output + range.dim + v * VECTOR_FLOATS), shrink);
    }
    struct attention_ahead ahead =
        attention_keys_ahead(share, tile->first / ATTENTION_TILE_KEYS + ATTENTION_KEYS_AHEAD, type);
    for (uint32_t key = range.from; key < range.to; key++) {
        const void *values = share->group_values[(tile->first + key) / ATTENTION_GROUP_KEYS];
        uint64_t element = (uint64_t)(key % ATTENTION_GROUP_KEYS) * share->head_dim + range.dim;
        __m256 factor[BLOCK_QUERIES];
        for (uint32_t q = 0; q < count; q++)
            factor[q] = _mm256_broadcast_ss(states[q].probabilities + key);
        for (uint32_t v = 0; v < width; v++) {
            __m256 value = load_pool(values, element + v * VECTOR_FLOATS, type);
            for (uint32_t q = 0; q < count; q++)
                sums[q][v] = _mm256_fmadd_ps(factor[q], value, sums[q][v]);
        }
        if (tile->prefetch && range.dim == 0)
            attention_fetch_step(share, &ahead);
    }
    for (uint32_t q = 0; q < count; q++)
        for (uint32_t v = 0; v < width; v++)
            _mm256_storeu_ps(states[q].output + range.dim + v * VECTOR_FLOATS, sums[q][v]);
}

ALWAYS_INLINE void add_count(const struct attention_tile *tile, struct query_state *states,
                             const uint32_t count, struct attention_range range,
                             const uint32_t type)
{
    const uint32_t width = width_for(count);
    uint32_t head_dim = tile->share->head_dim;
    for (; range.dim + width * VECTOR_FLOATS <= head_dim; range.dim += width * VECTOR_FLOATS)
        add_dims(tile, states, count, range, width, type);
    for (; range.dim < head_dim; range.dim += VECTOR_FLOATS)
        add_dims(tile, states, count, range, 1, type);
}

/* A loop for each number of queries, so that the sums stay in registers. */
ALWAYS_INLINE void score_type(const struct attention_tile *tile, struct query_state *states,
                              uint32_t count, const uint32_t type)
{
    if (count == 1)
        score_count(tile, states, 1, type);
    else if (count == 2)
        score_count(tile, states, 2, type);
    else
        score_count(tile, states, BLOCK_QUERIES, type);
}

ALWAYS_INLINE void add_type(const struct attention_tile *tile, struct query_state *states,
                            uint32_t count, struct attention_range range, const uint32_t type)
{
    if (count == 1)
        add_count(tile, states, 1, range, type);
    else if (count == 2)
        add_count(tile, states, 2, range, type);
    else
        add_count(tile, states, BLOCK_QUERIES, range, type);
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

void attention_segment_avx2(const struct attention_share *share)
{
    static const struct attention_loops f16 = {BLOCK_QUERIES, score_f16, soften, add_f16};
    static const struct attention_loops f32 = {BLOCK_QUERIES, score_f32, soften, add_f32};
    attention_walk(share, share->type == KV_TYPE_F16 ? &f16 : &f32);
}

void attention_merge_avx2(const float *segment, uint32_t head_dim, float *state)
{
    float *maximum = &state[attention_maximum_at(head_dim)];
    float *sum = &state[attention_sum_at(head_dim)];
    float segment_maximum = segment[attention_maximum_at(head_dim)];
    float risen = segment_maximum > *maximum ? segment_maximum : *maximum;
    __m256 shrink = exp2_vector(_mm256_set1_ps(*maximum - risen));
    __m256 weight = exp2_vector(_mm256_set1_ps(segment_maximum - risen));
    for (uint32_t dim = 0; dim < head_dim; dim += VECTOR_FLOATS) {
        __m256 shrunk = _mm256_mul_ps(_mm256_loadu_ps(state + dim), shrink);
        _mm256_storeu_ps(state + dim,
                         _mm256_fmadd_ps(_mm256_loadu_ps(segment + dim), weight, shrunk));
    }
    *sum = fmaf(segment[attention_sum_at(head_dim)], _mm256_cvtss_f32(weight),
                *sum * _mm256_cvtss_f32(shrink));
    *maximum = risen;
}

void attention_finish_avx2(const float *state, uint32_t head_dim, float *output)
{
    __m256 sum = _mm256_set1_ps(state[attention_sum_at(head_dim)]);
    for (uint32_t dim = 0; dim < head_dim; dim += VECTOR_FLOATS)
        _mm256_storeu_ps(output + dim, _mm256_div_ps(_mm256_loadu_ps(state + dim), sum));
}
