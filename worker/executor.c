#include "worker/executor.h"

#include "common/check.h"
#include "common/clock.h"
#include "worker/batch.h"
#include "worker/plan_check.h"

#include <inttypes.h>
#include <stdlib.h>

struct executor {
    struct executor_options options;
    struct plan_check *check; /* owned, as all below */
    struct forward *forward;
    struct batch batch;
    uint32_t *row_errors;           /* [row] */
    struct forward_sample *samples; /* [sample] */
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
    free(executor->row_errors);
    free(executor->samples);
    free(executor);
}

/* A key or value that is not finite stays in the pool, so the request is marked until its end: a
 * chunk without a sample reports it with the first sample after it. */
static void record_row_errors(struct executor *executor)
{
    const struct batch *batch = &executor->batch;
    for (uint32_t row = 0; row < batch->row_count; row++)
        if (executor->row_errors[row] != 0)
            plan_check_spoiled(executor->check, batch->slots[row]);
}

static void fill_rows(struct executor *executor, const struct plan *plan, struct result *out_result)
{
    uint32_t sample = 0;
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const struct plan_row *row = &plan->rows[i];
        if ((row->flags & PLAN_ROW_SAMPLE) == 0)
            continue;
        const struct forward_sample *drawn = &executor->samples[sample];
        bool error =
            drawn->errors != 0 || plan_check_slot(executor->check, row->slot)->numeric_error;
        struct result_row *out_row = &out_result->rows[sample++];
        *out_row = (struct result_row){
            .slot = row->slot,
            .generation = row->generation,
            .position = row->first_position + row->count,
            .token = error ? 0 : drawn->token,
            .logprob = error ? 0 : drawn->logprob,
            .flags = error ? RESULT_ROW_NUMERIC_ERROR : 0,
            .logits_hash = drawn->logits_hash,
        };
        plan_check_sampled(executor->check, out_row->slot, out_row->position, out_row->token);
    }
    CHECK(sample == executor->batch.sample_count);
    out_result->row_count = sample;
}

enum status executor_run(struct executor *executor, const struct plan *plan,
                         struct result *out_result, struct plan_verdict *out_verdict,
                         struct text *why)
{
    uint64_t start_ns = clock_now_ns();
    enum status status = plan_check_next(executor->check, plan, out_verdict, why);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < plan_check_run_count(executor->check); i++) {
        struct block_run run = plan_check_run(executor->check, i);
        forward_map_blocks(executor->forward, &run);
    }
    batch_from_plan(&executor->batch, plan, executor->check);
    uint64_t checked_ns = clock_now_ns();
    if (executor->options.progress != NULL)
        executor->options.progress(executor->options.progress_context, 0);
    status = forward_layers(executor->forward, &executor->batch, executor->row_errors);
    if (status != STATUS_OK)
        return status;
    record_row_errors(executor);
    uint64_t computed_ns = clock_now_ns();
    status = forward_samples(executor->forward, &executor->batch, executor->samples);
    if (status != STATUS_OK)
        return status;
    out_result->instance = plan->instance;
    out_result->epoch = plan->epoch;
    out_result->step = plan->step;
    out_result->has_logits_hash = executor->options.hash_logits;
    fill_rows(executor, plan, out_result);
    out_result->timings = (struct worker_timings){
        .check_ns = checked_ns - start_ns,
        .compute_ns = computed_ns - checked_ns,
        .sample_ns = clock_now_ns() - computed_ns,
    };
    return STATUS_OK;
}

void executor_discard(struct executor *executor)
{
    if (!executor->options.pool->touched)
        return;
    plan_check_forget(executor->check);
    kv_pool_discard(executor->options.pool);
}
