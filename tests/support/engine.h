/* A worker without processes: a tiny model in memory, backend, pool and executor, with the
 * coordinator's segment at the other end. */
#ifndef TANDEM_TESTS_SUPPORT_ENGINE_H
#define TANDEM_TESTS_SUPPORT_ENGINE_H

#include "support/segment_fixture.h"
#include "support/tiny_model.h"
#include "worker/executor.h"

#include <inttypes.h>
#include <stdio.h>

struct engine_options {
    struct tiny_model model;
    enum cpu_isa isa;
    uint32_t threads;
    bool pin_threads;
    bool unpoisoned; /* blocks keep what was in them, as in a release build */
    enum kv_type kv_type;
    uint32_t slots;
    uint32_t context;
    uint32_t step_tokens;
    uint64_t shuffle_seed; /* of the free list; 0: ascending */
    uint64_t pool_tokens;  /* room of the pool; 0: for all slots */
};

struct engine {
    struct engine_options options;
    uint8_t *file; /* owned, as all below */
    struct model_file *model_file;
    struct backend *backend;
    struct model model;
    struct kv_pool pool;
    struct segment_fixture segment;
    struct executor *executor;
    struct result result;
    struct plan_verdict verdict;
    struct reason reason;
};

static inline struct engine_options engine_defaults(void)
{
    return (struct engine_options){
        .model = TINY_MODEL,
        .isa = CPU_ISA_PLAIN,
        .threads = 1,
        .kv_type = KV_TYPE_F16,
        .slots = 4,
        .context = 256,
        .step_tokens = 256,
    };
}

static inline void engine_expect(const struct engine *engine, enum status status, const char *what)
{
    if (status == STATUS_OK)
        return;
    fprintf(stderr, "%s: %s: %s\n", what, status_text(status), engine->reason.storage);
    CHECK(status == STATUS_OK);
}

static inline struct segment_extents engine_extents(const struct engine *engine)
{
    const struct engine_options *options = &engine->options;
    struct segment_extents extents = {
        .geometry =
            model_shape_geometry(&engine->model.shape, KV_BLOCK_TOKENS_DEFAULT, options->kv_type,
                                 (enum kv_order)engine->backend->kv_order),
        .slots = options->slots,
        .context = options->context,
        .vocabulary = engine->model.shape.tokens,
        .step_tokens = options->step_tokens,
    };
    extents.logical_blocks = kv_blocks_for(&extents.geometry, extents.context);
    uint64_t tokens = options->pool_tokens != 0 ? options->pool_tokens
                                                : (uint64_t)extents.slots * extents.context;
    uint64_t blocks = kv_blocks_for(&extents.geometry, (uint32_t)tokens);
    extents.pool_blocks = blocks * extents.geometry.layers;
    return extents;
}

/* An executor of a fresh epoch over the engine's model and pool. */
static inline void engine_attach(struct engine *engine)
{
    struct segment_extents extents = engine_extents(engine);
    segment_fixture_open(&engine->segment, &extents, engine->options.shuffle_seed);
    const struct executor_options options = {
        .model = &engine->model,
        .backend = engine->backend,
        .pool = &engine->pool,
        .segment = &engine->segment.reader,
        .hash_logits = true,
        .poison_blocks = !engine->options.unpoisoned,
    };
    engine_expect(engine, executor_open(&options, &engine->executor, reason_init(&engine->reason)),
                  "executor_open");
}

static inline void engine_detach(struct engine *engine)
{
    executor_close(engine->executor);
    segment_fixture_close(&engine->segment);
}

static inline struct engine *engine_open(const struct engine_options *options)
{
    struct engine *engine = calloc(1, sizeof *engine);
    CHECK(engine != NULL);
    engine->options = *options;
    struct text *why = reason_init(&engine->reason);
    const struct backend_options backend_options = {.kind = BACKEND_CPU,
                                                    .cpu_isa = options->isa,
                                                    .threads = options->threads,
                                                    .pin_threads = options->pin_threads};
    size_t length;
    engine->file = tiny_model_file(&options->model, &length);
    engine_expect(engine, model_file_open_memory(engine->file, length, &engine->model_file, why),
                  "file");
    engine_expect(engine, model_shape_read(engine->model_file, &engine->model.shape, why), "shape");
    engine_expect(engine, backend_open(&backend_options, &engine->backend, why), "backend");
    const struct weights_source source = {.file = engine->model_file,
                                          .shape = &engine->model.shape};
    engine_expect(engine, weights_load(&source, engine->backend, &engine->model.weights, why),
                  "weights");
    struct segment_extents extents = engine_extents(engine);
    uint64_t bytes = extents.pool_blocks * kv_block_bytes(&extents.geometry);
    engine_expect(engine,
                  kv_pool_open(engine->backend, &extents.geometry, bytes, &engine->pool, why),
                  "pool");
    engine_attach(engine);
    return engine;
}

