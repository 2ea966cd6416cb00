/* What the coordinator knows of workers, and its decisions about them: who may attach, who waits,
 * which epoch is current, whether its worker is alive. Pure: facts come in, decisions go out.
 * Invariants: (1) at most one worker is active; (2) epochs only grow, each is given once; (3) every
 * epoch that was given ends once, and counts as abandoned until its process has ended; (4) the
 * first worker pins tensor hash and arithmetic for the life of the instance. */
#ifndef TANDEM_COORDINATOR_WORKER_STATE_H
#define TANDEM_COORDINATOR_WORKER_STATE_H

#include "common/status.h"
#include "coordinator/core.h"

#include <stdbool.h>
#include <stdint.h>

#define WORKER_OBSERVE_NS   (UINT64_C(500) * 1000 * 1000)
#define WORKER_SILENT_NS    (UINT64_C(2000) * 1000 * 1000)
#define WORKER_STALL_NS_MIN (UINT64_C(5000) * 1000 * 1000)
#define WORKER_READY_NS     (UINT64_C(30000) * 1000 * 1000)
/* A look counts for at most this much silence: a coordinator that slept must not blame the worker.
 */
#define WORKER_LOOK_NS_MAX (UINT64_C(1000) * 1000 * 1000)
enum { WORKER_STALL_LAYERS = 50 };

enum worker_stage { WORKER_NONE = 0, WORKER_ATTACHING, WORKER_ATTACHED, WORKER_IS_READY };

struct worker_limits {
    struct id128 metadata_hash;
    struct segment_extents extents;
};

/* One that may become active. */
struct worker_candidate {
    uint64_t connection;
    uint32_t version;
    uint32_t kv_order;
};

struct worker_liveness {
    uint64_t alive_ns;   /* word as last seen */
    uint64_t silent_ns;  /* it stood still */
    uint64_t stalled_ns; /* a plan was outstanding and nothing moved */
    uint64_t seen_ns;    /* time of the last look; 0 = none yet */
    struct worker_progress progress;
};

struct worker_state {
    struct worker_limits limits;
    bool pinned;
    struct id128 tensor_hash;
    char arithmetic[LIMIT_NAME_BYTES + 1]; /* empty until pinned */

    uint64_t epoch; /* of the active worker, or the last one given */
    enum worker_stage stage;
    struct worker_candidate active;
    uint64_t attached_ns, look_due_ns;
    struct worker_liveness liveness;
    struct worker_memory memory; /* as last seen */
    uint64_t layer_ns_average;   /* 0 = no step yet; kept across epochs */

    struct worker_candidate standby[LIMIT_STANDBY_WORKERS]; /* in order of arrival */
    uint32_t standby_count;

    uint64_t abandoned[LIMIT_ABANDONED_EPOCHS]; /* ended epochs whose process may live */
    uint32_t abandoned_count;
};

void worker_state_init(struct worker_state *state, const struct worker_limits *limits);

enum worker_welcome { WORKER_REFUSE = 1, WORKER_STAND_BY, WORKER_ATTACH };

struct worker_decision {
    enum worker_welcome welcome;
    enum attach_refusal reason; /* with WORKER_REFUSE; `message` too */
    struct reason message;
    uint32_t position; /* with WORKER_STAND_BY, from 1 */
};

/* Judges a hello. WORKER_ATTACH: it is active now, under state->epoch. */
void worker_state_hello(struct worker_state *state, uint64_t connection,
                        const struct attach_hello *hello, struct worker_decision *out_decision);

/* The port made the epoch's segment and sent `attach`; and the worker said `ready`. False: not the
 * epoch or stage for that. */
bool worker_state_attached(struct worker_state *state, uint64_t epoch, uint64_t now_ns);
bool worker_state_ready(struct worker_state *state, uint64_t epoch);

bool worker_state_is_ready(const struct worker_state *state);

/* A connection ended. True: it was the active one, and the epoch has to end. A standby is
 * forgotten. */
bool worker_state_lost(struct worker_state *state, uint64_t connection);

/* The active epoch is over. */
void worker_state_fenced(struct worker_state *state);

/* Makes the oldest standby active under a new epoch, if none is active and not too many epochs are
 * abandoned. False: nothing changed. */
bool worker_state_promote(struct worker_state *state);

void worker_state_epoch_gone(struct worker_state *state, uint64_t epoch);

/* A look at the active worker. Returns why it has to be fenced, or 0. `plans` = plans outstanding.
 */
enum core_fence_reason worker_state_observe(struct worker_state *state,
                                            const struct core_observation *observation,
                                            uint32_t plans, uint64_t now_ns);

/* A step took this long: feeds the average per layer. */
void worker_state_step_done(struct worker_state *state, uint64_t compute_ns);
/* A plan went to an idle worker: its clock starts. */
void worker_state_plan_sent(struct worker_state *state);

/* Fence reason by the passing of time alone (never ready), or 0. Puts off a look that was due. */
enum core_fence_reason worker_state_tick(struct worker_state *state, uint64_t now_ns);
/* When the next look or decision is due. */
uint64_t worker_state_deadline_ns(const struct worker_state *state);

/* Segment extents for the active worker. */
struct segment_extents worker_state_extents(const struct worker_state *state);

#endif
