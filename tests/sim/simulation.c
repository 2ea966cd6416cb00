#include "sim/simulation.h"

#include "common/check.h"
#include "common/duration.h"
#include "sim/transitions.h"

#include <stddef.h>
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
    if (!failing->is_healing && simulation_chance(failing, failing->faults.memory)) {
        transition_taken(TRANSITION_MEMORY_FAILED);
        return NULL;
    }
    return realloc(memory, bytes);
}

/* ---- Life ---- */

/* How often each fault comes, where a run has it at all: one in `least` to one in `most`. */
struct fault_choice {
    size_t offset; /* in struct sim_faults */
    uint32_t runs; /* one run in so many has it */
    uint32_t least, most;
};

#define FAULT(name) offsetof(struct sim_faults, name)
static const struct fault_choice choices[] = {
    {FAULT(kill), 2, 40, 200},    {FAULT(storm), 3, 2, 8},        {FAULT(leave), 4, 100, 300},
    {FAULT(fatal), 4, 100, 300},  {FAULT(nonsense), 6, 100, 300}, {FAULT(hang), 4, 60, 200},
    {FAULT(lie), 4, 20, 120},     {FAULT(refuse), 4, 3, 60},      {FAULT(twice), 2, 5, 25},
    {FAULT(disorder), 4, 2, 30},  {FAULT(foreign), 2, 5, 30},     {FAULT(wrong_hello), 2, 2, 10},
    {FAULT(standby), 2, 2, 30},   {FAULT(memory), 3, 10, 80},     {FAULT(clock_jump), 4, 20, 200},
    {FAULT(drain), 4, 300, 1500}, {FAULT(tokenizer), 3, 3, 30},
};
#undef FAULT

static void choose_faults(struct simulation *sim)
{
    struct sim_faults *faults = &sim->faults;
    faults->numeric_error_token = -1;
    if (simulation_chance(sim, 5))
        return; /* a good day */
    for (size_t i = 0; i < sizeof choices / sizeof *choices; i++) {
        const struct fault_choice *choice = &choices[i];
        uint32_t one_in = choice->least + simulation_below(sim, choice->most - choice->least + 1);
        if (simulation_chance(sim, choice->runs))
            memcpy((char *)faults + choice->offset, &one_in, sizeof one_in);
    }
    if (simulation_chance(sim, 6))
        faults->numeric_error_token = 'q';
    faults->has_poison = simulation_chance(sim, 4);
    faults->has_disliked = simulation_chance(sim, 6);
    faults->keeps_sockets = simulation_chance(sim, 6);
}

/* Blocks, slots and steps; two runs of three are short of blocks. */
static void choose_extents(struct simulation *sim)
{
    static const uint32_t contexts[] = {17, 32, 33, 64, 100};
    static const uint32_t block_tokens[2][4] = {{16, 16, 4, 1}, {16, 4, 1, 1}};
    struct segment_extents *extents = &sim->config.extents;
    bool is_short = simulation_below(sim, 3) > 0;
    extents->geometry = (struct kv_geometry){
        .layers = 1 + simulation_below(sim, 3),
        .kv_heads = 1,
        .head_dim = 8,
        .block_tokens = block_tokens[is_short][simulation_below(sim, 4)],
        .type = KV_TYPE_F16,
        .order = KV_ORDER_CPU,
    };
    extents->slots = is_short ? 3 + simulation_below(sim, 4) : 1 + simulation_below(sim, 6);
    extents->context = contexts[simulation_below(sim, 5)];
    extents->logical_blocks = kv_blocks_for(&extents->geometry, extents->context);
    extents->vocabulary = LETTERS_TOKENS;
    extents->step_tokens = 1 + simulation_below(sim, 40);
    uint32_t enough = kv_blocks_for(&extents->geometry, 100);
    uint32_t blocks = 1 + simulation_below(sim, 24);
    if (is_short && enough < 24) /* room for one and a bit */
        blocks = 1 + simulation_below(sim, enough + 2);
    else if (extents->geometry.block_tokens == 1)
        blocks = 1 + simulation_below(sim, LAW_BLOCKS / 3);
    extents->pool_blocks = (uint64_t)extents->geometry.layers * blocks;
}

static void choose_config(struct simulation *sim)
{
    struct core_config *config = &sim->config;
    memcpy(config->instance.bytes, &sim->seed, sizeof sim->seed);
    config->vocabulary = &sim->vocabulary;
    config->model_name = "letters";
    config->model_architecture = "llama";
    config->chat_template = true;
    choose_extents(sim);
    config->prefill_chunk = simulation_chance(sim, 2) ? 0 : 1 + simulation_below(sim, 16);
    config->shuffle_blocks = simulation_chance(sim, 2);
    config->shuffle_seed = sim->seed;
    config->queue_requests = 2 + simulation_below(sim, 40);
    config->kept_requests = 1 + simulation_below(sim, 40);
    config->queue_bytes = simulation_chance(sim, 4) ? 20000 : SIM_QUEUE_BYTES;
    config->prompt_bytes = simulation_chance(sim, 4) ? 20 : 1024;
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

void simulation_look(struct simulation *sim)
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
            transition_taken(TRANSITION_DRAIN_DONE);
        } else if (output.kind != CORE_OUTPUT_LOG) {
            simulation_take_worker_output(sim, &output);
        }
    }
    sim->may_shed = false;
    laws_check(sim);
}

void simulation_collect(struct simulation *sim)
{
    simulation_look(sim);
    sim->events++;
}

void simulation_pass_time(struct simulation *sim, uint64_t ns)
{
    sim->now_ns += ns;
    core_tick(sim->core, sim->now_ns);
    simulation_look(sim);
    laws_check_time(sim);
}

static void time_event(struct simulation *sim)
{
    if (simulation_chance(sim, sim->faults.clock_jump)) {
        transition_taken(TRANSITION_TIME_JUMPED);
        simulation_pass_time(sim, UINT64_C(365) * 86400 * NS_PER_S);
        return;
    }
    if (sim->is_draining && simulation_chance(sim, 4)) {
        simulation_pass_time(sim, sim->config.drain_timeout_ns);
        return;
    }
    static const uint64_t steps[] = {1000, NS_PER_MS, 30 * NS_PER_MS, 600 * NS_PER_MS};
    simulation_pass_time(sim, steps[simulation_below(sim, 4)]);
    if (simulation_chance(sim, 50)) { /* a clock that went back is one that stood still */
        transition_taken(TRANSITION_TIME_BACKWARDS);
        core_tick(sim->core, sim->now_ns - NS_PER_S / 2);
        simulation_look(sim);
        laws_check_time(sim);
    }
}

static void drain(struct simulation *sim)
{
    transition_taken(sim->is_draining ? TRANSITION_DRAIN_TWICE : TRANSITION_DRAIN_STARTED);
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
    if (!sim->is_drained &&
        simulation_chance(sim, sim->is_draining ? sim->faults.drain / 20 : sim->faults.drain))
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
            simulation_pass_time(sim, 100 * NS_PER_MS);
    }
    CHECK(sim->is_drained || all_are_ended(sim));
    if (!sim->is_drained && !sim->is_draining)
        drain(sim);
    for (uint32_t round = 0; round < 2000 && !sim->is_drained; round++) {
        simulation_close_epochs(sim);
        if (!simulation_work(sim) || simulation_chance(sim, 8))
            simulation_pass_time(sim, 100 * NS_PER_MS);
        if (simulation_chance(sim, 4)) /* too late: it is told so, or waits for nothing */
            simulation_hello(sim);
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
    out_totals->results += sim.results;
    out_totals->finished += sim.finished;
    close_world(&sim);
}
