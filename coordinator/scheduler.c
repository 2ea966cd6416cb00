#include "coordinator/scheduler.h"

#include "common/check.h"

#include <string.h>

/* What a request would have computed next. */
struct wish {
    uint32_t first, count; /* count 0: nothing */
    bool from_last_sample;
};

/* A plan in the making. */
struct draft {
    struct plan *plan;
    struct flight *flight;
    uint32_t budget;
    uint64_t now_ns;
    bool held; /* somebody without a token waits for a trial: nobody behind it gets its first */
    /* Logical blocks of this step's decode rows that end soon, and those of them that are spoken
     * for. */
    uint32_t ending, awaited;
};

enum status scheduler_init(struct scheduler *scheduler, struct arena *arena,
                           const struct scheduler_config *config)
{
    CHECK(config->step_tokens > 0 && config->prefill_chunk > 0);
    struct scheduler made = {
        .requests = config->requests,
        .slots = config->slots,
        .flights = config->flights,
        .step_tokens = config->step_tokens,
        .prefill_chunk = config->prefill_chunk,
    };
    made.running = arena_alloc_array(arena, config->slots->capacity, sizeof *made.running);
    if (made.running == NULL)
        return STATUS_OUT_OF_MEMORY;
    enum status status = heap_init(&made.queue, arena, config->requests->capacity);
    if (status != STATUS_OK)
        return status;
    *scheduler = made;
    return STATUS_OK;
}

static struct request *running_at(const struct scheduler *scheduler, uint32_t place)
{
    return scheduler->requests->rows[scheduler->running[place]];
}

