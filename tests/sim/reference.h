/* What a request must give, worked out in the simplest way: the naive model of the simulator. */
#ifndef TANDEM_TESTS_SIM_REFERENCE_H
#define TANDEM_TESTS_SIM_REFERENCE_H

#include "proto/client_messages.h"
#include "sim/scripted_worker.h"

enum { REFERENCE_TOKENS = 160, REFERENCE_STOPS = 2, REFERENCE_STOP_BYTES = 4 };

struct reference_spec {
    uint32_t prompt[REFERENCE_TOKENS];
    uint32_t prompt_tokens, max_tokens; /* settled */
    uint64_t seed;
    bool ignore_eos;
    bool has_stop_token;
    uint32_t stop_token;
    char stops[REFERENCE_STOPS][REFERENCE_STOP_BYTES]; /* NUL-terminated, "" = none */
    int64_t numeric_error_token;                       /* -1 = none */
};

struct reference {
    uint32_t tokens[REFERENCE_TOKENS];
    uint32_t token_count;
    char text[REFERENCE_TOKENS];
    uint32_t text_bytes;  /* shown at the end */
    uint32_t uncut_bytes; /* with the stop that cut it: a request cancelled before shows more */
    enum finish_reason reason;
    enum error_code code;
    uint64_t logits_hash;
};

void reference_run(const struct reference_spec *spec, const struct script *script,
                   struct reference *out_reference);

#endif
