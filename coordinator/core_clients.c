#include "common/check.h"
#include "common/duration.h"
#include "coordinator/answers.h"
#include "coordinator/core_state.h"

#include <inttypes.h>
#include <string.h>

/* ---- Answers ---- */

struct client_answer *core_add_answer(struct core *core, uint64_t handle, bool named,
                                      enum client_answer_type type)
{
    struct core_output *output = outbox_add(&core->outbox, CORE_OUTPUT_ANSWER);
    output->answer.handle = handle;
    output->answer.message.type = type;
    output->answer.message.named = named;
    return &output->answer.message;
}

void core_answer_refusal(struct core *core, uint64_t handle, bool named,
                         const struct refusal *refusal)
{
    struct client_error error = answer_error(refusal);
    error.message = wire_text_of(outbox_format(&core->outbox, "%s", refusal->message));
    if (refusal->code == ERROR_CODE_NOT_FOUND) {
        error.has_instance = true;
        error.instance = core->config.instance;
    }
    core_add_answer(core, handle, named, CLIENT_ANSWER_ERROR)->error = error;
}

void core_refuse_event(struct core *core, const struct client_event *event,
                       const struct refusal *refusal)
{
    core_answer_refusal(core, event->handle, event->request->named, refusal);
}

void core_refuse_without_memory(struct core *core, const struct client_event *event)
{
    struct refusal refusal;
    refusal_set(&refusal, ERROR_CODE_OVERLOADED, NULL, "out of memory; try again later");
    refusal.retry_after_ms = CORE_RETRY_MS;
    core_refuse_event(core, event, &refusal);
}

static struct answer_context context_of(const struct core *core, const struct request *request)
{
    bool waits = heap_contains(&core->scheduler.queue, request->index);
    return (struct answer_context){
        .instance = core->config.instance,
        .now_ns = core->now_ns,
        .queue_position = waits ? scheduler_position(&core->scheduler, request) : 0,
        .worker_ready = worker_state_is_ready(&core->workers),
    };
}

static void note_answered(struct core *core, struct request *request)
{
    request->last_answer_ns = core->now_ns;
    core_set_timer(core, request);
}

static void answer_with_output(struct core *core, struct request *request, const struct call *call)
{
    struct answer_context context = context_of(core, request);
    struct client_output output =
        answer_output(request, &context, call->from_token, call->from_byte);
    if (output.has_finish)
        requests_mark_read(&core->requests, request);
    core_add_answer(core, call->handle, call->named, CLIENT_ANSWER_OUTPUT)->output = output;
    note_answered(core, request);
}

void core_answer_accepted(struct core *core, struct request *request, uint64_t handle, bool named)
{
    struct answer_context context = context_of(core, request);
    core_add_answer(core, handle, named, CLIENT_ANSWER_ACCEPTED)->accepted =
        answer_accepted(request, &context);
    note_answered(core, request);
}

/* ---- Waiting calls ---- */

/* Takes a call out of the table; what it said stays in `out_call`. */
void core_close_call(struct core *core, uint32_t index, struct call *out_call)
{
    *out_call = core->calls.rows[index];
    struct request *request =
        out_call->kind == CALL_TOKENIZE ? NULL : core->requests.rows[out_call->request];
    calls_remove(&core->calls, index, request == NULL ? NULL : &request->first_call);
    heap_remove(&core->timers, core->requests.capacity + index);
}

void core_answer_poll(struct core *core, uint32_t call_index)
{
    struct call call;
    core_close_call(core, call_index, &call);
    CHECK(call.kind == CALL_NEXT);
    answer_with_output(core, core->requests.rows[call.request], &call);
}

bool core_make_room(struct core *core)
{
    if (core->calls.count < core->calls.capacity)
        return true;
    if (core->calls.polls == 0)
        return false;
    core_answer_poll(core, core->calls.oldest);
    return true;
}

static bool has_news(const struct request *request, const struct call *call)
{
    uint64_t wanted = call->from_token + (call->hold_tokens == 0 ? 1 : call->hold_tokens);
    return call->is_due || request_is_finished(request) ||
           request_released_tokens(request) >= wanted;
}

