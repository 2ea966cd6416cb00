/* Work of attention: items (row, kv head, segment) for steps whose partial results fit the scratch
 * memory (decode), so that one long sequence keeps all threads busy; items (row, kv head) that walk
 * their segments one after the other otherwise (prefill). Both merge the same partial results in
 * the same ascending order, so the bits are equal.
 *
 * Bytes: every item reads its keys and values once for all query heads of the kv head. */
#include "kernels/cpu/device.h"

#include "common/check.h"
#include "kernels/constants.h"

#include <math.h>
#include <string.h>

enum {
    SPLIT_SEGMENTS_MIN = 512, /* row segments that the scratch memory holds at least */
    PARTIAL_FLOATS_MAX = ATTENTION_HEADS_TOGETHER * (HEAD_DIM_MAX + ATTENTION_GROUP_KEYS),
};

struct attention_job {
    const struct attention_args *args;
    const struct cpu_kernels *kernels;
    uint32_t group;        /* query heads per kv head */
    uint32_t segments_max; /* of a row of this step */
    float scale;
};

static uint32_t segments_of(uint32_t position)
{
    return position / ATTENTION_SEGMENT_KEYS + 1;
}

/* Finds K and V of each group of 8 keys of the segment through the block table. */
static void locate_keys(const struct attention_args *args, uint32_t row, uint32_t kv_head,
                        uint32_t first_key, struct attention_share *share)
{
    const struct kv_geometry *g = &args->kv.geometry;
    const uint8_t *pool = args->kv.pool;
    uint64_t table_row =
        kv_table_index(g, args->kv.logical_blocks, args->places.slots[row], args->layer, 0);
    for (uint32_t key = 0; key < share->keys; key += ATTENTION_GROUP_KEYS) {
        uint32_t position = first_key + key, token = kv_token_in_block(g, position);
        int32_t block = args->kv.table[table_row + kv_logical_block(g, position)];
        CHECK(block >= 0);
        uint64_t bytes = kv_element_bytes(g);
        uint32_t group = key / ATTENTION_GROUP_KEYS;
        share->group_keys[group] = pool + kv_k_head_offset(g, (uint32_t)block, kv_head) +
                                   kv_k_element(g, token, 0) * bytes;
        share->group_values[group] = pool + kv_v_head_offset(g, (uint32_t)block, kv_head) +
                                     kv_v_element(g, token, 0) * bytes;
    }
}

/* State of one segment for `heads` query heads from `first_head` on, all of one kv head, at
 * `partial`. */
static void attend_segment(const struct attention_job *job, uint32_t row, uint32_t first_head,
                           uint32_t heads, uint32_t segment, float *partial)
{
    const struct attention_args *args = job->args;
    const struct kv_geometry *g = &args->kv.geometry;
    uint32_t first_key = segment * ATTENTION_SEGMENT_KEYS;
    uint32_t keys = args->places.positions[row] + 1 - first_key;
    struct attention_share share = {
        .queries = args->queries + ((uint64_t)row * args->heads + first_head) * g->head_dim,
        .heads = heads,
        .head_dim = g->head_dim,
        .keys = keys < ATTENTION_SEGMENT_KEYS ? keys : ATTENTION_SEGMENT_KEYS,
        .type = g->type,
        .key_stride = kv_k_element(g, 0, 1) - kv_k_element(g, 0, 0),
        .scale = job->scale,
        .partial = partial,
    };
    locate_keys(args, row, first_head / job->group, first_key, &share);
    job->kernels->attention_segment(&share);
}

static void clear_state(float *state, uint32_t head_dim)
{
    memset(state, 0, attention_partial_floats(head_dim) * sizeof *state);
    state[attention_maximum_at(head_dim)] = -INFINITY;
}

static float *output_of(const struct attention_args *args, uint32_t row, uint32_t head)
{
    return args->output + ((uint64_t)row * args->heads + head) * args->kv.geometry.head_dim;
}

/* Query heads of one kv head that are computed together, from the first of them on. */
static uint32_t heads_together(const struct attention_job *job, uint32_t head)
{
    uint32_t left = job->group - head % job->group;
    return left < ATTENTION_HEADS_TOGETHER ? left : ATTENTION_HEADS_TOGETHER;
}

/* All segments of a row, one after the other, for the query heads of one kv head. Queries are read
 * before the output of the same heads is written, so both may be the same memory. */
