/* A core with everything around it that a test needs: a vocabulary, a clock, a tokenizer that
 * answers at once, a worker, and a record of what the core said. */
#ifndef TANDEM_TESTS_SIM_ENGINE_H
#define TANDEM_TESTS_SIM_ENGINE_H

#include "coordinator/core.h"
#include "sim/letters.h"
#include "sim/scripted_worker.h"

enum {
    ENGINE_ANSWERS = 4096, /* kept, by handle modulo */
    ENGINE_TEXT_BYTES = 1024,
    ENGINE_TOKENS = 1024,
    ENGINE_ORDERS = 64,
    ENGINE_OUTPUTS = 256,
};

/* An answer, copied out of the core. */
struct engine_answer {
    uint64_t handle;              /* 0 = none */
    uint32_t times;               /* how often this call was answered: 1 */
    struct client_answer message; /* texts and tokens in it are the copies below */
    char text[ENGINE_TEXT_BYTES];
    char error_message[LIMIT_ERROR_MESSAGE_BYTES];
    uint32_t tokens[ENGINE_TOKENS];
};

struct engine {
    struct vocabulary vocabulary;
    struct core_config config;
    struct core *core;
    struct script script;
    uint64_t now_ns;
    uint64_t handle;     /* newest */
    uint64_t connection; /* newest */
    uint64_t chance;

    /* The active epoch. */
    bool attached;
    uint64_t epoch, active_connection;
    struct segment_extents extents;
    void *memory; /* of its segment */
    uint64_t memory_bytes;
    struct segment_writer segment;
    struct scripted_worker worker;
    struct plan plans[LIMIT_PLANS_IN_FLIGHT]; /* sent, not executed; oldest first */
    uint32_t plan_count;
    bool holds_attach; /* ATTACH waits for engine_finish_attach */

    /* What the core said. */
    struct engine_answer *answers; /* [ENGINE_ANSWERS] */
    struct core_output
        outputs[ENGINE_OUTPUTS]; /* of the last event; pointers valid until the next */
    uint32_t output_count;
    uint32_t counts[CORE_OUTPUT_DRAINED + 1];
    struct core_refuse last_refuse;
    struct core_fence last_fence;
    struct core_standby last_standby;
    struct core_attach last_attach;
    char last_log[64];
    bool drained;

    /* Tokenizer: a byte of text is a token; U+FFFF is refused. */
    bool holds_orders; /* orders wait for engine_tokenize */
    uint64_t orders[ENGINE_ORDERS];
    struct core_tokenize order_contents[ENGINE_ORDERS];
    uint32_t order_count;
};

/* Defaults of a small engine: 4 slots, context 128, 2 layers, blocks of 16, a pool of 32 logical
 * blocks, 64 step tokens. Change `config`, then start. */
void engine_init(struct engine *engine);
void engine_start(struct engine *engine);
void engine_stop(struct engine *engine);

/* Takes all outputs of the last event. Every event below does that. */
void engine_collect(struct engine *engine);

/* A call to the core; the handle is returned. */
uint64_t engine_call(struct engine *engine, const struct client_request *request);
uint64_t engine_submit(struct engine *engine, const struct client_submit *submit);
uint64_t engine_next(struct engine *engine, const struct client_next *next);
uint64_t engine_cancel(struct engine *engine, const char *id);
uint64_t engine_status(struct engine *engine, const char *id);
uint64_t engine_stats(struct engine *engine);

/* Shorthands: a greedy submit of text; a poll from the cursors without waiting. */
struct client_submit engine_prompt(const char *id, const char *text, uint32_t max_tokens);
uint64_t engine_poll(struct engine *engine, const char *id, uint64_t from_token,
                     uint64_t from_byte);

/* NULL while the call waits. */
const struct engine_answer *engine_answer(const struct engine *engine, uint64_t handle);
/* Of an error answer; ERROR_CODE_UNKNOWN for others. */
enum error_code engine_error(const struct engine *engine, uint64_t handle);

void engine_tokenize(struct engine *engine, uint32_t order, enum status status);

/* Time passes; the core is ticked as often as it asks for, the worker is seen alive. */
void engine_pass(struct engine *engine, uint64_t ns);

/* Workers. */
struct attach_hello engine_good_hello(const struct engine *engine);
uint64_t engine_hello(struct engine *engine, const struct attach_hello *hello);
/* A good hello, attach and ready. */
void engine_attach(struct engine *engine);
void engine_finish_attach(struct engine *engine);
void engine_ready(struct engine *engine);
/* The worker executes its oldest plan. */
void engine_step(struct engine *engine);
/* Until no plan is out. Returns the steps. */
uint32_t engine_run(struct engine *engine);
/* kill -9. */
void engine_kill(struct engine *engine);

/* Next token of an undisturbed run after these; and its whole completion. */
uint32_t engine_expect(const struct engine *engine, const char *prompt, uint64_t seed,
                       uint32_t max_tokens, uint32_t *out_tokens);

#endif
