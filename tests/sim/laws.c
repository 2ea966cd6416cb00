#include "sim/laws.h"

#include "common/check.h"
#include "common/duration.h"
#include "coordinator/core_state.h"
#include "sim/simulation.h"
#include "sim/transitions.h"

#include <stdlib.h>
#include <string.h>

/* ---- Plans ---- */

/* Index of the subject that a row is about; the world named it "r<index>". */
static uint32_t subject_of(const struct core *core, uint64_t step, uint32_t row)
{
    const struct flight *flight = &core->flights.plans[step % LIMIT_PLANS_IN_FLIGHT];
    const struct request *request = requests_named(&core->requests, flight->rows[row].request);
    char id[LIMIT_REQUEST_ID_BYTES + 1] = "";
    CHECK(flight->step == step && request != NULL);
    memcpy(id, request->id, request->id_length);
    return (uint32_t)strtoul(id + 1, NULL, 10);
}

/* A block that two unanswered rows name belongs to one generation of one slot. */
static void judge_block(const struct laws *laws, const struct law_row *row, int32_t block)
{
    for (uint32_t i = 0; i < laws->plan_count; i++) {
        const struct law_plan *plan = &laws->plans[i];
        for (uint32_t j = 0; j < plan->row_count; j++) {
            const struct law_row *other = &plan->rows[j];
            uint32_t end = j + 1 < plan->row_count ? other[1].first_block : plan->block_count;
            bool is_same = other->slot == row->slot && other->generation == row->generation;
            for (uint32_t k = other->first_block; k < end && !is_same; k++)
                CHECK(plan->blocks[k] != block);
        }
    }
}

static void note_row(struct simulation *sim, struct law_plan *noted, const struct plan_row *row,
                     const struct segment_reader *segment)
{
    const struct segment_extents *extents = &segment->header.extents;
    struct laws *laws = &sim->laws;
    CHECK(row->slot < LAW_SLOTS && noted->row_count < LAW_SLOTS);
    CHECK(row->generation >= laws->generations[row->slot]);
    laws->generations[row->slot] = row->generation;
    struct law_row *made = &noted->rows[noted->row_count];
    *made = (struct law_row){
        .slot = row->slot,
        .generation = row->generation,
        .subject = subject_of(sim->core, noted->step, noted->row_count),
        .first_block = noted->block_count,
        .logical_blocks = kv_blocks_for(&extents->geometry, row->first_position + row->count),
    };
    noted->row_count++;
    for (uint32_t layer = 0; layer < extents->geometry.layers; layer++) {
        CHECK(noted->block_count + made->logical_blocks <= LAW_BLOCKS);
        int32_t *blocks = noted->blocks + noted->block_count;
        segment_read_blocks(segment, row->slot, layer, 0, made->logical_blocks, blocks);
        noted->block_count += made->logical_blocks;
    }
    for (uint32_t i = made->first_block; i < noted->block_count; i++)
        judge_block(laws, made, noted->blocks[i]);
}

void laws_plan_sent(struct simulation *sim, const struct plan *plan,
                    const struct segment_reader *segment)
{
    struct laws *laws = &sim->laws;
    CHECK(laws->plan_count < LIMIT_PLANS_IN_FLIGHT);
    CHECK(plan->step == laws->steps + 1 && plan->row_count > 0);
    laws->steps++;
    struct law_plan *noted = &laws->plans[laws->plan_count];
    noted->step = plan->step;
    noted->row_count = 0;
    noted->block_count = 0;
    for (uint32_t i = 0; i < plan->row_count; i++)
        note_row(sim, noted, &plan->rows[i], segment);
    laws->plan_count++;
}

void laws_plan_answered(struct simulation *sim, uint64_t step)
{
    struct laws *laws = &sim->laws;
    CHECK(laws->plan_count > 0 && laws->plans[0].step == step);
    laws->plan_count--;
    laws->plans[0] = laws->plans[1];
}

void laws_epoch_ended(struct simulation *sim, enum core_fence_reason reason)
{
    struct laws *laws = &sim->laws;
    const struct law_plan *oldest = &laws->plans[0];
    bool is_crash = reason != CORE_FENCE_REFUSED && reason != CORE_FENCE_MISMATCH;
    for (uint32_t i = 0; laws->plan_count > 0 && i < oldest->row_count; i++) {
        struct sim_subject *subject = &sim->subjects[oldest->rows[i].subject];
        if (reason == CORE_FENCE_REFUSED)
            subject->refusals++;
        else if (is_crash && oldest->row_count == 1 && laws->plan_count == 1)
            subject->crashes_alone++;
    }
    laws->plan_count = 0;
    laws->steps = 0;
}

/* The slots and blocks of an unanswered plan are neither free nor somebody else's, and the table
 * that the worker reads still names them. */
