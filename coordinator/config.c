#include "coordinator/config.h"

#include "common/geometry.h"
#include "common/log.h"
#include "proto/limits.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define KIB    UINT64_C(1024)
#define MIB    (KIB * KIB)
#define GIB    (KIB * MIB)
#define DAY_MS (UINT64_C(86400) * 1000)

static const struct option_choice KV_TYPES[] = {
    {"f16", KV_TYPE_F16}, {"f32", KV_TYPE_F32}, {"bf16", KV_TYPE_BF16}, {NULL, 0}};

static const struct option_choice LOG_LEVELS[] = {{"error", LOG_LEVEL_ERROR},
                                                  {"warn", LOG_LEVEL_WARN},
                                                  {"info", LOG_LEVEL_INFO},
                                                  {"debug", LOG_LEVEL_DEBUG},
                                                  {NULL, 0}};

#define FIELD(name) offsetof(struct coordinator_config, name)

/* clang-format off */
static const struct option OPTIONS[] = {
    {"run-dir", OPTION_TEXT, FIELD(run_dir), NULL, 0, 0, NULL,
     "Directory of the sockets; empty: $XDG_RUNTIME_DIR/tandem, else /run/tandem"},
    {"model", OPTION_TEXT, FIELD(model), NULL, 0, 0, NULL,
     "GGUF file or Hugging Face directory of the model, the same as the worker's"},
    {"kv-pool-bytes", OPTION_BYTES, FIELD(kv_pool_bytes), "2G", 4 * KIB, 1024 * GIB, NULL,
     "Memory of the KV pool in the worker"},
    {"kv-type", OPTION_CHOICE, FIELD(kv_type), "f16", 0, 0, KV_TYPES,
     "Number format of the KV pool"},
    {"slots", OPTION_COUNT, FIELD(slots), "64", 1, LIMIT_SLOTS, NULL,
     "Requests that run at the same time"},
    {"context", OPTION_COUNT, FIELD(context), "0", 0, LIMIT_CONTEXT_TOKENS, NULL,
     "Positions of prompt and output together; 0: the model's, at most 8192"},
    {"block-tokens", OPTION_COUNT, FIELD(block_tokens), "16", 8, LIMIT_BLOCK_TOKENS_MAX, NULL,
     "Positions of one KV block; a multiple of 8"},
    {"step-tokens", OPTION_COUNT, FIELD(step_tokens), "512", 1, LIMIT_STEP_TOKENS, NULL,
     "Token budget of one step"},
    {"prefill-chunk", OPTION_COUNT, FIELD(prefill_chunk), "0", 0, LIMIT_STEP_TOKENS, NULL,
     "Largest part of one prompt in a step; 0: the whole budget"},
    {"queue-requests", OPTION_COUNT, FIELD(queue_requests), "10000", 1, 1000000, NULL,
     "Unfinished requests at most; more are refused as overloaded"},
    {"queue-bytes", OPTION_BYTES, FIELD(queue_bytes), "256M", MIB, 64 * GIB, NULL,
     "Memory of unfinished requests at most"},
    {"prompt-bytes", OPTION_BYTES, FIELD(prompt_bytes), "1M", 1, LIMIT_CLIENT_FRAME_BYTES - 64 * KIB, NULL,
     "Text of one request at most"},
    {"kept-requests", OPTION_COUNT, FIELD(kept_requests), "10000", 1, 1000000, NULL,
     "Finished requests that are still answered, at most"},
    {"kept-ms", OPTION_MILLISECONDS, FIELD(kept_ms), "120000", 0, DAY_MS, NULL,
     "How long a finished request is still answered"},
    {"orphan-ms", OPTION_MILLISECONDS, FIELD(orphan_ms), "30000", 100, DAY_MS, NULL,
     "A request that nobody polls for is cancelled after this"},
    {"drain-timeout-ms", OPTION_MILLISECONDS, FIELD(drain_timeout_ms), "30000", 0, DAY_MS, NULL,
     "How long running requests may go on after SIGTERM"},
    {"worker-user", OPTION_TEXT, FIELD(worker_user), NULL, 0, 0, NULL,
     "Users that may attach a worker, names or numbers with commas; empty: our own"},
    {"tokenizer-threads", OPTION_COUNT, FIELD(tokenizer_threads), "0", 0, 16, NULL,
     "Threads that turn text into tokens; 0: one, two from four cores on"},
    {"log-level", OPTION_CHOICE, FIELD(log_level), "info", 0, 0, LOG_LEVELS,
     "What is logged"},
    {"debug-shuffle-blocks", OPTION_COUNT, FIELD(debug_shuffle_blocks), "0", 0, UINT64_MAX, NULL,
     "Seed that permutes the free blocks, to show that their places do not matter; 0: off"},
};
/* clang-format on */

