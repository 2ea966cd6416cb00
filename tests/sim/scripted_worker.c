#include "sim/scripted_worker.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

/* ---- The script ---- */

static uint64_t mix(uint64_t x)
{
    x ^= x >> 33;
    x *= UINT64_C(0xff51afd7ed558ccd);
    x ^= x >> 33;
    x *= UINT64_C(0xc4ceb9fe1a85ec53);
    return x ^ x >> 33;
}

uint64_t script_hash(uint64_t hash, uint32_t token)
{
    return mix(hash * 31 + token + 1);
}

uint32_t script_token(const struct script *script, uint64_t hash, uint64_t seed)
{
    uint64_t draw = mix(hash ^ mix(seed));
    if (script->end_chance > 0 && draw % script->end_chance == 0)
        return script->end_token;
    return 'a' + (uint32_t)(draw >> 32) % 26;
}

uint64_t script_logits_hash(uint64_t hash, uint64_t seed)
{
    return mix(hash + seed);
}

/* ---- Life ---- */

static const struct segment_extents *extents_of(const struct scripted_worker *worker)
{
    return &worker->segment.header.extents;
}

void scripted_worker_open(struct scripted_worker *worker, const void *segment, uint64_t bytes,
                          const struct script *script)
{
    *worker = (struct scripted_worker){.script = *script, .numeric_error_token = -1};
    CHECK(segment_reader_open(&worker->segment, segment, bytes, NULL) == STATUS_OK);
    const struct segment_extents *extents = extents_of(worker);
    size_t positions = (size_t)kv_positions(&extents->geometry, extents->pool_blocks);
    worker->instance = worker->segment.header.identity.instance;
    worker->epoch = worker->segment.header.identity.epoch;
    worker->slots = calloc(extents->slots, sizeof *worker->slots);
    worker->blocks = malloc(positions * sizeof *worker->blocks);
    worker->holders = calloc((size_t)extents->pool_blocks, sizeof *worker->holders);
    CHECK(worker->slots != NULL && worker->blocks != NULL && worker->holders != NULL);
    memset(worker->blocks, 0xA5, positions * sizeof *worker->blocks); /* a new pool holds junk */
}

void scripted_worker_close(struct scripted_worker *worker)
{
    free(worker->slots);
    free(worker->blocks);
    free(worker->holders);
    *worker = (struct scripted_worker){0};
}

/* ---- Judging ---- */

static struct scripted_slot known_slot(const struct scripted_worker *worker,
                                       const struct plan_row *row)
{
    struct scripted_slot slot = worker->slots[row->slot];
    if (slot.generation != row->generation)
        slot = (struct scripted_slot){.generation = row->generation};
    return slot;
}

static int32_t block_of(const struct scripted_worker *worker, uint32_t slot, uint32_t layer,
                        uint32_t position)
{
    int32_t block;
    const struct kv_geometry *geometry = &extents_of(worker)->geometry;
    uint32_t logical = kv_blocks_for(geometry, position + 1) - 1;
    segment_read_blocks(&worker->segment, slot, layer, logical, 1, &block);
    return block;
}

/* Every block that the row's sequence uses up to its end: in range, and nobody else's in this plan.
 */
static enum plan_refusal judge_blocks(struct scripted_worker *worker, const struct plan_row *row)
{
    const struct segment_extents *extents = extents_of(worker);
    uint32_t end = row->first_position + row->count;
    uint32_t logical_blocks = kv_blocks_for(&extents->geometry, end);
    for (uint32_t layer = 0; layer < extents->geometry.layers; layer++) {
        for (uint32_t logical = 0; logical < logical_blocks; logical++) {
            int32_t block;
            segment_read_blocks(&worker->segment, row->slot, layer, logical, 1, &block);
            if (block < 0 || (uint64_t)block >= extents->pool_blocks || worker->holders[block] != 0)
                return PLAN_REFUSAL_BLOCK;
            worker->holders[block] = row->slot + 1;
        }
    }
    return PLAN_REFUSAL_NONE;
}

static enum plan_refusal judge_tokens(const struct scripted_worker *worker,
                                      const struct plan_row *row)
{
    if ((row->flags & PLAN_ROW_FROM_LAST_SAMPLE) != 0)
        return PLAN_REFUSAL_NONE;
    for (uint32_t i = 0; i < row->count; i++) {
        uint32_t token;
        segment_read_tokens(&worker->segment, row->slot, row->first_position + i, 1, &token);
        if (token >= extents_of(worker)->vocabulary)
            return PLAN_REFUSAL_TOKEN;
    }
    return PLAN_REFUSAL_NONE;
}

static enum plan_refusal judge_row(struct scripted_worker *worker, const struct plan_row *row)
{
    const struct segment_extents *extents = extents_of(worker);
    if (row->slot >= extents->slots)
        return PLAN_REFUSAL_SLOT_RANGE;
    struct slot_row parameters;
    segment_read_slot_row(&worker->segment, row->slot, &parameters);
    if (row->generation == 0 || parameters.generation != row->generation ||
        row->generation < worker->slots[row->slot].generation)
        return PLAN_REFUSAL_GENERATION;
    if (row->count == 0)
        return PLAN_REFUSAL_COUNT;
    if (row->first_position + row->count > extents->context ||
        row->first_position + row->count >= parameters.token_limit)
        return PLAN_REFUSAL_CONTEXT;
    struct scripted_slot slot = known_slot(worker, row);
    if (row->first_position != slot.cached)
        return PLAN_REFUSAL_POSITION;
    if ((row->flags & PLAN_ROW_FROM_LAST_SAMPLE) != 0 &&
        (row->count != 1 || !slot.has_sample || slot.sample_position != row->first_position))
        return PLAN_REFUSAL_LAST_SAMPLE;
    enum plan_refusal refusal = judge_tokens(worker, row);
    return refusal != PLAN_REFUSAL_NONE ? refusal : judge_blocks(worker, row);
}

