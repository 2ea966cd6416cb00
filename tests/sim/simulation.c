#include "sim/simulation.h"

#include "common/check.h"
#include "common/duration.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static struct simulation *failing; /* whose memory is short: realloc has no context */

bool simulation_chance(struct simulation *sim, uint32_t one_in)
{
    return one_in > 0 && random_below(&sim->random, one_in) == 0;
}

uint32_t simulation_below(struct simulation *sim, uint32_t bound)
{
    return random_below(&sim->random, bound);
}

static void *short_memory(void *memory, size_t bytes)
{
    if (!failing->is_healing && simulation_chance(failing, failing->faults.memory))
        return NULL;
    return realloc(memory, bytes);
}

/* ---- Life ---- */

static void choose_faults(struct simulation *sim)
{
    struct sim_faults *faults = &sim->faults;
    faults->numeric_error_token = -1;
    if (simulation_chance(sim, 3))
        return; /* a good day */
    if (simulation_chance(sim, 2))
        faults->kill = 60 + simulation_below(sim, 200);
    if (simulation_chance(sim, 4))
        faults->lie = 20 + simulation_below(sim, 100);
    if (simulation_chance(sim, 4))
        faults->refuse = 20 + simulation_below(sim, 100);
    if (simulation_chance(sim, 2))
        faults->stale = 5 + simulation_below(sim, 20);
    if (simulation_chance(sim, 4))
        faults->silence = 50;
    if (simulation_chance(sim, 4))
        faults->memory = 20 + simulation_below(sim, 200);
    if (simulation_chance(sim, 4))
        faults->clock_jump = 200;
    if (simulation_chance(sim, 8))
        faults->drain = 500;
    if (simulation_chance(sim, 6))
        faults->numeric_error_token = 'q';
    faults->has_poison = simulation_chance(sim, 5);
}

static void choose_config(struct simulation *sim)
{
    static const uint32_t contexts[] = {17, 32, 33, 64, 100};
    struct core_config *config = &sim->config;
    memcpy(config->instance.bytes, &sim->seed, sizeof sim->seed);
    config->vocabulary = &sim->vocabulary;
    config->model_name = "letters";
    config->model_architecture = "llama";
    config->chat_template = true;
    struct segment_extents *extents = &config->extents;
    extents->geometry = (struct kv_geometry){
        .layers = 1 + simulation_below(sim, 3),
        .kv_heads = 1,
        .head_dim = 8,
        .block_tokens = simulation_chance(sim, 3) ? 4 : 16,
        .type = KV_TYPE_F16,
        .order = KV_ORDER_CPU,
    };
    extents->slots = 1 + simulation_below(sim, 6);
    extents->context = contexts[simulation_below(sim, 5)];
    extents->logical_blocks = kv_blocks_for(&extents->geometry, extents->context);
    extents->vocabulary = LETTERS_TOKENS;
    extents->step_tokens = 1 + simulation_below(sim, 40);
    extents->pool_blocks = (uint64_t)extents->geometry.layers * (1 + simulation_below(sim, 24));
    config->prefill_chunk = simulation_chance(sim, 2) ? 0 : 1 + simulation_below(sim, 16);
    config->shuffle_blocks = simulation_chance(sim, 2);
    config->shuffle_seed = sim->seed;
    config->queue_requests = 2 + simulation_below(sim, 40);
    config->kept_requests = 1 + simulation_below(sim, 40);
    config->queue_bytes = simulation_chance(sim, 4) ? 20000 : SIM_QUEUE_BYTES;
    config->prompt_bytes = 1024;
    config->kept_ns = 120 * NS_PER_S;
    config->orphan_ns = 30 * NS_PER_S;
    config->drain_timeout_ns = (1 + simulation_below(sim, 30)) * NS_PER_S;
    config->calls = 2 + simulation_below(sim, 30);
    config->reallocate = short_memory;
}

static void open_world(struct simulation *sim, uint64_t seed)
{
    *sim = (struct simulation){.seed = seed, .random = {.state = seed}, .now_ns = NS_PER_S};
    letters_open(&sim->vocabulary);
    sim->subjects = calloc(SIM_SUBJECTS, sizeof *sim->subjects);
    sim->workers = calloc(SIM_WORKERS, sizeof *sim->workers);
    CHECK(sim->subjects != NULL && sim->workers != NULL);
    choose_faults(sim);
    choose_config(sim);
    sim->script =
        (struct script){.end_token = LETTERS_END, .end_chance = simulation_chance(sim, 2) ? 0 : 12};
    failing = sim;
    struct reason why;
    enum status status = core_create(&sim->config, &sim->core, reason_init(&why));
    if (status != STATUS_OK)
        log_error("core_create", "why=%s", why.storage);
    CHECK(status == STATUS_OK);
}

