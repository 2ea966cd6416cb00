/* The same steps as attention_plain.c. For the scores a vector lane is a key (K lies as
 * [dim][key]), for the output it is a dim; each K or V vector is read and widened once for up to
 * four query heads. */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/simd_avx2.h"

enum {
    TILE_VECTORS = ATTENTION_TILE_KEYS / VECTOR_FLOATS,
    TILE_GROUPS = ATTENTION_TILE_KEYS / ATTENTION_GROUP_KEYS,
    HEADS = ATTENTION_HEADS_TOGETHER,
};

struct head_state {
    float maximum;
    __m256 lanes[2]; /* sum by key mod 16 */
    float probabilities[ATTENTION_TILE_KEYS];
};

ALWAYS_INLINE __m256 load_pool(const void *values, uint64_t element, const uint32_t type)
{
    return type == KV_TYPE_F16 ? load_halves((const uint16_t *)values + element)
                               : _mm256_loadu_ps((const float *)values + element);
}

/* Scores of two groups of 8 keys for `heads` heads, into probabilities[key..key+15]. Whole groups
 * are computed; what is garbage beyond the last key is masked by the caller. */
ALWAYS_INLINE void score_groups(const struct attention_share *share, const void *low_keys,
                                const void *high_keys, uint32_t key, struct head_state *states,
                                const uint32_t heads, const uint32_t type)
{
    __m256 sums[HEADS][2];
    for (uint32_t h = 0; h < heads; h++)
        sums[h][0] = sums[h][1] = _mm256_setzero_ps();
    for (uint32_t dim = 0; dim < share->head_dim; dim++) {
        uint64_t element = (uint64_t)dim * share->key_stride;
        __m256 low = load_pool(low_keys, element, type), high = load_pool(high_keys, element, type);
        for (uint32_t h = 0; h < heads; h++) {
            __m256 q = _mm256_broadcast_ss(share->queries + (uint64_t)h * share->head_dim + dim);
            sums[h][0] = _mm256_fmadd_ps(q, low, sums[h][0]);
            sums[h][1] = _mm256_fmadd_ps(q, high, sums[h][1]);
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        _mm256_storeu_ps(states[h].probabilities + key, sums[h][0]);
        _mm256_storeu_ps(states[h].probabilities + key + VECTOR_FLOATS, sums[h][1]);
    }
}

ALWAYS_INLINE void score_tile(const struct attention_share *share, uint32_t first, uint32_t count,
                              struct head_state *states, const uint32_t heads, const uint32_t type)
{
    uint32_t last_group = (first + count - 1) / ATTENTION_GROUP_KEYS;
    for (uint32_t key = 0; key < count; key += 2 * ATTENTION_GROUP_KEYS) {
        uint32_t group = (first + key) / ATTENTION_GROUP_KEYS;
        uint32_t next = group < last_group ? group + 1 : group; /* any readable keys */
        score_groups(share, share->group_keys[group], share->group_keys[next], key, states, heads,
                     type);
    }
}

/* Scores of one head to probabilities; returns the factor by which everything before shrinks. */
ALWAYS_INLINE float soften(struct head_state *state, uint32_t count, float scale)
{
    const __m256 nothing = _mm256_set1_ps(-INFINITY);
    __m256 scores[TILE_VECTORS], largest = nothing;
    for (uint32_t v = 0; v < TILE_VECTORS; v++) {
        uint32_t key = v * VECTOR_FLOATS;
        __m256i mask = first_lanes(count > key ? count - key : 0);
        __m256 loaded = _mm256_maskload_ps(state->probabilities + key, mask);
        scores[v] = _mm256_blendv_ps(nothing, loaded, _mm256_castsi256_ps(mask));
        largest = _mm256_max_ps(scores[v], largest);
    }
    float scaled = scale * largest_lane(largest);
    float risen = scaled > state->maximum ? scaled : state->maximum;
    __m256 shrink = exp2_vector(_mm256_set1_ps(state->maximum - risen));
    state->maximum = risen;
    state->lanes[0] = _mm256_mul_ps(state->lanes[0], shrink);
    state->lanes[1] = _mm256_mul_ps(state->lanes[1], shrink);
    for (uint32_t v = 0; v < TILE_VECTORS; v++) {
        __m256i mask = first_lanes(count > v * VECTOR_FLOATS ? count - v * VECTOR_FLOATS : 0);
        __m256 exponent = _mm256_fmadd_ps(scores[v], _mm256_set1_ps(scale), _mm256_set1_ps(-risen));
        __m256 probability = _mm256_and_ps(exp2_vector(exponent), _mm256_castsi256_ps(mask));
        _mm256_storeu_ps(state->probabilities + v * VECTOR_FLOATS, probability);
        state->lanes[v % 2] = _mm256_add_ps(state->lanes[v % 2], probability);
    }
    return _mm256_cvtss_f32(shrink);
}

/* `vectors` x 8 dims of the output from `dim` on, for `heads` heads. */
ALWAYS_INLINE void add_dims(const struct attention_share *share, uint32_t first, uint32_t count,
                            uint32_t dim, const struct head_state *states, const float *shrinks,
                            const uint32_t heads, const uint32_t vectors, const uint32_t type)
{
    uint32_t floats = attention_partial_floats(share->head_dim);
    __m256 sums[HEADS][4];
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t v = 0; v < vectors; v++) {
            const float *place = share->partial + h * floats + dim + v * VECTOR_FLOATS;
            sums[h][v] = _mm256_mul_ps(_mm256_loadu_ps(place), _mm256_set1_ps(shrinks[h]));
        }
    }
    for (uint32_t key = 0; key < count; key++) {
        uint32_t group = (first + key) / ATTENTION_GROUP_KEYS;
        uint64_t element = (uint64_t)(key % ATTENTION_GROUP_KEYS) * share->head_dim + dim;
        __m256 values[4];
        for (uint32_t v = 0; v < vectors; v++)
            values[v] = load_pool(share->group_values[group], element + v * VECTOR_FLOATS, type);
        for (uint32_t h = 0; h < heads; h++) {
            __m256 p = _mm256_broadcast_ss(states[h].probabilities + key);
            for (uint32_t v = 0; v < vectors; v++)
                sums[h][v] = _mm256_fmadd_ps(p, values[v], sums[h][v]);
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t v = 0; v < vectors; v++)
            _mm256_storeu_ps(share->partial + h * floats + dim + v * VECTOR_FLOATS, sums[h][v]);
    }
}