/* A submit that waited for its ids; or whose request ended before they came. */
static void answer_submit(struct core *core, struct request *request, uint32_t call_index)
{
    struct call call;
    core_close_call(core, call_index, &call);
    if (request->prompt_tokens > 0) {
        core_answer_accepted(core, request, call.handle, call.named);
        return;
    }
    bool is_cancelled = request->outcome.reason == FINISH_REASON_CANCELLED;
    struct refusal refusal;
    refusal_set(&refusal, is_cancelled ? ERROR_CODE_CANCELLED : request->outcome.code, NULL, "%s",
                is_cancelled ? "cancelled before its text was tokenized"
                             : request->outcome.message);
    if (refusal.code == ERROR_CODE_DRAINING)
        refusal.retry_after_ms = CORE_RETRY_MS;
    core_answer_refusal(core, call.handle, call.named, &refusal);
}

void core_answer_calls(struct core *core, struct request *request)
{
    uint32_t index = request->first_call;
    while (index != CALL_NONE) {
        const struct call *call = &core->calls.rows[index];
        uint32_t next = call->next;
        if (call->kind == CALL_SUBMIT && request->state != REQUEST_STATE_TOKENIZING)
            answer_submit(core, request, index);
        else if (call->kind == CALL_NEXT && has_news(request, call))
            core_answer_poll(core, index);
        index = next;
    }
}

uint32_t core_wait(struct core *core, struct request *request, const struct call *call)
{
    uint32_t index;
    if (!core_make_room(core) ||
        calls_add(&core->calls, call, request == NULL ? NULL : &request->first_call, &index) !=
            STATUS_OK)
        return CALL_NONE;
    if (request != NULL)
        core_set_timer(core, request);
    return index;
}

/* ---- The other requests ---- */

static struct request *find_or_refuse(struct core *core, const struct client_event *event,
                                      struct wire_text id)
{
    struct request *request = requests_find(&core->requests, id);
    if (request == NULL) {
        struct refusal refusal;
        refusal_set(&refusal, ERROR_CODE_NOT_FOUND, "id",
                    "no request with this id: never submitted here, or finished and forgotten");
        core_refuse_event(core, event, &refusal);
    }
    return request;
}

/* A cursor beyond a finished request's end is a mistake; before the end it waits. */
static bool judge_cursors(const struct request *request, const struct client_next *next,
                          struct refusal *refusal)
{
    const struct {
        const char *field;
        uint64_t cursor, end;
    } cursors[] = {
        {"from_token", next->from_token, request_released_tokens(request)},
        {"from_byte", next->from_byte, request->text_bytes},
    };
    for (int i = 0; i < 2; i++) {
        if (!request_is_finished(request) || cursors[i].cursor <= cursors[i].end)
            continue;
        refusal_set(refusal, ERROR_CODE_INVALID_REQUEST, cursors[i].field,
                    "%s is %" PRIu64 "; the finished request ends at %" PRIu64, cursors[i].field,
                    cursors[i].cursor, cursors[i].end);
        refusal->has_limit = true;
        refusal->limit = cursors[i].end;
        return false;
    }
    return true;
}

static void on_next(struct core *core, const struct client_event *event)
{
    const struct client_next *next = &event->request->next;
    struct request *request = find_or_refuse(core, event, next->id);
    if (request == NULL)
        return;
    struct refusal refusal;
    if (!judge_cursors(request, next, &refusal)) {
        core_refuse_event(core, event, &refusal);
        return;
    }
    const struct call call = {
        .kind = CALL_NEXT,
        .named = event->request->named,
        .handle = event->handle,
        .request = request->index,
        .from_token = next->from_token,
        .from_byte = next->from_byte,
        .hold_tokens = next->hold_tokens,
    };
    bool waits = next->max_wait_ms > 0 && !has_news(request, &call);
    uint32_t index = waits ? core_wait(core, request, &call) : CALL_NONE;
    if (index == CALL_NONE) {
        answer_with_output(core, request, &call);
        return;
    }
    heap_set(&core->timers, core->requests.capacity + index,
             core->now_ns + next->max_wait_ms * NS_PER_MS);
}

static void on_cancel(struct core *core, const struct client_event *event)
{
    struct request *request = find_or_refuse(core, event, event->request->cancel.id);
    if (request == NULL)
        return;
    if (!request_is_finished(request))
        core_finish(core, request, &(struct core_end_cause){.reason = FINISH_REASON_CANCELLED});
    struct answer_context context = context_of(core, request);
    core_add_answer(core, event->handle, event->request->named, CLIENT_ANSWER_OUTPUT)->output =
        answer_output(request, &context, request_released_tokens(request), request->text_bytes);
}

