#include "common/check.h"
#include "common/duration.h"
#include "coordinator/core_state.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Outputs of one event beside one answer per call: plans, a fence, an attach, orders, log lines. */
enum { OTHER_OUTPUTS_MAX = 16 + OUTBOX_LOG_LINES_MAX };

/* ---- Life ---- */

static bool judge_config(const struct core_config *config, struct text *why)
{
    if (segment_extents_judge(&config->extents, why) != STATUS_OK)
        return false;
    if (config->vocabulary->token_count != config->extents.vocabulary) {
        text_set(why, "the tokenizer has %u tokens, the extents %u",
                 config->vocabulary->token_count, config->extents.vocabulary);
        return false;
    }
    if (config->extents.pool_blocks < config->extents.geometry.layers) {
        text_set(why, "the KV pool has %" PRIu64 " blocks; one for each of %u layers is the least",
                 config->extents.pool_blocks, config->extents.geometry.layers);
        return false;
    }
    if (config->queue_requests == 0 || config->kept_requests == 0 || config->calls == 0 ||
        config->kept_ns == 0 || config->extents.step_tokens == 0) {
        text_set(why, "a bound of the core is 0");
        return false;
    }
    return true;
}

static enum status init_engine(struct core *core)
{
    const struct core_config *config = &core->config;
    struct random shuffle = {.state = config->shuffle_seed};
    const struct slots_config slots = {
        .geometry = config->extents.geometry,
        .slots = config->extents.slots,
        .logical_blocks = config->extents.logical_blocks,
        .pool_blocks = (uint32_t)config->extents.pool_blocks,
        .shuffle = config->shuffle_blocks ? &shuffle : NULL,
    };
    enum status status = slots_init(&core->slots, &core->arena, &slots);
    if (status == STATUS_OK)
        status = flights_init(&core->flights, &core->arena, config->extents.slots);
    if (status == STATUS_OK)
        status = plan_writer_init(&core->plan_writer, &core->arena, config->extents.slots);
    if (status != STATUS_OK)
        return status;
    uint32_t chunk = config->prefill_chunk;
    const struct scheduler_config scheduler = {
        .requests = &core->requests,
        .slots = &core->slots,
        .flights = &core->flights,
        .step_tokens = config->extents.step_tokens,
        .prefill_chunk = chunk == 0 ? config->extents.step_tokens : chunk,
    };
    return scheduler_init(&core->scheduler, &core->arena, &scheduler);
}

static enum status init_tables(struct core *core)
{
    const struct core_config *config = &core->config;
    struct arena *arena = &core->arena;
    uint32_t capacity = config->queue_requests + config->kept_requests;
    uint64_t hash_seed;
    memcpy(&hash_seed, config->instance.bytes, sizeof hash_seed);
    enum status status =
        requests_init(&core->requests, arena, capacity, hash_seed, config->reallocate);
    if (status == STATUS_OK)
        status = calls_init(&core->calls, arena, config->calls);
    if (status == STATUS_OK)
        status = orders_init(&core->orders, arena, config->queue_requests + config->calls,
                             config->reallocate);
    if (status == STATUS_OK)
        status = outbox_init(&core->outbox, arena, config->calls + OTHER_OUTPUTS_MAX,
                             config->reallocate);
    if (status == STATUS_OK)
        status = heap_init(&core->timers, arena, capacity + config->calls);
    if (status == STATUS_OK)
        status = init_engine(core);
    core->plans = arena_alloc_array(arena, LIMIT_PLANS_IN_FLIGHT, sizeof *core->plans);
    core->token_text = arena_alloc(arena, DETOKENIZER_OUTPUT_BYTES_MAX);
    if (core->plans == NULL || core->token_text == NULL)
        return STATUS_OUT_OF_MEMORY;
    return status;
}

/* Bytes of all tables, with room to spare: what is not touched costs nothing. */
static size_t arena_bytes(const struct core_config *config)
{
    size_t requests = (size_t)config->queue_requests + config->kept_requests;
    size_t table = kv_table_entries(&config->extents.geometry, config->extents.logical_blocks,
                                    config->extents.slots) *
                   sizeof(int32_t);
    size_t blocks = (size_t)config->extents.pool_blocks * (sizeof(int32_t) + 1);
    size_t slots = (size_t)config->extents.slots * 1024;
    size_t calls = (size_t)config->calls * (sizeof(struct core_output) + 512);
    return (8u << 20) + requests * 256 + table + blocks + slots + calls;
}

