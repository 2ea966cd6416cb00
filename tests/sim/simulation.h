/* A seeded world around the core: clients that submit, poll, cancel and go away; a tokenizer that
 * answers late and out of order; workers that die, hang, lie, answer twice or after their fence;
 * short memory; time that jumps. After every event the core's tables are checked, and every answer
 * is compared with the naive model (sim/reference.h). A broken rule ends the process by CHECK; the
 * seed was printed before. */
#ifndef TANDEM_TESTS_SIM_SIMULATION_H
#define TANDEM_TESTS_SIM_SIMULATION_H

#include "common/random.h"
#include "coordinator/core.h"
#include "sim/letters.h"
#include "sim/reference.h"

enum {
    SIM_SUBJECTS = 400,        /* requests of one run */
    SIM_CALLS = 1024,          /* unanswered calls */
    SIM_ORDERS = 256,          /* unanswered tokenizer orders */
    SIM_WORKERS = 8,           /* connections */
    SIM_MESSAGES = 16,         /* of one worker, on their way to the core */
    SIM_QUEUE_BYTES = 1 << 20, /* enough for everything */
    SIM_ABANDONED = 128,       /* epochs whose socket is not closed */
};

struct sim_subject {
    char id[16];
    struct reference_spec spec;
    struct reference expected;
    struct client_submit submit; /* its pointers lead into this struct */
    char prompt_text[REFERENCE_TOKENS + 1];
    uint32_t stop_tokens[1];
    bool is_impossible; /* its submit can only be refused */
    bool is_known;      /* accepted once */
    bool was_cancelled; /* by a client */
    bool was_orphan;    /* nobody asked for its output long enough */
    bool is_poison;     /* ends each worker that computes it */
    bool is_ended;      /* the outcome was seen, or can no longer be */
    bool is_reading;    /* a poll of the reading client is out */
    uint64_t submitted_ns, touched_ns;
    enum finish_reason reason; /* as seen */
    uint64_t tokens, bytes;    /* cursors of the client that reads */
};

struct sim_call {
    uint64_t handle; /* 0 = free */
    enum client_request_type type;
    uint32_t subject;
    bool is_conflict; /* submit with another body */
    bool is_reading;
    uint64_t from_token, from_byte;
};

struct sim_message {
    enum { SIM_RESULT = 1, SIM_REFUSED } kind;
    struct result result;
    struct worker_refused refused;
};

/* A worker process as the world knows it: running, fenced but not yet dead, dead. */
struct sim_worker {
    uint64_t connection; /* 0 = none */
    uint64_t epoch;      /* 0 = standby */
    enum { SIM_WAITS, SIM_CHOSEN, SIM_ATTACHED, SIM_READY } stage;
    bool is_fenced, is_silent;
    uint64_t alive_ns;
    struct segment_extents extents;
    void *memory;
    struct segment_writer segment;
    struct scripted_worker script;
    struct plan plans[LIMIT_PLANS_IN_FLIGHT + 1];
    uint32_t plan_count;
    struct sim_message messages[SIM_MESSAGES]; /* oldest first */
    uint32_t message_count;
};

/* What may go wrong in this run; one in so many, 0 = never. */
struct sim_faults {
    uint32_t kill, lie, refuse, stale, silence, memory, clock_jump, drain;
    bool has_poison;
    int64_t numeric_error_token;
};

struct simulation {
    uint64_t seed;
    struct random random;
    struct sim_faults faults;
    struct vocabulary vocabulary;
    struct script script;
    struct core_config config;
    struct core *core;
    uint64_t now_ns, events;
    uint64_t handle, connection;
    struct sim_subject *subjects; /* [SIM_SUBJECTS] */
    uint32_t subject_count;
    struct sim_call calls[SIM_CALLS];
    uint32_t call_count;
    struct core_tokenize orders[SIM_ORDERS];
    uint32_t order_count;
    struct sim_worker *workers; /* [SIM_WORKERS] */
    uint64_t abandoned[SIM_ABANDONED];
    uint32_t abandoned_count;
    bool is_healing; /* no more faults: everything must end well */
    bool is_draining, is_drained;
    uint64_t deaths, results, refusals, finished, poisoned;
};

/* Runs `events` random events from this seed, then heals the world and sees everything to its end.
 */
void simulation_run(uint64_t seed, uint32_t events, struct simulation *out_totals);

/* For simulation_*.c: takes what the core said after an event. */
void simulation_collect(struct simulation *sim);
bool simulation_chance(struct simulation *sim, uint32_t one_in);
uint32_t simulation_below(struct simulation *sim, uint32_t bound);

/* Clients (simulation_clients.c). */
void simulation_client_event(struct simulation *sim);
void simulation_read_on(struct simulation *sim, uint32_t subject);
void simulation_take_answer(struct simulation *sim, const struct core_answer *answer);
void simulation_answer_order(struct simulation *sim, bool well);

/* Workers (simulation_workers.c). */
void simulation_worker_event(struct simulation *sim);
void simulation_take_worker_output(struct simulation *sim, const struct core_output *output);
/* Everything a healthy worker would do now. False: nothing to do. */
bool simulation_work(struct simulation *sim);
void simulation_close_epochs(struct simulation *sim);
void simulation_drop_workers(struct simulation *sim);

#endif
