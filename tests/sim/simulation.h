/* A seeded world around the core: clients that submit, poll, cancel and go away; a tokenizer that
 * answers late and out of order, or fails; workers that die, hang, lie, answer twice, out of order
 * or after their fence, refuse, leave, or say hello wrongly; standbys; short memory; time that
 * jumps. After every event the laws are checked (sim/laws.h), and every answer is compared with the
 * naive model (sim/reference.h). Then the faults stop, and every request must end. A broken rule
 * ends the process by CHECK; the seed was printed before. */
#ifndef TANDEM_TESTS_SIM_SIMULATION_H
#define TANDEM_TESTS_SIM_SIMULATION_H

#include "common/random.h"
#include "coordinator/core.h"
#include "sim/laws.h"
#include "sim/letters.h"
#include "sim/reference.h"

enum {
    SIM_SUBJECTS = 400,        /* requests of one run */
    SIM_CALLS = 48,            /* unanswered calls */
    SIM_ORDERS = 256,          /* unanswered tokenizer orders */
    SIM_WORKERS = 12,          /* connections */
    SIM_MESSAGES = 3,          /* of one worker, on their way to the core */
    SIM_QUEUE_BYTES = 1 << 20, /* enough for everything */
    SIM_ABANDONED = 128,       /* epochs whose process may live */
    SIM_POISON = '!',          /* a token that ends each worker that computes it */
    SIM_DISLIKED = '?',        /* a token that each worker refuses */
};

struct sim_subject {
    char id[16];
    struct reference_spec spec;
    struct reference expected;
    struct client_submit submit; /* its pointers lead into this struct */
    char prompt_text[REFERENCE_TOKENS + 1];
    uint32_t stop_tokens[1];
    bool is_impossible;     /* its submit can only be refused */
    bool is_known;          /* accepted once */
    bool was_cancelled;     /* by a client */
    bool was_orphan;        /* nobody asked for its output long enough */
    bool is_poison;         /* ends each worker that computes it */
    uint32_t crashes_alone; /* workers that ended while it was all they had */
    uint32_t refusals;      /* plans with it that were refused */
    bool is_ended;          /* the outcome was seen, or can no longer be */
    bool is_reading;        /* a poll of the reading client is out */
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
    bool is_beyond; /* its cursor may lie beyond the end */
    bool is_parked;
    uint64_t from_token, from_byte, hold_tokens;
    uint64_t due_ns; /* end of its wait */
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
    bool is_fenced;
    uint64_t alive_ns, moved_ns; /* its word, its progress */
    struct segment_extents extents;
    void *memory;
    struct segment_writer segment;
    struct scripted_worker script;
    uint32_t plan_count, message_count;
    /* Large: what lies beyond the counts, or behind the last row, is not touched. */
    struct plan plans[LIMIT_PLANS_IN_FLIGHT + 1];
    struct sim_message messages[SIM_MESSAGES]; /* oldest first */
};

/* What may go wrong in this run; one in so many, 0 = never. */
struct sim_faults {
    uint32_t kill, storm, leave, fatal, nonsense, hang; /* how workers end */
    uint32_t lie, refuse, twice, disorder, foreign;     /* what they say */
    uint32_t wrong_hello, standby;
    uint32_t memory, clock_jump, drain, tokenizer;
    bool has_poison, has_disliked, keeps_sockets;
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
    uint64_t now_ns, events; /* ticks and looks at a worker do not count as events */
    struct laws laws;
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
    bool is_pinned;                       /* a worker was taken */
    bool may_shed;                        /* this event may answer a poll without news */
    enum attach_refusal expected_refusal; /* of the hello that is being said */
    uint64_t results, finished;
};

/* Runs `events` random events from this seed, then heals the world and sees everything to its end.
 */
void simulation_run(uint64_t seed, uint32_t events, struct simulation *out_totals);

/* For simulation_*.c: takes what the core said after an event. */
void simulation_collect(struct simulation *sim);
void simulation_look(struct simulation *sim); /* the same, not counted as an event */
void simulation_pass_time(struct simulation *sim, uint64_t ns);
bool simulation_chance(struct simulation *sim, uint32_t one_in);
uint32_t simulation_below(struct simulation *sim, uint32_t bound);

/* Clients (simulation_clients.c). */
void simulation_client_event(struct simulation *sim);
void simulation_read_on(struct simulation *sim, uint32_t subject);
void simulation_take_answer(struct simulation *sim, const struct core_answer *answer);
void simulation_answer_order(struct simulation *sim, bool well);

/* Workers (simulation_workers.c). */
void simulation_worker_event(struct simulation *sim);
void simulation_hello(struct simulation *sim);
void simulation_take_worker_output(struct simulation *sim, const struct core_output *output);
/* Everything a healthy worker would do now. False: nothing to do. */
bool simulation_work(struct simulation *sim);
void simulation_close_epochs(struct simulation *sim);
void simulation_drop_workers(struct simulation *sim);

/* What a worker does wrong (simulation_faults.c). */
void simulation_observe(struct simulation *sim, struct sim_worker *worker);
struct sim_worker *simulation_find_worker(struct simulation *sim, uint64_t connection);
enum worker_end { WORKER_DIES = 1, WORKER_LEAVES, WORKER_SAYS_FATAL, WORKER_SENDS_NONSENSE };
void simulation_end_worker(struct simulation *sim, struct sim_worker *worker, enum worker_end how);
/* It hangs until it is fenced: silent, without progress, or never ready. */
void simulation_hang(struct simulation *sim, struct sim_worker *worker);
/* A message with the name of another epoch or instance. */
void simulation_say_foreign(struct simulation *sim, const struct sim_worker *worker);
void simulation_distort_result(struct simulation *sim, struct result *result);
/* Spoils a hello; the reason for which it has to be refused. */
enum attach_refusal simulation_spoil_hello(struct simulation *sim, struct attach_hello *hello,
                                           bool *out_uid_allowed);

#endif
