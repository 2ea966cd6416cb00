/* Judges a submit: what can never be served is refused at once, by name, with the value and the
 * bound. Pure; the queue's own bounds (how full it is now) are the core's. */
#ifndef TANDEM_COORDINATOR_ADMISSION_H
#define TANDEM_COORDINATOR_ADMISSION_H

#include "coordinator/tokenizer/stop_set.h"
#include "proto/client_messages.h"

#include <stdbool.h>
#include <stdint.h>

struct admission_limits {
    uint32_t context;        /* prompt and completion together */
    uint64_t pool_positions; /* that the KV pool holds, for one request alone */
    uint32_t vocabulary;     /* ids are below */
    uint64_t prompt_bytes;
    bool chat_template;
    bool ids_only; /* no tokenizer: prompts are ids, answers have no text */
};

struct refusal {
    enum error_code code;
    const char *field; /* static; NULL = none */
    char message[LIMIT_ERROR_MESSAGE_BYTES];
    bool has_limit;
    uint64_t limit;
    uint64_t retry_after_ms; /* 0 = not worth another try */
};

/* Fills `refusal`; always returns false, so that a judge may return it. */
bool refusal_set(struct refusal *refusal, enum error_code code, const char *field,
                 const char *format, ...) __attribute__((format(printf, 4, 5)));

/* Whether the submit may become a request, as far as can be said before its text is tokenized.
 * `out_stops` receives its stop strings. On false `out_refusal` is filled. */
MUST_USE bool admission_judge_submit(const struct admission_limits *limits,
                                     const struct client_submit *submit, struct stop_set *out_stops,
                                     struct refusal *out_refusal);

/* Whether a prompt of `prompt_tokens` ids fits, with `max_tokens` (0 = not given). On true
 * `out_max_tokens` is what may be generated. `field` names the prompt in the refusal. */
MUST_USE bool admission_judge_prompt(const struct admission_limits *limits, uint32_t prompt_tokens,
                                     uint32_t max_tokens, const char *field,
                                     uint32_t *out_max_tokens, struct refusal *out_refusal);

/* Whether all of `ids` are of the model. `field` names them in the refusal. */
MUST_USE bool admission_judge_ids(const struct admission_limits *limits, const uint32_t *ids,
                                  uint32_t id_count, const char *field,
                                  struct refusal *out_refusal);

/* Field that holds the prompt of a submit. */
const char *admission_prompt_field(const struct client_submit *submit);

#endif
