#include "worker/executor.h"

#include "common/check.h"
#include "common/clock.h"
#include "worker/batch.h"
#include "worker/plan_check.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A row of a plan that was begun: what its answer needs. */
struct pending_row {
    uint32_t slot;
    uint32_t generation;
    uint32_t count; /* rows of the batch */
    uint32_t sample_position;
    bool samples;
};

struct pending_plan {
    struct id128 instance;
    uint64_t epoch;
    uint64_t step;
    uint64_t start_ns, checked_ns;
    uint32_t row_count;
    struct pending_row *rows; /* owned [slots] */
};

struct executor {
    struct executor_options options;
    struct plan_check *check; /* owned, as all below */
    struct forward *forward;
    struct batch batch;
    struct pending_plan pending[STEPS_IN_FLIGHT];
    uint64_t begun, collected;
    uint32_t *row_errors;        /* [row] */
    struct step_sample *samples; /* [sample] */
};

/* The segment was judged against the limits of the protocol; here against what this worker has. */
static enum status check_extents(const struct executor_options *options, struct text *why)
{
    const struct segment_extents *extents = &options->segment->header.extents;
    const struct model_shape *shape = &options->model->shape;
    const struct kv_geometry *wanted = &extents->geometry, *pool = &options->pool->geometry;
    if (wanted->layers != pool->layers || wanted->kv_heads != pool->kv_heads ||
        wanted->head_dim != pool->head_dim || wanted->block_tokens != pool->block_tokens ||
        wanted->type != pool->type || wanted->order != pool->order) {
        text_set(why, "the segment has another geometry of the KV cache than the worker");
        return STATUS_MISMATCH;
    }
    if (extents->pool_blocks > options->pool->blocks || extents->context > shape->context ||
        extents->vocabulary != shape->tokens) {
        text_set(why,
                 "the segment asks for %" PRIu64 " blocks, %" PRIu32 " positions, %" PRIu32
                 " tokens; the worker has %" PRIu32 ", %" PRIu32 ", %" PRIu32,
                 extents->pool_blocks, extents->context, extents->vocabulary, options->pool->blocks,
                 shape->context, shape->tokens);
        return STATUS_MISMATCH;
    }
    return STATUS_OK;
}

enum status executor_open(const struct executor_options *options, struct executor **out_executor,
                          struct text *why)
{
    enum status status = check_extents(options, why);
    if (status != STATUS_OK)
        return status;
    const struct segment_extents *extents = &options->segment->header.extents;
    /* Each slot is at most once in a plan, and each sample needs a row. */
    uint32_t samples =
        extents->slots < extents->step_tokens ? extents->slots : extents->step_tokens;
    const struct forward_options forward_options = {
        .model = options->model,
        .backend = options->backend,
        .pool = options->pool,
        .slots = extents->slots,
        .context = extents->context,
        .logical_blocks = extents->logical_blocks,
        .rows = extents->step_tokens,
        .samples = samples,
        .hash_logits = options->hash_logits,
        .poison_blocks = options->poison_blocks,
        .progress = options->progress,
        .progress_context = options->progress_context,
    };
    struct executor *executor = calloc(1, sizeof *executor);
    if (executor == NULL)
        return STATUS_OUT_OF_MEMORY;
    executor->options = *options;
    executor->row_errors = calloc(extents->step_tokens, sizeof *executor->row_errors);
    executor->samples = calloc(samples, sizeof *executor->samples);
    kv_pool_discard(options->pool);
    status = executor->row_errors != NULL && executor->samples != NULL ? STATUS_OK
                                                                       : STATUS_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < STEPS_IN_FLIGHT; i++) {
        executor->pending[i].rows = calloc(extents->slots, sizeof *executor->pending[i].rows);
        if (executor->pending[i].rows == NULL)
            status = STATUS_OUT_OF_MEMORY;
    }
    if (status == STATUS_OK)
        status = plan_check_open(options->segment, &executor->check);
    if (status == STATUS_OK)
        status = batch_init(&executor->batch, extents->step_tokens, samples);
    if (status == STATUS_OK)
        status = forward_open(&forward_options, &executor->forward, why);
    if (status != STATUS_OK) {
        executor_close(executor);
        return status;
    }
    *out_executor = executor;
    return STATUS_OK;
}

void executor_close(struct executor *executor)
{
    if (executor == NULL)
        return;
    forward_close(executor->forward);
    batch_free(&executor->batch);
    plan_check_close(executor->check);
    for (uint32_t i = 0; i < STEPS_IN_FLIGHT; i++)
        free(executor->pending[i].rows);
    free(executor->row_errors);
    free(executor->samples);
    free(executor);
}

