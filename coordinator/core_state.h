/* Inside of the core, for coordinator/core*.c and the tests that judge it. core_frame.c: life, the
 * frame of an event, time, the end of a request. core_clients.c: events of clients, waiting calls.
 * core_submit.c: how a request comes to be. core_workers.c: events of workers. core_report.c:
 * figures. */
#ifndef TANDEM_COORDINATOR_CORE_STATE_H
#define TANDEM_COORDINATOR_CORE_STATE_H

#include "coordinator/admission.h"
#include "coordinator/calls.h"
#include "coordinator/core.h"
#include "coordinator/flights.h"
#include "coordinator/heap.h"
#include "coordinator/orders.h"
#include "coordinator/outbox.h"
#include "coordinator/plan_writer.h"
#include "coordinator/requests.h"
#include "coordinator/scheduler.h"
#include "coordinator/slots.h"
#include "coordinator/worker_state.h"

enum { CORE_RETRY_MS = 1000, CORE_LINGER_MS = 1000 };

enum drain_stage {
    DRAIN_NONE = 0,
    DRAIN_RUNNING, /* what was started goes on */
    DRAIN_LINGER,  /* nothing is left; answers are served one second more */
    DRAIN_DONE,
};

struct core {
    struct core_config config;
    struct arena arena; /* all tables below */
    struct outbox outbox;
    struct requests requests;
    struct calls calls;
    struct orders orders;
    struct slots slots;
    struct flights flights;
    struct scheduler scheduler;
    struct plan_writer plan_writer;
    struct worker_state workers;
    struct heap timers; /* requests by index, then calls by index */
    struct admission_limits limits;
    struct client_stats_answer stats; /* counters; gauges are filled in for the answer */
    struct client_model model;        /* of the answer to `models` */
    struct plan *plans;               /* [LIMIT_PLANS_IN_FLIGHT] by step */
    struct request *woken;            /* have news for their calls */
    char *token_text;                 /* [DETOKENIZER_OUTPUT_BYTES_MAX] */
    uint64_t now_ns;
    enum drain_stage drain;
    uint64_t drain_deadline_ns;
};

/* Frame of every event: time moves on, the last event's outputs are forgotten; at the end plans are
 * made, then calls answered. */
void core_begin(struct core *core, uint64_t now_ns);
void core_end(struct core *core);

/* The request ended; `code` and `message` with FINISH_REASON_ERROR. Its calls are answered at the
 * end of the event. */
struct core_end_cause {
    enum finish_reason reason;
    enum error_code code;
    const char *message;
};
void core_finish(struct core *core, struct request *request, const struct core_end_cause *cause);

/* There may be something to answer to its calls. */
void core_wake(struct core *core, struct request *request);
/* Sets the one timer of a request by its state: deadline, orphan, or end of keeping. */
void core_set_timer(struct core *core, struct request *request);

/* Accepts a sampled token: log, hash, text, end. */
void core_accept_token(struct core *core, struct request *request, uint32_t token,
                       const uint64_t *logits_hash);

/* Forgets a request and all that points at it; it has no calls any more. */
void core_forget(struct core *core, struct request *request);

/* A client's call as its handler sees it. */
struct client_event {
    uint64_t handle;
    const struct client_request *request;
    uint64_t chance;
};
void core_on_submit(struct core *core, const struct client_event *event);
void core_on_tokenize(struct core *core, const struct client_event *event);

/* Answers. */
struct client_answer *core_add_answer(struct core *core, uint64_t handle, bool named,
                                      enum client_answer_type type);
void core_answer_refusal(struct core *core, uint64_t handle, bool named,
                         const struct refusal *refusal);
void core_refuse_event(struct core *core, const struct client_event *event,
                       const struct refusal *refusal);
void core_refuse_without_memory(struct core *core, const struct client_event *event);
void core_answer_accepted(struct core *core, struct request *request, uint64_t handle, bool named);

/* Waiting calls. The polls and submits of a request whose turn it is; one poll whatever there is.
 */
void core_answer_calls(struct core *core, struct request *request);
void core_answer_poll(struct core *core, uint32_t call_index);
/* Takes a call out of the table; what it said stays in `out_call`. */
void core_close_call(struct core *core, uint32_t call_index, struct call *out_call);
/* Makes room for one more call, by answering the oldest poll. False: all are submits. */
bool core_make_room(struct core *core);
/* Parks a call (`request` NULL: CALL_TOKENIZE). CALL_NONE: there is no room. */
uint32_t core_wait(struct core *core, struct request *request, const struct call *call);

/* Copies ids of a message, judged, until the next event; NULL with the refusal. */
uint32_t *core_copy_ids(struct core *core, const struct wire_tokens *tokens,
                        struct refusal *refusal);

/* Figures. */
struct client_stats_answer core_stats(const struct core *core);
struct client_health_answer core_health(const struct core *core);
struct client_models_answer core_models(const struct core *core);
struct client_model core_model(const struct core *core);

/* Ends the active epoch: whoever ran is queued again. `is_crash`: what was executed is suspect. */
void core_end_epoch(struct core *core, enum core_fence_reason reason, bool is_crash,
                    const char *detail);

#endif
