/* Attention of the arithmetic, in plain C: the text to read first. For one query head and one
 * segment of up to 256 keys at an absolute multiple of 256:
 *
 * - Tiles of 64 keys, ascending.
 * - Score of a key: one chain of fused multiply-adds over the dims, ascending.
 * - maximum' = max(maximum, scale x largest score of the tile), shrink = exp2(maximum - maximum').
 * - probability = exp2(fma(score, scale, -maximum')), not rounded further.
 * - Sum: 16 lanes by key mod 16, each lane = shrink x lane, then + probability, ascending; the tree
 *   8, 4, 2, 1 at the end.
 * - O[dim] = shrink x O[dim], then one chain over the keys, ascending.
 *
 * Keys beyond the row's position are never read into a result. */
#include "kernels/cpu/exponential.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/plain.h"

#include <string.h>

static float pool_value(const void *values, uint64_t element, uint32_t type)
{
    return type == KV_TYPE_F16 ? half_to_float(((const uint16_t *)values)[element])
                               : ((const float *)values)[element];
}

/* Scores of the keys first..first+count-1 of the segment. */
static void score_tile(const struct attention_share *share, const float *query, uint32_t first,
                       uint32_t count, float *scores)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key = first + i;
        const void *keys = share->group_keys[key / ATTENTION_GROUP_KEYS];
        float score = 0.0f;
        for (uint32_t dim = 0; dim < share->head_dim; dim++) {
            uint64_t element = (uint64_t)dim * share->key_stride + key % ATTENTION_GROUP_KEYS;
            score = fmaf(query[dim], pool_value(keys, element, share->type), score);
        }
        scores[i] = score;
    }
}

static float largest_of(const float *values, uint32_t count)
{
    float largest = -INFINITY;
    for (uint32_t i = 0; i < count; i++)
        largest = values[i] > largest ? values[i] : largest;
    return largest;
}

static void add_values(const struct attention_share *share, const float *probabilities,
                       uint32_t first, uint32_t count, float *output)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t key = first + i;
        const void *values = share->group_values[key / ATTENTION_GROUP_KEYS];
        for (uint32_t dim = 0; dim < share->head_dim; dim++) {
            uint64_t element = (uint64_t)(key % ATTENTION_GROUP_KEYS) * share->head_dim + dim;
            output[dim] =
                fmaf(probabilities[i], pool_value(values, element, share->type), output[dim]);
        }
    }
}

static void attend_head(const struct attention_share *share, uint32_t keys, const float *query,
                        float *partial)
{
    float maximum = -INFINITY, lanes[ATTENTION_LANES] = {0};
    memset(partial, 0, share->head_dim * sizeof *partial);
    for (uint32_t first = 0; first < keys; first += ATTENTION_TILE_KEYS) {
        float scores[ATTENTION_TILE_KEYS];
        uint32_t left = keys - first;
        uint32_t count = left < ATTENTION_TILE_KEYS ? left : ATTENTION_TILE_KEYS;
        score_tile(share, query, first, count, scores);
        float scaled = share->scale * largest_of(scores, count);
        float risen = scaled > maximum ? scaled : maximum;
        float shrink = exp2_plain(maximum - risen);
        maximum = risen;
        for (uint32_t lane = 0; lane < ATTENTION_LANES; lane++)
            lanes[lane] *= shrink;
        for (uint32_t dim = 0; dim < share->head_dim; dim++)
            partial[dim] *= shrink;
        for (uint32_t i = 0; i < count; i++) {
            scores[i] = exp2_plain(fmaf(scores[i], share->scale, -risen));
            lanes[i % ATTENTION_LANES] += scores[i];
        }
        add_values(share, scores, first, count, partial);
    }
    for (uint32_t distance = ATTENTION_LANES / 2; distance >= 1; distance /= 2) {
        for (uint32_t i = 0; i < distance; i++)
            lanes[i] += lanes[i + distance];
    }
    partial[attention_maximum_at(share->head_dim)] = maximum;
    partial[attention_sum_at(share->head_dim)] = lanes[0];
}

void attention_segment_plain(const struct attention_share *share)
{
    uint32_t floats = attention_partial_floats(share->head_dim);
    for (uint32_t row = 0; row < share->rows; row++) {
        for (uint32_t head = 0; head < share->heads; head++)
            attend_head(share, attention_keys_of(share, row),
                        share->queries + row * share->row_stride + (uint64_t)head * share->head_dim,
                        share->partial + (uint64_t)(row * share->heads + head) * floats);
    }
}

void attention_merge_plain(const float *segment, uint32_t head_dim, float *state)
{
    float *maximum = &state[attention_maximum_at(head_dim)];
    float *sum = &state[attention_sum_at(head_dim)];
    float segment_maximum = segment[attention_maximum_at(head_dim)];
    float risen = segment_maximum > *maximum ? segment_maximum : *maximum;
    float shrink = exp2_plain(*maximum - risen), weight = exp2_plain(segment_maximum - risen);
    for (uint32_t dim = 0; dim < head_dim; dim++)
        state[dim] = fmaf(segment[dim], weight, state[dim] * shrink);
    *sum = fmaf(segment[attention_sum_at(head_dim)], weight, *sum * shrink);
    *maximum = risen;
}

void attention_finish_plain(const float *state, uint32_t head_dim, float *output)
{
    for (uint32_t dim = 0; dim < head_dim; dim++)
        output[dim] = state[dim] / state[attention_sum_at(head_dim)];
}
