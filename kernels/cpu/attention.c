/* Work of attention. Rows at consecutive positions of one sequence form a group (a chunk of a
 * prompt) and share the keys that they read; a decoding row is a group of its own. Items are
 * (group, kv head) that walk their segments one after the other, or (group, segment, kv head) where
 * there are few of those and the partial results fit the scratch memory, so that one long sequence
 * keeps all threads busy. The thread that ends the last segment of a group merges them. Both ways
 * merge the same partial results in the same ascending order, so the bits are equal.
 *
 * Bytes: every item reads its keys and values once for all query heads of the kv head and all rows
 * of the group. */
#include "kernels/cpu/device.h"

#include "common/check.h"
#include "kernels/constants.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

enum {
    SPLIT_SEGMENTS_MIN = 512, /* row segments that the scratch memory holds at least */
    ITEMS_PER_THREAD = 8,     /* so many even out; fewer are split */
    PLACES_PER_THREAD = 2,    /* so many even out where a thread takes all kv heads of one */
    PARTIAL_FLOATS_MAX = ATTENTION_QUERIES_MAX * (HEAD_DIM_MAX + ATTENTION_LANES),
    SCRATCH_ALIGNMENT = 64,
};

/* The scratch memory of a step. */
struct scratch {
    uint32_t *first_rows; /* [group + 1] first row of each group, then the number of rows */
    _Atomic uint32_t
        *pending;  /* [row][kv head] segments of a group that are not done; by first row */
    float *states; /* of split items */
    uint64_t states_bytes;
};

struct attention_job {
    const struct attention_args *args;
    const struct cpu_kernels *kernels;
    struct scratch scratch;
    uint32_t group_heads;  /* query heads per kv head */
    uint32_t heads;        /* of them that are computed together */
    uint32_t segments_max; /* of a row of this step */
    bool split;            /* items are segments */
    bool heads_in_turn;    /* a thread takes all kv heads of an item, one after the other */
    float scale;
};

/* Rows first .. first + count - 1, whose last keys lie in the same segment. */
struct row_group {
    uint32_t first, count;
};

static uint32_t segments_of(uint32_t position)
{
    return position / ATTENTION_SEGMENT_KEYS + 1;
}

static struct row_group group_at(const struct attention_job *job, uint32_t index)
{
    const uint32_t *first_rows = job->scratch.first_rows;
    return (struct row_group){first_rows[index], first_rows[index + 1] - first_rows[index]};
}

static uint32_t group_segments(const struct attention_job *job, struct row_group group)
{
    return segments_of(job->args->places.positions[group.first]);
}

/* Finds K and V of each group of 8 keys of the segment through the block table. */
static void locate_keys(const struct attention_args *args, uint32_t row, uint32_t kv_head,
                        uint32_t first_key, struct attention_share *share)
{
    const struct kv_geometry *g = &args->kv.geometry;
    const uint8_t *pool = args->kv.pool;
    uint64_t table_row =
        kv_table_index(g, args->kv.logical_blocks, args->places.slots[row], args->layer, 0);
    uint32_t keys = attention_keys_of(share, share->rows - 1);
    uint64_t k_group = (kv_k_element(g, ATTENTION_GROUP_KEYS, 0) - kv_k_element(g, 0, 0)) *
                       (uint64_t)kv_element_bytes(g);
    uint64_t v_group = (kv_v_element(g, ATTENTION_GROUP_KEYS, 0) - kv_v_element(g, 0, 0)) *
                       (uint64_t)kv_element_bytes(g);
    uint32_t logical = kv_logical_block(g, first_key), group = 0;
    for (uint32_t key = 0; key < keys; logical++) { /* a segment begins with a block */
        int32_t block = args->kv.table[table_row + logical];
        CHECK(block >= 0);
        const uint8_t *k = pool + kv_k_head_offset(g, (uint32_t)block, kv_head);
        const uint8_t *v = pool + kv_v_head_offset(g, (uint32_t)block, kv_head);
        for (uint32_t token = 0; token < g->block_tokens; token += ATTENTION_GROUP_KEYS) {
            share->group_keys[group] = k;
            share->group_values[group++] = v;
            k += k_group;
            v += v_group;
        }
        key += g->block_tokens;
    }
}

