#include "common/check.h"
#include "common/duration.h"
#include "coordinator/core_state.h"

#include <inttypes.h>
#include <string.h>

/* The request cannot become one: its calls are told why, and it never was. */
static void refuse_request(struct core *core, struct request *request,
                           const struct refusal *refusal)
{
    while (request->first_call != CALL_NONE) {
        struct call call;
        core_close_call(core, request->first_call, &call);
        core_answer_refusal(core, call.handle, call.named, refusal);
    }
    core->stats.requests_refused++;
    core_forget(core, request);
}

/* ---- Settling ---- */

/* The ids are there: the request is settled, or refused. */
static void settle(struct core *core, struct request *request, const uint32_t *ids,
                   uint32_t id_count)
{
    struct refusal refusal;
    uint32_t max_tokens;
    if (!admission_judge_prompt(&core->limits, id_count, request->max_tokens, request->prompt_field,
                                &max_tokens, &refusal)) {
        refuse_request(core, request, &refusal);
        return;
    }
    uint64_t bytes = core->requests.live_bytes + core->orders.bytes + id_count * sizeof *ids;
    if (bytes > core->config.queue_bytes ||
        requests_set_prompt(&core->requests, request, ids, id_count) != STATUS_OK) {
        refusal_set(&refusal, ERROR_CODE_OVERLOADED, NULL, "no memory for the prompt's ids");
        refusal.retry_after_ms = CORE_RETRY_MS;
        refuse_request(core, request, &refusal);
        return;
    }
    char tail[DETOKENIZER_TAIL_BYTES_MAX];
    size_t tail_bytes =
        detokenizer_prompt_tail(core->config.vocabulary, request->tokens, id_count, tail);
    detokenizer_init(&request->detokenizer, (struct byte_view){tail, tail_bytes});
    request->max_tokens = max_tokens;
    request->tokenized_ns = core->now_ns;
    core->stats.prompt_tokens += id_count;
    requests_move(&core->requests, request, REQUEST_STATE_QUEUED);
    scheduler_enqueue(&core->scheduler, request);
    core_wake(core, request);
}

static void set_parameters(struct core *core, struct request *request,
                           const struct client_submit *submit, uint64_t chance)
{
    request->body_hash = client_submit_body_hash(submit);
    request->prompt_field = admission_prompt_field(submit);
    request->max_tokens = submit->has_max_tokens ? submit->max_tokens : 0;
    request->temperature = submit->temperature;
    request->top_k = submit->top_k;
    request->top_p = submit->has_top_p ? submit->top_p : 1;
    request->min_p = submit->min_p;
    request->seed = submit->has_seed ? submit->seed : chance;
    request->ignore_eos = submit->ignore_eos;
    request->detach = submit->detach;
    request->stop_token_count =
        wire_tokens_copy(&submit->stop_token_ids, request->stop_tokens, LIMIT_STOP_TOKENS);
    request->submitted_ns = core->now_ns;
    if (submit->has_deadline_ms)
        request->deadline_ns = core->now_ns + submit->deadline_ms * NS_PER_MS;
    core_set_timer(core, request);
}

/* How full the queue is. */
static bool judge_queue(const struct core *core, const struct client_submit *submit,
                        struct refusal *refusal)
{
    const struct core_config *config = &core->config;
    uint64_t text = submit->has_prompt ? submit->prompt.length
                    : submit->has_ids  ? submit->ids.count * sizeof(uint32_t)
                                       : submit->messages.encoded_bytes;
    uint64_t bytes = core->requests.live_bytes + core->orders.bytes + sizeof(struct request) + text;
    if (core->drain != DRAIN_NONE)
        refusal_set(refusal, ERROR_CODE_DRAINING, NULL, "the coordinator is stopping");
    else if (core->requests.live_count >= config->queue_requests)
        refusal_set(refusal, ERROR_CODE_OVERLOADED, NULL,
                    "%u requests are in the queue; at most %u", core->requests.live_count,
                    config->queue_requests);
    else if (bytes > config->queue_bytes)
        refusal_set(refusal, ERROR_CODE_OVERLOADED, NULL,
                    "the queue would hold %" PRIu64 " bytes; at most %" PRIu64, bytes,
                    config->queue_bytes);
    else if (submit->has_ids || core->orders.count < core->orders.capacity)
        return true;
    else
        refusal_set(refusal, ERROR_CODE_OVERLOADED, NULL, "too many texts wait for the tokenizer");
    refusal->retry_after_ms = CORE_RETRY_MS;
    return false;
}

