#include "common/check.h"
#include "coordinator/core_state.h"

#include <assert.h>
#include <inttypes.h>

static const char *const fence_reason_names[] = {
    [CORE_FENCE_LOST] = "lost",       [CORE_FENCE_SILENT] = "silent",
    [CORE_FENCE_HUNG] = "hung",       [CORE_FENCE_NEVER_READY] = "never_ready",
    [CORE_FENCE_REFUSED] = "refused", [CORE_FENCE_MISMATCH] = "mismatch",
    [CORE_FENCE_FATAL] = "fatal",
};
static_assert(sizeof fence_reason_names / sizeof *fence_reason_names == CORE_FENCE_REASON_COUNT,
              "every reason has a name");

enum { REFUSALS_MAX = 3 };

const char *core_fence_reason_name(enum core_fence_reason reason)
{
    CHECK(reason > 0 && reason < CORE_FENCE_REASON_COUNT);
    return fence_reason_names[reason];
}

/* ---- The end of an epoch ---- */

static void poison(struct core *core, struct request *request)
{
    outbox_log(&core->outbox, LOG_LEVEL_ERROR, "request_poisoned",
               "sequence=%" PRIu64 " first_position=%u end=%u", request->sequence,
               request->suspicion.first, request->suspicion.end);
    core_finish(core, request,
                &(struct core_end_cause){FINISH_REASON_ERROR, ERROR_CODE_POISONED,
                                         "the request ended several workers when it ran alone"});
}

static const struct flight_row *find_row(const struct flight *flight, struct request_name name)
{
    for (uint32_t i = 0; i < flight->row_count; i++) {
        if (flight->rows[i].request.index == name.index &&
            flight->rows[i].request.sequence == name.sequence)
            return &flight->rows[i];
    }
    return NULL;
}

static struct request *live_request(const struct core *core, struct request_name name)
{
    struct request *request = requests_named(&core->requests, name);
    return request == NULL || request_is_finished(request) ? NULL : request;
}

static enum suspicion_worker judge_worker(const struct core *core)
{
    const uint32_t *counts = core->requests.state_counts;
    if (core->flights.answered > 0)
        return SUSPICION_WORKER_WORKED;
    return counts[REQUEST_STATE_RUNNING] + counts[REQUEST_STATE_QUEUED] +
                       counts[REQUEST_STATE_PREEMPTED] >
                   1
               ? SUSPICION_WORKER_DOUBTFUL
               : SUSPICION_WORKER_UNKNOWN;
}

/* A worker died with plans outstanding: it may have been at either of two. */
static void blame(struct core *core)
{
    const struct flight *oldest = flights_oldest(&core->flights);
    const struct flight *newest = flights_newest(&core->flights);
    if (oldest == NULL)
        return; /* it executed nothing: nobody is to blame */
    if (oldest->is_trial) {
        const struct flight_row *row = &oldest->rows[0];
        struct request *request = live_request(core, row->request);
        if (request != NULL && suspicion_crashed_alone(&request->suspicion, row->first,
                                                       row->first + row->count, judge_worker(core)))
            poison(core, request);
        return;
    }
    for (uint32_t i = 0; i < oldest->row_count; i++) {
        const struct flight_row *row = &oldest->rows[i];
        const struct flight_row *later = newest == oldest ? NULL : find_row(newest, row->request);
        uint32_t end = row->first + row->count;
        if (later != NULL && later->generation == row->generation)
            end = later->first + later->count;
        struct request *request = live_request(core, row->request);
        if (request != NULL)
            suspicion_crashed(&request->suspicion, row->first, end);
    }
    for (uint32_t i = 0; newest != oldest && i < newest->row_count; i++) {
        const struct flight_row *row = &newest->rows[i];
        struct request *request = live_request(core, row->request);
        if (request != NULL && find_row(oldest, row->request) == NULL)
            suspicion_crashed(&request->suspicion, row->first, row->first + row->count);
    }
}

static void attach_active(struct core *core)
{
    struct core_output *output = outbox_add(&core->outbox, CORE_OUTPUT_ATTACH);
    output->attach = (struct core_attach){
        .connection = core->workers.active.connection,
        .epoch = core->workers.epoch,
        .version = core->workers.active.version,
        .extents = worker_state_extents(&core->workers),
    };
    core->stats.workers_attached++;
}

static void promote(struct core *core)
{
    if (!worker_state_promote(&core->workers))
        return;
    outbox_log(&core->outbox, LOG_LEVEL_INFO, "worker_promoted", "epoch=%" PRIu64,
               core->workers.epoch);
    attach_active(core);
}

void core_end_epoch(struct core *core, enum core_fence_reason reason, bool is_crash,
                    const char *detail)
{
    outbox_log(&core->outbox, LOG_LEVEL_WARN, "worker_lost",
               "epoch=%" PRIu64 " reason=%s in_flight=%u running=%u%s%s", core->workers.epoch,
               core_fence_reason_name(reason), flights_count(&core->flights),
               core->scheduler.running_count, detail[0] == '\0' ? "" : " ", detail);
    if (is_crash)
        blame(core);
    scheduler_end_epoch(&core->scheduler);
    flights_clear(&core->flights);
    plan_writer_attach(&core->plan_writer, NULL);
    struct core_output *output = outbox_add(&core->outbox, CORE_OUTPUT_FENCE);
    output->fence = (struct core_fence){
        .connection = core->workers.active.connection,
        .epoch = core->workers.epoch,
        .reason = reason,
    };
    worker_state_fenced(&core->workers);
    core->stats.workers_lost++;
    promote(core);
}

