/* What the worker knows of each slot. It is the worker's own truth: a plan is judged against it,
 * never against what the coordinator believes. Forgotten at every attachment. */
#ifndef TANDEM_WORKER_SLOTS_H
#define TANDEM_WORKER_SLOTS_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

enum { SLOT_NO_SAMPLE = UINT32_MAX };

/* As last_token: sampled on the device, not known here yet. */
#define SLOT_TOKEN_PENDING UINT32_MAX

struct slot_state {
    uint32_t generation;           /* 0: never used */
    uint32_t cached_length;        /* positions whose keys and values are in the pool */
    uint32_t last_sample_position; /* absolute index of last_token, or SLOT_NO_SAMPLE */
    uint32_t last_token;
    uint32_t token_limit;     /* no position from here on is computed */
    bool numeric_error;       /* sticky: what the pool holds of this tenant is not finite */
    struct sampling sampling; /* as the coordinator wrote it for this generation */
};

#endif
