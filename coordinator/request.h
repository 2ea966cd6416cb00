/* One request from submit to eviction: its state, parameters, tokens and text.
 * Invariants: (1) the state moves only along the table in request.c; (2) FINISHED has exactly one
 * outcome, set once; (3) tokens only grow and never change once accepted; (4) a request has a slot
 * exactly while RUNNING; (5) prompt_tokens + accepted <= prompt_tokens + max_tokens <= context. */
#ifndef TANDEM_COORDINATOR_REQUEST_H
#define TANDEM_COORDINATOR_REQUEST_H

#include "common/id128.h"
#include "coordinator/slots.h"
#include "coordinator/suspicion.h"
#include "coordinator/tokenizer/detokenizer.h"
#include "proto/client_messages.h"

#include <stdbool.h>
#include <stdint.h>

#define REQUEST_NONE     UINT32_MAX
#define REQUEST_NEVER_NS UINT64_MAX

enum { REQUEST_MESSAGE_BYTES = 160 };

/* A name that survives the request: a row in flight keeps it, and finds nobody if it was evicted.
 */
struct request_name {
    uint32_t index;
    uint64_t sequence;
};

struct request_outcome {
    enum finish_reason reason;           /* FINISH_REASON_UNKNOWN while unfinished */
    enum error_code code;                /* with FINISH_REASON_ERROR */
    char message[REQUEST_MESSAGE_BYTES]; /* with FINISH_REASON_ERROR */
};

/* What a step touches comes first: a few cache lines for each of hundreds of requests. */
struct request {
    enum request_state state;
    uint32_t index; /* in the table */
    uint64_t sequence;

    /* Tokens and text. */
    uint32_t *tokens; /* owned: prompt, then accepted; when finished: the accepted ones alone */
    uint32_t token_capacity;
    uint32_t prompt_tokens; /* 0 while tokenizing */
    uint32_t accepted;
    uint32_t max_tokens; /* as asked; 0 = not given; settled when the ids are there */
    char *text;          /* owned: released bytes */
    uint32_t text_capacity, text_bytes;
    struct stop_set *stops;  /* owned; NULL without stop strings */
    uint64_t logits_hash;    /* folded over accepted tokens */
    bool logits_hash_broken; /* a token came without a hash */
    bool ignore_eos, detach;
    bool woken;
    uint32_t stop_token_count;

    /* Engine. */
    uint32_t slot;       /* SLOT_NONE unless running */
    uint32_t planned;    /* first position that no plan of this generation covers */
    uint32_t computed;   /* positions of this generation that were answered */
    uint32_t reached;    /* highest position ever planned + 1: what lies below is recomputed */
    uint32_t refusals;   /* plans refused for its row since it got further than ever before */
    uint32_t refused_at; /* highest first position of a refused row */
    uint32_t first_call; /* waiting client calls */
    struct suspicion suspicion;
    struct request *next_woken;
    uint64_t first_plan_ns, first_token_ns; /* 0 = not yet */
    struct detokenizer detokenizer;

    /* Parameters. */
    float temperature, top_p, min_p;
    uint32_t top_k;
    uint64_t seed;
    uint32_t stop_tokens[LIMIT_STOP_TOKENS];

    /* Identity. */
    uint32_t id_length;
    char id[LIMIT_REQUEST_ID_BYTES];
    struct id128 body_hash;
    const char *prompt_field; /* static: which field of the submit held the prompt */
    struct request_outcome outcome;

    /* Accounts. */
    uint64_t bytes; /* of heap memory, with this struct */
    uint64_t recomputed;
    uint32_t preemptions, workers_lost;
    uint64_t submitted_ns, tokenized_ns, finished_ns; /* 0 = not yet */
    uint64_t deadline_ns;                             /* REQUEST_NEVER_NS without one */
    uint64_t last_answer_ns;                          /* of submit or next */

    /* Links, kept by the table. */
    struct request *next_in_bucket;
    bool outcome_read;               /* an answer carried it */
    uint32_t older_kept, newer_kept; /* list of finished requests */
};

/* Whether the life cycle has this move. */
bool request_may_move(enum request_state from, enum request_state to);

static inline bool request_is_finished(const struct request *request)
{
    return request->state == REQUEST_STATE_FINISHED;
}

/* Tokens that are known: prompt and accepted. */
static inline uint32_t request_known(const struct request *request)
{
    return request->prompt_tokens + request->accepted;
}

/* No position from here on is ever sampled. */
static inline uint32_t request_token_limit(const struct request *request)
{
    return request->prompt_tokens + request->max_tokens;
}

/* Tokens that clients may see. */
uint32_t request_released_tokens(const struct request *request);
const uint32_t *request_output_tokens(const struct request *request);

/* Whether this token ends the request: end of sequence, unless ignored, or one of its stop tokens.
 */
bool request_stops_at(const struct request *request, const struct vocabulary *vocabulary,
                      uint32_t token);

/* Folds the hash of one more accepted token's logits row: h = XXH3-64 of (h, row) as 16 bytes. */
uint64_t request_fold_hash(uint64_t hash, uint64_t row_hash);

#endif