/* ---- Attach ---- */

static void refuse(struct core *core, uint64_t connection, enum attach_refusal reason,
                   const char *message)
{
    const char *name = wire_enum_name(&attach_refusal_enum, reason);
    outbox_log(&core->outbox, LOG_LEVEL_WARN, "worker_refused", "reason=%s", name);
    struct core_output *output = outbox_add(&core->outbox, CORE_OUTPUT_REFUSE);
    output->refuse = (struct core_refuse){.connection = connection,
                                          .reason = reason,
                                          .message = outbox_format(&core->outbox, "%s", message)};
    core->stats.workers_refused++;
}

void core_worker_hello(struct core *core, uint64_t connection, bool uid_allowed,
                       const struct attach_hello *hello, uint64_t now_ns)
{
    core_begin(core, now_ns);
    struct worker_decision decision;
    if (!uid_allowed) {
        refuse(core, connection, ATTACH_REFUSAL_UID,
               "the worker's user may not attach; name it in --worker-user");
    } else if (core->drain >= DRAIN_LINGER) {
        refuse(core, connection, ATTACH_REFUSAL_DRAINING, "the coordinator is stopping");
    } else {
        worker_state_hello(&core->workers, connection, hello, &decision);
        if (decision.welcome == WORKER_REFUSE) {
            refuse(core, connection, decision.reason, decision.message.storage);
        } else if (decision.welcome == WORKER_STAND_BY) {
            struct core_output *output = outbox_add(&core->outbox, CORE_OUTPUT_STANDBY);
            output->standby =
                (struct core_standby){.connection = connection, .position = decision.position};
        } else {
            attach_active(core);
        }
    }
    core_end(core);
}

void core_worker_attached(struct core *core, uint64_t epoch, struct segment_writer *segment,
                          uint64_t now_ns)
{
    core_begin(core, now_ns);
    if (worker_state_attached(&core->workers, epoch, core->now_ns))
        plan_writer_attach(&core->plan_writer, segment);
    core_end(core);
}

static void end_if_active(struct core *core, uint64_t connection, bool is_crash, uint64_t now_ns)
{
    core_begin(core, now_ns);
    if (worker_state_lost(&core->workers, connection))
        core_end_epoch(core, CORE_FENCE_LOST, is_crash, "");
    core_end(core);
}

void core_worker_lost(struct core *core, uint64_t connection, uint64_t now_ns)
{
    end_if_active(core, connection, true, now_ns);
}

void core_worker_left(struct core *core, uint64_t connection, uint64_t now_ns)
{
    end_if_active(core, connection, false, now_ns);
}

void core_worker_observed(struct core *core, uint64_t epoch,
                          const struct core_observation *observation, uint64_t now_ns)
{
    core_begin(core, now_ns);
    bool is_active = core->workers.stage >= WORKER_ATTACHED && epoch == core->workers.epoch;
    if (is_active) {
        enum core_fence_reason reason = worker_state_observe(
            &core->workers, observation, flights_count(&core->flights), core->now_ns);
        if (reason != 0)
            core_end_epoch(core, reason, true, "");
    }
    core_end(core);
}

void core_epoch_gone(struct core *core, uint64_t epoch, uint64_t now_ns)
{
    core_begin(core, now_ns);
    worker_state_epoch_gone(&core->workers, epoch);
    promote(core);
    core_end(core);
}

/* ---- Messages of the link ---- */

/* Whether a message is of the current epoch of this instance; if not, it is counted and dropped. */
static bool is_current(struct core *core, const struct id128 *instance, uint64_t epoch)
{
    bool is_current = core->workers.stage >= WORKER_ATTACHED && epoch == core->workers.epoch &&
                      id128_equal(instance, &core->config.instance);
    if (!is_current)
        core->stats.messages_stale++;
    return is_current;
}

void core_worker_ready(struct core *core, const struct worker_ready *ready, uint64_t now_ns)
{
    core_begin(core, now_ns);
    if (is_current(core, &ready->instance, ready->epoch) &&
        worker_state_ready(&core->workers, ready->epoch))
        outbox_log(&core->outbox, LOG_LEVEL_INFO, "worker_ready", "epoch=%" PRIu64 " arithmetic=%s",
                   ready->epoch, core->workers.arithmetic);
    core_end(core);
}