enum status core_create(const struct core_config *config, struct core **out_core, struct text *why)
{
    if (!judge_config(config, why))
        return STATUS_INVALID;
    struct core *core = calloc(1, sizeof *core);
    if (core == NULL)
        return STATUS_OUT_OF_MEMORY;
    core->config = *config;
    if (core->config.reallocate == NULL)
        core->config.reallocate = realloc;
    core->stats.instance = config->instance;
    core->limits = (struct admission_limits){
        .context = config->extents.context,
        .pool_positions =
            kv_positions(&config->extents.geometry,
                         config->extents.pool_blocks / config->extents.geometry.layers),
        .vocabulary = config->extents.vocabulary,
        .prompt_bytes = config->prompt_bytes,
        .chat_template = config->chat_template,
        .ids_only = config->ids_only,
    };
    const struct worker_limits workers = {.metadata_hash = config->metadata_hash,
                                          .extents = config->extents};
    worker_state_init(&core->workers, &workers);
    enum status status = arena_init(&core->arena, arena_bytes(config));
    if (status == STATUS_OK)
        status = init_tables(core);
    if (status != STATUS_OK) {
        core_destroy(core);
        text_set(why, "no memory for the tables of the core");
        return status;
    }
    *out_core = core;
    return STATUS_OK;
}

void core_destroy(struct core *core)
{
    if (core == NULL)
        return;
    requests_free(&core->requests);
    orders_free(&core->orders);
    outbox_free(&core->outbox);
    arena_free(&core->arena);
    free(core);
}

bool core_next_output(struct core *core, struct core_output *out_output)
{
    return outbox_take(&core->outbox, out_output);
}

/* ---- The end of a request ---- */

void core_set_timer(struct core *core, struct request *request)
{
    uint64_t due = REQUEST_NEVER_NS;
    if (request_is_finished(request)) {
        due = request->finished_ns + core->config.kept_ns;
    } else {
        due = request->deadline_ns;
        bool may_be_orphan =
            !request->detach && request->last_answer_ns != 0 && request->first_call == CALL_NONE;
        if (may_be_orphan && request->last_answer_ns + core->config.orphan_ns < due)
            due = request->last_answer_ns + core->config.orphan_ns;
    }
    if (due == REQUEST_NEVER_NS)
        heap_remove(&core->timers, request->index);
    else
        heap_set(&core->timers, request->index, due);
}

void core_wake(struct core *core, struct request *request)
{
    if (request->woken)
        return;
    request->woken = true;
    request->next_woken = core->woken;
    core->woken = request;
}

void core_forget(struct core *core, struct request *request)
{
    CHECK(request->first_call == CALL_NONE && !request->woken);
    heap_remove(&core->timers, request->index);
    requests_remove(&core->requests, request);
}

/* Text that was held back is shown, unless a stop string hid it. STATUS_OUT_OF_MEMORY loses it. */
static enum status release_held_text(struct core *core, struct request *request)
{
    if (request->prompt_tokens == 0 || request->detokenizer.ended)
        return STATUS_OK;
    size_t length = detokenizer_finish(&request->detokenizer, request->stops, core->token_text);
    return requests_append_text(&core->requests, request, core->token_text, length);
}

/* A finished request keeps what clients may still ask for, and nothing else. */
static void shed(struct core *core, struct request *request)
{
    if (request->tokens != NULL) {
        size_t kept = request->accepted * sizeof *request->tokens;
        memmove(request->tokens, request->tokens + request->prompt_tokens, kept);
        uint32_t *tokens = requests_resize(&core->requests, request, request->tokens,
                                           request->token_capacity * sizeof *tokens, kept);
        if (tokens != NULL || kept == 0) { /* a shrink that fails leaves the larger one */
            request->tokens = tokens;
            request->token_capacity = request->accepted;
        }
    }
    if (request->stops != NULL) {
        requests_resize(&core->requests, request, request->stops, sizeof *request->stops, 0);
        request->stops = NULL;
    }
}

