/* The same steps as attention_plain.c. For the scores a vector lane is a key (K lies as
 * [dim][key]), for the output it is a dim; each K or V vector is read and widened once for up to
 * four query heads. */
#include "kernels/cpu/avx2.h"
#include "kernels/cpu/simd_avx2.h"

enum {
    TILE_VECTORS = ATTENTION_TILE_KEYS / VECTOR_FLOATS,
    HEADS = ATTENTION_HEADS_TOGETHER,
    WIDTH_MAX = 8,
    CACHE_LINE_BYTES = 64,
};

struct head_state {
    float maximum;
    float shrink;    /* by the current tile, of everything before it */
    __m256 lanes[2]; /* sum by key mod 16 */
    float probabilities[ATTENTION_TILE_KEYS];
};

/* The keys first..first+count-1 of the segment, with the states of the heads. */
struct tile {
    const struct attention_share *share;
    struct head_state *states;
    uint32_t first, count;
};

/* Vectors of keys, or of dims, that are computed together: with the heads they make 8 to 12
 * accumulators, enough to hide the latency of a chain and few enough for 16 registers. */
ALWAYS_INLINE uint32_t width_for(const uint32_t heads)
{
    return heads == 1 ? WIDTH_MAX : heads <= 3 ? 4 : 2;
}

ALWAYS_INLINE __m256 load_pool(const void *values, uint64_t element, const uint32_t type)
{
    return type == KV_TYPE_F16 ? load_halves((const uint16_t *)values + element)
                               : _mm256_loadu_ps((const float *)values + element);
}

/* What later steps read: the values of the same keys, and the keys `width` groups ahead. Blocks are
 * scattered, so the processor cannot guess them. One line of values and one row of keys of every
 * second group per dim. */
struct ahead {
    const char *values[WIDTH_MAX], *keys[WIDTH_MAX];
};

ALWAYS_INLINE void look_ahead(const struct attention_share *share, uint32_t group,
                              struct ahead *ahead, const uint32_t width)
{
    uint32_t last = (share->keys - 1) / ATTENTION_GROUP_KEYS;
    for (uint32_t g = 0; g < width; g++) {
        uint32_t same = group + g < last ? group + g : last;
        uint32_t next = same + width < last ? same + width : last;
        ahead->values[g] = share->group_values[same];
        ahead->keys[g] = share->group_keys[next];
    }
}

ALWAYS_INLINE void prefetch_ahead(const struct ahead *ahead, uint32_t dim, uint64_t key_bytes,
                                  const uint32_t width, const uint32_t type)
{
    const uint32_t lines = type == KV_TYPE_F16 ? 1 : 2;
    const char *values = ahead->values[dim % width] + dim / width * lines * CACHE_LINE_BYTES;
    for (uint32_t line = 0; line < lines; line++)
        _mm_prefetch(values + line * CACHE_LINE_BYTES, _MM_HINT_T0);
    for (uint32_t g = 0; g < width; g += 2)
        _mm_prefetch(ahead->keys[g] + key_bytes, _MM_HINT_T0);
}

/* Scores of `width` groups of 8 keys from `group` of the segment on. Groups behind the last key
 * repeat it; what is garbage is masked by the caller. */
ALWAYS_INLINE void score_groups(const struct tile *tile, uint32_t group, const uint32_t heads,
                                const uint32_t width, const uint32_t type)
{
    const struct attention_share *share = tile->share;
    uint32_t last = (tile->first + tile->count - 1) / ATTENTION_GROUP_KEYS;
    const void *keys[WIDTH_MAX];
    __m256 sums[HEADS][WIDTH_MAX];
    struct ahead ahead;
    look_ahead(share, group, &ahead, width);
    for (uint32_t g = 0; g < width; g++) {
        keys[g] = share->group_keys[group + g < last ? group + g : last];
        for (uint32_t h = 0; h < heads; h++)
            sums[h][g] = _mm256_setzero_ps();
    }
    for (uint32_t dim = 0; dim < share->head_dim; dim++) {
        uint64_t element = (uint64_t)dim * share->key_stride;
        __m256 q[HEADS];
        for (uint32_t h = 0; h < heads; h++)
            q[h] = _mm256_broadcast_ss(share->queries + (uint64_t)h * share->head_dim + dim);
        for (uint32_t g = 0; g < width; g++) {
            __m256 key = load_pool(keys[g], element, type);
            for (uint32_t h = 0; h < heads; h++)
                sums[h][g] = _mm256_fmadd_ps(q[h], key, sums[h][g]);
        }
        prefetch_ahead(&ahead, dim, element * (type == KV_TYPE_F16 ? 2 : 4), width, type);
    }
    uint32_t place = group * ATTENTION_GROUP_KEYS - tile->first;
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t g = 0; g < width; g++)
            _mm256_storeu_ps(tile->states[h].probabilities + place + g * VECTOR_FLOATS, sums[h][g]);
    }
}

