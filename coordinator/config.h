/* Options of tandem-coordinator and what they lead to. */
#ifndef TANDEM_COORDINATOR_CONFIG_H
#define TANDEM_COORDINATOR_CONFIG_H

#include "common/options.h"
#include "common/status.h"
#include "common/text.h"

#include <stdint.h>
#include <sys/types.h>

enum { WORKER_USERS_MAX = 16 };

/* Filled by options_read from coordinator_options. */
struct coordinator_config {
    char run_dir[OPTION_TEXT_BYTES];
    char model[OPTION_TEXT_BYTES];
    char worker_user[OPTION_TEXT_BYTES];
    uint64_t kv_pool_bytes;
    uint32_t kv_type; /* enum kv_type */
    uint64_t slots;
    uint64_t context; /* 0 = the model's, at most CONTEXT_TOKENS_DEFAULT */
    uint64_t block_tokens;
    uint64_t step_tokens;
    uint64_t prefill_chunk; /* 0 = step_tokens */
    uint64_t queue_requests, queue_bytes, prompt_bytes;
    uint64_t kept_requests, kept_ms, orphan_ms, drain_timeout_ms;
    uint64_t tokenizer_threads; /* 0 = one, two from four cores on */
    uint32_t log_level;         /* enum log_level */
    uint64_t debug_shuffle_blocks;
};

extern const struct option_program coordinator_options;

/* Who may be a worker. */
struct worker_users {
    uid_t uids[WORKER_USERS_MAX];
    uint32_t count;
};

/* Options that depend on each other, and the names in worker-user (comma-separated names or
 * numbers; empty = our own user). STATUS_INVALID with a sentence in `why`. */
MUST_USE enum status coordinator_config_check(const struct coordinator_config *config,
                                              struct worker_users *out_users, struct text *why);

#endif
