/* Options of tandem-worker. */
#ifndef TANDEM_WORKER_CONFIG_H
#define TANDEM_WORKER_CONFIG_H

#include "common/options.h"
#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>
#include <stdint.h>

/* Filled by options_read from worker_options. */
struct worker_config {
    char run_dir[OPTION_TEXT_BYTES];
    char model[OPTION_TEXT_BYTES];
    uint32_t backend; /* enum backend_kind */
    uint32_t cpu_isa; /* enum cpu_isa */
    uint64_t threads; /* 0 = one per physical core */
    bool pin_threads; /* each on a core of its own */
    uint64_t kv_pool_bytes;
    uint32_t kv_type; /* enum kv_type */
    uint64_t block_tokens;
    uint64_t step_tokens;
    uint64_t slots;              /* what this worker can take; the coordinator decides */
    uint64_t context;            /* 0 = the model's, at most 8192 */
    uint32_t log_level;          /* enum log_level */
    bool debug_logits_hash;      /* adds a hash of the logits to each result row */
    uint32_t debug_device_fault; /* enum backend_fault_kind */
    uint64_t debug_fault_step;   /* 1 is the first */
};

extern const struct option_program worker_options;

/* What the table alone cannot say. STATUS_INVALID with a sentence in `why`. */
MUST_USE enum status worker_config_check(const struct worker_config *config, struct text *why);

#endif
