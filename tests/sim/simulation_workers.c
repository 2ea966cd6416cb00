#include "sim/simulation.h"

#include "common/check.h"
#include "common/duration.h"
#include "proto/fingerprint.h"

#include <stdlib.h>
#include <string.h>

enum { POISON = '!' };

/* ---- Coming and going ---- */

static struct sim_worker *find_worker(struct simulation *sim, uint64_t connection)
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

static void drop(struct sim_worker *worker)
{
    if (worker->memory != NULL)
        scripted_worker_close(&worker->script);
    free(worker->memory);
    *worker = (struct sim_worker){0};
}

void simulation_drop_workers(struct simulation *sim)
{
    for (uint32_t i = 0; i < SIM_WORKERS; i++)
        drop(&sim->workers[i]);
}

static void hello(struct simulation *sim)
{
    struct sim_worker *worker = find_worker(sim, 0);
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
    worker->connection = ++sim->connection;
    if (!sim->is_healing && simulation_chance(sim, 10))
        packet.geometry.layers++; /* will be refused */
    core_worker_hello(sim->core, worker->connection, true, &packet, sim->now_ns);
    simulation_collect(sim);
}

static void attach(struct simulation *sim, const struct core_attach *order)
{
    struct sim_worker *worker = find_worker(sim, order->connection);
    CHECK(worker != NULL && worker->stage == SIM_WAITS && active_worker(sim) == NULL);
    worker->stage = SIM_CHOSEN;
    worker->epoch = order->epoch;
    worker->extents = order->extents;
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

/* The process ends; what it had sent may still arrive. */
static void die(struct simulation *sim, struct sim_worker *worker)
{
    uint64_t connection = worker->connection;
    sim->deaths++;
    worker->plan_count = 0;
    bool was_active = worker == active_worker(sim);
    core_worker_lost(sim->core, connection, sim->now_ns);
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
        worker = find_worker(sim, output->standby.connection);
        CHECK(worker != NULL && output->standby.position <= LIMIT_STANDBY_WORKERS);
        break;
    case CORE_OUTPUT_REFUSE:
        worker = find_worker(sim, output->refuse.connection);
        CHECK(worker != NULL && worker->stage == SIM_WAITS);
        drop(worker);
        break;
    case CORE_OUTPUT_FENCE:
        worker = find_worker(sim, output->fence.connection);
        CHECK(worker != NULL && worker->epoch == output->fence.epoch && !worker->is_fenced);
        worker->is_fenced = true;
        CHECK(sim->abandoned_count < SIM_ABANDONED);
        sim->abandoned[sim->abandoned_count++] = worker->epoch;
        break;
    case CORE_OUTPUT_PLAN:
        worker = active_worker(sim);
        CHECK(worker != NULL && worker->stage == SIM_READY);
        CHECK(output->plan->epoch == worker->epoch);
        CHECK(worker->plan_count + worker->message_count < LIMIT_PLANS_IN_FLIGHT);
        worker->plans[worker->plan_count++] = *output->plan;
        break;
    default:
        CHECK(output->kind != output->kind); /* no other output is a worker's */
    }
}

/* ---- Working ---- */

static bool holds_poison(const struct sim_worker *worker, const struct plan *plan)
{
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const struct plan_row *row = &plan->rows[i];
        for (uint32_t j = 0; j < row->count; j++) {
            uint32_t token;
            segment_read_tokens(&worker->script.segment, row->slot, row->first_position + j, 1,
                                &token);
            if ((row->flags & PLAN_ROW_FROM_LAST_SAMPLE) == 0 && token == POISON)
                return true;
        }
    }
    return false;
}

/* Computes the oldest plan; the answer is on its way. */
static void execute(struct simulation *sim, struct sim_worker *worker)
{
    const struct plan plan = worker->plans[0];
    if (holds_poison(worker, &plan)) {
        die(sim, worker);
        return;
    }
    CHECK(worker->message_count < SIM_MESSAGES);
    struct sim_message *message = &worker->messages[worker->message_count++];
    worker->plan_count--;
    memmove(worker->plans, worker->plans + 1, worker->plan_count * sizeof *worker->plans);
    bool lies = !sim->is_healing && simulation_chance(sim, sim->faults.refuse);
    bool done = scripted_worker_step(&worker->script, &plan, &message->result, &message->refused);
    CHECK(done); /* the core's plans are right, for zombies too */
    message->kind = lies ? SIM_REFUSED : SIM_RESULT;
    if (lies) {
        message->refused.reason = PLAN_REFUSAL_BLOCK;
        message->refused.has_row = simulation_chance(sim, 2);
        message->refused.row = simulation_below(sim, plan.row_count);
    }
}