/* One sampled token for whoever asked for it. False: it does not fit what was accepted. */
static bool take_row(struct core *core, const struct flight_row *asked, const struct result *result,
                     const struct result_row *row)
{
    struct request *request = live_request(core, asked->request);
    if (request == NULL || row->position < request_known(request)) {
        core->stats.rows_dropped++; /* ended one step ago, or sampled twice after a preemption */
        return true;
    }
    if (row->position > request_known(request))
        return false;
    if ((row->flags & RESULT_ROW_NUMERIC_ERROR) != 0)
        core_finish(core, request,
                    &(struct core_end_cause){FINISH_REASON_ERROR, ERROR_CODE_NUMERIC_ERROR,
                                             "the model gave a value that is not finite"});
    else
        core_accept_token(core, request, row->token,
                          result->has_logits_hash ? &row->logits_hash : NULL);
    return true;
}

/* The worker lived through these rows. */
static void note_computed(struct core *core, const struct flight *flight)
{
    for (uint32_t i = 0; i < flight->row_count; i++) {
        const struct flight_row *row = &flight->rows[i];
        struct request *request = live_request(core, row->request);
        if (request == NULL)
            continue;
        suspicion_passed(&request->suspicion, row->first + row->count);
        if (row->first + row->count > request->refused_at)
            request->refusals = 0; /* not on the way back to the place where it was refused */
        bool is_its_slot =
            request->slot == row->slot && core->slots.rows[row->slot].generation == row->generation;
        if (is_its_slot)
            request->computed = row->first + row->count;
    }
}

static bool take_result(struct core *core, const struct result *result, struct text *why)
{
    const struct flight *flight = flights_oldest(&core->flights);
    const struct result_bounds bounds = {
        .slots = core->config.extents.slots,
        .context = core->config.extents.context,
        .vocabulary = core->config.extents.vocabulary,
    };
    if (flight == NULL) {
        text_set(why, "a result although no plan is out");
        return false;
    }
    if (result_judge(result, &bounds, why) != STATUS_OK ||
        flight_compare(flight, result, why) != STATUS_OK)
        return false;
    uint32_t answered = 0;
    for (uint32_t i = 0; i < flight->row_count; i++) {
        if (!flight->rows[i].samples)
            continue;
        const struct result_row *row = &result->rows[answered++];
        if (!take_row(core, &flight->rows[i], result, row)) {
            text_set(why, "row %u is position %u beyond the accepted tokens", answered - 1,
                     row->position);
            return false;
        }
    }
    note_computed(core, flight);
    slots_answered(&core->slots, flight->step);
    flights_answered(&core->flights);
    scheduler_step_answered(&core->scheduler);
    worker_state_step_done(&core->workers, result->timings.compute_ns);
    core->stats.steps_done++;
    core->stats.step_ns_last =
        result->timings.check_ns + result->timings.compute_ns + result->timings.sample_ns;
    return true;
}

void core_worker_result(struct core *core, const struct result *result, uint64_t now_ns)
{
    core_begin(core, now_ns);
    if (is_current(core, &result->instance, result->epoch)) {
        struct reason why;
        if (!take_result(core, result, reason_init(&why)))
            core_end_epoch(core, CORE_FENCE_MISMATCH, false,
                           outbox_format(&core->outbox, "detail=\"%s\"", why.storage));
    }
    core_end(core);
}

/* A refusal that blames a row: three in a row for one request, and it fails. */
static void count_refusal(struct core *core, const struct worker_refused *refused)
{
    const struct flight *flight = flights_oldest(&core->flights);
    if (!refused->has_row || flight == NULL || refused->step != flight->step ||
        refused->row >= flight->row_count)
        return;
    const struct flight_row *row = &flight->rows[refused->row];
    struct request *request = live_request(core, row->request);
    if (request == NULL)
        return;
    if (row->first > request->refused_at)
        request->refused_at = row->first;
    if (++request->refusals < REFUSALS_MAX)
        return;
    core_finish(core, request,
                &(struct core_end_cause){FINISH_REASON_ERROR, ERROR_CODE_INTERNAL,
                                         "workers refused to compute it three times"});
}

void core_worker_refused(struct core *core, const struct worker_refused *refused, uint64_t now_ns)
{
    core_begin(core, now_ns);
    if (is_current(core, &refused->instance, refused->epoch)) {
        core->stats.plans_refused++;
        count_refusal(core, refused);
        const char *reason = wire_enum_name(&plan_refusal_enum, refused->reason);
        core_end_epoch(
            core, CORE_FENCE_REFUSED, false,
            outbox_format(&core->outbox, "step=%" PRIu64 " refusal=%s", refused->step, reason));
    }
    core_end(core);
}

void core_worker_fatal(struct core *core, const struct worker_fatal *fatal, uint64_t now_ns)
{
    core_begin(core, now_ns);
    if (is_current(core, &fatal->instance, fatal->epoch))
        core_end_epoch(core, CORE_FENCE_FATAL, true,
                       outbox_format(&core->outbox, "fatal=%s",
                                     wire_enum_name(&worker_fatal_reason_enum, fatal->reason)));
    core_end(core);
}

void core_worker_nonsense(struct core *core, uint64_t epoch, const char *why, uint64_t now_ns)
{
    core_begin(core, now_ns);
    if (core->workers.stage != WORKER_NONE && epoch == core->workers.epoch)
        core_end_epoch(core, CORE_FENCE_MISMATCH, false,
                       outbox_format(&core->outbox, "detail=\"%s\"", why));
    core_end(core);
}