static enum plan_refusal judge(struct scripted_worker *worker, const struct plan *plan,
                               struct worker_refused *refused)
{
    if (plan->step != worker->step + 1)
        return PLAN_REFUSAL_STEP;
    if (segment_published_step(&worker->segment) < plan->step)
        return PLAN_REFUSAL_UNPUBLISHED;
    if (plan->row_count == 0 || plan->row_count > extents_of(worker)->slots)
        return PLAN_REFUSAL_NO_ROWS;
    memset(worker->holders, 0, (size_t)extents_of(worker)->pool_blocks * sizeof *worker->holders);
    uint64_t tokens = 0;
    for (uint32_t i = 0; i < plan->row_count; i++) {
        enum plan_refusal refusal = judge_row(worker, &plan->rows[i]);
        for (uint32_t j = 0; j < i && refusal == PLAN_REFUSAL_NONE; j++) {
            if (plan->rows[j].slot == plan->rows[i].slot)
                refusal = PLAN_REFUSAL_SLOT_REPEATED;
        }
        tokens += plan->rows[i].count;
        refused->has_row = true;
        refused->row = i;
        if (refusal != PLAN_REFUSAL_NONE)
            return refusal;
    }
    refused->has_row = false;
    return tokens > extents_of(worker)->step_tokens ? PLAN_REFUSAL_BUDGET : PLAN_REFUSAL_NONE;
}

/* ---- Computing ---- */

static struct scripted_position *place(struct scripted_worker *worker, uint32_t slot,
                                       uint32_t layer, uint32_t position)
{
    const struct kv_geometry *geometry = &extents_of(worker)->geometry;
    int32_t block = block_of(worker, slot, layer, position);
    uint64_t first = kv_positions(geometry, (uint64_t)block);
    uint64_t in_block =
        position - kv_positions(geometry, kv_blocks_for(geometry, position + 1) - 1);
    return &worker->blocks[first + in_block];
}

/* Writes one position in every layer and returns the hash up to it. A layer that disagrees with
 * another about what came before spoils the hash, as it would spoil the logits. */
static uint64_t write_position(struct scripted_worker *worker, uint32_t slot, uint32_t position,
                               uint32_t token)
{
    uint64_t all = 0;
    uint32_t layers = extents_of(worker)->geometry.layers;
    for (uint32_t layer = 0; layer < layers; layer++) {
        uint64_t before =
            position == 0 ? SCRIPT_HASH_EMPTY : place(worker, slot, layer, position - 1)->hash;
        struct scripted_position *here = place(worker, slot, layer, position);
        here->token = token;
        here->hash = script_hash(before, token);
        all = layer == 0 || all == here->hash ? here->hash : UINT64_MAX;
    }
    return all;
}

static void sample(struct scripted_worker *worker, const struct plan_row *row, uint64_t hash,
                   struct result *result)
{
    struct slot_row parameters;
    segment_read_slot_row(&worker->segment, row->slot, &parameters);
    struct scripted_slot *slot = &worker->slots[row->slot];
    slot->has_sample = true;
    slot->sample_position = row->first_position + row->count;
    slot->sample_token = script_token(&worker->script, hash, parameters.seed);
    bool is_error = slot->sample_token == worker->numeric_error_token;
    result->rows[result->row_count++] = (struct result_row){
        .slot = row->slot,
        .generation = row->generation,
        .position = slot->sample_position,
        .token = is_error ? 0 : slot->sample_token,
        .logprob = is_error ? 0 : -1,
        .flags = is_error ? RESULT_ROW_NUMERIC_ERROR : 0,
        .logits_hash = script_logits_hash(hash, parameters.seed),
    };
}

static void compute_row(struct scripted_worker *worker, const struct plan_row *row,
                        struct result *result)
{
    struct scripted_slot *slot = &worker->slots[row->slot];
    *slot = known_slot(worker, row);
    uint64_t hash = 0;
    for (uint32_t i = 0; i < row->count; i++) {
        uint32_t token = slot->sample_token;
        if ((row->flags & PLAN_ROW_FROM_LAST_SAMPLE) == 0)
            segment_read_tokens(&worker->segment, row->slot, row->first_position + i, 1, &token);
        hash = write_position(worker, row->slot, row->first_position + i, token);
    }
    slot->cached = row->first_position + row->count;
    if ((row->flags & PLAN_ROW_SAMPLE) != 0)
        sample(worker, row, hash, result);
    worker->rows_computed++;
    worker->tokens_computed += row->count;
}

bool scripted_worker_step(struct scripted_worker *worker, const struct plan *plan,
                          struct result *out_result, struct worker_refused *out_refused)
{
    *out_refused = (struct worker_refused){.instance = plan->instance,
                                           .epoch = plan->epoch,
                                           .step = plan->step,
                                           .message = wire_text_of("")};
    out_refused->reason = judge(worker, plan, out_refused);
    if (out_refused->reason != PLAN_REFUSAL_NONE)
        return false;
    out_result->instance = plan->instance;
    out_result->epoch = plan->epoch;
    out_result->step = plan->step;
    out_result->timings = (struct worker_timings){.compute_ns = 600000};
    out_result->has_logits_hash = worker->has_logits_hash;
    out_result->row_count = 0;
    for (uint32_t i = 0; i < plan->row_count; i++)
        compute_row(worker, &plan->rows[i], out_result);
    worker->step = plan->step;
    return true;
}