/* Bytes from the keys of a kv head to those of the next, where the same segment of it comes next.
 */
static uint64_t next_keys(const struct attention_job *job, struct row_group group, uint32_t kv_head)
{
    const struct kv_geometry *g = &job->args->kv.geometry;
    bool same_segment = job->split || group_segments(job, group) == 1;
    bool next = job->heads_in_turn && same_segment && kv_head + 1 < g->kv_heads;
    return next ? kv_k_head_offset(g, 0, 1) - kv_k_head_offset(g, 0, 0) : 0;
}

/* States [row][head] of one segment for `heads` query heads from `first_head` on, all of one kv
 * head, at `partial`. */
static void attend_segment(const struct attention_job *job, struct row_group group,
                           uint32_t first_head, uint32_t heads, uint32_t segment, float *partial)
{
    const struct attention_args *args = job->args;
    const struct kv_geometry *g = &args->kv.geometry;
    uint64_t row_floats = (uint64_t)args->heads * g->head_dim;
    uint32_t first_key = segment * ATTENTION_SEGMENT_KEYS;
    uint32_t kv_head = first_head / job->group_heads;
    uint32_t keys = args->places.positions[group.first] + 1 - first_key;
    struct attention_share share = {
        .queries = args->queries + group.first * row_floats + (uint64_t)first_head * g->head_dim,
        .row_stride = row_floats,
        .rows = group.count,
        .heads = heads,
        .head_dim = g->head_dim,
        .keys = keys < ATTENTION_SEGMENT_KEYS ? keys : ATTENTION_SEGMENT_KEYS,
        .type = g->type,
        .key_stride = kv_k_element(g, 0, 1) - kv_k_element(g, 0, 0),
        .scale = job->scale,
        .next_keys = next_keys(job, group, kv_head),
        .fetched = kv_head > 0 && next_keys(job, group, kv_head - 1) != 0,
        .partial = partial,
    };
    locate_keys(args, group.first, kv_head, first_key, &share);
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
    uint32_t left = job->group_heads - head % job->group_heads;
    return left < job->heads ? left : job->heads;
}

/* All segments of a group, one after the other, for some query heads of a kv head. Queries are read
 * before the output of the same heads is written, so both may be the same memory. */
static void attend_heads(const struct attention_job *job, struct row_group group, uint32_t head,
                         uint32_t heads)
{
    const struct attention_args *args = job->args;
    uint32_t head_dim = args->kv.geometry.head_dim, floats = attention_partial_floats(head_dim);
    uint32_t queries = group.count * heads;
    _Alignas(SCRATCH_ALIGNMENT) float partial[PARTIAL_FLOATS_MAX], state[PARTIAL_FLOATS_MAX];
    for (uint32_t i = 0; i < queries; i++)
        clear_state(state + (uint64_t)i * floats, head_dim);
    for (uint32_t segment = 0; segment < group_segments(job, group); segment++) {
        attend_segment(job, group, head, heads, segment, partial);
        for (uint32_t i = 0; i < queries; i++)
            job->kernels->attention_merge(partial + (uint64_t)i * floats, head_dim,
                                          state + (uint64_t)i * floats);
    }
    for (uint32_t i = 0; i < queries; i++)
        job->kernels->attention_finish(state + (uint64_t)i * floats, head_dim,
                                       output_of(args, group.first + i / heads, head + i % heads));
}

static void whole_items(const void *context, uint32_t begin, uint32_t end)
{
    const struct attention_job *job = context;
    uint32_t kv_heads = job->args->kv.geometry.kv_heads, heads;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t first = item % kv_heads * job->group_heads;
        for (uint32_t head = first; head < first + job->group_heads; head += heads) {
            heads = heads_together(job, head);
            attend_heads(job, group_at(job, item / kv_heads), head, heads);
        }
    }
}

