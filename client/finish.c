#include "client/finish.h"

#include <stdio.h>
#include <string.h>

void finish_from_message(struct tandem_finish *out_finish, const struct client_finish *message)
{
    memset(out_finish, 0, sizeof *out_finish);
    const char *reason = wire_enum_name(&finish_reason_enum, message->reason);
    if (message->has_error) {
        reason = error_code_name(message->error.code);
        (void)snprintf(out_finish->message, sizeof out_finish->message, "%.*s",
                       (int)message->error.message.length, message->error.message.bytes);
    }
    (void)snprintf(out_finish->reason, sizeof out_finish->reason, "%s", reason);
    out_finish->failed = message->has_error || message->reason == FINISH_REASON_ERROR;
    out_finish->prompt_tokens = message->usage.prompt_tokens;
    out_finish->completion_tokens = message->usage.completion_tokens;
    out_finish->recomputed_tokens = message->usage.recomputed_tokens;
    out_finish->preemptions = message->usage.preemptions;
    out_finish->workers_lost = message->usage.workers_lost;
    out_finish->tokenize_ns = message->timings.tokenize_ns;
    out_finish->queue_ns = message->timings.queue_ns;
    out_finish->first_token_ns = message->timings.first_token_ns;
    out_finish->total_ns = message->timings.total_ns;
    out_finish->has_logits_hash = message->has_logits_hash;
    out_finish->logits_hash = message->logits_hash;
}

/* The numbers of the header are its own: those of the protocol may grow. */
enum tandem_state state_from_message(enum request_state state)
{
    static const enum tandem_state states[] = {
        [REQUEST_STATE_TOKENIZING] = TANDEM_TOKENIZING,
        [REQUEST_STATE_QUEUED] = TANDEM_QUEUED,
        [REQUEST_STATE_RUNNING] = TANDEM_RUNNING,
        [REQUEST_STATE_PREEMPTED] = TANDEM_PREEMPTED,
        [REQUEST_STATE_FINISHED] = TANDEM_FINISHED,
    };
    return (size_t)state < sizeof states / sizeof states[0] ? states[state] : TANDEM_STATE_UNKNOWN;
}

const char *tandem_state_name(enum tandem_state state)
{
    static const char *const names[] = {
        [TANDEM_STATE_UNKNOWN] = "unknown", [TANDEM_TOKENIZING] = "tokenizing",
        [TANDEM_QUEUED] = "queued",         [TANDEM_RUNNING] = "running",
        [TANDEM_PREEMPTED] = "preempted",   [TANDEM_FINISHED] = "finished",
    };
    return names[(size_t)state < sizeof names / sizeof names[0] ? state : TANDEM_STATE_UNKNOWN];
}