static void count_outcome(struct core *core, const struct request *request)
{
    uint64_t *const counters[] = {
        [FINISH_REASON_STOP] = &core->stats.requests_stopped,
        [FINISH_REASON_LENGTH] = &core->stats.requests_length,
        [FINISH_REASON_CANCELLED] = &core->stats.requests_cancelled,
        [FINISH_REASON_ERROR] = &core->stats.requests_failed,
    };
    ++*counters[request->outcome.reason];
    if (request->outcome.reason == FINISH_REASON_ERROR)
        outbox_log(&core->outbox, LOG_LEVEL_WARN, "request_failed",
                   "sequence=%" PRIu64 " code=%s prompt_tokens=%u tokens=%u", request->sequence,
                   error_code_name(request->outcome.code), request->prompt_tokens,
                   request->accepted);
}

void core_finish(struct core *core, struct request *request, const struct core_end_cause *cause)
{
    CHECK(!request_is_finished(request) && cause->reason != FINISH_REASON_UNKNOWN);
    CHECK(request->outcome.reason == FINISH_REASON_UNKNOWN);
    struct core_end_cause settled = *cause;
    scheduler_withdraw(&core->scheduler, request);
    if (release_held_text(core, request) != STATUS_OK)
        settled = (struct core_end_cause){FINISH_REASON_ERROR, ERROR_CODE_OVERLOADED,
                                          "no memory for the rest of the text"};
    request->outcome.reason = settled.reason;
    if (settled.reason == FINISH_REASON_ERROR) {
        request->outcome.code = settled.code;
        struct text message;
        text_init(&message, request->outcome.message, sizeof request->outcome.message);
        text_append(&message, settled.message, strlen(settled.message));
    }
    shed(core, request);
    request->finished_ns = core->now_ns;
    requests_move(&core->requests, request, REQUEST_STATE_FINISHED);
    core_set_timer(core, request);
    core_wake(core, request);
    count_outcome(core, request);
}

static void end_by(struct core *core, struct request *request, enum finish_reason reason)
{
    core_finish(core, request, &(struct core_end_cause){.reason = reason});
}

static void end_without_memory(struct core *core, struct request *request)
{
    core_finish(core, request,
                &(struct core_end_cause){FINISH_REASON_ERROR, ERROR_CODE_OVERLOADED,
                                         "no memory for another token"});
}

void core_accept_token(struct core *core, struct request *request, uint32_t token,
                       const uint64_t *logits_hash)
{
    if (requests_append_token(&core->requests, request, token) != STATUS_OK) {
        end_without_memory(core, request);
        return;
    }
    core->stats.completion_tokens++;
    request->refusals = 0;
    if (request->first_token_ns == 0)
        request->first_token_ns = core->now_ns;
    if (logits_hash != NULL)
        request->logits_hash = request_fold_hash(request->logits_hash, *logits_hash);
    else
        request->logits_hash_broken = true;
    if (request_stops_at(request, core->config.vocabulary, token)) {
        end_by(core, request, FINISH_REASON_STOP); /* its own text is never shown */
        return;
    }
    size_t length = detokenizer_push(&request->detokenizer, core->config.vocabulary, request->stops,
                                     token, core->token_text);
    if (requests_append_text(&core->requests, request, core->token_text, length) != STATUS_OK) {
        request->detokenizer.ended = true; /* what is held back would follow a hole */
        end_without_memory(core, request);
    } else if (request->detokenizer.ended) {
        end_by(core, request, FINISH_REASON_STOP);
    } else if (request->accepted == request->max_tokens) {
        end_by(core, request, FINISH_REASON_LENGTH);
    } else {
        core_wake(core, request);
    }
}

/* ---- Frame of an event ---- */

static void evict(struct core *core)
{
    const struct requests *requests = &core->requests;
    while (requests->kept_count > core->config.kept_requests ||
           requests->kept_bytes > core->config.queue_bytes) {
        struct request *request = requests_eviction_candidate(requests);
        CHECK(request != NULL);
        core_forget(core, request);
    }
}

