#include "sim/simulation.h"

#include "common/check.h"
#include "common/duration.h"
#include "coordinator/core_state.h"
#include "sim/transitions.h"

#include <stdio.h>
#include <string.h>

/* ---- Calls ---- */

static struct sim_call *open_call(struct simulation *sim, enum client_request_type type,
                                  uint32_t subject)
{
    for (uint32_t i = 0; i < SIM_CALLS; i++) {
        struct sim_call *call = &sim->calls[i];
        if (call->handle != 0)
            continue;
        *call = (struct sim_call){.handle = ++sim->handle, .type = type, .subject = subject};
        sim->call_count++;
        return call;
    }
    CHECK(sim->call_count < SIM_CALLS);
    return NULL;
}

static struct sim_call *find_call(struct simulation *sim, uint64_t handle)
{
    for (uint32_t i = 0; i < SIM_CALLS; i++) {
        if (sim->calls[i].handle == handle)
            return &sim->calls[i];
    }
    return NULL;
}

static void close_call(struct simulation *sim, struct sim_call *call)
{
    if (call->is_reading)
        sim->subjects[call->subject].is_reading = false;
    call->handle = 0;
    sim->call_count--;
}

static void send(struct simulation *sim, uint64_t handle, const struct client_request *request)
{
    sim->may_shed = sim->core->calls.count == sim->core->calls.capacity;
    core_client_request(sim->core, handle, request, handle, sim->now_ns);
    simulation_collect(sim);
}

/* ---- Subjects ---- */

/* A client was heard, or answered; had it been silent for long before? */
static void touch(struct simulation *sim, struct sim_subject *subject)
{
    bool was_silent = sim->now_ns - subject->touched_ns >= sim->config.orphan_ns;
    subject->was_orphan = subject->was_orphan || (was_silent && !subject->submit.detach);
    subject->touched_ns = sim->now_ns;
}

/* What admission must say, from the rules of the protocol. */
static bool can_be_served(const struct simulation *sim, uint32_t prompt_tokens, uint32_t max_tokens,
                          uint32_t *out_max_tokens)
{
    const struct segment_extents *extents = &sim->config.extents;
    uint64_t pool = extents->pool_blocks / extents->geometry.layers;
    uint64_t positions = kv_positions(&extents->geometry, pool);
    uint64_t most = positions + 1 < extents->context ? positions + 1 : extents->context;
    if (prompt_tokens >= extents->context || prompt_tokens > positions)
        return false;
    *out_max_tokens = max_tokens != 0 ? max_tokens : (uint32_t)(most - prompt_tokens);
    return (uint64_t)prompt_tokens + max_tokens <= most;
}

static void choose_ends(struct simulation *sim, struct sim_subject *subject)
{
    struct reference_spec *spec = &subject->spec;
    spec->ignore_eos = simulation_chance(sim, 3);
    spec->has_stop_token = simulation_chance(sim, 6);
    spec->stop_token = 'a' + simulation_below(sim, 26);
    for (int i = 0; i < REFERENCE_STOPS; i++) {
        uint32_t length = simulation_chance(sim, 4) ? 1 + simulation_below(sim, 2) : 0;
        for (uint32_t j = 0; j < length; j++)
            spec->stops[i][j] = (char)('a' + simulation_below(sim, 26));
    }
    spec->numeric_error_token = sim->faults.numeric_error_token;
}

static void write_submit(struct simulation *sim, struct sim_subject *subject, uint32_t max_tokens)
{
    struct client_submit *submit = &subject->submit;
    struct reference_spec *spec = &subject->spec;
    submit->id = wire_text_of(subject->id);
    submit->has_ids = simulation_chance(sim, 2);
    submit->has_prompt = !submit->has_ids;
    if (submit->has_ids)
        submit->ids = wire_tokens_of(spec->prompt, spec->prompt_tokens);
    else
        submit->prompt = wire_text_of(subject->prompt_text);
    submit->has_max_tokens = max_tokens != 0;
    submit->max_tokens = max_tokens;
    submit->has_seed = true;
    submit->seed = spec->seed;
    submit->ignore_eos = spec->ignore_eos;
    subject->stop_tokens[0] = spec->stop_token;
    submit->stop_token_ids = wire_tokens_of(subject->stop_tokens, spec->has_stop_token);
    for (int i = 0; i < REFERENCE_STOPS; i++) {
        if (spec->stops[i][0] != '\0')
            submit->stop.items[submit->stop.count++] = wire_text_of(spec->stops[i]);
    }
    submit->has_deadline_ms = simulation_chance(sim, 8);
    submit->deadline_ms = 1 + simulation_below(sim, 5000);
    submit->detach = simulation_chance(sim, 8);
}