/* Something that no honest worker says. */
static void distort(struct simulation *sim, struct result *result)
{
    uint32_t row = result->row_count == 0 ? 0 : simulation_below(sim, result->row_count);
    switch (simulation_below(sim, result->row_count == 0 ? 2 : 8)) {
    case 0:
        result->step++;
        break;
    case 1:
        result->rows[result->row_count++] = (struct result_row){
            .slot = 0, .generation = 1, .position = 1, .token = 'x', .logprob = -1};
        break;
    case 2:
        result->row_count--;
        break;
    case 3:
        result->rows[row].position++;
        break;
    case 4:
        result->rows[row].generation++;
        break;
    case 5:
        result->rows[row].token = LETTERS_TOKENS + 5;
        break;
    case 6:
        result->rows[row].slot++;
        break;
    default:
        result->rows[row].logprob = 1;
    }
}

static void deliver_result(struct simulation *sim, struct sim_worker *worker,
                           const struct result *honest)
{
    static struct result result;
    result = *honest;
    bool is_current = !worker->is_fenced;
    bool lies = !sim->is_healing && simulation_chance(sim, sim->faults.lie);
    if (lies)
        distort(sim, &result);
    core_worker_result(sim->core, &result, sim->now_ns);
    simulation_collect(sim);
    sim->results++;
    CHECK(!lies || worker->is_fenced || !is_current); /* a lie ends the epoch */
    CHECK(lies || !is_current || !worker->is_fenced); /* the truth does not */
    if (!sim->is_healing && simulation_chance(sim, sim->faults.stale)) {
        core_worker_result(sim->core, &result, sim->now_ns); /* once more */
        simulation_collect(sim);
        CHECK(worker->is_fenced);
    }
}

static void deliver(struct simulation *sim, struct sim_worker *worker)
{
    static struct sim_message message;
    message = worker->messages[0];
    worker->message_count--;
    memmove(worker->messages, worker->messages + 1,
            worker->message_count * sizeof *worker->messages);
    if (message.kind == SIM_RESULT) {
        deliver_result(sim, worker, &message.result);
    } else {
        bool is_current = !worker->is_fenced;
        core_worker_refused(sim->core, &message.refused, sim->now_ns);
        simulation_collect(sim);
        sim->refusals++;
        CHECK(!is_current || worker->is_fenced);
    }
}

static void observe(struct simulation *sim, struct sim_worker *worker)
{
    if (!sim->is_healing && simulation_chance(sim, sim->faults.silence))
        worker->is_silent = true;
    if (!worker->is_silent)
        worker->alive_ns = sim->now_ns;
    const struct core_observation observation = {.alive_ns = worker->alive_ns,
                                                 .progress = {.since_ns = worker->alive_ns}};
    core_worker_observed(sim->core, worker->epoch, &observation, sim->now_ns);
    simulation_collect(sim);
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
        core_epoch_closed(sim->core, sim->abandoned[--sim->abandoned_count], sim->now_ns);
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
        hello(sim);
        return true;
    }
    worker->is_silent = false;
    if (worker->stage == SIM_READY)
        observe(sim, worker);
    return go_on(sim, worker);
}

void simulation_worker_event(struct simulation *sim)
{
    struct sim_worker *worker = active_worker(sim);
    uint32_t draw = simulation_below(sim, 100);
    if (draw < 4 || worker == NULL) {
        hello(sim);
    } else if (draw < 8) {
        bury(sim);
    } else if (draw < 12 && sim->abandoned_count > 0) {
        core_epoch_closed(sim->core, sim->abandoned[--sim->abandoned_count], sim->now_ns);
        simulation_collect(sim);
    } else if (draw < 18 && worker->stage >= SIM_ATTACHED) {
        observe(sim, worker);
    } else if (simulation_chance(sim, sim->faults.kill)) {
        die(sim, worker);
    } else {
        go_on(sim, worker);
    }
}
