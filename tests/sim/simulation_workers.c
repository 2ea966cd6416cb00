#include "sim/simulation.h"

#include "common/check.h"
#include "coordinator/core_state.h"
#include "proto/fingerprint.h"
#include "sim/transitions.h"

#include <stddef.h>
#include <stdlib.h>
#include <string.h>

/* ---- Coming and going ---- */

struct sim_worker *simulation_find_worker(struct simulation *sim, uint64_t connection)
{
    for (uint32_t i = 0; i < SIM_WORKERS; i++) {
        if (sim->workers[i].connection == connection)
            return &sim->workers[i];
    }
    return NULL;
}

/* The one with the current epoch, or NULL. */
static struct sim_worker *active_worker(struct simulation *sim)
{
    for (uint32_t i = 0; i < SIM_WORKERS; i++) {
        struct sim_worker *worker = &sim->workers[i];
        if (worker->connection != 0 && worker->stage != SIM_WAITS && !worker->is_fenced)
            return worker;
    }
    return NULL;
}

static void copy_plan(struct plan *to, const struct plan *from)
{
    memmove(to, from, offsetof(struct plan, rows) + from->row_count * sizeof *from->rows);
}

static void copy_result(struct result *to, const struct result *from)
{
    memmove(to, from, offsetof(struct result, rows) + from->row_count * sizeof *from->rows);
}

static void copy_message(struct sim_message *to, const struct sim_message *from)
{
    to->kind = from->kind;
    to->refused = from->refused;
    copy_result(&to->result, &from->result);
}

static void drop(struct sim_worker *worker)
{
    if (worker->memory != NULL)
        scripted_worker_close(&worker->script);
    free(worker->memory);
    memset(worker, 0, offsetof(struct sim_worker, plans));
}

void simulation_drop_workers(struct simulation *sim)
{
    for (uint32_t i = 0; i < SIM_WORKERS; i++)
        drop(&sim->workers[i]);
}

void simulation_hello(struct simulation *sim)
{
    struct sim_worker *worker = simulation_find_worker(sim, 0);
    if (worker == NULL)
        return;
    const struct segment_extents *extents = &sim->config.extents;
    const struct kv_geometry *geometry = &extents->geometry;
    struct attach_hello packet = {
        .version_min = PROTOCOL_VERSION_MIN,
        .version_max = PROTOCOL_VERSION_MAX,
        .layout = layout_fingerprint(),
        .build = wire_text_of("sim"),
        .backend = wire_text_of("script"),
        .arithmetic = wire_text_of("script-1"),
        .geometry = {geometry->layers, geometry->kv_heads, geometry->head_dim,
                     geometry->block_tokens, geometry->type, geometry->order},
        .blocks = extents->pool_blocks,
        .slots = extents->slots,
        .context = extents->context,
        .vocabulary = extents->vocabulary,
        .step_tokens = extents->step_tokens,
    };
    bool uid_allowed = true;
    bool is_wrong = !sim->is_healing && simulation_chance(sim, sim->faults.wrong_hello);
    if (is_wrong)
        sim->expected_refusal = simulation_spoil_hello(sim, &packet, &uid_allowed);
    worker->connection = ++sim->connection;
    core_worker_hello(sim->core, worker->connection, uid_allowed, &packet, sim->now_ns);
    simulation_collect(sim);
    CHECK(!is_wrong || worker->connection == 0); /* a wrong one does not stay */
    sim->expected_refusal = ATTACH_REFUSAL_UNKNOWN;
}

/* A refusal names what was wrong, or says that there is no room. */
static void take_refusal(struct simulation *sim, const struct core_refuse *refuse)
{
    struct sim_worker *worker = simulation_find_worker(sim, refuse->connection);
    transition_taken(transition_of_refusal(refuse->reason));
    bool is_named = sim->expected_refusal != ATTACH_REFUSAL_UNKNOWN;
    bool is_full =
        refuse->reason == ATTACH_REFUSAL_STANDBYS || refuse->reason == ATTACH_REFUSAL_ABANDONED;
    CHECK(worker != NULL && refuse->message[0] != '\0');
    CHECK(refuse->reason == ATTACH_REFUSAL_DRAINING ? sim->is_draining
          : is_named                                ? refuse->reason == sim->expected_refusal
                                                    : is_full);
    if (refuse->reason == ATTACH_REFUSAL_MALFORMED)
        return; /* a known one: its connection is about to be closed */
    CHECK(worker->stage == SIM_WAITS);
    drop(worker);
}