/* Ids that no model has; a text longer than texts may be. True: it can only be refused. */
static bool spoil_submit(struct simulation *sim, struct sim_subject *subject)
{
    struct client_submit *submit = &subject->submit;
    struct reference_spec *spec = &subject->spec;
    if (submit->has_prompt && submit->prompt.length > sim->config.prompt_bytes)
        return true;
    if (!simulation_chance(sim, 40))
        return false;
    if (submit->has_ids)
        spec->prompt[simulation_below(sim, spec->prompt_tokens)] = LETTERS_TOKENS;
    else
        subject->stop_tokens[0] = UINT32_MAX;
    submit->stop_token_ids = wire_tokens_of(subject->stop_tokens, submit->has_prompt);
    return true;
}

static uint32_t make_subject(struct simulation *sim)
{
    uint32_t index = sim->subject_count++;
    struct sim_subject *subject = &sim->subjects[index];
    *subject = (struct sim_subject){.submitted_ns = sim->now_ns, .touched_ns = sim->now_ns};
    snprintf(subject->id, sizeof subject->id, "r%u", index);
    const struct segment_extents *extents = &sim->config.extents;
    uint64_t room = extents->pool_blocks / extents->geometry.layers;
    room = kv_positions(&extents->geometry, room);
    uint32_t fitting = room < extents->context ? (uint32_t)room : extents->context;
    uint32_t longest = simulation_chance(sim, 12) ? REFERENCE_TOKENS : (fitting + 3) / 3;
    struct reference_spec *spec = &subject->spec;
    spec->prompt_tokens = 1 + simulation_below(sim, longest);
    spec->seed = simulation_below(sim, 1000);
    subject->is_poison = sim->faults.has_poison && simulation_chance(sim, 12);
    for (uint32_t i = 0; i < spec->prompt_tokens; i++)
        spec->prompt[i] = 'A' + simulation_below(sim, 26);
    if (subject->is_poison)
        spec->prompt[simulation_below(sim, spec->prompt_tokens)] = SIM_POISON;
    else if (sim->faults.has_disliked && simulation_chance(sim, 12))
        spec->prompt[simulation_below(sim, spec->prompt_tokens)] = SIM_DISLIKED;
    for (uint32_t i = 0; i < spec->prompt_tokens; i++)
        subject->prompt_text[i] = (char)spec->prompt[i];
    choose_ends(sim, subject);
    uint32_t max_tokens = simulation_chance(sim, 4) ? 0 : 1 + simulation_below(sim, fitting);
    if (max_tokens > 40)
        max_tokens = 40;
    write_submit(sim, subject, max_tokens);
    subject->is_impossible =
        !can_be_served(sim, spec->prompt_tokens, max_tokens, &spec->max_tokens) ||
        spoil_submit(sim, subject);
    if (!subject->is_impossible)
        reference_run(spec, &sim->script, &subject->expected);
    return index;
}

/* ---- What clients do ---- */

/* A finished request is forgotten when time or number says so. */
static bool may_be_forgotten(const struct simulation *sim)
{
    return sim->subject_count > sim->config.kept_requests ||
           sim->config.queue_bytes < SIM_QUEUE_BYTES || sim->now_ns > 60 * NS_PER_S;
}

static void submit(struct simulation *sim)
{
    bool is_new = sim->subject_count == 0 || simulation_chance(sim, 2);
    if (is_new && sim->subject_count == SIM_SUBJECTS)
        return;
    uint32_t index = is_new ? make_subject(sim) : simulation_below(sim, sim->subject_count);
    struct sim_subject *subject = &sim->subjects[index];
    if (subject->is_ended || (subject->is_known && may_be_forgotten(sim)))
        return; /* it would run again */
    struct sim_call *call = open_call(sim, CLIENT_SUBMIT, index);
    struct client_request request = {.type = CLIENT_SUBMIT, .submit = subject->submit};
    if (subject->is_known && simulation_chance(sim, 4)) {
        request.submit.temperature = 1;
        call->is_conflict = true;
    }
    send(sim, call->handle, &request);
}

