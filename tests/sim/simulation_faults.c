#include "sim/simulation.h"

#include "common/check.h"
#include "common/duration.h"
#include "coordinator/core_state.h"
#include "sim/transitions.h"

/* ---- Silence ---- */

void simulation_observe(struct simulation *sim, struct sim_worker *worker)
{
    worker->alive_ns = worker->moved_ns = sim->now_ns;
    const struct core_observation observation = {.alive_ns = worker->alive_ns,
                                                 .progress = {.since_ns = worker->moved_ns}};
    core_worker_observed(sim->core, worker->epoch, &observation, sim->now_ns);
    simulation_look(sim);
    CHECK(!worker->is_fenced); /* one that lives and works is left alone */
}

void simulation_hang(struct simulation *sim, struct sim_worker *worker)
{
    enum { ROUND_MS = 600, ROUNDS_SILENT = 6, ROUNDS_STUCK = 12, ROUNDS_MUTE = 60 };
    bool is_mute = worker->stage == SIM_ATTACHED;
    bool has_work = worker->plan_count + worker->message_count > 0;
    bool is_silent = simulation_chance(sim, 2) || (!is_mute && !has_work);
    uint32_t rounds = is_silent ? ROUNDS_SILENT : is_mute ? ROUNDS_MUTE : ROUNDS_STUCK;
    for (uint32_t i = 0; i < rounds && !worker->is_fenced && !sim->is_drained; i++) {
        simulation_pass_time(sim, ROUND_MS * NS_PER_MS);
        if (worker->is_fenced)
            break;
        if (!is_silent)
            worker->alive_ns = sim->now_ns;
        const struct core_observation observation = {.alive_ns = worker->alive_ns,
                                                     .progress = {.since_ns = worker->moved_ns}};
        core_worker_observed(sim->core, worker->epoch, &observation, sim->now_ns);
        simulation_look(sim);
        if (simulation_chance(sim, 3))
            simulation_client_event(sim);
    }
    CHECK(worker->is_fenced || sim->is_drained);
}

/* ---- Words ---- */

static void name_foreign(struct simulation *sim, const struct sim_worker *worker,
                         struct id128 *instance, uint64_t *epoch)
{
    *instance = sim->config.instance;
    *epoch = worker->epoch;
    switch (simulation_below(sim, 3)) {
    case 0:
        instance->bytes[15] ^= 1;
        break;
    case 1:
        --*epoch;
        break;
    default:
        ++*epoch;
    }
}

void simulation_say_foreign(struct simulation *sim, const struct sim_worker *worker)
{
    static struct result result;
    struct worker_refused refused = {.reason = PLAN_REFUSAL_STEP};
    struct worker_ready ready = {0};
    struct worker_fatal fatal = {.reason = WORKER_FATAL_DEVICE};
    uint64_t stale = sim->core->stats.messages_stale;
    bool was_fenced = worker->is_fenced;
    bool has_result = worker->message_count > 0 && worker->messages[0].kind == SIM_RESULT;
    uint32_t draw = simulation_below(sim, 8);
    if (draw == 0) {
        name_foreign(sim, worker, &ready.instance, &ready.epoch);
        core_worker_ready(sim->core, &ready, sim->now_ns);
        transition_taken(TRANSITION_OTHER_STALE);
    } else if (draw == 1) {
        name_foreign(sim, worker, &fatal.instance, &fatal.epoch);
        core_worker_fatal(sim->core, &fatal, sim->now_ns);
        transition_taken(TRANSITION_OTHER_STALE);
    } else if (draw == 2) {
        name_foreign(sim, worker, &refused.instance, &refused.epoch);
        core_worker_refused(sim->core, &refused, sim->now_ns);
        transition_taken(TRANSITION_REFUSAL_STALE);
    } else {
        if (has_result)
            result = worker->messages[0].result;
        name_foreign(sim, worker, &result.instance, &result.epoch);
        core_worker_result(sim->core, &result, sim->now_ns);
        transition_taken(TRANSITION_RESULT_STALE);
    }
    simulation_collect(sim);
    CHECK(sim->core->stats.messages_stale == stale + 1);
    CHECK(worker->is_fenced == was_fenced);
    core_worker_nonsense(sim->core, worker->epoch - 1, "of another", sim->now_ns);
    simulation_collect(sim);
    CHECK(worker->is_fenced == was_fenced);
}

void simulation_distort_result(struct simulation *sim, struct result *result)
{
    uint32_t row = result->row_count == 0 ? 0 : simulation_below(sim, result->row_count);
    switch (simulation_below(sim, result->row_count == 0 ? 3 : 10)) {
    case 0:
        result->step++;
        break;
    case 1:
        result->step += simulation_chance(sim, 2) ? UINT64_MAX : 7;
        break;
    case 2:
        result->rows[result->row_count++] = (struct result_row){
            .slot = 0, .generation = 1, .position = 1, .token = 'x', .logprob = -1};
        break;
    case 3:
        result->row_count--;
        break;
    case 4:
        result->rows[row].position++;
        break;
    case 5:
        result->rows[row].position--;
        break;
    case 6:
        result->rows[row].generation += simulation_chance(sim, 2) ? 1 : UINT32_MAX;
        break;
    case 7:
        result->rows[row].token = LETTERS_TOKENS + 5;
        break;
    case 8:
        result->rows[row].slot++;
        break;
    default:
        result->rows[row].logprob = 1;
    }
}

/* ---- Hello ---- */

static enum attach_refusal spoil_capacity(struct simulation *sim, struct attach_hello *hello)
{
    switch (simulation_below(sim, 4)) {
    case 0:
        hello->blocks--;
        break;
    case 1:
        hello->slots--;
        break;
    case 2:
        hello->context--;
        break;
    default:
        hello->step_tokens--;
    }
    return ATTACH_REFUSAL_CAPACITY;
}

static enum attach_refusal spoil_geometry(struct simulation *sim, struct attach_hello *hello)
{
    uint32_t *const fields[] = {
        &hello->geometry.layers,       &hello->geometry.kv_heads, &hello->geometry.head_dim,
        &hello->geometry.block_tokens, &hello->geometry.type,     &hello->vocabulary,
    };
    ++*fields[simulation_below(sim, sizeof fields / sizeof *fields)];
    return ATTACH_REFUSAL_GEOMETRY;
}

enum attach_refusal simulation_spoil_hello(struct simulation *sim, struct attach_hello *hello,
                                           bool *out_uid_allowed)
{
    switch (simulation_below(sim, sim->is_pinned ? 8 : 6)) {
    case 0:
        *out_uid_allowed = false;
        return ATTACH_REFUSAL_UID;
    case 1:
        hello->version_min = hello->version_max = PROTOCOL_VERSION_MAX + 1;
        return ATTACH_REFUSAL_VERSION;
    case 2:
        hello->layout ^= 1;
        return ATTACH_REFUSAL_VERSION;
    case 3:
        hello->metadata_hash.bytes[3] ^= 1;
        return ATTACH_REFUSAL_MODEL;
    case 4:
        return spoil_geometry(sim, hello);
    case 5:
        return spoil_capacity(sim, hello);
    case 6:
        hello->tensor_hash.bytes[7] ^= 1;
        return ATTACH_REFUSAL_MODEL;
    default:
        hello->arithmetic = wire_text_of("script-2");
        return ATTACH_REFUSAL_ARITHMETIC;
    }
}
