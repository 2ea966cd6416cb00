#include "sim/engine.h"

#include "common/check.h"
#include "common/duration.h"
#include "proto/fingerprint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- Life ---- */

void engine_init(struct engine *engine)
{
    *engine = (struct engine){.now_ns = NS_PER_S, .chance = 1};
    letters_open(&engine->vocabulary);
    engine->script = (struct script){.end_token = LETTERS_END};
    engine->answers = calloc(ENGINE_ANSWERS, sizeof *engine->answers);
    CHECK(engine->answers != NULL);
    struct core_config *config = &engine->config;
    config->instance = (struct id128){{1, 2, 3}};
    config->started_ns = engine->now_ns;
    config->model_name = "letters";
    config->model_architecture = "llama";
    config->metadata_hash = (struct id128){{9}};
    config->chat_template = true;
    config->extents = (struct segment_extents){
        .geometry = {.layers = 2,
                     .kv_heads = 1,
                     .head_dim = 8,
                     .block_tokens = 16,
                     .type = KV_TYPE_F16,
                     .order = KV_ORDER_CPU},
        .slots = 4,
        .context = 128,
        .vocabulary = LETTERS_TOKENS,
        .step_tokens = 64,
        .pool_blocks = 64,
    };
    config->queue_requests = 64;
    config->kept_requests = 64;
    config->queue_bytes = 1 << 20;
    config->prompt_bytes = 4096;
    config->kept_ns = 120 * NS_PER_S;
    config->orphan_ns = 30 * NS_PER_S;
    config->drain_timeout_ns = 30 * NS_PER_S;
    config->calls = 32;
}

void engine_start(struct engine *engine)
{
    struct segment_extents *extents = &engine->config.extents;
    extents->logical_blocks = kv_blocks_for(&extents->geometry, extents->context);
    engine->config.vocabulary = &engine->vocabulary;
    struct reason why;
    enum status status = core_create(&engine->config, &engine->core, reason_init(&why));
    if (status != STATUS_OK)
        log_error("core_create", "status=%s why=%s", status_text(status), why.storage);
    CHECK(status == STATUS_OK);
}

static void drop_worker(struct engine *engine)
{
    if (engine->attached)
        scripted_worker_close(&engine->worker);
    free(engine->memory);
    engine->memory = NULL;
    engine->attached = false;
    engine->plan_count = 0;
}

void engine_stop(struct engine *engine)
{
    core_destroy(engine->core);
    drop_worker(engine);
    free(engine->answers);
    vocabulary_free(&engine->vocabulary);
}

/* ---- Outputs ---- */

static struct wire_text keep_text(struct wire_text text, char *storage, size_t capacity)
{
    CHECK(text.length < capacity);
    if (text.length > 0)
        memcpy(storage, text.bytes, text.length);
    storage[text.length] = '\0';
    return (struct wire_text){.bytes = storage, .length = text.length};
}

static void keep_answer(struct engine *engine, const struct core_answer *answer)
{
    struct engine_answer *kept = &engine->answers[answer->handle % ENGINE_ANSWERS];
    uint32_t times = kept->handle == answer->handle ? kept->times : 0;
    CHECK(times == 0); /* each call gets exactly one answer */
    kept->handle = answer->handle;
    kept->times = 1;
    kept->message = answer->message;
    struct client_answer *message = &kept->message;
    if (message->type == CLIENT_ANSWER_ERROR) {
        message->error.message =
            keep_text(message->error.message, kept->error_message, sizeof kept->error_message);
    } else if (message->type == CLIENT_ANSWER_OUTPUT) {
        struct client_output *output = &message->output;
        output->text = keep_text(output->text, kept->text, sizeof kept->text);
        CHECK(output->tokens.count <= ENGINE_TOKENS);
        wire_tokens_copy(&output->tokens, kept->tokens, ENGINE_TOKENS);
        output->tokens = wire_tokens_of(kept->tokens, output->tokens.count);
        if (output->has_finish && output->finish.has_error)
            output->finish.error.message = keep_text(
                output->finish.error.message, kept->error_message, sizeof kept->error_message);
    } else if (message->type == CLIENT_ANSWER_TEXT) {
        message->text.text = keep_text(message->text.text, kept->text, sizeof kept->text);
    } else if (message->type == CLIENT_ANSWER_TOKENS) {
        CHECK(message->tokens.ids.count <= ENGINE_TOKENS);
        wire_tokens_copy(&message->tokens.ids, kept->tokens, ENGINE_TOKENS);
    }
}

