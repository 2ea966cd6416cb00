/* Runs prompts of token ids through the layers of a model and hands the logits of every position to
 * the caller: no plan, no segment, one slot. Errors end the program: the programs that use it are
 * tools. */
#ifndef TANDEM_TESTS_GOLDEN_TOKEN_RUNNER_H
#define TANDEM_TESTS_GOLDEN_TOKEN_RUNNER_H

#include "common/check.h"
#include "worker/forward.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RUNNER_CONTEXT_MAX = 8192 };

struct token_runner {
    struct backend *backend;
    struct model model;
    struct kv_pool pool;
    struct forward *forward;
    struct batch batch;
    uint32_t context;            /* of the model, at most RUNNER_CONTEXT_MAX */
    uint32_t chunk;              /* rows of one step; set before runner_open() */
    uint32_t *ids;               /* [context] */
    uint32_t *errors;            /* [chunk] */
    struct step_sample *samples; /* [chunk] */
    float *logits;               /* [chunk][vocabulary] */
};

__attribute__((noreturn)) static inline void runner_fail(const char *what, const char *why)
{
    fprintf(stderr, "%s: %s\n", what, why);
    exit(1);
}

/* The number format of the pool that the backend computes with; the CPU's default is F16. */
static inline enum kv_type runner_kv_type(const struct backend *backend)
{
    return backend->kind == BACKEND_CUDA ? KV_TYPE_BF16 : KV_TYPE_F16;
}

/* Logical block b of layer l is block b * layers + l; the place of a block does not change a bit.
 */
static inline void runner_map_blocks(struct token_runner *runner)
{
    const struct kv_geometry *geometry = &runner->pool.geometry;
    uint32_t count = kv_blocks_for(geometry, runner->context);
    int32_t *blocks = calloc(count, sizeof *blocks);
    CHECK(blocks != NULL);
    for (uint32_t layer = 0; layer < geometry->layers; layer++) {
        for (uint32_t i = 0; i < count; i++)
            blocks[i] = (int32_t)(i * geometry->layers + layer);
        forward_map_blocks(runner->forward, &(struct block_run){
                                                .layer = layer,
                                                .count = count,
                                                .blocks = blocks,
                                            });
    }
    free(blocks);
}

static inline void runner_open(struct token_runner *runner, const char *path,
                               const struct backend_options *options)
{
    struct reason reason;
    struct text *why = reason_init(&reason);
    if (backend_open(options, &runner->backend, why) != STATUS_OK)
        runner_fail("backend", reason.storage);
    if (model_open(path, runner->backend, NULL, NULL, &runner->model, why) != STATUS_OK)
        runner_fail(path, reason.storage);
    const struct model_shape *shape = &runner->model.shape;
    runner->context = shape->context < RUNNER_CONTEXT_MAX ? shape->context : RUNNER_CONTEXT_MAX;
    struct kv_geometry geometry =
        model_shape_geometry(shape, KV_BLOCK_TOKENS_DEFAULT, runner_kv_type(runner->backend),
                             (enum kv_order)runner->backend->kv_order);
    uint64_t pool_bytes = kv_blocks_for(&geometry, runner->context) * (uint64_t)shape->layers *
                          kv_block_bytes(&geometry);
    if (kv_pool_open(runner->backend, &geometry, pool_bytes, &runner->pool, why) != STATUS_OK)
        runner_fail("pool", reason.storage);
    const struct forward_options forward_options = {
        .model = &runner->model,
        .backend = runner->backend,
        .pool = &runner->pool,
        .slots = 1,
        .context = runner->context,
        .logical_blocks = kv_blocks_for(&geometry, runner->context),
        .rows = runner->chunk,
        .samples = runner->chunk,
    };
    if (forward_open(&forward_options, &runner->forward, why) != STATUS_OK)
        runner_fail("buffers", reason.storage);
    runner->ids = calloc(runner->context, sizeof *runner->ids);
    runner->errors = calloc(runner->chunk, sizeof *runner->errors);
    runner->samples = calloc(runner->chunk, sizeof *runner->samples);
    runner->logits = calloc((size_t)runner->chunk * shape->vocabulary, sizeof *runner->logits);
    CHECK(batch_init(&runner->batch, runner->chunk, runner->chunk) == STATUS_OK);
    CHECK(runner->ids != NULL && runner->errors != NULL && runner->samples != NULL &&
          runner->logits != NULL);
    runner_map_blocks(runner);
}

static inline void runner_close(struct token_runner *runner)
{
    free(runner->ids);
    free(runner->errors);
    free(runner->samples);
    free(runner->logits);
    batch_free(&runner->batch);
    forward_close(runner->forward);
    kv_pool_close(&runner->pool);
    model_close(&runner->model);
    backend_close(runner->backend);
}

/* Takes the logits of positions first .. first + rows - 1: [rows][vocabulary]. */
typedef void (*runner_logits)(void *context, uint32_t first, uint32_t rows, const float *logits);

/* The first `count` of runner->ids as one prompt. */
static inline void runner_prompt(struct token_runner *runner, uint32_t count, runner_logits take,
                                 void *context)
{
    const struct sampling greedy = {.top_p = 1};
    for (uint32_t first = 0; first < count; first += runner->chunk) {
        uint32_t rows = count - first < runner->chunk ? count - first : runner->chunk;
        batch_clear(&runner->batch);
        for (uint32_t i = 0; i < rows; i++) {
            batch_add_rows(&runner->batch, 0, first + i, runner->ids + first + i, 1);
            batch_add_sample(&runner->batch, &greedy);
        }
        if (runner->backend->steps == NULL)
            runner->batch.sample_count = 0; /* logits instead; a whole step has both */
        if (forward_begin(runner->forward, &runner->batch) != STATUS_OK ||
            forward_collect(runner->forward, runner->samples, runner->errors) != STATUS_OK)
            runner_fail("step", "the device is lost");
        runner->batch.sample_count = rows;
        for (uint32_t i = 0; i < rows; i++)
            if (runner->errors[i] != 0)
                runner_fail("a key or value", "not finite in the pool's number format");
        CHECK(forward_logits(runner->forward, &runner->batch, 0, rows, runner->logits) ==
              STATUS_OK);
        take(context, first, rows, runner->logits);
    }
}

#endif