/* Place of the first running request with this sequence or a higher one. */
static uint32_t place_of(const struct scheduler *scheduler, uint64_t sequence)
{
    uint32_t low = 0, high = scheduler->running_count;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (running_at(scheduler, middle)->sequence < sequence)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void leave_slot(struct scheduler *scheduler, struct request *request)
{
    uint32_t place = place_of(scheduler, request->sequence);
    CHECK(place < scheduler->running_count && scheduler->running[place] == request->index);
    scheduler->running_count--;
    memmove(scheduler->running + place, scheduler->running + place + 1,
            (scheduler->running_count - place) * sizeof *scheduler->running);
    slots_release(scheduler->slots, request->slot);
    request->slot = SLOT_NONE;
    request->planned = 0;
    request->computed = 0;
}

void scheduler_enqueue(struct scheduler *scheduler, struct request *request)
{
    CHECK(request->state == REQUEST_STATE_QUEUED || request->state == REQUEST_STATE_PREEMPTED);
    heap_set(&scheduler->queue, request->index, request->sequence);
}

void scheduler_withdraw(struct scheduler *scheduler, struct request *request)
{
    if (request->state == REQUEST_STATE_RUNNING)
        leave_slot(scheduler, request);
    else
        heap_remove(&scheduler->queue, request->index);
}

void scheduler_end_epoch(struct scheduler *scheduler)
{
    while (scheduler->running_count > 0) {
        struct request *request = running_at(scheduler, scheduler->running_count - 1);
        leave_slot(scheduler, request);
        request->workers_lost++;
        requests_move(scheduler->requests, request, REQUEST_STATE_QUEUED);
        scheduler_enqueue(scheduler, request);
    }
    slots_clear(scheduler->slots);
    scheduler->steps_since_trial = 0;
}

void scheduler_step_answered(struct scheduler *scheduler)
{
    scheduler->steps_since_trial++;
}

static void preempt(struct scheduler *scheduler, struct request *request)
{
    leave_slot(scheduler, request);
    request->preemptions++;
    scheduler->preemptions++;
    requests_move(scheduler->requests, request, REQUEST_STATE_PREEMPTED);
    scheduler_enqueue(scheduler, request);
}

static struct wish wish_of(const struct request *request)
{
    uint32_t known = request_known(request);
    CHECK(request->planned <= known);
    struct wish wish = {.first = request->planned, .count = known - request->planned};
    if (request->planned + 1 >= request_token_limit(request)) {
        wish.count = 0; /* what is in flight reaches the limit */
    } else if (wish.count == 0) {
        wish.count = 1; /* the token is still in flight: the worker has it */
        wish.from_last_sample = true;
    }
    return wish;
}

/* Positions for which the request's slot has blocks. */
static uint32_t covered(const struct scheduler *scheduler, const struct request *request)
{
    const struct slots *slots = scheduler->slots;
    return (uint32_t)kv_positions(&slots->table.geometry,
                                  slots->rows[request->slot].logical_blocks);
}

/* Whether the next position goes by itself and may take a block: in decode, and where tokens that
 * were accepted after the request came in (from plans sent before a preemption) pass what it
 * covers. */
static bool goes_alone(const struct scheduler *scheduler, const struct request *request,
                       const struct wish *wish)
{
    return wish->count == 1 || (wish->count > 1 && covered(scheduler, request) == wish->first);
}

/* Whether it still computes towards its first token. Such requests go in the order of their
 * submission, one whose prompt has a single token left like any other: first tokens keep that
 * order. */
static bool awaits_first(const struct request *request, const struct wish *wish)
{
    return request->accepted == 0 && wish->count > 0 && !wish->from_last_sample;
}

static bool wants_trial(const struct request *request)
{
    return suspicion_wants_trial(&request->suspicion, request->planned);
}

/* Going through requests in their order: whether this one has to wait for the first token of one
 * before it. `held` becomes true behind a request for which others wait. */
static bool is_held_back(const struct request *request, bool *held)
{
    if (request->accepted > 0)
        return false;
    bool waits = *held;
    *held = *held || suspicion_holds_order(&request->suspicion);
    return waits;
}

static void add_row(struct scheduler *scheduler, struct draft *draft, struct request *request,
                    struct wish wish)
{
    const struct slot *slot = &scheduler->slots->rows[request->slot];
    uint32_t end = wish.first + wish.count;
    bool samples = wish.from_last_sample || end == request_known(request);
    struct plan_row *row = &draft->plan->rows[draft->plan->row_count++];
    *row = (struct plan_row){
        .slot = request->slot,
        .generation = slot->generation,
        .first_position = wish.first,
        .count = wish.count,
        .flags = (samples ? (uint32_t)PLAN_ROW_SAMPLE : 0) |
                 (wish.from_last_sample ? (uint32_t)PLAN_ROW_FROM_LAST_SAMPLE : 0),
    };
    flights_add(draft->flight, &(struct flight_row){
                                   .request = {request->index, request->sequence},
                                   .slot = request->slot,
                                   .generation = slot->generation,
                                   .first = wish.first,
                                   .count = wish.count,
                                   .samples = samples,
                               });
    slots_name(scheduler->slots, request->slot, draft->plan->step);
    uint32_t again = request->reached < end ? request->reached : end;
    if (again > wish.first) {
        request->recomputed += again - wish.first;
        scheduler->recomputed_tokens += again - wish.first;
    }
    if (end > request->reached)
        request->reached = end;
    request->planned = end;
    if (request->first_plan_ns == 0)
        request->first_plan_ns = draft->now_ns;
    CHECK(draft->budget >= wish.count);
    draft->budget -= wish.count;
}

/* Makes a logical block free for a running request, if that is its due. */
static bool make_room(struct scheduler *scheduler, struct draft *draft,
                      const struct request *request)
{
    const struct blocks *blocks = &scheduler->slots->blocks;
    while (blocks_free_logical(blocks) == 0) {
        if (blocks_soon_logical(blocks) > 0)
            return false; /* it comes back with the next answer */
        if (draft->awaited < draft->ending) {
            draft->awaited++;
            return false;
        }
        struct request *victim = running_at(scheduler, scheduler->running_count - 1);
        if (victim == request)
            return false;
        preempt(scheduler, victim);
    }
    return true;
}

/* The next position of a running request, with the block that it may need. */
static void add_decode_row(struct scheduler *scheduler, struct draft *draft,
                           struct request *request, struct wish wish)
{
    if (wish.first == covered(scheduler, request)) {
        if (!make_room(scheduler, draft, request))
            return;
        CHECK(slots_cover(scheduler->slots, request->slot, wish.first + 1) == STATUS_OK);
    }
    wish.count = 1;
    add_row(scheduler, draft, request, wish);
}

/* Counts what comes back soon: blocks of a request of which this step, or one in flight, computes a
 * token near its limit. */
static void note_ending(const struct scheduler *scheduler, struct draft *draft,
                        const struct request *request)
{
    const struct slot *slot = &scheduler->slots->rows[request->slot];
    bool gets_on = slot->last_step == draft->plan->step || wish_of(request).count == 0;
    if (gets_on && request->planned + SCHEDULER_WAIT_TOKENS >= request_token_limit(request))
        draft->ending += slot->logical_blocks;
}

/* A piece of a running request's known tokens; its blocks were taken when it came in. */
static void add_chunk(struct scheduler *scheduler, struct draft *draft, struct request *request,
                      struct wish wish)
{
    const uint32_t bounds[] = {
        suspicion_clip(&request->suspicion, wish.first, wish.count),
        scheduler->prefill_chunk,
        draft->budget,
        covered(scheduler, request) - wish.first,
    };
    for (size_t i = 0; i < sizeof bounds / sizeof *bounds; i++)
        wish.count = bounds[i] < wish.count ? bounds[i] : wish.count;
    CHECK(wish.count > 0);
    add_row(scheduler, draft, request, wish);
}

static void add_running(struct scheduler *scheduler, struct draft *draft)
{
    bool held = false;
    for (uint32_t i = 0; i < scheduler->running_count && draft->budget > 0; i++) {
        struct request *request = running_at(scheduler, i);
        struct wish wish = wish_of(request);
        if (!is_held_back(request, &held) && !awaits_first(request, &wish) &&
            goes_alone(scheduler, request, &wish) && !wants_trial(request))
            add_decode_row(scheduler, draft, request, wish);
        note_ending(scheduler, draft, request);
    }
    for (uint32_t i = 0; i < scheduler->running_count && draft->budget > 0; i++) {
        struct request *request = running_at(scheduler, i);
        if (is_held_back(request, &draft->held) ||
            scheduler->slots->rows[request->slot].last_step == draft->plan->step)
            continue; /* or it has its row */
        struct wish wish = wish_of(request);
        bool is_chunk = awaits_first(request, &wish) ||
                        (wish.count > 1 && !goes_alone(scheduler, request, &wish));
        if (is_chunk && !wants_trial(request))
            add_chunk(scheduler, draft, request, wish);
    }
}

/* Blocks that running requests will want at their next borders, one for each that still grows. */
static uint32_t growth(const struct scheduler *scheduler)
{
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < scheduler->running_count; i++) {
        const struct request *request = running_at(scheduler, i);
        uint32_t positions = request_token_limit(request) - 1;
        blocks += slots_lacking(scheduler->slots, request->slot, positions) > 0;
    }
    return blocks;
}