/* Where the state of a query of a split item lies: [group][segment][kv head][row][query head]. */
static float *split_state(const struct attention_job *job, struct row_group group, uint32_t segment,
                          uint32_t kv_head)
{
    uint64_t rows = (uint64_t)group.first * job->segments_max + (uint64_t)segment * group.count;
    uint64_t index = rows * job->args->heads + (uint64_t)kv_head * group.count * job->group_heads;
    return job->scratch.states + index * attention_partial_floats(job->args->kv.geometry.head_dim);
}

static void merge_group(const struct attention_job *job, struct row_group group, uint32_t kv_head)
{
    uint32_t head_dim = job->args->kv.geometry.head_dim,
             floats = attention_partial_floats(head_dim);
    _Alignas(SCRATCH_ALIGNMENT) float state[HEAD_DIM_MAX + ATTENTION_LANES];
    for (uint32_t i = 0; i < group.count * job->group_heads; i++) {
        clear_state(state, head_dim);
        for (uint32_t segment = 0; segment < group_segments(job, group); segment++)
            job->kernels->attention_merge(
                split_state(job, group, segment, kv_head) + (uint64_t)i * floats, head_dim, state);
        job->kernels->attention_finish(
            state, head_dim,
            output_of(job->args, group.first + i / job->group_heads,
                      kv_head * job->group_heads + i % job->group_heads));
    }
}

/* Item = (group, segment, kv head) with segments_max segments per group; those past a group's end
 * are empty. Groups are one row where not all heads of a kv head are computed together. */
static void split_items(const void *context, uint32_t begin, uint32_t end)
{
    const struct attention_job *job = context;
    uint32_t kv_heads = job->args->kv.geometry.kv_heads, heads;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t kv_head = item % kv_heads, segment = item / kv_heads % job->segments_max;
        struct row_group group = group_at(job, item / kv_heads / job->segments_max);
        if (segment >= group_segments(job, group))
            continue;
        float *partial = split_state(job, group, segment, kv_head);
        uint32_t floats = attention_partial_floats(job->args->kv.geometry.head_dim);
        for (uint32_t done = 0; done < job->group_heads; done += heads) {
            uint32_t head = kv_head * job->group_heads + done;
            heads = heads_together(job, head);
            attend_segment(job, group, head, heads, segment, partial + (uint64_t)done * floats);
        }
        if (atomic_fetch_sub(&job->scratch.pending[group.first * kv_heads + kv_head], 1) == 1)
            merge_group(job, group, kv_head);
    }
}

static uint64_t round_up(uint64_t bytes)
{
    return (bytes + SCRATCH_ALIGNMENT - 1) / SCRATCH_ALIGNMENT * SCRATCH_ALIGNMENT;
}

static uint64_t first_rows_bytes(uint32_t rows)
{
    return round_up(((uint64_t)rows + 1) * sizeof(uint32_t));
}

static uint64_t pending_bytes(uint32_t rows, uint32_t heads)
{
    return round_up((uint64_t)rows * heads * sizeof(uint32_t));
}

static uint64_t states_bytes(uint64_t row_segments, uint32_t heads, uint32_t head_dim)
{
    return row_segments * heads * attention_partial_floats(head_dim) * sizeof(float);
}

uint64_t cpu_attention_scratch_bytes(struct backend *backend, uint32_t rows, uint32_t heads,
                                     uint32_t head_dim, uint32_t context)
{
    (void)backend;
    uint64_t segments = segments_of(context), states = (uint64_t)rows * segments;
    uint64_t most = segments > SPLIT_SEGMENTS_MIN ? segments : SPLIT_SEGMENTS_MIN;
    return first_rows_bytes(rows) + pending_bytes(rows, heads) +
           states_bytes(states < most ? states : most, heads, head_dim);
}