static void keep_plan(struct engine *engine, const struct core_output *output)
{
    const struct plan *plan = output->plan;
    CHECK(engine->attached && engine->plan_count < LIMIT_PLANS_IN_FLIGHT);
    CHECK(plan->epoch == engine->epoch);
    CHECK(output->can_wait == (engine->plan_count > 0));
    engine->plans[engine->plan_count++] = *plan;
}

static void keep_attach(struct engine *engine, const struct core_attach *attach)
{
    CHECK(engine->memory == NULL);
    engine->last_attach = *attach;
    engine->epoch = attach->epoch;
    engine->active_connection = attach->connection;
    engine->extents = attach->extents;
    engine->memory_bytes = coordinator_segment_bytes(&attach->extents);
    engine->memory = aligned_alloc(4096, engine->memory_bytes);
    CHECK(engine->memory != NULL);
    memset(engine->memory, 0, engine->memory_bytes);
    const struct segment_identity identity = {.instance = engine->config.instance,
                                              .epoch = attach->epoch};
    segment_writer_format(&engine->segment, engine->memory, &attach->extents, &identity);
    scripted_worker_open(&engine->worker, engine->memory, engine->memory_bytes, &engine->script);
    engine->attached = true;
}

static void keep_output(struct engine *engine, const struct core_output *output)
{
    engine->counts[output->kind]++;
    CHECK(engine->output_count < ENGINE_OUTPUTS);
    engine->outputs[engine->output_count++] = *output;
    switch (output->kind) {
    case CORE_OUTPUT_ANSWER:
        keep_answer(engine, &output->answer);
        break;
    case CORE_OUTPUT_TOKENIZE:
        CHECK(engine->order_count < ENGINE_ORDERS);
        engine->order_contents[engine->order_count] = output->tokenize;
        engine->orders[engine->order_count++] = output->tokenize.ticket;
        break;
    case CORE_OUTPUT_PLAN:
        keep_plan(engine, output);
        break;
    case CORE_OUTPUT_ATTACH:
        keep_attach(engine, &output->attach);
        break;
    case CORE_OUTPUT_STANDBY:
        engine->last_standby = output->standby;
        break;
    case CORE_OUTPUT_REFUSE:
        engine->last_refuse = output->refuse;
        break;
    case CORE_OUTPUT_FENCE:
        CHECK(output->fence.epoch == engine->epoch);
        engine->last_fence = output->fence;
        drop_worker(engine);
        break;
    case CORE_OUTPUT_LOG:
        snprintf(engine->last_log, sizeof engine->last_log, "%s", output->log.event);
        break;
    case CORE_OUTPUT_DRAINED:
        engine->drained = true;
        break;
    }
}

void engine_collect(struct engine *engine)
{
    engine->output_count = 0;
    struct core_output output;
    bool attaches = false;
    while (core_next_output(engine->core, &output)) {
        keep_output(engine, &output);
        attaches = attaches || output.kind == CORE_OUTPUT_ATTACH;
    }
    core_check(engine->core);
    if (attaches && !engine->holds_attach)
        engine_finish_attach(engine);
    while (engine->order_count > 0 && !engine->holds_orders)
        engine_tokenize(engine, 0, STATUS_OK);
}

/* ---- Clients ---- */

uint64_t engine_call(struct engine *engine, const struct client_request *request)
{
    uint64_t handle = ++engine->handle;
    core_client_request(engine->core, handle, request, engine->chance++, engine->now_ns);
    engine_collect(engine);
    return handle;
}

