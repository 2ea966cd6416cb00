/* The coordinator's pure core: owns every request, decides everything, does nothing.
 *
 * An event goes in (a client's message, a worker's message, a fact about a worker, time), outputs
 * come out through core_next_output. The core makes no system call and reads no clock; `now_ns` and
 * randomness are arguments. The ports (client_port, attach_port, worker_port, tokenizer_pool) carry
 * out what the outputs say and report what happened.
 *
 * Use, on one thread: call one event function, then core_next_output until it returns false, then
 * the next event. Pointers inside an output are borrowed from the core until the next event
 * function is called, with one exception (CORE_OUTPUT_TOKENIZE). Pointers inside an event are
 * borrowed by the core until the event function returns, with one exception (the segment of
 * core_worker_attached). Sleep until core_next_deadline_ns, then call core_tick.
 *
 * Time that runs backwards is taken as standing still.
 *
 * Life of an epoch, as outputs (>) and events (<):
 *   < core_worker_hello(connection)   the port has checked packet, descriptor and its segment
 *   > REFUSE or STANDBY or ATTACH     ATTACH may follow STANDBY later (promotion)
 *   < core_worker_attached(epoch)     the port made segment and socket and sent `attach`; if that
 *                                     failed: core_worker_lost
 *   < core_worker_ready               only now plans go out
 *   > PLAN .. < core_worker_result, core_worker_refused, core_worker_fatal
 *   < core_worker_observed            at each core_tick while an epoch is attached
 *   < core_worker_lost(connection)    attach EOF, pidfd readable, a send that failed
 *   > FENCE                           exactly one for each ATTACH; afterwards the core does not
 *                                     touch the segment any more
 *   < core_epoch_gone(epoch)          the process of the fenced epoch has ended */
#ifndef TANDEM_COORDINATOR_CORE_H
#define TANDEM_COORDINATOR_CORE_H

#include "common/id128.h"
#include "common/log.h"
#include "common/status.h"
#include "common/text.h"
#include "proto/client_messages.h"
#include "proto/limits.h"
#include "proto/plan.h"
#include "proto/result.h"
#include "proto/segment.h"
#include "proto/worker_messages.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct core; /* opaque; one per coordinator; belongs to one thread */
struct vocabulary;

#define CORE_NO_DEADLINE UINT64_MAX

/* Copied by core_create; what the pointers point at is borrowed until core_destroy. */
struct core_config {
    struct id128 instance;
    uint64_t started_ns;
    const struct vocabulary *vocabulary;

    /* Model, as `models` reports it and `hello` must match it. */
    const char *model_name, *model_architecture;
    struct id128 metadata_hash;
    bool chat_template; /* messages can be tokenized */
    bool ids_only;      /* no tokenizer: text is refused, answers are ids */

    /* Engine. extents.context is the limit of prompt and completion together, extents.step_tokens
     * the token budget of a step; the order inside geometry is the backend's and is not compared.
     */
    struct segment_extents extents;
    uint32_t prefill_chunk; /* most tokens of one request in one step; 0 = the budget */
    bool shuffle_blocks;    /* debug: permute the block free list by shuffle_seed */
    uint64_t shuffle_seed;

    /* Bounds. */
    uint32_t queue_requests, kept_requests;
    uint64_t queue_bytes, prompt_bytes;
    uint64_t kept_ns, orphan_ns, drain_timeout_ns;
    uint32_t
        calls; /* client calls that may wait in the core; beyond it the oldest poll is answered */

    /* realloc for request bodies; NULL = realloc. Tests make it fail. */
    void *(*reallocate)(void *memory, size_t bytes);
};

/* ---- Outputs ------------------------------------------------------------------------------- */

enum core_output_kind {
    CORE_OUTPUT_ANSWER = 1, /* to the client call `handle`; each call gets exactly one */
    CORE_OUTPUT_TOKENIZE,   /* order to the tokenizer pool; answered by core_tokenized */
    CORE_OUTPUT_PLAN,       /* send to the worker of plan->epoch; failed send: core_worker_lost */
    CORE_OUTPUT_ATTACH,     /* make segment and socket of `epoch` for `connection` */
    CORE_OUTPUT_STANDBY,    /* tell `connection` that it waits */
    CORE_OUTPUT_REFUSE,     /* tell `connection` the reason and close it */
    CORE_OUTPUT_FENCE,      /* fence `epoch`: mark, close `connection`, kill, bury the socket */
    CORE_OUTPUT_LOG,        /* one line for the log */
    CORE_OUTPUT_DRAINED,    /* the drain is over, the last second served too: leave */
};

/* Text or messages to be turned into ids. All of it stays in place until core_tokenized was called
 * for `ticket`, across events; every order must be answered, also during a drain. Orders may be
 * carried out on other threads and end in any sequence. */
struct core_tokenize {
    uint64_t ticket;
    struct wire_text text;     /* raw prompt; bytes NULL if messages are given */
    struct wire_list messages; /* walk with chat_message_next; count 0 if text is given */
    bool parse_special;        /* of a raw prompt */
    uint32_t ids_max;          /* with more ids than this: STATUS_TOO_LARGE */
};

enum core_fence_reason {
    CORE_FENCE_LOST = 1,    /* attach EOF, pidfd, failed send: the process is gone or going */
    CORE_FENCE_SILENT,      /* the alive word stood still */
    CORE_FENCE_HUNG,        /* a plan was outstanding and no layer moved */
    CORE_FENCE_NEVER_READY, /* attached, but did not say ready in time */
    CORE_FENCE_REFUSED,     /* the worker refused a plan */
    CORE_FENCE_MISMATCH,    /* a result that does not fit the plan, or a frame that is none */
    CORE_FENCE_FATAL,       /* the worker said so */
    CORE_FENCE_REASON_COUNT
};
const char *core_fence_reason_name(enum core_fence_reason reason); /* static, snake_case */

