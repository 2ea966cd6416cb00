/* The seams between the modules of the core, where the linker puts a counter (--wrap): which moves
 * were made, and whether a move was due. The order of requests is judged here, since afterwards it
 * can no longer be told who was taken and who was passed over. */
#include "common/check.h"
#include "coordinator/core_state.h"
#include "sim/transitions.h"

enum status __real_requests_add(struct requests *requests, struct wire_text id,
                                struct request **out_request);
void __real_requests_move(struct requests *requests, struct request *request,
                          enum request_state to);
void __real_requests_remove(struct requests *requests, struct request *request);
struct request *__real_requests_eviction_candidate(const struct requests *requests);
void __real_suspicion_crashed(struct suspicion *suspicion, uint32_t first, uint32_t end);
bool __real_suspicion_crashed_alone(struct suspicion *suspicion, uint32_t first, uint32_t end,
                                    enum suspicion_worker worker);
void __real_suspicion_passed(struct suspicion *suspicion, uint32_t end);
void __real_flights_sent(struct flights *flights);
void __real_worker_state_hello(struct worker_state *state, uint64_t connection,
                               const struct attach_hello *hello,
                               struct worker_decision *out_decision);
bool __real_worker_state_attached(struct worker_state *state, uint64_t epoch, uint64_t now_ns);
bool __real_worker_state_ready(struct worker_state *state, uint64_t epoch);
bool __real_worker_state_lost(struct worker_state *state, uint64_t connection);
void __real_worker_state_fenced(struct worker_state *state);
bool __real_worker_state_promote(struct worker_state *state);
void __real_worker_state_epoch_gone(struct worker_state *state, uint64_t epoch);

enum status __wrap_requests_add(struct requests *requests, struct wire_text id,
                                struct request **out_request);
void __wrap_requests_move(struct requests *requests, struct request *request,
                          enum request_state to);
void __wrap_requests_remove(struct requests *requests, struct request *request);
struct request *__wrap_requests_eviction_candidate(const struct requests *requests);
void __wrap_suspicion_crashed(struct suspicion *suspicion, uint32_t first, uint32_t end);
bool __wrap_suspicion_crashed_alone(struct suspicion *suspicion, uint32_t first, uint32_t end,
                                    enum suspicion_worker worker);
void __wrap_suspicion_passed(struct suspicion *suspicion, uint32_t end);
void __wrap_flights_sent(struct flights *flights);
void __wrap_worker_state_hello(struct worker_state *state, uint64_t connection,
                               const struct attach_hello *hello,
                               struct worker_decision *out_decision);
bool __wrap_worker_state_attached(struct worker_state *state, uint64_t epoch, uint64_t now_ns);
bool __wrap_worker_state_ready(struct worker_state *state, uint64_t epoch);
bool __wrap_worker_state_lost(struct worker_state *state, uint64_t connection);
void __wrap_worker_state_fenced(struct worker_state *state);
bool __wrap_worker_state_promote(struct worker_state *state);
void __wrap_worker_state_epoch_gone(struct worker_state *state, uint64_t epoch);

/* ---- Requests ---- */

enum status __wrap_requests_add(struct requests *requests, struct wire_text id,
                                struct request **out_request)
{
    enum status status = __real_requests_add(requests, id, out_request);
    if (status == STATUS_OK)
        transition_taken(TRANSITION_SUBMITTED);
    return status;
}

/* Who gets a slot has waited longest of all who wait. */
static void judge_admission(const struct requests *requests, const struct request *request)
{
    for (uint32_t i = 0; i < requests->capacity; i++) {
        const struct request *other = requests->rows[i];
        bool waits = other != NULL && (other->state == REQUEST_STATE_QUEUED ||
                                       other->state == REQUEST_STATE_PREEMPTED);
        CHECK(!waits || other->sequence >= request->sequence);
    }
}

/* Who gives up its blocks came last of all who run, and is not the only one. */
static void judge_preemption(const struct requests *requests, const struct request *request)
{
    uint32_t older = 0;
    for (uint32_t i = 0; i < requests->capacity; i++) {
        const struct request *other = requests->rows[i];
        if (other == NULL || other == request || other->state != REQUEST_STATE_RUNNING)
            continue;
        CHECK(other->sequence < request->sequence);
        older++;
    }
    CHECK(older > 0);
}

void __wrap_requests_move(struct requests *requests, struct request *request, enum request_state to)
{
    if (to == REQUEST_STATE_RUNNING)
        judge_admission(requests, request);
    else if (to == REQUEST_STATE_PREEMPTED)
        judge_preemption(requests, request);
    else if (to == REQUEST_STATE_FINISHED)
        transition_taken(transition_of_outcome(request->outcome.reason, request->outcome.code));
    transition_taken(transition_of_move(request->state, to));
    __real_requests_move(requests, request, to);
}