static void on_status(struct core *core, const struct client_event *event)
{
    struct request *request = find_or_refuse(core, event, event->request->status.id);
    if (request == NULL)
        return;
    struct answer_context context = context_of(core, request);
    core_add_answer(core, event->handle, event->request->named, CLIENT_ANSWER_STATUS)->status =
        answer_status(request, &context);
}

static void on_stats(struct core *core, const struct client_event *event)
{
    core_add_answer(core, event->handle, event->request->named, CLIENT_ANSWER_STATS)->stats =
        core_stats(core);
}

static void on_health(struct core *core, const struct client_event *event)
{
    core_add_answer(core, event->handle, event->request->named, CLIENT_ANSWER_HEALTH)->health =
        core_health(core);
}

static void on_models(struct core *core, const struct client_event *event)
{
    core->model = core_model(core);
    struct client_models_answer answer = core_models(core);
    answer.models = (struct wire_list){.items = &core->model, .count = 1};
    core_add_answer(core, event->handle, event->request->named, CLIENT_ANSWER_MODELS)->models =
        answer;
}

static void on_detokenize(struct core *core, const struct client_event *event)
{
    const struct wire_tokens *tokens = &event->request->detokenize.ids;
    struct refusal refusal;
    if (core->config.ids_only) {
        refusal_set(&refusal, ERROR_CODE_UNSUPPORTED, "ids",
                    "the model is served without a tokenizer, so its tokens have no text");
        core_refuse_event(core, event, &refusal);
        return;
    }
    uint32_t *ids = core_copy_ids(core, tokens, &refusal);
    if (ids == NULL) {
        core_refuse_event(core, event, &refusal);
        return;
    }
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < tokens->count; i++)
        bytes += vocabulary_token_bytes(core->config.vocabulary, ids[i]).length;
    if (bytes > LIMIT_CLIENT_ANSWER_BYTES - 65536) {
        refusal_set(&refusal, ERROR_CODE_TOO_LARGE, "ids",
                    "the text would have %" PRIu64 " bytes; send the ids in pieces", bytes);
        core_refuse_event(core, event, &refusal);
        return;
    }
    char *text = outbox_allocate(&core->outbox, bytes + 1);
    if (text == NULL) {
        core_refuse_without_memory(core, event);
        return;
    }
    size_t length = 0;
    for (uint32_t i = 0; i < tokens->count; i++) {
        struct byte_view piece = vocabulary_token_bytes(core->config.vocabulary, ids[i]);
        memcpy(text + length, piece.bytes, piece.length);
        length += piece.length;
    }
    core_add_answer(core, event->handle, event->request->named, CLIENT_ANSWER_TEXT)->text =
        (struct client_text){.text = {.bytes = text, .length = (uint32_t)length}};
}

/* ---- Events ---- */

typedef void (*client_handler)(struct core *core, const struct client_event *event);

static const client_handler handlers[] = {
    [CLIENT_SUBMIT] = core_on_submit,    [CLIENT_NEXT] = on_next,
    [CLIENT_CANCEL] = on_cancel,         [CLIENT_STATUS] = on_status,
    [CLIENT_STATS] = on_stats,           [CLIENT_HEALTH] = on_health,
    [CLIENT_MODELS] = on_models,         [CLIENT_TOKENIZE] = core_on_tokenize,
    [CLIENT_DETOKENIZE] = on_detokenize,
};

void core_client_request(struct core *core, uint64_t handle, const struct client_request *request,
                         uint64_t chance, uint64_t now_ns)
{
    CHECK(request->type > CLIENT_REQUEST_NONE &&
          request->type < sizeof handlers / sizeof *handlers);
    core_begin(core, now_ns);
    const struct client_event event = {.handle = handle, .request = request, .chance = chance};
    handlers[request->type](core, &event);
    core_end(core);
}

void core_client_bad_frame(struct core *core)
{
    core->stats.messages_bad++;
}

void core_client_gone(struct core *core, uint64_t handle, uint64_t now_ns)
{
    core_begin(core, now_ns);
    uint32_t index = calls_find(&core->calls, handle);
    if (index != CALL_NONE) {
        struct call call;
        core_close_call(core, index, &call);
        if (call.kind != CALL_TOKENIZE)
            note_answered(core,
                          core->requests.rows[call.request]); /* as if: it waits for nothing */
    }
    core_end(core);
}

void core_answer_oldest_poll(struct core *core, uint64_t now_ns)
{
    core_begin(core, now_ns);
    if (core->calls.polls > 0)
        core_answer_poll(core, core->calls.oldest);
    core_end(core);
}