static void poll(struct simulation *sim, uint32_t index, bool is_reading)
{
    struct sim_subject *subject = &sim->subjects[index];
    struct sim_call *call = open_call(sim, CLIENT_NEXT, index);
    struct client_request request = {
        .type = CLIENT_NEXT,
        .next = {.id = wire_text_of(subject->id),
                 .from_token = subject->tokens,
                 .from_byte = subject->bytes,
                 .hold_tokens = simulation_chance(sim, 3) ? simulation_below(sim, 10) : 0,
                 .max_wait_ms = simulation_chance(sim, 3) ? 0 : simulation_below(sim, 20000)},
    };
    if (!is_reading) { /* a second reader, somewhere further back */
        request.next.from_token = simulation_below(sim, (uint32_t)subject->tokens + 1);
        request.next.from_byte = simulation_below(sim, (uint32_t)subject->bytes + 1);
    }
    call->is_beyond = !is_reading && simulation_chance(sim, 8);
    if (call->is_beyond)
        request.next.from_token = subject->tokens + 1 + simulation_below(sim, REFERENCE_TOKENS);
    call->is_reading = is_reading;
    subject->is_reading = subject->is_reading || is_reading;
    call->from_token = request.next.from_token;
    call->from_byte = request.next.from_byte;
    call->hold_tokens = request.next.hold_tokens;
    call->due_ns = sim->now_ns + request.next.max_wait_ms * NS_PER_MS;
    uint64_t handle = call->handle;
    send(sim, handle, &request);
    call = find_call(sim, handle);
    if (call != NULL)
        call->is_parked = true;
}

void simulation_read_on(struct simulation *sim, uint32_t index)
{
    struct sim_subject *subject = &sim->subjects[index];
    bool is_patient = !sim->is_healing || sim->call_count < sim->config.calls;
    if (subject->is_known && !subject->is_ended && !subject->is_reading && is_patient)
        poll(sim, index, true);
}

static void cancel(struct simulation *sim, uint32_t index)
{
    struct sim_subject *subject = &sim->subjects[index];
    struct sim_call *call = open_call(sim, CLIENT_CANCEL, index);
    struct client_request request = {.type = CLIENT_CANCEL,
                                     .cancel = {.id = wire_text_of(subject->id)}};
    subject->was_cancelled = true;
    send(sim, call->handle, &request);
}

static void ask(struct simulation *sim, uint32_t index)
{
    static const enum client_request_type types[] = {CLIENT_STATUS, CLIENT_STATS, CLIENT_HEALTH,
                                                     CLIENT_MODELS};
    enum client_request_type type = types[simulation_below(sim, 4)];
    struct sim_call *call = open_call(sim, type, index);
    struct client_request request = {.type = type};
    if (type == CLIENT_STATUS)
        request.status.id = wire_text_of(sim->subjects[index].id);
    send(sim, call->handle, &request);
}

/* Text of a subject to ids and back. */
static void convert(struct simulation *sim, uint32_t index)
{
    struct sim_subject *subject = &sim->subjects[index];
    bool is_text = simulation_chance(sim, 2);
    struct client_request request = {.type = is_text ? CLIENT_TOKENIZE : CLIENT_DETOKENIZE};
    struct sim_call *call = open_call(sim, request.type, index);
    if (is_text) {
        request.tokenize.has_prompt = true;
        request.tokenize.prompt = wire_text_of(subject->prompt_text);
    } else {
        request.detokenize.ids = wire_tokens_of(subject->spec.prompt, subject->spec.prompt_tokens);
    }
    send(sim, call->handle, &request);
}

static void go_away(struct simulation *sim)
{
    struct sim_call *call = &sim->calls[simulation_below(sim, SIM_CALLS)];
    for (uint32_t i = 0; i < SIM_CALLS && call->handle == 0; i++)
        call = &sim->calls[i];
    if (call->handle == 0)
        return;
    uint64_t handle = call->handle;
    if (call->type != CLIENT_TOKENIZE)
        touch(sim, &sim->subjects[call->subject]);
    close_call(sim, call);
    transition_taken(TRANSITION_CALL_GONE);
    core_client_gone(sim->core, handle, sim->now_ns);
    simulation_collect(sim);
}