uint64_t engine_submit(struct engine *engine, const struct client_submit *submit)
{
    struct client_request request = {.type = CLIENT_SUBMIT, .submit = *submit};
    return engine_call(engine, &request);
}

uint64_t engine_next(struct engine *engine, const struct client_next *next)
{
    struct client_request request = {.type = CLIENT_NEXT, .next = *next};
    return engine_call(engine, &request);
}

uint64_t engine_cancel(struct engine *engine, const char *id)
{
    struct client_request request = {.type = CLIENT_CANCEL, .cancel = {.id = wire_text_of(id)}};
    return engine_call(engine, &request);
}

uint64_t engine_status(struct engine *engine, const char *id)
{
    struct client_request request = {.type = CLIENT_STATUS, .status = {.id = wire_text_of(id)}};
    return engine_call(engine, &request);
}

uint64_t engine_stats(struct engine *engine)
{
    struct client_request request = {.type = CLIENT_STATS};
    return engine_call(engine, &request);
}

struct client_submit engine_prompt(const char *id, const char *text, uint32_t max_tokens)
{
    return (struct client_submit){
        .id = wire_text_of(id),
        .has_prompt = true,
        .prompt = wire_text_of(text),
        .has_max_tokens = max_tokens != 0,
        .max_tokens = max_tokens,
        .has_seed = true,
        .seed = 7,
    };
}

uint64_t engine_poll(struct engine *engine, const char *id, uint64_t from_token, uint64_t from_byte)
{
    const struct client_next next = {
        .id = wire_text_of(id), .from_token = from_token, .from_byte = from_byte};
    return engine_next(engine, &next);
}

const struct engine_answer *engine_answer(const struct engine *engine, uint64_t handle)
{
    const struct engine_answer *answer = &engine->answers[handle % ENGINE_ANSWERS];
    return answer->handle == handle ? answer : NULL;
}

enum error_code engine_error(const struct engine *engine, uint64_t handle)
{
    const struct engine_answer *answer = engine_answer(engine, handle);
    CHECK(answer != NULL);
    return answer->message.type == CLIENT_ANSWER_ERROR ? answer->message.error.code
                                                       : ERROR_CODE_UNKNOWN;
}

void engine_tokenize(struct engine *engine, uint32_t order, enum status status)
{
    CHECK(order < engine->order_count);
    const struct core_tokenize content = engine->order_contents[order];
    struct core_tokenized answer = {.ticket = content.ticket, .status = status, .why = "as told"};
    const char *bytes =
        content.text.bytes != NULL ? content.text.bytes : (const char *)content.messages.encoded;
    uint32_t length =
        content.text.bytes != NULL ? content.text.length : content.messages.encoded_bytes;
    uint32_t *ids = calloc(length + 1, sizeof *ids);
    CHECK(ids != NULL);
    for (uint32_t i = 0; i < length; i++)
        ids[i] = (uint8_t)bytes[i];
    if (status == STATUS_OK) {
        answer.ids = ids;
        answer.id_count = length;
        if (length > content.ids_max)
            answer.status = STATUS_TOO_LARGE;
    }
    engine->order_count--;
    engine->orders[order] = engine->orders[engine->order_count];
    engine->order_contents[order] = engine->order_contents[engine->order_count];
    core_tokenized(engine->core, &answer, engine->now_ns);
    free(ids);
    engine_collect(engine);
}

/* ---- Time ---- */

static void tick(struct engine *engine)
{
    if (engine->attached) {
        const struct core_observation observation = {.alive_ns = engine->now_ns,
                                                     .progress = {.since_ns = engine->now_ns}};
        core_worker_observed(engine->core, engine->epoch, &observation, engine->now_ns);
        engine_collect(engine);
    }
    core_tick(engine->core, engine->now_ns);
    engine_collect(engine);
}

void engine_pass(struct engine *engine, uint64_t ns)
{
    uint64_t end = engine->now_ns + ns;
    for (;;) {
        uint64_t deadline = core_next_deadline_ns(engine->core);
        if (deadline > end)
            break;
        if (deadline > engine->now_ns)
            engine->now_ns = deadline;
        tick(engine);
    }
    engine->now_ns = end;
}

