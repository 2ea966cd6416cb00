/* Decides what the next step computes. First come, first served by sequence; one token budget for a
 * step: decode rows first, then prefill chunks of those who run, then newcomers from the queue.
 * Laws:
 *   - A request enters a slot only when blocks for all its known tokens are free, and one more for
 * each running request that will still grow: who just got in is not thrown out at the next border.
 *   - A decode row that lacks a block takes a free one; else waits if what retires will do, or what
 * older rows of this step hold that end within SCHEDULER_WAIT_TOKENS; else the running request with
 * the highest sequence gives up its blocks, never an older one, so the oldest always gets on. Who
 * is itself the newest waits: nobody older is held up by it.
 *   - No row is planned whose sample would lie beyond the token limit.
 *   - A suspected position (coordinator/suspicion.h) is computed alone, with no other plan in
 * flight, after TRIAL_INTERVAL_STEPS of other work, or at once if there is no other work.
 *   - First tokens come in order: behind a suspect that has none, nobody without one is planned
 * (within the limits of suspicion_holds_order). No work here is proportional to the queue. */
#ifndef TANDEM_COORDINATOR_SCHEDULER_H
#define TANDEM_COORDINATOR_SCHEDULER_H

#include "coordinator/flights.h"
#include "coordinator/heap.h"
#include "coordinator/requests.h"
#include "coordinator/slots.h"
#include "proto/plan.h"

enum {
    SCHEDULER_TRIAL_INTERVAL_STEPS = 4,
    /* Of one trial: it is short, so that few are hit by a death of another cause, and what it gets
     * through takes the evidence back. */
    SCHEDULER_TRIAL_TOKENS = 32,
    /* Waiting costs a row its places in that many steps at most; giving up its blocks costs a step
     * of hundreds of tokens, and the tokens it is behind at the end. */
    SCHEDULER_WAIT_TOKENS = 64,
};

struct scheduler {
    struct requests *requests; /* borrowed, as the next two */
    struct slots *slots;
    struct flights *flights;
    struct heap queue; /* waiting requests by sequence */
    uint32_t *running; /* [slots] indexes of requests, by rising sequence */
    uint32_t running_count;
    uint32_t step_tokens, prefill_chunk;
    uint32_t steps_since_trial;
    uint64_t preemptions, recomputed_tokens;
};

struct scheduler_config {
    struct requests *requests;
    struct slots *slots;
    struct flights *flights;
    uint32_t step_tokens;
    uint32_t prefill_chunk; /* at least 1 */
};

/* Memory is the arena's. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status scheduler_init(struct scheduler *scheduler, struct arena *arena,
                                    const struct scheduler_config *config);

/* A request that is QUEUED waits for its turn. */
void scheduler_enqueue(struct scheduler *scheduler, struct request *request);

/* A request is about to finish: leaves the queue, or its slot (which retires). */
void scheduler_withdraw(struct scheduler *scheduler, struct request *request);

/* The epoch is over: whoever ran is queued again. The slots are cleared too. */
void scheduler_end_epoch(struct scheduler *scheduler);

void scheduler_step_answered(struct scheduler *scheduler);

/* Fills the rows of the next plan and the record of it in flights (not yet marked as sent). Returns
 * the number of rows; 0 = nothing to do now. At most one plan may be in flight. */
uint32_t scheduler_build(struct scheduler *scheduler, struct plan *plan, uint64_t now_ns);

/* Requests before this one in the queue; O(queue). */
uint32_t scheduler_position(const struct scheduler *scheduler, const struct request *request);

#endif