static bool is_eviction; /* the next request that goes was chosen to make room */

void __wrap_requests_remove(struct requests *requests, struct request *request)
{
    bool is_finished = request_is_finished(request);
    CHECK(is_finished || request->state == REQUEST_STATE_TOKENIZING);
    if (!is_finished)
        transition_taken(TRANSITION_TOKENIZING_REFUSED);
    else
        transition_taken(is_eviction ? TRANSITION_FINISHED_EVICTED : TRANSITION_FINISHED_EXPIRED);
    is_eviction = false;
    __real_requests_remove(requests, request);
}

struct request *__wrap_requests_eviction_candidate(const struct requests *requests)
{
    is_eviction = true;
    return __real_requests_eviction_candidate(requests);
}

/* ---- Suspicion ---- */

void __wrap_suspicion_crashed(struct suspicion *suspicion, uint32_t first, uint32_t end)
{
    transition_taken(TRANSITION_SUSPECTED);
    __real_suspicion_crashed(suspicion, first, end);
}

bool __wrap_suspicion_crashed_alone(struct suspicion *suspicion, uint32_t first, uint32_t end,
                                    enum suspicion_worker worker)
{
    transition_taken(TRANSITION_SUSPECTED_ALONE);
    return __real_suspicion_crashed_alone(suspicion, first, end, worker);
}

void __wrap_suspicion_passed(struct suspicion *suspicion, uint32_t end)
{
    bool was_suspected = suspicion->crashes > 0;
    __real_suspicion_passed(suspicion, end);
    if (was_suspected && suspicion->crashes == 0)
        transition_taken(TRANSITION_SUSPICION_CLEARED);
}

/* ---- Plans ---- */

void __wrap_flights_sent(struct flights *flights)
{
    bool is_first = flights_count(flights) == 0;
    __real_flights_sent(flights);
    const struct flight *flight = flights_newest(flights);
    transition_taken(is_first ? TRANSITION_PLAN_FIRST : TRANSITION_PLAN_SECOND);
    if (!flight->is_trial)
        return;
    CHECK(is_first && flight->row_count == 1);
    transition_taken(TRANSITION_PLAN_TRIAL);
}

/* ---- Workers ---- */

void __wrap_worker_state_hello(struct worker_state *state, uint64_t connection,
                               const struct attach_hello *hello,
                               struct worker_decision *out_decision)
{
    uint64_t epoch = state->epoch;
    __real_worker_state_hello(state, connection, hello, out_decision);
    bool attaches = out_decision->welcome == WORKER_ATTACH;
    CHECK(state->epoch == epoch + attaches);
    if (attaches)
        transition_taken(TRANSITION_WORKER_ATTACHING);
    else if (out_decision->welcome == WORKER_STAND_BY)
        transition_taken(TRANSITION_WORKER_STANDBY);
}

bool __wrap_worker_state_attached(struct worker_state *state, uint64_t epoch, uint64_t now_ns)
{
    bool taken = __real_worker_state_attached(state, epoch, now_ns);
    if (taken)
        transition_taken(TRANSITION_WORKER_ATTACHED);
    return taken;
}

bool __wrap_worker_state_ready(struct worker_state *state, uint64_t epoch)
{
    bool taken = __real_worker_state_ready(state, epoch);
    if (taken)
        transition_taken(TRANSITION_WORKER_READY);
    return taken;
}

bool __wrap_worker_state_lost(struct worker_state *state, uint64_t connection)
{
    uint32_t standbys = state->standby_count;
    bool is_active = __real_worker_state_lost(state, connection);
    if (state->standby_count < standbys)
        transition_taken(TRANSITION_WORKER_STANDBY_LOST);
    return is_active;
}

void __wrap_worker_state_fenced(struct worker_state *state)
{
    static const enum transition ends[] = {
        [WORKER_ATTACHING] = TRANSITION_WORKER_END_ATTACHING,
        [WORKER_ATTACHED] = TRANSITION_WORKER_END_ATTACHED,
        [WORKER_IS_READY] = TRANSITION_WORKER_END_READY,
    };
    transition_taken(ends[state->stage]);
    __real_worker_state_fenced(state);
}

bool __wrap_worker_state_promote(struct worker_state *state)
{
    uint64_t epoch = state->epoch;
    bool taken = __real_worker_state_promote(state);
    CHECK(state->epoch == epoch + taken);
    if (taken)
        transition_taken(TRANSITION_WORKER_PROMOTED);
    return taken;
}

void __wrap_worker_state_epoch_gone(struct worker_state *state, uint64_t epoch)
{
    uint32_t abandoned = state->abandoned_count;
    __real_worker_state_epoch_gone(state, epoch);
    if (state->abandoned_count < abandoned)
        transition_taken(TRANSITION_EPOCH_CLOSED);
}