void simulation_client_event(struct simulation *sim)
{
    uint32_t draw = simulation_below(sim, 100);
    if (draw < 25 || sim->subject_count == 0) {
        submit(sim);
        return;
    }
    uint32_t index = simulation_below(sim, sim->subject_count);
    if (draw < 70) {
        simulation_read_on(sim, index);
    } else if (draw < 80) {
        if (sim->subjects[index].is_known && !sim->subjects[index].is_ended)
            poll(sim, index, false);
    } else if (draw < 84) {
        cancel(sim, index);
    } else if (draw < 89) {
        ask(sim, index);
    } else if (draw < 92) {
        convert(sim, index);
    } else if (draw < 97) {
        go_away(sim);
    } else {
        sim->may_shed = true;
        core_answer_oldest_poll(sim->core, sim->now_ns);
        simulation_collect(sim);
    }
}

/* Whether somebody still waits for the ids of an order. */
static bool is_wanted(const struct simulation *sim, uint64_t ticket)
{
    const struct core *core = sim->core;
    const struct order *order = &core->orders.rows[(uint32_t)ticket - 1];
    CHECK(order->ticket == ticket);
    if (order->request.index == REQUEST_NONE)
        return calls_find(&core->calls, order->call_handle) != CALL_NONE;
    const struct request *request = requests_named(&core->requests, order->request);
    return request != NULL && request->state == REQUEST_STATE_TOKENIZING;
}

void simulation_answer_order(struct simulation *sim, bool well)
{
    static const enum status failures[] = {STATUS_OUT_OF_MEMORY, STATUS_INVALID,
                                           STATUS_UNSUPPORTED};
    if (sim->order_count == 0)
        return;
    uint32_t chosen = simulation_below(sim, sim->order_count);
    const struct core_tokenize order = sim->orders[chosen];
    sim->orders[chosen] = sim->orders[--sim->order_count];
    uint32_t ids[REFERENCE_TOKENS];
    CHECK(order.text.length <= REFERENCE_TOKENS);
    for (uint32_t i = 0; i < order.text.length; i++)
        ids[i] = (uint8_t)order.text.bytes[i];
    struct core_tokenized answer = {.ticket = order.ticket};
    if (order.text.length > order.ids_max) {
        answer.status = STATUS_TOO_LARGE;
    } else if (!well && simulation_chance(sim, sim->faults.tokenizer)) {
        answer.status = failures[simulation_below(sim, 3)];
    } else {
        answer.ids = ids;
        answer.id_count = order.text.length;
    }
    transition_taken(!is_wanted(sim, order.ticket) ? TRANSITION_TOKENIZED_LATE
                     : answer.status == STATUS_OK  ? TRANSITION_TOKENIZED
                                                   : TRANSITION_TOKENIZED_FAILED);
    core_tokenized(sim->core, &answer, sim->now_ns);
    simulation_collect(sim);
}

/* ---- What they are told ---- */

static void check_submit_error(const struct simulation *sim, const struct sim_call *call,
                               enum error_code code)
{
    const struct sim_subject *subject = &sim->subjects[call->subject];
    bool is_refusal = code == ERROR_CODE_INVALID_REQUEST || code == ERROR_CODE_TOO_LARGE ||
                      code == ERROR_CODE_PROMPT_TOO_LONG;
    bool is_late = sim->now_ns >= subject->submitted_ns + subject->submit.deadline_ms * NS_PER_MS;
    bool may_fail = sim->faults.tokenizer > 0 && subject->submit.has_prompt &&
                    (code == ERROR_CODE_INVALID_REQUEST || code == ERROR_CODE_UNSUPPORTED);
    CHECK(code == ERROR_CODE_OVERLOADED || (is_refusal && subject->is_impossible) || may_fail ||
          (code == ERROR_CODE_IDEMPOTENCY_CONFLICT && call->is_conflict) ||
          (code == ERROR_CODE_DRAINING && sim->is_draining) ||
          (code == ERROR_CODE_CANCELLED && subject->was_cancelled) ||
          (code == ERROR_CODE_DEADLINE_EXCEEDED && subject->submit.has_deadline_ms && is_late));
}