const struct option_program coordinator_options = {
    .name = "tandem-coordinator",
    .summary = "owns every request and plans the work of the attached worker",
    .options = OPTIONS,
    .count = sizeof OPTIONS / sizeof OPTIONS[0],
};

static enum status find_user(const char *name, uid_t *out_uid)
{
    char *end;
    errno = 0;
    unsigned long number = strtoul(name, &end, 10);
    if (isdigit((unsigned char)name[0]) && *end == '\0') {
        if (errno != 0 || number > UINT32_MAX - 1)
            return STATUS_NOT_FOUND;
        *out_uid = (uid_t)number;
        return STATUS_OK;
    }
    char storage[4096];
    struct passwd entry, *found = NULL;
    if (getpwnam_r(name, &entry, storage, sizeof storage, &found) != 0 || found == NULL)
        return STATUS_NOT_FOUND;
    *out_uid = found->pw_uid;
    return STATUS_OK;
}

static enum status read_users(const char *list, struct worker_users *out_users, struct text *why)
{
    struct worker_users users = {.uids = {geteuid()}, .count = 1};
    char copy[OPTION_TEXT_BYTES], *rest = NULL;
    memcpy(copy, list, strlen(list) + 1);
    bool first = true;
    for (char *name = strtok_r(copy, ", ", &rest); name != NULL;
         name = strtok_r(NULL, ", ", &rest)) {
        users.count = first ? 0 : users.count; /* what is given replaces the default */
        first = false;
        if (users.count == WORKER_USERS_MAX) {
            text_set(why, "--worker-user names more than %d users; give fewer", WORKER_USERS_MAX);
            return STATUS_INVALID;
        }
        if (find_user(name, &users.uids[users.count]) != STATUS_OK) {
            text_set(why, "--worker-user: there is no user ");
            text_append_quoted(why, name, strlen(name), 40);
            text_format(why, "; give names or numbers of users of this system");
            return STATUS_INVALID;
        }
        users.count++;
    }
    *out_users = users;
    return STATUS_OK;
}

enum status coordinator_config_check(const struct coordinator_config *config,
                                     struct worker_users *out_users, struct text *why)
{
    if (config->model[0] == '\0') {
        text_set(why,
                 "--model is missing; give the path of a GGUF file or of a Hugging Face directory");
        return STATUS_INVALID;
    }
    if (config->block_tokens % KV_BLOCK_TOKENS_MULTIPLE != 0) {
        text_set(why, "--block-tokens: %" PRIu64 " is no multiple of %d; %d is usual",
                 config->block_tokens, KV_BLOCK_TOKENS_MULTIPLE, KV_BLOCK_TOKENS_DEFAULT);
        return STATUS_INVALID;
    }
    if (config->prefill_chunk > config->step_tokens) {
        text_set(why,
                 "--prefill-chunk: %" PRIu64 " exceeds --step-tokens %" PRIu64
                 "; give at most that, or 0",
                 config->prefill_chunk, config->step_tokens);
        return STATUS_INVALID;
    }
    return read_users(config->worker_user, out_users, why);
}