void core_begin(struct core *core, uint64_t now_ns)
{
    outbox_begin(&core->outbox);
    if (now_ns > core->now_ns)
        core->now_ns = now_ns;
    evict(core); /* not earlier: answers of the last event borrowed from them */
    if (core->outbox.log_lines_dropped > 0) {
        uint32_t dropped = core->outbox.log_lines_dropped;
        core->outbox.log_lines_dropped = 0;
        outbox_log(&core->outbox, LOG_LEVEL_WARN, "log_lines_dropped", "count=%u", dropped);
    }
}

static void send_plans(struct core *core)
{
    while (worker_state_is_ready(&core->workers) && !flights_is_full(&core->flights)) {
        struct plan *plan = &core->plans[(core->flights.sent + 1) % LIMIT_PLANS_IN_FLIGHT];
        plan->instance = core->config.instance;
        plan->epoch = core->workers.epoch;
        if (scheduler_build(&core->scheduler, plan, core->now_ns) == 0)
            return;
        const struct flight *flight = &core->flights.plans[plan->step % LIMIT_PLANS_IN_FLIGHT];
        for (uint32_t i = 0; i < plan->row_count; i++) {
            struct request *request = requests_named(&core->requests, flight->rows[i].request);
            plan_writer_row(&core->plan_writer, &core->slots, request, &plan->rows[i]);
        }
        plan_writer_publish(&core->plan_writer, plan);
        struct core_output *output = outbox_add(&core->outbox, CORE_OUTPUT_PLAN);
        output->plan = plan;
        output->can_wait = flights_count(&core->flights) > 0;
        if (!output->can_wait)
            worker_state_plan_sent(&core->workers);
        flights_sent(&core->flights);
        core->stats.steps_planned++;
    }
}

static void answer_woken(struct core *core)
{
    while (core->woken != NULL) {
        struct request *request = core->woken;
        core->woken = request->next_woken;
        request->next_woken = NULL;
        request->woken = false;
        core_answer_calls(core, request);
    }
}

/* A drain goes on by itself when nothing is left that runs. */
static void progress_drain(struct core *core)
{
    if (core->drain == DRAIN_RUNNING && core->requests.live_count == 0) {
        core->drain = DRAIN_LINGER;
        core->drain_deadline_ns = core->now_ns + CORE_LINGER_MS * NS_PER_MS;
    } else if (core->drain == DRAIN_LINGER && core->now_ns >= core->drain_deadline_ns) {
        core->drain = DRAIN_DONE;
        outbox_add(&core->outbox, CORE_OUTPUT_DRAINED);
        outbox_log(&core->outbox, LOG_LEVEL_INFO, "drained", "steps=%" PRIu64,
                   core->stats.steps_done);
    }
}

void core_end(struct core *core)
{
    send_plans(core);
    answer_woken(core);
    progress_drain(core);
    if (core->scheduler.running_count == 0 && flights_count(&core->flights) == 0) {
        CHECK(core->slots.blocks.free_count == core->slots.blocks.total);
        CHECK(core->slots.free_count == core->slots.capacity);
    }
}

/* ---- Time ---- */

static void expire_request(struct core *core, struct request *request)
{
    if (request_is_finished(request)) {
        core_forget(core, request);
        return;
    }
    if (core->now_ns >= request->deadline_ns) {
        core_finish(core, request,
                    &(struct core_end_cause){FINISH_REASON_ERROR, ERROR_CODE_DEADLINE_EXCEEDED,
                                             "deadline_ms passed"});
        return;
    }
    core->stats.requests_orphaned++;
    end_by(core, request, FINISH_REASON_CANCELLED);
}

/* Answered when the event ends: what the answer borrows may still change before that. */
static void expire_call(struct core *core, uint32_t index)
{
    struct call *call = &core->calls.rows[index];
    call->is_due = true;
    heap_remove(&core->timers, core->requests.capacity + index);
    core_wake(core, core->requests.rows[call->request]);
}