static void attach(struct simulation *sim, const struct core_attach *order)
{
    struct sim_worker *worker = simulation_find_worker(sim, order->connection);
    CHECK(worker != NULL && worker->stage == SIM_WAITS && active_worker(sim) == NULL);
    worker->stage = SIM_CHOSEN;
    worker->epoch = order->epoch;
    worker->extents = order->extents;
    sim->is_pinned = true;
}

static void finish_attach(struct simulation *sim, struct sim_worker *worker)
{
    const struct segment_identity identity = {.instance = sim->config.instance,
                                              .epoch = worker->epoch};
    uint64_t bytes = coordinator_segment_bytes(&worker->extents);
    worker->memory = aligned_alloc(4096, bytes);
    CHECK(worker->memory != NULL);
    memset(worker->memory, 0, bytes);
    segment_writer_format(&worker->segment, worker->memory, &worker->extents, &identity);
    scripted_worker_open(&worker->script, worker->memory, bytes, &sim->script);
    worker->script.has_logits_hash = true;
    worker->script.numeric_error_token = sim->faults.numeric_error_token;
    worker->stage = SIM_ATTACHED;
    worker->alive_ns = worker->moved_ns = sim->now_ns;
    core_worker_attached(sim->core, worker->epoch, &worker->segment, sim->now_ns);
    simulation_collect(sim);
}

static void say_ready(struct simulation *sim, struct sim_worker *worker)
{
    const struct worker_ready ready = {.instance = sim->config.instance, .epoch = worker->epoch};
    worker->stage = SIM_READY;
    core_worker_ready(sim->core, &ready, sim->now_ns);
    simulation_collect(sim);
}

void simulation_end_worker(struct simulation *sim, struct sim_worker *worker, enum worker_end how)
{
    static const struct worker_fatal words = {.reason = WORKER_FATAL_DEVICE, .message = {"", 0}};
    bool was_active = worker == active_worker(sim);
    bool can_speak = was_active && worker->stage >= SIM_ATTACHED;
    if (how == WORKER_SENDS_NONSENSE && can_speak) {
        transition_taken(TRANSITION_NONSENSE);
        core_worker_nonsense(sim->core, worker->epoch, "no map", sim->now_ns);
    } else if (how == WORKER_SAYS_FATAL && can_speak) {
        struct worker_fatal fatal = words;
        fatal.instance = sim->config.instance;
        fatal.epoch = worker->epoch;
        core_worker_fatal(sim->core, &fatal, sim->now_ns);
    } else if (how == WORKER_LEAVES) {
        core_worker_left(sim->core, worker->connection, sim->now_ns);
    } else {
        core_worker_lost(sim->core, worker->connection, sim->now_ns);
    }
    worker->plan_count = 0; /* what it had sent may still arrive */
    simulation_collect(sim);
    CHECK(!was_active || worker->is_fenced);
    if (!was_active)
        drop(worker);
}

void simulation_take_worker_output(struct simulation *sim, const struct core_output *output)
{
    struct sim_worker *worker = NULL;
    switch (output->kind) {
    case CORE_OUTPUT_ATTACH:
        attach(sim, &output->attach);
        break;
    case CORE_OUTPUT_STANDBY:
        worker = simulation_find_worker(sim, output->standby.connection);
        CHECK(worker != NULL && output->standby.position <= LIMIT_STANDBY_WORKERS);
        CHECK(sim->expected_refusal == ATTACH_REFUSAL_UNKNOWN);
        break;
    case CORE_OUTPUT_REFUSE:
        take_refusal(sim, &output->refuse);
        break;
    case CORE_OUTPUT_FENCE:
        worker = simulation_find_worker(sim, output->fence.connection);
        CHECK(worker != NULL && worker->epoch == output->fence.epoch && !worker->is_fenced);
        worker->is_fenced = true;
        transition_taken(transition_of_fence(output->fence.reason));
        laws_epoch_ended(sim, output->fence.reason);
        CHECK(sim->abandoned_count < SIM_ABANDONED);
        sim->abandoned[sim->abandoned_count++] = worker->epoch;
        break;
    case CORE_OUTPUT_PLAN:
        worker = active_worker(sim);
        CHECK(worker != NULL && worker->stage == SIM_READY);
        CHECK(output->plan->epoch == worker->epoch);
        CHECK(worker->plan_count + worker->message_count < LIMIT_PLANS_IN_FLIGHT);
        laws_plan_sent(sim, output->plan, &worker->script.segment);
        copy_plan(&worker->plans[worker->plan_count++], output->plan);
        break;
    default:
        CHECK(output->kind != output->kind); /* no other output is a worker's */
    }
}