static inline void engine_close(struct engine *engine)
{
    engine_detach(engine);
    kv_pool_close(&engine->pool);
    model_close(&engine->model);
    backend_close(engine->backend);
    model_file_close(engine->model_file);
    free(engine->file);
    free(engine);
}

/* Runs the plan under construction, which must be accepted, and begins the next. */
static inline const struct result *engine_step(struct engine *engine)
{
    segment_fixture_publish(&engine->segment);
    engine_expect(engine,
                  executor_run(engine->executor, &engine->segment.plan, &engine->result,
                               &engine->verdict, reason_init(&engine->reason)),
                  "executor_run");
    segment_fixture_next(&engine->segment);
    return &engine->result;
}

/* A sequence of random tokens, the same for the same seed. */
static inline void engine_prompt(const struct engine *engine, uint64_t seed, uint32_t count,
                                 uint32_t *out_tokens)
{
    struct random random = {.state = seed};
    for (uint32_t i = 0; i < count; i++)
        out_tokens[i] = random_below(&random, engine->model.shape.tokens);
}

/* What a request saw: tokens, log-probabilities and hashes of the logits. */
struct engine_trace {
    uint32_t count;
    uint32_t tokens[64];
    float logprobs[64];
    uint64_t hashes[64];
};

static inline void engine_note(struct engine_trace *trace, const struct result_row *row)
{
    CHECK(trace->count < 64);
    trace->tokens[trace->count] = row->token;
    trace->logprobs[trace->count] = row->logprob;
    trace->hashes[trace->count++] = row->logits_hash;
}

static inline bool engine_same(const struct engine_trace *a, const struct engine_trace *b)
{
    return a->count == b->count &&
           memcmp(a->tokens, b->tokens, a->count * sizeof *a->tokens) == 0 &&
           memcmp(a->logprobs, b->logprobs, a->count * sizeof *a->logprobs) == 0 &&
           memcmp(a->hashes, b->hashes, a->count * sizeof *a->hashes) == 0;
}

struct engine_request {
    uint32_t slot;
    const uint32_t *prompt;
    uint32_t prompt_tokens;
    uint32_t answers;                  /* tokens to sample */
    uint32_t chunk;                    /* of the prompt per step; 0: all */
    bool from_log;                     /* decode from the token log instead of the last sample */
    const struct slot_row *parameters; /* NULL: greedy */
};

/* One request alone, from its first chunk to its last answer. */
static inline struct engine_trace engine_run(struct engine *engine,
                                             const struct engine_request *request)
{
    struct engine_trace trace = {0};
    uint32_t slot = request->slot, length = request->prompt_tokens;
    uint32_t chunk = request->chunk == 0 ? length : request->chunk;
    segment_fixture_tenant(&engine->segment, slot, request->parameters);
    segment_write_tokens(&engine->segment.writer, slot, 0, request->prompt, length);
    for (uint32_t done = 0; done < length;) {
        uint32_t count = length - done < chunk ? length - done : chunk;
        done += count;
        uint32_t flags = done == length && request->answers > 0 ? PLAN_ROW_SAMPLE : 0;
        segment_fixture_row(&engine->segment, slot, done - count, count, flags);
        const struct result *result = engine_step(engine);
        if (flags != 0)
            engine_note(&trace, &result->rows[0]);
    }
    for (; trace.count < request->answers; length++) {
        uint32_t flags = PLAN_ROW_SAMPLE | (request->from_log ? 0 : PLAN_ROW_FROM_LAST_SAMPLE);
        segment_write_tokens(&engine->segment.writer, slot, length, &trace.tokens[trace.count - 1],
                             1);
        segment_fixture_row(&engine->segment, slot, length, 1, flags);
        engine_note(&trace, &engine_step(engine)->rows[0]);
    }
    return trace;
}

#endif