static void close_world(struct simulation *sim)
{
    core_destroy(sim->core);
    simulation_drop_workers(sim);
    free(sim->subjects);
    free(sim->workers);
    vocabulary_free(&sim->vocabulary);
}

/* ---- Events ---- */

void simulation_collect(struct simulation *sim)
{
    struct core_output output;
    while (core_next_output(sim->core, &output)) {
        if (output.kind == CORE_OUTPUT_ANSWER) {
            simulation_take_answer(sim, &output.answer);
        } else if (output.kind == CORE_OUTPUT_TOKENIZE) {
            CHECK(sim->order_count < SIM_ORDERS);
            sim->orders[sim->order_count++] = output.tokenize;
        } else if (output.kind == CORE_OUTPUT_DRAINED) {
            CHECK(sim->is_draining && !sim->is_drained);
            sim->is_drained = true;
        } else if (output.kind != CORE_OUTPUT_LOG) {
            simulation_take_worker_output(sim, &output);
        }
    }
    core_check(sim->core);
    sim->events++;
}

static void pass_time(struct simulation *sim, uint64_t ns)
{
    sim->now_ns += ns;
    core_tick(sim->core, sim->now_ns);
    simulation_collect(sim);
}

static void time_event(struct simulation *sim)
{
    if (simulation_chance(sim, sim->faults.clock_jump)) {
        pass_time(sim, UINT64_C(365) * 86400 * NS_PER_S);
        return;
    }
    static const uint64_t steps[] = {1000, NS_PER_MS, 30 * NS_PER_MS, 600 * NS_PER_MS};
    pass_time(sim, steps[simulation_below(sim, 4)]);
    if (simulation_chance(sim, 50)) { /* a clock that went back is one that stood still */
        core_tick(sim->core, sim->now_ns - NS_PER_S / 2);
        simulation_collect(sim);
    }
}

static void drain(struct simulation *sim)
{
    sim->is_draining = true;
    core_drain(sim->core, sim->now_ns);
    simulation_collect(sim);
}

static void random_event(struct simulation *sim)
{
    uint32_t draw = simulation_below(sim, 100);
    if (draw < 30)
        simulation_client_event(sim);
    else if (draw < 40)
        simulation_answer_order(sim, false);
    else if (draw < 48)
        time_event(sim);
    else
        simulation_worker_event(sim);
    if (!sim->is_drained && simulation_chance(sim, sim->faults.drain))
        drain(sim);
}

/* ---- The good end ---- */

static bool all_are_ended(const struct simulation *sim)
{
    for (uint32_t i = 0; i < sim->subject_count; i++) {
        if (sim->subjects[i].is_known && !sim->subjects[i].is_ended)
            return false;
    }
    return true;
}

static void heal(struct simulation *sim)
{
    sim->is_healing = true;
    for (uint32_t round = 0; round < 20000; round++) {
        while (sim->order_count > 0)
            simulation_answer_order(sim, true);
        for (uint32_t i = 0; i < sim->subject_count; i++)
            simulation_read_on(sim, i);
        if (all_are_ended(sim) || sim->is_drained)
            break;
        simulation_close_epochs(sim);
        if (!simulation_work(sim))
            pass_time(sim, 100 * NS_PER_MS);
    }
    CHECK(sim->is_drained || all_are_ended(sim));
    if (!sim->is_drained && !sim->is_draining)
        drain(sim);
    for (uint32_t round = 0; round < 2000 && !sim->is_drained; round++) {
        simulation_close_epochs(sim);
        if (!simulation_work(sim) || simulation_chance(sim, 8))
            pass_time(sim, 100 * NS_PER_MS);
        while (sim->order_count > 0)
            simulation_answer_order(sim, true);
    }
    CHECK(sim->is_drained);
    CHECK(sim->call_count == 0); /* every call was answered or given up */
}

void simulation_run(uint64_t seed, uint32_t events, struct simulation *out_totals)
{
    static struct simulation sim;
    open_world(&sim, seed);
    for (uint32_t i = 0; i < events && !sim.is_drained; i++)
        random_event(&sim);
    heal(&sim);
    out_totals->events += sim.events;
    out_totals->deaths += sim.deaths;
    out_totals->results += sim.results;
    out_totals->refusals += sim.refusals;
    out_totals->finished += sim.finished;
    out_totals->poisoned += sim.poisoned;
    close_world(&sim);
}