/* ---- Working ---- */

/* Whether a row of the plan computes this token, and which. */
static bool holds_token(const struct sim_worker *worker, const struct plan *plan, uint32_t wanted,
                        uint32_t *out_row)
{
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const struct plan_row *row = &plan->rows[i];
        for (uint32_t j = 0; j < row->count; j++) {
            uint32_t token;
            segment_read_tokens(&worker->script.segment, row->slot, row->first_position + j, 1,
                                &token);
            *out_row = i;
            if ((row->flags & PLAN_ROW_FROM_LAST_SAMPLE) == 0 && token == wanted)
                return true;
        }
    }
    return false;
}

/* Computes the oldest plan; the answer is on its way. */
static void execute(struct simulation *sim, struct sim_worker *worker)
{
    static struct plan plan;
    copy_plan(&plan, &worker->plans[0]);
    uint32_t row;
    if (holds_token(worker, &plan, SIM_POISON, &row)) {
        simulation_end_worker(sim, worker, WORKER_DIES);
        return;
    }
    CHECK(worker->message_count < SIM_MESSAGES);
    struct sim_message *message = &worker->messages[worker->message_count++];
    worker->plan_count--;
    for (uint32_t i = 0; i < worker->plan_count; i++)
        copy_plan(&worker->plans[i], &worker->plans[i + 1]);
    bool is_disliked = holds_token(worker, &plan, SIM_DISLIKED, &row);
    bool refuses = is_disliked || (!sim->is_healing && simulation_chance(sim, sim->faults.refuse));
    bool done = scripted_worker_step(&worker->script, &plan, &message->result, &message->refused);
    CHECK(done); /* the core's plans are right, for zombies too */
    message->kind = refuses ? SIM_REFUSED : SIM_RESULT;
    if (refuses) {
        message->refused.reason = PLAN_REFUSAL_BLOCK;
        message->refused.has_row = is_disliked || simulation_chance(sim, 2);
        message->refused.row = is_disliked ? row : simulation_below(sim, plan.row_count);
    }
}

/* What becomes of the rows of a result that the core is about to take. */
static void count_rows(const struct simulation *sim, const struct result *result)
{
    const struct core *core = sim->core;
    const struct flight *flight = flights_oldest(&core->flights);
    const struct result_row *row = result->rows;
    for (uint32_t i = 0; flight != NULL && i < flight->row_count; i++) {
        const struct flight_row *asked = &flight->rows[i];
        if (!asked->samples)
            continue;
        const struct request *request = requests_named(&core->requests, asked->request);
        uint32_t position = (row++)->position;
        if (request == NULL || request_is_finished(request)) {
            transition_taken(TRANSITION_ROW_OF_FINISHED);
            continue;
        }
        /* Sampled twice: preempted, in again on blocks of somebody who left, its first row still
         * out. Too rare for the table of transitions. */
        CHECK(position == request_known(request) ||
              (position < request_known(request) && request->preemptions > 0));
        if (position < request_known(request))
            continue;
        if (request->slot != asked->slot ||
            core->slots.rows[asked->slot].generation != asked->generation)
            transition_taken(TRANSITION_ROW_AFTER_PREEMPTION);
    }
}

static void send_result(struct simulation *sim, const struct sim_worker *worker,
                        const struct result *result)
{
    uint64_t stale = sim->core->stats.messages_stale;
    bool is_current = !worker->is_fenced;
    core_worker_result(sim->core, result, sim->now_ns);
    simulation_collect(sim);
    sim->results++;
    CHECK(sim->core->stats.messages_stale == stale + !is_current);
    if (!is_current)
        transition_taken(TRANSITION_RESULT_STALE);
}