/* Whether blocks for `needed` more are free beside what running requests will want. */
static bool has_room(const struct scheduler *scheduler, uint32_t needed)
{
    uint32_t free_blocks = blocks_free_logical(&scheduler->slots->blocks);
    if (free_blocks >= needed + scheduler->running_count)
        return true; /* nobody wants more than one: no need to count */
    return free_blocks >= needed && free_blocks - needed >= growth(scheduler);
}

static bool admit(struct scheduler *scheduler, struct request *request)
{
    uint32_t known = request_known(request);
    if (scheduler->slots->free_count == 0 ||
        !has_room(scheduler, kv_blocks_for(&scheduler->slots->table.geometry, known)))
        return false;
    uint32_t slot;
    CHECK(slots_take(scheduler->slots, request->index, &slot) == STATUS_OK);
    CHECK(slots_cover(scheduler->slots, slot, known) == STATUS_OK);
    heap_remove(&scheduler->queue, request->index);
    requests_move(scheduler->requests, request, REQUEST_STATE_RUNNING);
    request->slot = slot;
    uint32_t place = place_of(scheduler, request->sequence);
    memmove(scheduler->running + place + 1, scheduler->running + place,
            (scheduler->running_count - place) * sizeof *scheduler->running);
    scheduler->running[place] = request->index;
    scheduler->running_count++;
    return true;
}