/* ---- Workers ---- */

struct attach_hello engine_good_hello(const struct engine *engine)
{
    const struct segment_extents *extents = &engine->config.extents;
    const struct kv_geometry *geometry = &extents->geometry;
    return (struct attach_hello){
        .version_min = PROTOCOL_VERSION_MIN,
        .version_max = PROTOCOL_VERSION_MAX,
        .layout = layout_fingerprint(),
        .build = wire_text_of("test"),
        .backend = wire_text_of("script"),
        .arithmetic = wire_text_of("script-1"),
        .metadata_hash = engine->config.metadata_hash,
        .tensor_hash = {{5}},
        .geometry = {.layers = geometry->layers,
                     .kv_heads = geometry->kv_heads,
                     .head_dim = geometry->head_dim,
                     .block_tokens = geometry->block_tokens,
                     .type = geometry->type,
                     .order = geometry->order},
        .blocks = extents->pool_blocks,
        .slots = extents->slots,
        .context = extents->context,
        .vocabulary = extents->vocabulary,
        .step_tokens = extents->step_tokens,
    };
}

uint64_t engine_hello(struct engine *engine, const struct attach_hello *hello)
{
    uint64_t connection = ++engine->connection;
    core_worker_hello(engine->core, connection, true, hello, engine->now_ns);
    engine_collect(engine);
    return connection;
}

void engine_finish_attach(struct engine *engine)
{
    CHECK(engine->attached);
    core_worker_attached(engine->core, engine->epoch, &engine->segment, engine->now_ns);
    engine_collect(engine);
    engine_ready(engine);
}

void engine_ready(struct engine *engine)
{
    const struct worker_ready ready = {.instance = engine->config.instance, .epoch = engine->epoch};
    core_worker_ready(engine->core, &ready, engine->now_ns);
    engine_collect(engine);
}

void engine_attach(struct engine *engine)
{
    const struct attach_hello hello = engine_good_hello(engine);
    engine_hello(engine, &hello);
    CHECK(engine->attached);
}

void engine_step(struct engine *engine)
{
    static struct result result;
    struct worker_refused refused;
    CHECK(engine->plan_count > 0);
    bool done = scripted_worker_step(&engine->worker, &engine->plans[0], &result, &refused);
    if (!done)
        log_error("plan_refused", "step=%llu row=%u reason=%s", (unsigned long long)refused.step,
                  refused.row, wire_enum_name(&plan_refusal_enum, refused.reason));
    CHECK(done); /* the core's plans are right */
    engine->plan_count--;
    engine->plans[0] = engine->plans[1];
    core_worker_result(engine->core, &result, engine->now_ns);
    engine_collect(engine);
}

uint32_t engine_run(struct engine *engine)
{
    uint32_t steps = 0;
    while (engine->plan_count > 0) {
        engine_step(engine);
        steps++;
        CHECK(steps < 100000);
    }
    return steps;
}

void engine_kill(struct engine *engine)
{
    CHECK(engine->attached);
    uint64_t epoch = engine->epoch;
    core_worker_lost(engine->core, engine->active_connection, engine->now_ns);
    engine_collect(engine);
    core_epoch_gone(engine->core, epoch, engine->now_ns);
    engine_collect(engine);
}

uint32_t engine_expect(const struct engine *engine, const char *prompt, uint64_t seed,
                       uint32_t max_tokens, uint32_t *out_tokens)
{
    uint64_t hash = SCRIPT_HASH_EMPTY;
    for (const char *byte = prompt; *byte != '\0'; byte++)
        hash = script_hash(hash, (uint8_t)*byte);
    uint32_t count = 0;
    while (count < max_tokens) {
        uint32_t token = script_token(&engine->script, hash, seed);
        out_tokens[count++] = token;
        if (token == engine->script.end_token)
            break;
        hash = script_hash(hash, token);
    }
    return count;
}