static void expire(struct core *core)
{
    const struct heap_entry *first;
    while ((first = heap_first(&core->timers)) != NULL && first->key <= core->now_ns) {
        uint32_t item = first->item;
        if (item >= core->requests.capacity)
            expire_call(core, item - core->requests.capacity);
        else
            expire_request(core, core->requests.rows[item]);
    }
}

static void end_all(struct core *core, bool also_started)
{
    for (uint32_t i = 0; i < core->requests.capacity; i++) {
        struct request *request = core->requests.rows[i];
        if (request == NULL || request_is_finished(request) ||
            (request->first_plan_ns != 0 && !also_started))
            continue;
        core_finish(core, request,
                    &(struct core_end_cause){FINISH_REASON_ERROR, ERROR_CODE_DRAINING,
                                             "the coordinator is stopping"});
    }
}

void core_tick(struct core *core, uint64_t now_ns)
{
    core_begin(core, now_ns);
    expire(core);
    enum core_fence_reason reason = worker_state_tick(&core->workers, core->now_ns);
    if (reason != 0)
        core_end_epoch(core, reason, false, "");
    if (core->drain == DRAIN_RUNNING && core->now_ns >= core->drain_deadline_ns)
        end_all(core, true);
    core_end(core);
}

uint64_t core_next_deadline_ns(const struct core *core)
{
    uint64_t deadline = worker_state_deadline_ns(&core->workers);
    const struct heap_entry *first = heap_first(&core->timers);
    if (first != NULL && first->key < deadline)
        deadline = first->key;
    bool is_drain_timed = core->drain == DRAIN_RUNNING || core->drain == DRAIN_LINGER;
    if (is_drain_timed && core->drain_deadline_ns < deadline)
        deadline = core->drain_deadline_ns;
    return deadline;
}

uint64_t core_step_due(const struct core *core)
{
    const struct flight *oldest = flights_oldest(&core->flights);
    return oldest == NULL ? 0 : oldest->step;
}

void core_drain(struct core *core, uint64_t now_ns)
{
    core_begin(core, now_ns);
    if (core->drain == DRAIN_NONE) {
        outbox_log(&core->outbox, LOG_LEVEL_INFO, "drain_started",
                   "running=%u queued=%u timeout_ms=%" PRIu64, core->scheduler.running_count,
                   core->scheduler.queue.count, core->config.drain_timeout_ns / NS_PER_MS);
        core->drain = DRAIN_RUNNING;
        core->drain_deadline_ns = core->now_ns + core->config.drain_timeout_ns;
        end_all(core, false);
    } else if (core->drain != DRAIN_DONE) {
        end_all(core, true);
        core->drain = DRAIN_LINGER;
        core->drain_deadline_ns = core->now_ns;
    }
    core_end(core);
}

/* ---- For tests ---- */

void core_check(const struct core *core)
{
    CHECK(requests_is_sound(&core->requests));
    CHECK(slots_is_sound(&core->slots));
    CHECK(heap_is_sound(&core->timers));
    CHECK(heap_is_sound(&core->scheduler.queue));
    CHECK(core->woken == NULL);
    CHECK(core->scheduler.running_count == core->slots.held_count);
    const uint32_t *states = core->requests.state_counts;
    CHECK(states[REQUEST_STATE_RUNNING] == core->scheduler.running_count);
    CHECK(states[REQUEST_STATE_QUEUED] + states[REQUEST_STATE_PREEMPTED] ==
          core->scheduler.queue.count);
    CHECK(core->requests.live_count <= core->config.queue_requests);
    uint64_t last = 0;
    for (uint32_t i = 0; i < core->scheduler.running_count; i++) {
        const struct request *request = core->requests.rows[core->scheduler.running[i]];
        const struct slot *slot = &core->slots.rows[request->slot];
        CHECK(request->state == REQUEST_STATE_RUNNING && request->sequence > last);
        CHECK(slot->state == SLOT_HELD && slot->owner == request->index);
        CHECK(request_known(request) < request_token_limit(request));
        CHECK(request->planned <= request_known(request) + LIMIT_PLANS_IN_FLIGHT);
        CHECK(request_token_limit(request) <= core->config.extents.context);
        last = request->sequence;
    }
}