static void check_plans(const struct simulation *sim)
{
    const struct core *core = sim->core;
    const struct blocks *blocks = &core->slots.blocks;
    bool is_free[LAW_BLOCKS] = {false};
    for (uint32_t i = 0; i < blocks->free_count; i++)
        is_free[blocks->free_list[i]] = true;
    for (uint32_t i = 0; i < sim->laws.plan_count; i++) {
        const struct law_plan *plan = &sim->laws.plans[i];
        for (uint32_t j = 0; j < plan->row_count; j++) {
            const struct slot *slot = &core->slots.rows[plan->rows[j].slot];
            CHECK(slot->generation == plan->rows[j].generation && slot->state != SLOT_FREE);
        }
        for (uint32_t j = 0; j < plan->block_count; j++)
            CHECK(!is_free[plan->blocks[j]]);
    }
}

/* ---- Tables ---- */

/* A running request holds blocks for what is planned of it, and none for what is not yet known. */
static void check_running(const struct core *core)
{
    const struct kv_geometry *geometry = &core->config.extents.geometry;
    for (uint32_t i = 0; i < core->scheduler.running_count; i++) {
        const struct request *request = core->requests.rows[core->scheduler.running[i]];
        uint32_t held = core->slots.rows[request->slot].logical_blocks;
        uint32_t known = request_known(request);
        uint32_t most = request->planned > known ? request->planned : known;
        CHECK(held >= kv_blocks_for(geometry, request->planned));
        CHECK(held <= kv_blocks_for(geometry, most));
    }
}

/* An idle worker means that there is nothing to compute; nobody stands by while none is active. */
static void check_work(const struct core *core)
{
    const struct worker_state *workers = &core->workers;
    CHECK(workers->stage != WORKER_NONE || workers->standby_count == 0 ||
          workers->abandoned_count == LIMIT_ABANDONED_EPOCHS);
    if (core->workers.stage != WORKER_IS_READY || flights_count(&core->flights) > 0)
        return;
    CHECK(core->scheduler.running_count == 0 && core->scheduler.queue.count == 0);
}

/* ---- Waiting ---- */

static uint64_t request_due_ns(const struct core *core, const struct request *request)
{
    if (request_is_finished(request))
        return request->finished_ns + core->config.kept_ns;
    uint64_t due = request->deadline_ns;
    bool is_alone =
        !request->detach && request->last_answer_ns != 0 && request->first_call == CALL_NONE;
    uint64_t orphan_ns = request->last_answer_ns + core->config.orphan_ns;
    return is_alone && orphan_ns < due ? orphan_ns : due;
}

/* Every call that the world has out is one that the core knows, and waits for something. */
static void check_calls(const struct simulation *sim)
{
    const struct core *core = sim->core;
    CHECK(core->calls.count == sim->call_count);
    for (uint32_t i = 0; i < core->calls.capacity; i++) {
        const struct call *call = &core->calls.rows[i];
        if (call->kind != CALL_NEXT && call->kind != CALL_SUBMIT)
            continue;
        const struct request *request = core->requests.rows[call->request];
        uint64_t wanted = call->from_token + (call->hold_tokens > 0 ? call->hold_tokens : 1);
        CHECK(request != NULL && !request_is_finished(request));
        CHECK(call->kind != CALL_SUBMIT || request->state == REQUEST_STATE_TOKENIZING);
        CHECK(call->kind != CALL_NEXT || request_released_tokens(request) < wanted);
    }
}

/* The first moment at which something has to happen by itself. */
static uint64_t due_ns(const struct simulation *sim)
{
    const struct core *core = sim->core;
    uint64_t due = CORE_NO_DEADLINE;
    for (uint32_t i = 0; i < core->requests.capacity; i++) {
        const struct request *request = core->requests.rows[i];
        if (request != NULL && request_due_ns(core, request) < due)
            due = request_due_ns(core, request);
    }
    for (uint32_t i = 0; i < SIM_CALLS; i++) {
        const struct sim_call *call = &sim->calls[i];
        if (call->handle != 0 && call->type == CLIENT_NEXT && call->due_ns < due)
            due = call->due_ns;
    }
    bool is_timed = core->drain == DRAIN_RUNNING || core->drain == DRAIN_LINGER;
    if (is_timed && core->drain_deadline_ns < due)
        due = core->drain_deadline_ns;
    bool is_watched =
        core->workers.stage == WORKER_ATTACHED || core->workers.stage == WORKER_IS_READY;
    if (is_watched && due > core->now_ns + WORKER_OBSERVE_NS)
        due = core->now_ns + WORKER_OBSERVE_NS;
    return due;
}

void laws_check(struct simulation *sim)
{
    const struct core *core = sim->core;
    core_check(core);
    check_plans(sim);
    check_running(core);
    check_work(core);
    check_calls(sim);
    CHECK(core_next_deadline_ns(core) <= due_ns(sim));
    CHECK(core->drain != DRAIN_RUNNING || core->requests.live_count > 0);
    for (; sim->laws.orphaned < core->stats.requests_orphaned; sim->laws.orphaned++)
        transition_taken(TRANSITION_OUTCOME_ORPHANED);
    if (core->drain >= DRAIN_LINGER && !sim->laws.has_lingered)
        transition_taken(TRANSITION_DRAIN_LINGERS);
    sim->laws.has_lingered = core->drain >= DRAIN_LINGER;
}

void laws_check_time(const struct simulation *sim)
{
    CHECK(due_ns(sim) > sim->now_ns);
    CHECK(core_next_deadline_ns(sim->core) > sim->now_ns);
}