static void deliver_result(struct simulation *sim, struct sim_worker *worker,
                           const struct result *honest)
{
    static struct result result;
    copy_result(&result, honest);
    if (worker->is_fenced) {
        send_result(sim, worker, &result);
        return;
    }
    if (!sim->is_healing && simulation_chance(sim, sim->faults.lie)) {
        simulation_distort_result(sim, &result);
        transition_taken(TRANSITION_RESULT_LIE);
        send_result(sim, worker, &result);
        CHECK(worker->is_fenced); /* a lie ends the epoch */
        return;
    }
    count_rows(sim, &result);
    laws_plan_answered(sim, result.step);
    send_result(sim, worker, &result);
    CHECK(!worker->is_fenced); /* the truth does not */
    transition_taken(TRANSITION_RESULT_TAKEN);
    if (!sim->is_healing && simulation_chance(sim, sim->faults.twice)) {
        transition_taken(TRANSITION_RESULT_TWICE);
        send_result(sim, worker, &result);
        CHECK(worker->is_fenced);
    }
}

static void deliver_refusal(struct simulation *sim, const struct sim_worker *worker,
                            const struct worker_refused *refused)
{
    bool is_current = !worker->is_fenced;
    core_worker_refused(sim->core, refused, sim->now_ns);
    simulation_collect(sim);
    CHECK(worker->is_fenced);
    if (!is_current)
        transition_taken(TRANSITION_REFUSAL_STALE);
}

/* The younger of two results first. */
static void deliver_in_disorder(struct simulation *sim, struct sim_worker *worker)
{
    static struct result result;
    copy_result(&result, &worker->messages[1].result);
    transition_taken(TRANSITION_RESULT_DISORDERED);
    send_result(sim, worker, &result);
    CHECK(worker->is_fenced);
}

static void deliver(struct simulation *sim, struct sim_worker *worker)
{
    static struct sim_message message;
    bool are_results = worker->message_count > 1 && worker->messages[0].kind == SIM_RESULT &&
                       worker->messages[1].kind == SIM_RESULT;
    if (are_results && !worker->is_fenced && !sim->is_healing &&
        simulation_chance(sim, sim->faults.disorder)) {
        deliver_in_disorder(sim, worker);
        return;
    }
    copy_message(&message, &worker->messages[0]);
    worker->message_count--;
    for (uint32_t i = 0; i < worker->message_count; i++)
        copy_message(&worker->messages[i], &worker->messages[i + 1]);
    if (message.kind == SIM_RESULT)
        deliver_result(sim, worker, &message.result);
    else
        deliver_refusal(sim, worker, &message.refused);
}

/* One thing that a living worker does. False: it has nothing to do. */
static bool go_on(struct simulation *sim, struct sim_worker *worker)
{
    if (worker->stage == SIM_CHOSEN)
        finish_attach(sim, worker);
    else if (worker->stage == SIM_ATTACHED)
        say_ready(sim, worker);
    else if (worker->message_count > 0 && simulation_chance(sim, 2))
        deliver(sim, worker);
    else if (worker->plan_count > 0)
        execute(sim, worker);
    else if (worker->message_count > 0)
        deliver(sim, worker);
    else
        return false;
    return true;
}

void simulation_close_epochs(struct simulation *sim)
{
    while (sim->abandoned_count > 0) {
        core_epoch_gone(sim->core, sim->abandoned[--sim->abandoned_count], sim->now_ns);
        simulation_collect(sim);
    }
}

/* A zombie says its last, then is gone. */
static void bury(struct simulation *sim)
{
    for (uint32_t i = 0; i < SIM_WORKERS; i++) {
        struct sim_worker *worker = &sim->workers[i];
        if (worker->connection == 0 || !worker->is_fenced)
            continue;
        if (worker->message_count > 0)
            deliver(sim, worker);
        else if (worker->plan_count > 0 && simulation_chance(sim, 2))
            execute(sim, worker);
        else
            drop(worker);
    }
}

