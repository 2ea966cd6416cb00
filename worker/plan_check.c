#include "worker/plan_check.h"

#include "common/check.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Who covered a block last. Generation 0: nobody. A holder counts only while its generation is the
 * slot's. */
struct holder {
    uint32_t slot;
    uint32_t generation;
};

/* What the plan in hand says of a slot; valid if `serial` is the check's. */
struct planned {
    uint64_t serial;
    uint32_t generation;
};

struct plan_check {
    const struct segment_reader *segment; /* borrowed */
    struct segment_extents extents;
    uint64_t steps_done;
    uint64_t serial;           /* of plan_check_next() calls, refused ones included */
    struct slot_state *slots;  /* owned [slots] */
    struct slot_state *staged; /* owned [slots], by row of the plan in hand */
    struct planned *planned;   /* owned [slots] */
    uint32_t *tokens;          /* owned [step_tokens] */
    uint32_t token_count;
    struct block_run *runs; /* owned [slots * layers] */
    uint32_t run_count;
    int32_t *blocks;          /* owned [block_capacity], of the runs */
    struct holder *displaced; /* owned [block_capacity], holders before the plan in hand */
    uint32_t block_count;
    uint32_t block_capacity;
    struct holder *holders; /* owned [pool_blocks] */
};

/* The plan in hand, for the judges of a row. */
struct judgement {
    struct plan_check *check;
    const struct plan_row *row;
    struct slot_state *state; /* the row's staged state */
    struct plan_verdict *verdict;
    struct text *why;
};

enum status plan_check_open(const struct segment_reader *segment, struct plan_check **out_check)
{
    const struct segment_extents *extents = &segment->header.extents;
    struct plan_check *check = calloc(1, sizeof *check);
    if (check == NULL)
        return STATUS_OUT_OF_MEMORY;
    uint32_t layers = extents->geometry.layers;
    /* A row covers at most the blocks that its tokens fill, and one begun at each end. */
    check->block_capacity =
        (kv_blocks_for(&extents->geometry, extents->step_tokens) + extents->slots) * layers;
    check->segment = segment;
    check->extents = *extents;
    check->slots = calloc(extents->slots, sizeof *check->slots);
    check->staged = calloc(extents->slots, sizeof *check->staged);
    check->planned = calloc(extents->slots, sizeof *check->planned);
    check->tokens = calloc(extents->step_tokens, sizeof *check->tokens);
    check->runs = calloc((size_t)extents->slots * layers, sizeof *check->runs);
    check->blocks = calloc(check->block_capacity, sizeof *check->blocks);
    check->displaced = calloc(check->block_capacity, sizeof *check->displaced);
    check->holders = calloc((size_t)extents->pool_blocks, sizeof *check->holders);
    if (check->slots == NULL || check->staged == NULL || check->planned == NULL ||
        check->tokens == NULL || check->runs == NULL || check->blocks == NULL ||
        check->displaced == NULL || check->holders == NULL) {
        plan_check_close(check);
        return STATUS_OUT_OF_MEMORY;
    }
    for (uint32_t slot = 0; slot < extents->slots; slot++)
        check->slots[slot].last_sample_position = SLOT_NO_SAMPLE;
    *out_check = check;
    return STATUS_OK;
}

void plan_check_close(struct plan_check *check)
{
    if (check == NULL)
        return;
    free(check->slots);
    free(check->staged);
    free(check->planned);
    free(check->tokens);
    free(check->runs);
    free(check->blocks);
    free(check->displaced);
    free(check->holders);
    free(check);
}