/* Copies the ids of a submit, judged; NULL with the refusal. */
uint32_t *core_copy_ids(struct core *core, const struct wire_tokens *tokens,
                        struct refusal *refusal)
{
    uint32_t *ids = outbox_allocate(&core->outbox, tokens->count * sizeof *ids);
    if (ids == NULL) {
        refusal_set(refusal, ERROR_CODE_OVERLOADED, NULL, "out of memory; try again later");
        refusal->retry_after_ms = CORE_RETRY_MS;
        return NULL;
    }
    uint32_t count = wire_tokens_copy(tokens, ids, tokens->count);
    CHECK(count == tokens->count);
    return admission_judge_ids(&core->limits, ids, count, "ids", refusal) ? ids : NULL;
}

/* A request with its parameters, not yet its prompt. STATUS_OUT_OF_MEMORY leaves nothing behind. */
static enum status make_request(struct core *core, const struct client_event *event,
                                const struct stop_set *stops, struct request **out_request)
{
    const struct client_submit *submit = &event->request->submit;
    struct request *request;
    enum status status = requests_add(&core->requests, submit->id, &request);
    if (status != STATUS_OK)
        return status;
    set_parameters(core, request, submit, event->chance);
    if (stops->count > 0) {
        request->stops = requests_resize(&core->requests, request, NULL, 0, sizeof *stops);
        if (request->stops == NULL) {
            core_forget(core, request);
            return STATUS_OUT_OF_MEMORY;
        }
        *request->stops = *stops;
    }
    *out_request = request;
    return STATUS_OK;
}

static enum status order_ids(struct core *core, struct request *request,
                             const struct client_submit *submit)
{
    struct core_tokenize tokenize = {
        .parse_special = !submit->has_parse_special || submit->parse_special,
        .ids_max = core->limits.context - 1,
    };
    if (submit->has_prompt)
        tokenize.text = submit->prompt;
    else
        tokenize.messages = submit->messages;
    const struct order owner = {.request = {request->index, request->sequence}};
    enum status status = orders_add(&core->orders, &owner, &tokenize);
    if (status == STATUS_OK)
        outbox_add(&core->outbox, CORE_OUTPUT_TOKENIZE)->tokenize = tokenize;
    return status;
}

static void submit_again(struct core *core, const struct client_event *event,
                         struct request *request)
{
    struct id128 body_hash = client_submit_body_hash(&event->request->submit);
    if (!id128_equal(&body_hash, &request->body_hash)) {
        struct refusal refusal;
        core->stats.requests_refused++;
        refusal_set(&refusal, ERROR_CODE_IDEMPOTENCY_CONFLICT, "id",
                    "the id is known with another body; choose a new one");
        core_refuse_event(core, event, &refusal);
        return;
    }
    core->stats.requests_repeated++;
    const struct call call = {.kind = CALL_SUBMIT,
                              .named = event->request->named,
                              .handle = event->handle,
                              .request = request->index};
    if (request->state != REQUEST_STATE_TOKENIZING)
        core_answer_accepted(core, request, event->handle, event->request->named);
    else if (core_wait(core, request, &call) == CALL_NONE)
        core_refuse_without_memory(core, event);
}