ALWAYS_INLINE void attend(const struct attention_share *share, const uint32_t heads,
                          const uint32_t type)
{
    struct head_state states[HEADS];
    const uint32_t vectors =
        heads <= 2 ? 4 : 2; /* 4 to 8 accumulators hide the latency of a chain */
    uint32_t floats = attention_partial_floats(share->head_dim);
    for (uint32_t h = 0; h < heads; h++) {
        states[h].maximum = -INFINITY;
        states[h].lanes[0] = states[h].lanes[1] = _mm256_setzero_ps();
        __builtin_memset(share->partial + h * floats, 0, share->head_dim * sizeof(float));
    }
    for (uint32_t first = 0; first < share->keys; first += ATTENTION_TILE_KEYS) {
        uint32_t left = share->keys - first;
        uint32_t count = left < ATTENTION_TILE_KEYS ? left : ATTENTION_TILE_KEYS;
        float shrinks[HEADS];
        score_tile(share, first, count, states, heads, type);
        for (uint32_t h = 0; h < heads; h++)
            shrinks[h] = soften(&states[h], count, share->scale);
        uint32_t dim = 0;
        for (; dim + vectors * VECTOR_FLOATS <= share->head_dim; dim += vectors * VECTOR_FLOATS)
            add_dims(share, first, count, dim, states, shrinks, heads, vectors, type);
        for (; dim < share->head_dim; dim += VECTOR_FLOATS)
            add_dims(share, first, count, dim, states, shrinks, heads, 1, type);
    }
    for (uint32_t h = 0; h < heads; h++) {
        float *partial = share->partial + h * floats;
        partial[attention_maximum_at(share->head_dim)] = states[h].maximum;
        partial[attention_sum_at(share->head_dim)] =
            tree_sum(states[h].lanes[0], states[h].lanes[1]);
    }
}

ALWAYS_INLINE void attend_type(const struct attention_share *share, const uint32_t type)
{
    switch (share->heads) {
    case 1:
        attend(share, 1, type);
        break;
    case 2:
        attend(share, 2, type);
        break;
    case 3:
        attend(share, 3, type);
        break;
    default:
        attend(share, HEADS, type);
        break;
    }
}

void attention_segment_avx2(const struct attention_share *share)
{
    if (share->type == KV_TYPE_F16)
        attend_type(share, KV_TYPE_F16);
    else
        attend_type(share, KV_TYPE_F32);
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