static void add_newcomers(struct scheduler *scheduler, struct draft *draft)
{
    while (draft->budget > 0) {
        const struct heap_entry *head = heap_first(&scheduler->queue);
        if (head == NULL)
            return;
        struct request *request = scheduler->requests->rows[head->item];
        if (!admit(scheduler, request))
            return; /* nobody overtakes */
        struct wish wish = wish_of(request);
        CHECK(wish.count > 0 && !wish.from_last_sample);
        if (!is_held_back(request, &draft->held) && !wants_trial(request))
            add_chunk(scheduler, draft, request, wish);
    }
}

/* The running request to be tried next: for whom others wait; else whoever has least evidence
 * against it, then the oldest. */
static struct request *find_trial(const struct scheduler *scheduler)
{
    struct request *best = NULL;
    bool held = false;
    for (uint32_t i = 0; i < scheduler->running_count; i++) {
        struct request *request = running_at(scheduler, i);
        bool was_held = held;
        if (is_held_back(request, &held) || !wants_trial(request) || wish_of(request).count == 0)
            continue;
        if (held && !was_held)
            return request;
        if (best == NULL || request->suspicion.evidence < best->suspicion.evidence)
            best = request;
    }
    return best;
}

static void add_trial(struct scheduler *scheduler, struct draft *draft, struct request *request)
{
    struct wish wish = wish_of(request);
    if (wish.count > SCHEDULER_TRIAL_TOKENS)
        wish.count = SCHEDULER_TRIAL_TOKENS;
    if (goes_alone(scheduler, request, &wish))
        add_decode_row(scheduler, draft, request, wish);
    else
        add_chunk(scheduler, draft, request, wish);
    if (draft->plan->row_count > 0) {
        draft->flight->is_trial = true;
        scheduler->steps_since_trial = 0;
    }
}

/* For when nothing else can be computed. Whose turn it is may lack a block that only older suspects
 * hold: then the oldest is tried, for which others give theirs. */
static void add_trial_of_somebody(struct scheduler *scheduler, struct draft *draft)
{
    struct request *suspect = find_trial(scheduler);
    if (suspect == NULL)
        return;
    add_trial(scheduler, draft, suspect);
    struct request *oldest = running_at(scheduler, 0);
    if (draft->plan->row_count == 0 && wants_trial(oldest) && wish_of(oldest).count > 0)
        add_trial(scheduler, draft, oldest);
}

uint32_t scheduler_build(struct scheduler *scheduler, struct plan *plan, uint64_t now_ns)
{
    const struct flight *newest = flights_newest(scheduler->flights);
    bool is_alone = newest == NULL;
    if (!is_alone && newest->is_trial)
        return 0;
    struct request *suspect = find_trial(scheduler);
    bool due = suspect != NULL && scheduler->steps_since_trial >= SCHEDULER_TRIAL_INTERVAL_STEPS;
    if (due && !is_alone)
        return 0;
    struct draft draft = {
        .plan = plan,
        .flight = flights_begin(scheduler->flights),
        .budget = scheduler->step_tokens,
        .now_ns = now_ns,
    };
    plan->step = draft.flight->step;
    plan->row_count = 0;
    if (due)
        add_trial(scheduler, &draft, suspect);
    if (plan->row_count == 0) {
        add_running(scheduler, &draft);
        add_newcomers(scheduler, &draft);
    }
    if (plan->row_count == 0 && is_alone)
        add_trial_of_somebody(scheduler, &draft);
    return plan->row_count;
}

uint32_t scheduler_position(const struct scheduler *scheduler, const struct request *request)
{
    return heap_rank(&scheduler->queue, request->sequence);
}