/* What can be refused before anything is made. */
static bool judge_submit(struct core *core, const struct client_submit *submit,
                         struct stop_set *stops, uint32_t **out_ids, struct refusal *refusal)
{
    uint32_t stop_tokens[LIMIT_STOP_TOKENS];
    uint32_t stop_token_count =
        wire_tokens_copy(&submit->stop_token_ids, stop_tokens, LIMIT_STOP_TOKENS);
    if (!judge_queue(core, submit, refusal) ||
        !admission_judge_submit(&core->limits, submit, stops, refusal) ||
        !admission_judge_ids(&core->limits, stop_tokens, stop_token_count, "stop_token_ids",
                             refusal))
        return false;
    *out_ids = submit->has_ids ? core_copy_ids(core, &submit->ids, refusal) : NULL;
    return !submit->has_ids || *out_ids != NULL;
}

void core_on_submit(struct core *core, const struct client_event *event)
{
    const struct client_submit *submit = &event->request->submit;
    struct request *request = requests_find(&core->requests, submit->id);
    if (request != NULL) {
        submit_again(core, event, request);
        return;
    }
    struct stop_set stops;
    struct refusal refusal;
    uint32_t *ids;
    if (!judge_submit(core, submit, &stops, &ids, &refusal)) {
        core->stats.requests_refused++;
        core_refuse_event(core, event, &refusal);
        return;
    }
    struct call call = {
        .kind = CALL_SUBMIT, .named = event->request->named, .handle = event->handle};
    if (!core_make_room(core) || make_request(core, event, &stops, &request) != STATUS_OK) {
        core->stats.requests_refused++;
        core_refuse_without_memory(core, event);
        return;
    }
    call.request = request->index;
    CHECK(core_wait(core, request, &call) != CALL_NONE);
    core->stats.requests_submitted++;
    if (ids != NULL) {
        settle(core, request, ids, submit->ids.count);
    } else if (order_ids(core, request, submit) != STATUS_OK) {
        refusal_set(&refusal, ERROR_CODE_OVERLOADED, NULL, "out of memory; try again later");
        refusal.retry_after_ms = CORE_RETRY_MS;
        refuse_request(core, request, &refusal);
    }
}

/* ---- tokenize ---- */

void core_on_tokenize(struct core *core, const struct client_event *event)
{
    const struct client_tokenize *tokenize = &event->request->tokenize;
    const struct client_submit as_submit = {
        .has_prompt = tokenize->has_prompt,
        .prompt = tokenize->prompt,
        .has_messages = tokenize->has_messages,
        .messages = tokenize->messages,
    };
    struct stop_set stops;
    struct refusal refusal;
    if (!admission_judge_submit(&core->limits, &as_submit, &stops, &refusal)) {
        core_refuse_event(core, event, &refusal);
        return;
    }
    struct call call = {
        .kind = CALL_TOKENIZE, .named = event->request->named, .handle = event->handle};
    const struct order owner = {.request = {.index = REQUEST_NONE}, .call_handle = event->handle};
    struct core_tokenize order = {
        .parse_special = !tokenize->has_parse_special || tokenize->parse_special,
        .ids_max = LIMIT_CLIENT_FRAME_BYTES,
        .messages = tokenize->messages,
    };
    if (tokenize->has_prompt)
        order.text =
            (struct wire_text){.bytes = tokenize->prompt.length > 0 ? tokenize->prompt.bytes : "",
                               .length = tokenize->prompt.length};
    uint64_t bytes = core->requests.live_bytes + core->orders.bytes + tokenize->prompt.length +
                     tokenize->messages.encoded_bytes;
    if (bytes > core->config.queue_bytes || !core_make_room(core) ||
        orders_add(&core->orders, &owner, &order) != STATUS_OK) {
        core_refuse_without_memory(core, event);
        return;
    }
    call.ticket = order.ticket;
    CHECK(core_wait(core, NULL, &call) != CALL_NONE);
    outbox_add(&core->outbox, CORE_OUTPUT_TOKENIZE)->tokenize = order;
}