/* Keeps what the answer needs, and lets the next plan go on from this one's samples. */
static void remember(struct executor *executor, struct pending_plan *pending,
                     const struct plan *plan)
{
    pending->instance = plan->instance;
    pending->epoch = plan->epoch;
    pending->step = plan->step;
    pending->row_count = plan->row_count;
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const struct plan_row *row = &plan->rows[i];
        pending->rows[i] = (struct pending_row){
            .slot = row->slot,
            .generation = row->generation,
            .count = row->count,
            .sample_position = row->first_position + row->count,
            .samples = (row->flags & PLAN_ROW_SAMPLE) != 0,
        };
        if (pending->rows[i].samples)
            plan_check_sampling(executor->check, row->slot, pending->rows[i].sample_position);
    }
}

enum status executor_begin(struct executor *executor, const struct plan *plan,
                           struct plan_verdict *out_verdict, struct text *why)
{
    CHECK(executor_has_room(executor));
    struct pending_plan *pending = &executor->pending[executor->begun % STEPS_IN_FLIGHT];
    pending->start_ns = clock_now_ns();
    enum status status = plan_check_next(executor->check, plan, out_verdict, why);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < plan_check_run_count(executor->check); i++) {
        struct block_run run = plan_check_run(executor->check, i);
        forward_map_blocks(executor->forward, &run);
    }
    batch_from_plan(&executor->batch, plan, executor->check);
    remember(executor, pending, plan);
    pending->checked_ns = clock_now_ns();
    if (executor->options.progress != NULL)
        executor->options.progress(executor->options.progress_context, 0);
    executor->begun++;
    return forward_begin(executor->forward, &executor->batch);
}

uint32_t executor_in_flight(const struct executor *executor)
{
    return (uint32_t)(executor->begun - executor->collected);
}

bool executor_has_room(const struct executor *executor)
{
    return executor_in_flight(executor) < forward_depth(executor->forward);
}

bool executor_ready(struct executor *executor)
{
    return executor_in_flight(executor) > 0 && forward_ready(executor->forward);
}

/* A key or value that is not finite stays in the pool, so the request is marked until its end: a
 * chunk without a sample reports it with the first sample after it. */
static void record_row_errors(struct executor *executor, const struct pending_plan *pending)
{
    const uint32_t *errors = executor->row_errors;
    for (uint32_t i = 0; i < pending->row_count; i++)
        for (uint32_t row = 0; row < pending->rows[i].count; row++)
            if (*errors++ != 0)
                plan_check_spoiled(executor->check, pending->rows[i].slot,
                                   pending->rows[i].generation);
}

static void fill_rows(struct executor *executor, const struct pending_plan *pending,
                      struct result *out_result)
{
    uint32_t sample = 0;
    for (uint32_t i = 0; i < pending->row_count; i++) {
        const struct pending_row *row = &pending->rows[i];
        if (!row->samples)
            continue;
        const struct step_sample *drawn = &executor->samples[sample];
        const struct slot_state *state = plan_check_slot(executor->check, row->slot);
        bool error =
            drawn->errors != 0 || (state->generation == row->generation && state->numeric_error);
        struct result_row *out_row = &out_result->rows[sample++];
        *out_row = (struct result_row){
            .slot = row->slot,
            .generation = row->generation,
            .position = row->sample_position,
            .token = error ? 0 : drawn->token,
            .logprob = error ? 0 : drawn->logprob,
            .flags = error ? RESULT_ROW_NUMERIC_ERROR : 0,
            .logits_hash = drawn->logits_hash,
        };
        plan_check_sampled(executor->check, row->slot, row->generation, out_row->position,
                           out_row->token);
    }
    out_result->row_count = sample;
}

enum status executor_collect(struct executor *executor, struct result *out_result)
{
    CHECK(executor_in_flight(executor) > 0);
    const struct pending_plan *pending = &executor->pending[executor->collected % STEPS_IN_FLIGHT];
    enum status status =
        forward_collect(executor->forward, executor->samples, executor->row_errors);
    executor->collected++;
    if (status != STATUS_OK)
        return status;
    uint64_t computed_ns = clock_now_ns();
    record_row_errors(executor, pending);
    out_result->instance = pending->instance;
    out_result->epoch = pending->epoch;
    out_result->step = pending->step;
    out_result->has_logits_hash = executor->options.hash_logits;
    fill_rows(executor, pending, out_result);
    out_result->timings = (struct worker_timings){
        .check_ns = pending->checked_ns - pending->start_ns,
        .compute_ns = computed_ns - pending->checked_ns,
        .sample_ns = clock_now_ns() - computed_ns,
    };
    return STATUS_OK;
}

void executor_span(const struct executor *executor, struct step_span *out_span)
{
    forward_span(executor->forward, out_span);
}

enum status executor_run(struct executor *executor, const struct plan *plan,
                         struct result *out_result, struct plan_verdict *out_verdict,
                         struct text *why)
{
    enum status status = executor_begin(executor, plan, out_verdict, why);
    return status == STATUS_OK ? executor_collect(executor, out_result) : status;
}

void executor_discard(struct executor *executor)
{
    if (!executor->options.pool->touched)
        return;
    plan_check_forget(executor->check);
    kv_pool_discard(executor->options.pool);
}