bool simulation_work(struct simulation *sim)
{
    bury(sim);
    struct sim_worker *worker = active_worker(sim);
    if (worker == NULL) {
        simulation_hello(sim);
        return true;
    }
    if (worker->stage == SIM_READY)
        simulation_observe(sim, worker);
    return go_on(sim, worker);
}

/* A second hello: refused, and its connection is closed. */
static void say_hello_again(struct simulation *sim, struct sim_worker *worker)
{
    const struct kv_geometry *geometry = &sim->config.extents.geometry;
    const struct segment_extents *extents = &sim->config.extents;
    const struct attach_hello packet = {
        .version_min = PROTOCOL_VERSION_MIN,
        .version_max = PROTOCOL_VERSION_MAX,
        .layout = layout_fingerprint(),
        .arithmetic = wire_text_of("script-1"),
        .geometry = {geometry->layers, geometry->kv_heads, geometry->head_dim,
                     geometry->block_tokens, geometry->type, geometry->order},
        .blocks = extents->pool_blocks,
        .slots = extents->slots,
        .context = extents->context,
        .vocabulary = extents->vocabulary,
        .step_tokens = extents->step_tokens,
    };
    sim->expected_refusal = ATTACH_REFUSAL_MALFORMED;
    core_worker_hello(sim->core, worker->connection, true, &packet, sim->now_ns);
    simulation_collect(sim);
    sim->expected_refusal = ATTACH_REFUSAL_UNKNOWN;
    simulation_end_worker(sim, worker, WORKER_DIES);
}

/* Something happens to the connection of a worker, of any stage. */
static void disturb_connection(struct simulation *sim)
{
    struct sim_worker *worker = &sim->workers[simulation_below(sim, SIM_WORKERS)];
    uint32_t draw = simulation_below(sim, 4);
    if (worker->connection == 0 || worker->is_fenced) {
        core_worker_lost(sim->core, ++sim->connection, sim->now_ns); /* one that nobody knows */
        simulation_collect(sim);
    } else if (draw == 0 && sim->core->drain < DRAIN_LINGER && sim->faults.wrong_hello > 0) {
        say_hello_again(sim, worker);
    } else if (worker->stage == SIM_WAITS) {
        simulation_end_worker(sim, worker, WORKER_DIES);
    }
}

/* Whether the active worker's time has come, and how. */
static bool end_by_fault(struct simulation *sim, struct sim_worker *worker)
{
    const struct sim_faults *faults = &sim->faults;
    bool is_idle = worker->plan_count + worker->message_count == 0;
    if (simulation_chance(sim, is_idle ? faults->storm : faults->kill))
        simulation_end_worker(sim, worker, WORKER_DIES);
    else if (simulation_chance(sim, faults->leave))
        simulation_end_worker(sim, worker, WORKER_LEAVES);
    else if (simulation_chance(sim, faults->fatal))
        simulation_end_worker(sim, worker, WORKER_SAYS_FATAL);
    else if (simulation_chance(sim, faults->nonsense))
        simulation_end_worker(sim, worker, WORKER_SENDS_NONSENSE);
    else if (worker->stage >= SIM_ATTACHED &&
             simulation_chance(
                 sim, worker->stage == SIM_ATTACHED && faults->hang > 0 ? 5 : faults->hang))
        simulation_hang(sim, worker);
    else
        return false;
    return true;
}

void simulation_worker_event(struct simulation *sim)
{
    struct sim_worker *worker = active_worker(sim);
    uint32_t draw = simulation_below(sim, 100);
    if (worker == NULL || simulation_chance(sim, sim->faults.standby) || draw < 2) {
        simulation_hello(sim);
    } else if (draw < 5) {
        bury(sim);
    } else if (draw < 9 && sim->abandoned_count > 0 && !sim->faults.keeps_sockets) {
        core_epoch_gone(sim->core, sim->abandoned[--sim->abandoned_count], sim->now_ns);
        simulation_collect(sim);
    } else if (draw < 13 && worker->stage >= SIM_ATTACHED) {
        simulation_observe(sim, worker);
    } else if (draw < 14) {
        disturb_connection(sim);
    } else if (simulation_chance(sim, sim->faults.foreign)) {
        simulation_say_foreign(sim, worker);
    } else if (!end_by_fault(sim, worker)) {
        go_on(sim, worker);
    }
}