static void take_submit_answer(struct simulation *sim, const struct sim_call *call,
                               const struct client_answer *answer)
{
    struct sim_subject *subject = &sim->subjects[call->subject];
    if (answer->type == CLIENT_ANSWER_ERROR) {
        check_submit_error(sim, call, answer->error.code);
        transition_taken(transition_of_submit_error(answer->error.code));
        return;
    }
    CHECK(answer->type == CLIENT_ANSWER_ACCEPTED && !call->is_conflict);
    const struct client_accepted *accepted = &answer->accepted;
    bool ended_early = accepted->state == REQUEST_STATE_FINISHED && accepted->prompt_tokens == 0;
    CHECK(accepted->seed == subject->spec.seed);
    CHECK(ended_early || (accepted->prompt_tokens == subject->spec.prompt_tokens &&
                          !subject->is_impossible)); /* known, ended before it had ids */
    if (subject->is_known)
        transition_taken(TRANSITION_SUBMIT_REPEATED);
    subject->is_known = true;
    touch(sim, subject);
}

/* Whether an outcome that an undisturbed run would not have is one that this world may give. */
static bool may_end_so(const struct simulation *sim, const struct sim_subject *subject,
                       const struct client_finish *finish)
{
    if (finish->reason == FINISH_REASON_CANCELLED)
        return subject->was_cancelled || subject->was_orphan;
    CHECK(finish->reason == FINISH_REASON_ERROR && finish->has_error);
    uint64_t deadline_ns = subject->submitted_ns + subject->submit.deadline_ms * NS_PER_MS;
    switch (finish->error.code) {
    case ERROR_CODE_DEADLINE_EXCEEDED:
        return subject->submit.has_deadline_ms && sim->now_ns >= deadline_ns;
    case ERROR_CODE_DRAINING:
        return sim->is_draining;
    case ERROR_CODE_OVERLOADED:
        return sim->faults.memory > 0;
    case ERROR_CODE_INTERNAL:
        return subject->refusals >= 3;
    case ERROR_CODE_POISONED: /* five in a row; an innocent one may meet them by chance */
        return subject->crashes_alone >= 5 && (subject->is_poison || sim->faults.kill > 0);
    default:
        return false;
    }
}

static void check_finish(struct simulation *sim, struct sim_subject *subject,
                         const struct client_output *output)
{
    const struct reference *expected = &subject->expected;
    const struct client_finish *finish = &output->finish;
    uint64_t tokens = output->from_token + output->tokens.count;
    uint64_t bytes = output->from_byte + output->text.length;
    bool is_undisturbed =
        finish->reason == expected->reason &&
        (finish->reason != FINISH_REASON_ERROR || finish->error.code == expected->code);
    CHECK(finish->usage.completion_tokens == tokens);
    if (is_undisturbed) {
        CHECK(!subject->is_poison);
        CHECK(tokens == expected->token_count && bytes == expected->text_bytes);
        CHECK(tokens == 0 || finish->logits_hash == expected->logits_hash);
    } else {
        CHECK(may_end_so(sim, subject, finish));
    }
    CHECK(!subject->is_ended || subject->reason == finish->reason); /* one outcome, for good */
    if (!subject->is_ended)
        sim->finished++;
    subject->is_ended = true;
    subject->reason = finish->reason;
}

/* Why a poll was answered now. */
static void judge_poll(const struct simulation *sim, const struct sim_call *call,
                       const struct client_output *output)
{
    uint64_t wanted = call->hold_tokens > 0 ? call->hold_tokens : 1;
    bool has_news = output->has_finish || output->tokens.count >= wanted;
    bool is_due = sim->now_ns >= call->due_ns;
    CHECK(has_news || is_due || sim->may_shed);
    transition_taken(!call->is_parked ? TRANSITION_POLL_AT_ONCE
                     : has_news       ? TRANSITION_POLL_NEWS
                     : is_due         ? TRANSITION_POLL_EXPIRED
                                      : TRANSITION_POLL_SHED);
}