/* ---- Ids ---- */

static void set_tokenize_refusal(const struct core_tokenized *tokenized, const char *field,
                                 uint32_t limit, struct refusal *refusal)
{
    static const struct {
        enum status status;
        enum error_code code;
    } codes[] = {
        {STATUS_INVALID, ERROR_CODE_INVALID_REQUEST},
        {STATUS_UNSUPPORTED, ERROR_CODE_UNSUPPORTED},
        {STATUS_OUT_OF_MEMORY, ERROR_CODE_OVERLOADED},
        {STATUS_TOO_LARGE, ERROR_CODE_PROMPT_TOO_LONG},
    };
    enum error_code code = ERROR_CODE_INTERNAL;
    for (size_t i = 0; i < sizeof codes / sizeof *codes; i++) {
        if (codes[i].status == tokenized->status)
            code = codes[i].code;
    }
    const char *why = tokenized->why != NULL ? tokenized->why : status_text(tokenized->status);
    refusal_set(refusal, code, field, "%s", why);
    if (code == ERROR_CODE_PROMPT_TOO_LONG) {
        refusal_set(refusal, code, field, "%s has more than %u tokens", field, limit);
        refusal->has_limit = true;
        refusal->limit = limit;
    }
    if (code == ERROR_CODE_OVERLOADED)
        refusal->retry_after_ms = CORE_RETRY_MS;
}

static void settle_order(struct core *core, struct request *request,
                         const struct core_tokenized *tokenized)
{
    struct refusal refusal;
    if (tokenized->status != STATUS_OK) {
        set_tokenize_refusal(tokenized, request->prompt_field, core->limits.context - 1, &refusal);
        refuse_request(core, request, &refusal);
    } else if (!admission_judge_ids(&core->limits, tokenized->ids, tokenized->id_count,
                                    request->prompt_field, &refusal)) {
        refuse_request(core, request, &refusal);
    } else {
        settle(core, request, tokenized->ids, tokenized->id_count);
    }
}

static void answer_tokenize(struct core *core, uint64_t handle,
                            const struct core_tokenized *tokenized)
{
    uint32_t index = calls_find(&core->calls, handle);
    if (index == CALL_NONE || core->calls.rows[index].ticket != tokenized->ticket)
        return; /* the client went away */
    struct call call;
    core_close_call(core, index, &call);
    struct refusal refusal;
    if (tokenized->status != STATUS_OK) {
        set_tokenize_refusal(tokenized, "prompt", LIMIT_CLIENT_FRAME_BYTES, &refusal);
        core_answer_refusal(core, handle, call.named, &refusal);
        return;
    }
    size_t bytes = tokenized->id_count * sizeof *tokenized->ids;
    uint32_t *ids = outbox_allocate(&core->outbox, bytes + 1);
    if (ids == NULL) {
        refusal_set(&refusal, ERROR_CODE_OVERLOADED, NULL, "out of memory; try again later");
        core_answer_refusal(core, handle, call.named, &refusal);
        return;
    }
    if (bytes > 0)
        memcpy(ids, tokenized->ids, bytes);
    core_add_answer(core, handle, call.named, CLIENT_ANSWER_TOKENS)->tokens =
        (struct client_tokens){.ids = wire_tokens_of(ids, tokenized->id_count)};
}

void core_tokenized(struct core *core, const struct core_tokenized *tokenized, uint64_t now_ns)
{
    core_begin(core, now_ns);
    struct order owner;
    CHECK(orders_take(&core->orders, tokenized->ticket, &owner) == STATUS_OK);
    if (owner.request.index == REQUEST_NONE) {
        answer_tokenize(core, owner.call_handle, tokenized);
    } else {
        struct request *request = requests_named(&core->requests, owner.request);
        if (request != NULL && request->state == REQUEST_STATE_TOKENIZING)
            settle_order(core, request, tokenized);
    }
    core_end(core);
}