static struct scratch scratch_of(const struct attention_args *args)
{
    uint8_t *memory = args->scratch;
    uint64_t lists = first_rows_bytes(args->rows) + pending_bytes(args->rows, args->heads);
    CHECK(args->scratch_bytes >= lists);
    return (struct scratch){
        .first_rows = (uint32_t *)memory,
        .pending = (_Atomic uint32_t *)(memory + first_rows_bytes(args->rows)),
        .states = (float *)(memory + lists),
        .states_bytes = args->scratch_bytes - lists,
    };
}

/* Cuts the rows into groups of up to `most` rows; the number of groups. A border of segments is one
 * of groups, so that all rows of a group have as many. */
static uint32_t form_groups(const struct attention_args *args, uint32_t most, uint32_t *first_rows)
{
    const uint32_t *positions = args->places.positions, *slots = args->places.slots;
    uint32_t groups = 0;
    for (uint32_t row = 0; row < args->rows; row++) {
        bool goes_on = row > 0 && row - first_rows[groups - 1] < most &&
                       slots[row] == slots[row - 1] && positions[row] == positions[row - 1] + 1 &&
                       positions[row] % ATTENTION_SEGMENT_KEYS != 0;
        if (!goes_on)
            first_rows[groups++] = row;
    }
    first_rows[groups] = args->rows;
    return groups;
}

/* Rows of a group, at most: as many as the kernel takes, fewer where that would leave threads
 * without work. */
static uint32_t rows_together(const struct attention_job *job, uint32_t threads)
{
    const struct attention_args *args = job->args;
    uint32_t most = ATTENTION_QUERIES_MAX / job->heads;
    uint64_t items = (uint64_t)args->rows * args->kv.geometry.kv_heads;
    uint64_t even = items / ((uint64_t)threads * ITEMS_PER_THREAD) + 1;
    if (job->heads < job->group_heads)
        return 1;
    return even < most ? (uint32_t)even : most;
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

static void count_pending(const struct attention_job *job, uint32_t groups)
{
    uint32_t kv_heads = job->args->kv.geometry.kv_heads;
    for (uint32_t i = 0; i < groups; i++) {
        struct row_group group = group_at(job, i);
        for (uint32_t head = 0; head < kv_heads; head++)
            atomic_init(&job->scratch.pending[group.first * kv_heads + head],
                        group_segments(job, group));
    }
}

void cpu_attention(struct backend *backend, const struct attention_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    const struct kv_geometry *g = &args->kv.geometry;
    check_shape(args);
    if (args->rows == 0)
        return;
    uint32_t group_heads = args->heads / g->kv_heads, threads = pool_threads(cpu->pool);
    struct attention_job job = {
        .args = args,
        .kernels = cpu->kernels,
        .scratch = scratch_of(args),
        .group_heads = group_heads,
        .heads = group_heads < ATTENTION_QUERIES_MAX ? group_heads : ATTENTION_QUERIES_MAX,
        .scale = (float)(LOG2_E / sqrt((double)g->head_dim)),
    };
    for (uint32_t row = 0; row < args->rows; row++) {
        uint32_t segments = segments_of(args->places.positions[row]);
        job.segments_max = segments > job.segments_max ? segments : job.segments_max;
    }
    uint32_t groups = form_groups(args, rows_together(&job, threads), job.scratch.first_rows);
    uint64_t split_bytes =
        states_bytes((uint64_t)args->rows * job.segments_max, args->heads, g->head_dim);
    job.split = job.segments_max > 1 && groups * g->kv_heads < threads * ITEMS_PER_THREAD &&
                split_bytes <= job.scratch.states_bytes;
    if (job.split)
        count_pending(&job, groups);
    uint32_t places = job.split ? groups * job.segments_max : groups;
    /* Groups of many rows take longer than their keys take to arrive, and are uneven. */
    bool single_rows = groups > args->rows / 2;
    job.heads_in_turn = single_rows && places >= threads * PLACES_PER_THREAD;
    pool_run(cpu->pool, job.split ? split_items : whole_items, &job, places * g->kv_heads,
             job.heads_in_turn ? g->kv_heads : 1);
}