static void take_output(struct simulation *sim, const struct sim_call *call,
                        const struct client_output *output)
{
    struct sim_subject *subject = &sim->subjects[call->subject];
    const struct reference *expected = &subject->expected;
    uint32_t tokens[REFERENCE_TOKENS];
    if (call->type == CLIENT_NEXT) {
        judge_poll(sim, call, output);
        touch(sim, subject);
    }
    if (call->is_beyond && output->tokens.count == 0)
        return;
    CHECK(call->type == CLIENT_CANCEL ||
          (output->from_token == call->from_token && output->from_byte == call->from_byte));
    CHECK(output->from_token + output->tokens.count <= expected->token_count);
    uint32_t text_end = output->has_finish && output->finish.reason != expected->reason
                            ? expected->uncut_bytes
                            : expected->text_bytes;
    CHECK(output->from_byte + output->text.length <= text_end);
    wire_tokens_copy(&output->tokens, tokens, REFERENCE_TOKENS);
    CHECK(output->tokens.count == 0 || memcmp(tokens, expected->tokens + output->from_token,
                                              output->tokens.count * sizeof *tokens) == 0);
    CHECK(output->text.length == 0 ||
          memcmp(output->text.bytes, expected->text + output->from_byte, output->text.length) == 0);
    if (output->has_finish)
        check_finish(sim, subject, output);
    if (call->is_reading) {
        subject->tokens = output->from_token + output->tokens.count;
        subject->bytes = output->from_byte + output->text.length;
    }
}

static void take_not_found(struct simulation *sim, struct sim_subject *subject)
{
    CHECK(!subject->is_known || may_be_forgotten(sim));
    subject->is_ended = subject->is_ended || subject->is_known;
    transition_taken(TRANSITION_NOT_FOUND);
}

static void take_conversion(const struct simulation *sim, const struct sim_call *call,
                            const struct client_answer *answer)
{
    const struct sim_subject *subject = &sim->subjects[call->subject];
    const struct reference_spec *spec = &subject->spec;
    uint32_t ids[REFERENCE_TOKENS];
    if (answer->type == CLIENT_ANSWER_TOKENS) {
        CHECK(answer->tokens.ids.count == strlen(subject->prompt_text));
        wire_tokens_copy(&answer->tokens.ids, ids, REFERENCE_TOKENS);
        for (uint32_t i = 0; i < answer->tokens.ids.count; i++)
            CHECK(ids[i] == (uint8_t)subject->prompt_text[i]);
    } else if (answer->type == CLIENT_ANSWER_TEXT) {
        CHECK(answer->text.text.length == spec->prompt_tokens);
        for (uint32_t i = 0; i < spec->prompt_tokens; i++)
            CHECK((uint8_t)answer->text.text.bytes[i] == spec->prompt[i]);
    } else {
        CHECK(answer->type == CLIENT_ANSWER_ERROR);
        bool may_fail = sim->faults.tokenizer > 0 || subject->is_impossible ||
                        spec->prompt_tokens > sim->config.prompt_bytes;
        CHECK(answer->error.code == ERROR_CODE_OVERLOADED || may_fail);
    }
}

static void take_error(struct simulation *sim, const struct sim_call *call, enum error_code code)
{
    if (code == ERROR_CODE_NOT_FOUND) {
        take_not_found(sim, &sim->subjects[call->subject]);
        return;
    }
    CHECK(code == ERROR_CODE_INVALID_REQUEST && call->is_beyond);
    transition_taken(TRANSITION_CURSOR_BEYOND);
}

void simulation_take_answer(struct simulation *sim, const struct core_answer *answer)
{
    struct sim_call *open = find_call(sim, answer->handle);
    CHECK(open != NULL); /* each call is answered once, and not after it was given up */
    const struct sim_call call = *open;
    close_call(sim, open);
    const struct client_answer *message = &answer->message;
    if (call.type == CLIENT_SUBMIT) {
        take_submit_answer(sim, &call, message);
    } else if (call.type == CLIENT_TOKENIZE || call.type == CLIENT_DETOKENIZE) {
        take_conversion(sim, &call, message);
    } else if (message->type == CLIENT_ANSWER_OUTPUT) {
        take_output(sim, &call, &message->output);
    } else if (message->type == CLIENT_ANSWER_ERROR) {
        take_error(sim, &call, message->error.code);
    } else {
        CHECK(call.type >= CLIENT_STATUS && call.type <= CLIENT_MODELS);
    }
}
