/* A worker for tests of the core. It judges plans by the worker's rules, written here once more and
 * without the core's help, and its tokens are a function of the tokens before them, which it reads
 * back from its own KV blocks through the block table: a wrong block, table entry, position or
 * token shows as a wrong answer, which the tests compare with script_token over the request's own
 * tokens. */
#ifndef TANDEM_TESTS_SIM_SCRIPTED_WORKER_H
#define TANDEM_TESTS_SIM_SCRIPTED_WORKER_H

#include "proto/plan.h"
#include "proto/result.h"
#include "proto/segment.h"
#include "proto/worker_messages.h"

#include <stdbool.h>
#include <stdint.h>

/* ---- The script: what an undisturbed run would give ---- */

#define SCRIPT_HASH_EMPTY UINT64_C(0x5eed)

/* Hash of a run of tokens, extended by one. */
uint64_t script_hash(uint64_t hash, uint32_t token);

struct script {
    uint32_t end_token;
    uint32_t end_chance; /* one token in this many is the end token; 0 = never */
};

/* The token after those hashed, for a request with this seed. Letters a to z mostly. */
uint32_t script_token(const struct script *script, uint64_t hash, uint64_t seed);
uint64_t script_logits_hash(uint64_t hash, uint64_t seed);

/* ---- The worker ---- */

struct scripted_slot {
    uint32_t generation, cached;
    bool has_sample;
    uint32_t sample_position, sample_token;
};

struct scripted_position {
    uint32_t token;
    uint64_t hash; /* of the tokens up to here */
};

struct scripted_worker {
    struct script script;
    struct segment_reader segment;
    struct id128 instance;
    uint64_t epoch, step;             /* newest computed */
    struct scripted_slot *slots;      /* owned */
    struct scripted_position *blocks; /* owned: [physical block][position in it] */
    uint32_t *holders;                /* owned: [physical block] slot + 1 that a plan found in it */
    int64_t numeric_error_token;      /* a sampled token that comes as a numeric error; -1 = none */
    bool has_logits_hash;
    uint64_t rows_computed, tokens_computed;
};

/* Opens the segment as the worker does. CHECKs that it can. */
void scripted_worker_open(struct scripted_worker *worker, const void *segment, uint64_t bytes,
                          const struct script *script);
void scripted_worker_close(struct scripted_worker *worker);

/* Judges and computes. True: `out_result`; false: `out_refused`, and the worker is of no more use.
 */
bool scripted_worker_step(struct scripted_worker *worker, const struct plan *plan,
                          struct result *out_result, struct worker_refused *out_refused);

#endif