/* The row is to blame. */
__attribute__((format(printf, 3, 4))) static bool
refuse(const struct judgement *judgement, enum plan_refusal refusal, const char *format, ...)
{
    char rest[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(rest, sizeof rest, format, arguments);
    va_end(arguments);
    CHECK(length >= 0);
    judgement->verdict->refusal = refusal;
    text_set(judgement->why, "slot %" PRIu32 " generation %" PRIu32 ": %s", judgement->row->slot,
             judgement->row->generation, rest);
    return false;
}

static bool judge_parameters(const struct judgement *judgement, const struct slot_row *row)
{
    if (slot_row_is_valid(row, &judgement->check->extents))
        return true;
    return refuse(judgement, PLAN_REFUSAL_PARAMETERS,
                  "prompt %" PRIu32 ", limit %" PRIu32 ", top_k %" PRIu32
                  ", temperature %g, top_p %g, min_p %g",
                  row->prompt_tokens, row->token_limit, row->top_k, (double)row->temperature,
                  (double)row->top_p, (double)row->min_p);
}

/* A higher generation is a new tenant: all that was known of the slot is forgotten, the last sample
 * included. */
static bool judge_generation(const struct judgement *judgement)
{
    const struct plan_row *row = judgement->row;
    struct slot_state *state = judgement->state;
    struct slot_row slot_row;
    segment_read_slot_row(judgement->check->segment, row->slot, &slot_row);
    if (slot_row.generation != row->generation)
        return refuse(judgement, PLAN_REFUSAL_GENERATION, "the slot row has generation %" PRIu32,
                      slot_row.generation);
    if (row->generation < state->generation)
        return refuse(judgement, PLAN_REFUSAL_GENERATION,
                      "the slot had generation %" PRIu32 " before", state->generation);
    if (row->generation == state->generation)
        return true;
    if (!judge_parameters(judgement, &slot_row))
        return false;
    *state = (struct slot_state){
        .generation = row->generation,
        .last_sample_position = SLOT_NO_SAMPLE,
        .token_limit = slot_row.token_limit,
        .sampling =
            {
                .seed = slot_row.seed,
                .temperature = slot_row.temperature,
                .top_p = slot_row.top_p,
                .min_p = slot_row.min_p,
                .top_k = slot_row.top_k,
            },
    };
    return true;
}

static bool judge_position(const struct judgement *judgement)
{
    const struct plan_row *row = judgement->row;
    const struct slot_state *state = judgement->state;
    if (row->first_position != state->cached_length)
        return refuse(judgement, PLAN_REFUSAL_POSITION,
                      "first position %" PRIu32 ", the cached length is %" PRIu32,
                      row->first_position, state->cached_length);
    if (row->first_position + row->count > state->token_limit)
        return refuse(judgement, PLAN_REFUSAL_CONTEXT,
                      "%" PRIu32 " tokens from position %" PRIu32
                      ", the limit of the request is %" PRIu32,
                      row->count, row->first_position, state->token_limit);
    if ((row->flags & PLAN_ROW_FROM_LAST_SAMPLE) != 0 &&
        state->last_sample_position != row->first_position) {
        if (state->last_sample_position == SLOT_NO_SAMPLE)
            return refuse(judgement, PLAN_REFUSAL_LAST_SAMPLE,
                          "position %" PRIu32 " from the last sample, but there is none",
                          row->first_position);
        return refuse(judgement, PLAN_REFUSAL_LAST_SAMPLE,
                      "position %" PRIu32 " from the last sample, which is of position %" PRIu32,
                      row->first_position, state->last_sample_position);
    }
    return true;
}

static bool judge_tokens(const struct judgement *judgement)
{
    struct plan_check *check = judgement->check;
    const struct plan_row *row = judgement->row;
    uint32_t *tokens = check->tokens + check->token_count;
    CHECK(row->count <= check->extents.step_tokens - check->token_count);
    check->token_count += row->count;
    if ((row->flags & PLAN_ROW_FROM_LAST_SAMPLE) != 0) {
        tokens[0] = judgement->state->last_token;
        return true;
    }
    segment_read_tokens(check->segment, row->slot, row->first_position, row->count, tokens);
    for (uint32_t i = 0; i < row->count; i++)
        if (tokens[i] >= check->extents.vocabulary)
            return refuse(judgement, PLAN_REFUSAL_TOKEN,
                          "token %" PRIu32 " at position %" PRIu32 ", the vocabulary has %" PRIu32,
                          tokens[i], row->first_position + i, check->extents.vocabulary);
    return true;
}

/* A block that this row is about to write must not hold another position of a sequence of this
 * plan, nor of its own. */
static bool judge_block(const struct judgement *judgement, uint32_t layer, uint32_t logical,
                        int32_t block)
{
    struct plan_check *check = judgement->check;
    const struct plan_row *row = judgement->row;
    if (block < 0 || (uint32_t)block >= check->extents.pool_blocks)
        return refuse(judgement, PLAN_REFUSAL_BLOCK,
                      "layer %" PRIu32 " logical block %" PRIu32 " is %s (%" PRId32
                      "), the pool has %" PRIu64,
                      layer, logical, block == KV_BLOCK_UNMAPPED ? "unmapped" : "out of range",
                      block, check->extents.pool_blocks);
    struct holder *holder = &check->holders[block];
    bool in_plan = holder->generation != 0 &&
                   check->planned[holder->slot].serial == check->serial &&
                   check->planned[holder->slot].generation == holder->generation;
    if (in_plan)
        return refuse(judgement, PLAN_REFUSAL_BLOCK,
                      "layer %" PRIu32 " logical block %" PRIu32 " is block %" PRId32
                      ", which slot %" PRIu32 " holds already",
                      layer, logical, block, holder->slot);
    check->displaced[check->block_count] = *holder;
    check->blocks[check->block_count++] = block;
    *holder = (struct holder){.slot = row->slot, .generation = row->generation};
    return true;
}

static bool judge_blocks(const struct judgement *judgement)
{
    struct plan_check *check = judgement->check;
    const struct plan_row *row = judgement->row;
    const struct kv_geometry *geometry = &check->extents.geometry;
    uint32_t first = kv_blocks_for(geometry, row->first_position);
    uint32_t count = kv_blocks_for(geometry, row->first_position + row->count) - first;
    if (count == 0)
        return true;
    for (uint32_t layer = 0; layer < geometry->layers; layer++) {
        int32_t *blocks = check->blocks + check->block_count;
        CHECK(count <= check->block_capacity - check->block_count);
        segment_read_blocks(check->segment, row->slot, layer, first, count, blocks);
        for (uint32_t i = 0; i < count; i++)
            if (!judge_block(judgement, layer, first + i, blocks[i]))
                return false;
        check->runs[check->run_count++] = (struct block_run){
            .slot = row->slot,
            .layer = layer,
            .first_logical = first,
            .count = count,
            .blocks = blocks,
        };
    }
    return true;
}

static bool judge_row(struct plan_check *check, const struct plan *plan, uint32_t index,
                      struct plan_verdict *verdict, struct text *why)
{
    const struct plan_row *row = &plan->rows[index];
    struct judgement judgement = {
        .check = check,
        .row = row,
        .state = &check->staged[index],
        .verdict = verdict,
        .why = why,
    };
    *judgement.state = check->slots[row->slot];
    verdict->has_row = true;
    verdict->row = index;
    if (!judge_generation(&judgement) || !judge_position(&judgement) || !judge_tokens(&judgement) ||
        !judge_blocks(&judgement))
        return false;
    judgement.state->cached_length += row->count;
    return true;
}

/* What can be said before any row is looked up. */
static bool judge_whole(const struct plan_check *check, const struct plan *plan,
                        struct plan_verdict *verdict, struct text *why)
{
    const struct plan_bounds bounds = segment_plan_bounds(&check->extents);
    *verdict = (struct plan_verdict){.refusal = PLAN_REFUSAL_NONE};
    if (segment_reader_state(check->segment) != SEGMENT_STATE_READY) {
        verdict->refusal = PLAN_REFUSAL_FENCED;
        text_set(why, "the segment of the epoch is fenced");
    } else if (plan->step != check->steps_done + 1) {
        verdict->refusal = PLAN_REFUSAL_STEP;
        text_set(why, "step %" PRIu64 ", expected %" PRIu64, plan->step, check->steps_done + 1);
    } else if (segment_published_step(check->segment) < plan->step) {
        verdict->refusal = PLAN_REFUSAL_UNPUBLISHED;
        text_set(why, "step %" PRIu64 ", published is %" PRIu64, plan->step,
                 segment_published_step(check->segment));
    } else {
        *verdict = plan_judge(plan, &bounds);
        if (verdict->refusal != PLAN_REFUSAL_NONE)
            text_set(why, "row %" PRIu32 " of %" PRIu32, verdict->has_row ? verdict->row : 0,
                     plan->row_count);
    }
    return verdict->refusal == PLAN_REFUSAL_NONE;
}

static void undo(struct plan_check *check)
{
    /* Backwards: a block that was displaced twice gets its first holder back. */
    for (uint32_t i = check->block_count; i > 0; i--)
        check->holders[check->blocks[i - 1]] = check->displaced[i - 1];
}

enum status plan_check_next(struct plan_check *check, const struct plan *plan,
                            struct plan_verdict *out_verdict, struct text *why)
{
    check->serial++;
    check->token_count = 0;
    check->run_count = 0;
    check->block_count = 0;
    if (!judge_whole(check, plan, out_verdict, why))
        return STATUS_BAD_MESSAGE;
    for (uint32_t i = 0; i < plan->row_count; i++)
        check->planned[plan->rows[i].slot] =
            (struct planned){.serial = check->serial, .generation = plan->rows[i].generation};
    for (uint32_t i = 0; i < plan->row_count; i++)
        if (!judge_row(check, plan, i, out_verdict, why)) {
            undo(check);
            return STATUS_BAD_MESSAGE;
        }
    for (uint32_t i = 0; i < plan->row_count; i++)
        check->slots[plan->rows[i].slot] = check->staged[i];
    check->steps_done++;
    *out_verdict = (struct plan_verdict){.refusal = PLAN_REFUSAL_NONE};
    return STATUS_OK;
}

const uint32_t *plan_check_tokens(const struct plan_check *check)
{
    return check->tokens;
}

uint32_t plan_check_run_count(const struct plan_check *check)
{
    return check->run_count;
}

struct block_run plan_check_run(const struct plan_check *check, uint32_t index)
{
    CHECK(index < check->run_count);
    return check->runs[index];
}

const struct slot_state *plan_check_slot(const struct plan_check *check, uint32_t slot)
{
    CHECK(slot < check->extents.slots);
    return &check->slots[slot];
}

void plan_check_sampling(struct plan_check *check, uint32_t slot, uint32_t position)
{
    CHECK(slot < check->extents.slots);
    check->slots[slot].last_sample_position = position;
    check->slots[slot].last_token = SLOT_TOKEN_PENDING;
}

void plan_check_sampled(struct plan_check *check, uint32_t slot, uint32_t generation,
                        uint32_t position, uint32_t token)
{
    CHECK(slot < check->extents.slots && token < check->extents.vocabulary);
    struct slot_state *state = &check->slots[slot];
    if (state->generation == generation && state->last_sample_position == position)
        state->last_token = token;
}

void plan_check_spoiled(struct plan_check *check, uint32_t slot, uint32_t generation)
{
    CHECK(slot < check->extents.slots);
    if (check->slots[slot].generation == generation)
        check->slots[slot].numeric_error = true;
}

void plan_check_forget(struct plan_check *check)
{
    for (uint32_t slot = 0; slot < check->extents.slots; slot++) {
        check->slots[slot].cached_length = 0;
        check->slots[slot].last_sample_position = SLOT_NO_SAMPLE;
    }
    memset(check->holders, 0, (size_t)check->extents.pool_blocks * sizeof *check->holders);
}