struct core_answer {
    uint64_t handle;
    struct client_answer message; /* `named` is set as in the request */
};

struct core_attach {
    uint64_t connection, epoch;
    uint32_t version;               /* of the protocol, to speak with this worker */
    struct segment_extents extents; /* of its segment */
};

struct core_standby {
    uint64_t connection;
    uint32_t position; /* 1: the next to be promoted */
};

struct core_refuse {
    uint64_t connection;
    enum attach_refusal reason;
    const char *message;
};

struct core_fence {
    uint64_t connection, epoch;
    enum core_fence_reason reason;
};

struct core_log {
    enum log_level level;
    const char *event; /* static */
    const char *text;  /* key=value pairs */
};

struct core_output {
    enum core_output_kind kind;
    bool can_wait; /* of a plan: the worker has an older one to compute */
    union {
        struct core_answer answer;
        struct core_tokenize tokenize;
        const struct plan *plan; /* two of them may be drained from one event */
        struct core_attach attach;
        struct core_standby standby;
        struct core_refuse refuse;
        struct core_fence fence;
        struct core_log log;
    };
};

/* ---- Life ---------------------------------------------------------------------------------- */

/* Takes all tables. STATUS_INVALID with the reason, STATUS_OUT_OF_MEMORY. */
MUST_USE enum status core_create(const struct core_config *config, struct core **out_core,
                                 struct text *why);
/* NULL is accepted. Unanswered calls and orders are forgotten. */
void core_destroy(struct core *core);

/* The next output in order, or false. */
MUST_USE bool core_next_output(struct core *core, struct core_output *out_output);

/* When core_tick wants to be called at the latest; CORE_NO_DEADLINE: never. */
uint64_t core_next_deadline_ns(const struct core *core);

/* The oldest step that the worker has not answered; 0: none. */
uint64_t core_step_due(const struct core *core);

/* ---- Events of clients --------------------------------------------------------------------- */

/* A decoded request. `handle` is the port's name for the call, unique among unanswered ones, not 0.
 * `chance` is 64 random bits (becomes the seed of a submit without one). */
void core_client_request(struct core *core, uint64_t handle, const struct client_request *request,
                         uint64_t chance, uint64_t now_ns);

/* A frame that did not decode; the port answered it. Only counted. */
void core_client_bad_frame(struct core *core);

/* The caller of `handle` is gone; nothing will be answered. Unknown handles are ignored. */
void core_client_gone(struct core *core, uint64_t handle, uint64_t now_ns);

/* The port is short of contexts: answer the oldest parked poll now, without news. */
void core_answer_oldest_poll(struct core *core, uint64_t now_ns);

/* Result of an order: STATUS_OK with ids, or what went wrong with `why` in words (STATUS_INVALID,
 * STATUS_TOO_LARGE, STATUS_UNSUPPORTED, STATUS_OUT_OF_MEMORY). An unknown ticket is a mistake. */
struct core_tokenized {
    uint64_t ticket;
    enum status status;
    const uint32_t *ids;
    uint32_t id_count;
    const char *why; /* may be NULL */
};
void core_tokenized(struct core *core, const struct core_tokenized *tokenized, uint64_t now_ns);

/* ---- Events of workers --------------------------------------------------------------------- */

/* A hello of `connection` (the port's name, never reused). `uid_allowed`: the peer's uid is one of
 * --worker-user. */
void core_worker_hello(struct core *core, uint64_t connection, bool uid_allowed,
                       const struct attach_hello *hello, uint64_t now_ns);

/* `segment` is borrowed until the FENCE output of `epoch` (the core writes it inside events). */
void core_worker_attached(struct core *core, uint64_t epoch, struct segment_writer *segment,
                          uint64_t now_ns);

/* Decoded messages of the link. Instance and epoch are checked here, a stale one is counted. */
void core_worker_ready(struct core *core, const struct worker_ready *ready, uint64_t now_ns);
void core_worker_result(struct core *core, const struct result *result, uint64_t now_ns);
void core_worker_refused(struct core *core, const struct worker_refused *refused, uint64_t now_ns);
void core_worker_fatal(struct core *core, const struct worker_fatal *fatal, uint64_t now_ns);

/* A frame of `epoch` that does not decode. */
void core_worker_nonsense(struct core *core, uint64_t epoch, const char *why, uint64_t now_ns);

/* A connection of any kind ended: active, standby, or one that the core does not know (any more).
 */
void core_worker_lost(struct core *core, uint64_t connection, uint64_t now_ns);

/* The same of a worker that said before that it is leaving: nothing that it computed is to blame.
 */
void core_worker_left(struct core *core, uint64_t connection, uint64_t now_ns);

/* What the port read from the active worker's segment. */
struct core_observation {
    uint64_t alive_ns;
    struct worker_progress progress;
    struct worker_memory memory;
};
void core_worker_observed(struct core *core, uint64_t epoch,
                          const struct core_observation *observation, uint64_t now_ns);

/* The process of a fenced epoch has ended; until then the epoch counts as abandoned. */
void core_epoch_gone(struct core *core, uint64_t epoch, uint64_t now_ns);

/* ---- Time and the end ---------------------------------------------------------------------- */

void core_tick(struct core *core, uint64_t now_ns);

/* First call: no more submits, what runs goes on until drain_timeout_ns, DRAINED follows.
 * Second call: everything ends now. The workers are not fenced: they will find the successor. */
void core_drain(struct core *core, uint64_t now_ns);

/* ---- For tests ----------------------------------------------------------------------------- */

/* CHECKs every invariant that relates the tables of the core; O(everything). */
void core_check(const struct core *core);

#endif