/* Scores of one head to probabilities; leaves the factor by which everything before shrinks. */
ALWAYS_INLINE void soften(struct head_state *state, uint32_t count, float scale)
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
        __m256 exponent = _mm256_fmadd_ps(scores[v], _mm256_set1_ps(scale), _mm256_set1_ps(-risen));
        __m256 probability = exp2_vector(exponent); /* 0 where nothing is */
        _mm256_storeu_ps(state->probabilities + v * VECTOR_FLOATS, probability);
        state->lanes[v % 2] = _mm256_add_ps(state->lanes[v % 2], probability);
    }
    state->shrink = _mm256_cvtss_f32(shrink);
}

/* `width` x 8 dims of the output from `dim` on. */
ALWAYS_INLINE void add_dims(const struct tile *tile, uint32_t dim, const uint32_t heads,
                            const uint32_t width, const uint32_t type)
{
    const struct attention_share *share = tile->share;
    const struct head_state *states = tile->states;
    uint32_t floats = attention_partial_floats(share->head_dim);
    __m256 sums[HEADS][WIDTH_MAX];
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t v = 0; v < width; v++) {
            const float *place = share->partial + h * floats + dim + v * VECTOR_FLOATS;
            sums[h][v] = _mm256_mul_ps(_mm256_loadu_ps(place), _mm256_set1_ps(states[h].shrink));
        }
    }
    for (uint32_t key = 0; key < tile->count; key++) {
        const void *values = share->group_values[(tile->first + key) / ATTENTION_GROUP_KEYS];
        uint64_t element = (uint64_t)(key % ATTENTION_GROUP_KEYS) * share->head_dim + dim;
        __m256 p[HEADS];
        for (uint32_t h = 0; h < heads; h++)
            p[h] = _mm256_broadcast_ss(states[h].probabilities + key);
        for (uint32_t v = 0; v < width; v++) {
            __m256 value = load_pool(values, element + v * VECTOR_FLOATS, type);
            for (uint32_t h = 0; h < heads; h++)
                sums[h][v] = _mm256_fmadd_ps(p[h], value, sums[h][v]);
        }
    }
    for (uint32_t h = 0; h < heads; h++) {
        for (uint32_t v = 0; v < width; v++)
            _mm256_storeu_ps(share->partial + h * floats + dim + v * VECTOR_FLOATS, sums[h][v]);
    }
}

ALWAYS_INLINE void attend_tile(const struct tile *tile, const uint32_t heads, const uint32_t type)
{
    const uint32_t width = width_for(heads);
    uint32_t head_dim = tile->share->head_dim, dim = 0;
    for (uint32_t key = 0; key < tile->count; key += width * ATTENTION_GROUP_KEYS)
        score_groups(tile, (tile->first + key) / ATTENTION_GROUP_KEYS, heads, width, type);
    for (uint32_t h = 0; h < heads; h++)
        soften(&tile->states[h], tile->count, tile->share->scale);
    for (; dim + width * VECTOR_FLOATS <= head_dim; dim += width * VECTOR_FLOATS)
        add_dims(tile, dim, heads, width, type);
    for (; dim < head_dim; dim += VECTOR_FLOATS)
        add_dims(tile, dim, heads, 1, type);
}

ALWAYS_INLINE void attend(const struct attention_share *share, const uint32_t heads,
                          const uint32_t type)
{
    struct head_state states[HEADS];
    uint32_t floats = attention_partial_floats(share->head_dim);
    for (uint32_t h = 0; h < heads; h++) {
        states[h].maximum = -INFINITY;
        states[h].lanes[0] = states[h].lanes[1] = _mm256_setzero_ps();
        __builtin_memset(share->partial + h * floats, 0, share->head_dim * sizeof(float));
    }
    for (uint32_t first = 0; first < share->keys; first += ATTENTION_TILE_KEYS) {
        uint32_t left = share->keys - first;
        struct tile tile = {share, states, first,
                            left < ATTENTION_TILE_KEYS ? left : ATTENTION_TILE_KEYS};
        attend_tile(&tile, heads, type);
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