static void attend_row(const struct attention_job *job, uint32_t row, uint32_t kv_head)
{
    const struct attention_args *args = job->args;
    uint32_t head_dim = args->kv.geometry.head_dim, last = (kv_head + 1) * job->group;
    uint32_t floats = attention_partial_floats(head_dim), heads;
    for (uint32_t head = kv_head * job->group; head < last; head += heads) {
        float partial[PARTIAL_FLOATS_MAX], state[PARTIAL_FLOATS_MAX];
        heads = heads_together(job, head);
        for (uint32_t i = 0; i < heads; i++)
            clear_state(state + (uint64_t)i * floats, head_dim);
        for (uint32_t segment = 0; segment < segments_of(args->places.positions[row]); segment++) {
            attend_segment(job, row, head, heads, segment, partial);
            for (uint32_t i = 0; i < heads; i++)
                job->kernels->attention_merge(partial + (uint64_t)i * floats, head_dim,
                                              state + (uint64_t)i * floats);
        }
        for (uint32_t i = 0; i < heads; i++)
            job->kernels->attention_finish(state + (uint64_t)i * floats, head_dim,
                                           output_of(args, row, head + i));
    }
}

static void whole_items(const void *context, uint32_t begin, uint32_t end)
{
    const struct attention_job *job = context;
    uint32_t kv_heads = job->args->kv.geometry.kv_heads;
    for (uint32_t item = begin; item < end; item++)
        attend_row(job, item / kv_heads, item % kv_heads);
}

/* Where the state of (row, segment, head) lies in a split step; those of a kv head's query heads
 * are one run. */
static float *split_state(const struct attention_job *job, uint32_t row, uint32_t segment,
                          uint32_t head)
{
    uint64_t index = ((uint64_t)row * job->segments_max + segment) * job->args->heads + head;
    uint32_t floats = attention_partial_floats(job->args->kv.geometry.head_dim);
    return (float *)job->args->scratch + index * floats;
}

/* Item = (row, segment, kv head) with segments_max segments per row; those past a row's end are
 * empty. */
static void split_items(const void *context, uint32_t begin, uint32_t end)
{
    const struct attention_job *job = context;
    uint32_t kv_heads = job->args->kv.geometry.kv_heads, heads;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t first = item % kv_heads * job->group;
        uint32_t segment = item / kv_heads % job->segments_max;
        uint32_t row = item / kv_heads / job->segments_max;
        if (segment >= segments_of(job->args->places.positions[row]))
            continue;
        for (uint32_t head = first; head < first + job->group; head += heads) {
            heads = heads_together(job, head);
            attend_segment(job, row, head, heads, segment, split_state(job, row, segment, head));
        }
    }
}

static void merge_items(const void *context, uint32_t begin, uint32_t end)
{
    const struct attention_job *job = context;
    uint32_t heads = job->args->heads, head_dim = job->args->kv.geometry.head_dim;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t row = item / heads, head = item % heads;
        float state[HEAD_DIM_MAX + ATTENTION_GROUP_KEYS];
        clear_state(state, head_dim);
        for (uint32_t segment = 0; segment < segments_of(job->args->places.positions[row]);
             segment++)
            job->kernels->attention_merge(split_state(job, row, segment, head), head_dim, state);
        job->kernels->attention_finish(state, head_dim, output_of(job->args, row, head));
    }
}

uint64_t cpu_attention_scratch_bytes(struct backend *backend, uint32_t rows, uint32_t heads,
                                     uint32_t head_dim, uint32_t context)
{
    (void)backend;
    uint64_t segments = segments_of(context), states = (uint64_t)rows * segments;
    uint64_t most = segments > SPLIT_SEGMENTS_MIN ? segments : SPLIT_SEGMENTS_MIN;
    return (states < most ? states : most) * heads * attention_partial_floats(head_dim) *
           sizeof(float);
}

static void check_shape(const struct attention_args *args)
{
    const struct kv_geometry *g = &args->kv.geometry;
    CHECK(g->order == KV_ORDER_CPU);
    CHECK(g->type == KV_TYPE_F16 || g->type == KV_TYPE_F32);
    CHECK(g->head_dim % HEAD_DIM_UNIT == 0 && g->head_dim <= HEAD_DIM_MAX);
    CHECK(g->block_tokens % ATTENTION_GROUP_KEYS == 0);
    CHECK(args->heads % g->kv_heads == 0);
}

void cpu_attention(struct backend *backend, const struct attention_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    const struct kv_geometry *g = &args->kv.geometry;
    check_shape(args);
    struct attention_job job = {
        .args = args,
        .kernels = cpu->kernels,
        .group = args->heads / g->kv_heads,
        .scale = (float)(LOG2_E / sqrt((double)g->head_dim)),
    };
    for (uint32_t row = 0; row < args->rows; row++) {
        uint32_t segments = segments_of(args->places.positions[row]);
        job.segments_max = segments > job.segments_max ? segments : job.segments_max;
    }
    uint64_t split_bytes = (uint64_t)args->rows * job.segments_max * args->heads *
                           attention_partial_floats(g->head_dim) * sizeof(float);
    if (split_bytes > args->scratch_bytes) {
        pool_run(cpu->pool, whole_items, &job, args->rows * g->kv_heads, 1);
        return;
    }
    pool_run(cpu->pool, split_items, &job, args->rows * job.segments_max * g->kv_heads, 1);
    pool_run(cpu->pool, merge_items, &job, args->rows * args->heads,
             pool_row_grain(g->head_dim * job.segments_max));
}
