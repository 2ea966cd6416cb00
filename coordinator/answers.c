#include "coordinator/answers.h"

#include "common/check.h"
#include "common/duration.h"

#include <string.h>

static struct wire_text id_of(const struct request *request)
{
    return (struct wire_text){.bytes = request->id, .length = request->id_length};
}

static uint64_t since(uint64_t from_ns, uint64_t to_ns)
{
    return from_ns == 0 || to_ns < from_ns ? 0 : to_ns - from_ns;
}

static uint32_t prompt_tokens_done(const struct request *request)
{
    if (request->accepted > 0)
        return request->prompt_tokens; /* shown as done: a client must not see it go backwards */
    return request->computed < request->prompt_tokens ? request->computed : request->prompt_tokens;
}

static struct client_finish finish_of(const struct request *request)
{
    struct client_finish finish = {
        .reason = request->outcome.reason,
        .usage = {.prompt_tokens = request->prompt_tokens,
                  .completion_tokens = request->accepted,
                  .recomputed_tokens = request->recomputed,
                  .preemptions = request->preemptions,
                  .workers_lost = request->workers_lost},
        .timings = {.tokenize_ns = since(request->submitted_ns, request->tokenized_ns),
                    .queue_ns = since(request->tokenized_ns, request->first_plan_ns),
                    .first_token_ns = since(request->submitted_ns, request->first_token_ns),
                    .total_ns = since(request->submitted_ns, request->finished_ns)},
        .has_logits_hash = request->accepted > 0 && !request->logits_hash_broken,
        .logits_hash = request->logits_hash,
    };
    if (request->outcome.reason == FINISH_REASON_ERROR) {
        finish.has_error = true;
        finish.error = (struct client_error){.code = request->outcome.code,
                                             .message = wire_text_of(request->outcome.message)};
    }
    return finish;
}

struct client_output answer_output(const struct request *request,
                                   const struct answer_context *context, uint64_t from_token,
                                   uint64_t from_byte)
{
    uint64_t tokens = request_released_tokens(request), bytes = request->text_bytes;
    uint64_t token_count = from_token < tokens ? tokens - from_token : 0;
    uint64_t byte_count = from_byte < bytes ? bytes - from_byte : 0;
    bool is_whole = byte_count <= ANSWER_TEXT_BYTES_MAX;
    if (!is_whole)
        byte_count = ANSWER_TEXT_BYTES_MAX;
    struct client_output output = {
        .id = id_of(request),
        .from_token = from_token,
        .from_byte = from_byte,
        .state = request->state,
        .queue_position = context->queue_position,
        .prompt_tokens = request->prompt_tokens,
        .prompt_tokens_done = prompt_tokens_done(request),
        .worker_ready = context->worker_ready,
    };
    const uint32_t *first = token_count > 0 ? request_output_tokens(request) + from_token : NULL;
    output.tokens = wire_tokens_of(first, (uint32_t)token_count);
    if (byte_count > 0)
        output.text =
            (struct wire_text){.bytes = request->text + from_byte, .length = (uint32_t)byte_count};
    if (request_is_finished(request) && is_whole) {
        output.has_finish = true;
        output.finish = finish_of(request);
    }
    return output;
}

struct client_accepted answer_accepted(const struct request *request,
                                       const struct answer_context *context)
{
    return (struct client_accepted){
        .id = id_of(request),
        .sequence = request->sequence,
        .seed = request->seed,
        .prompt_tokens = request->prompt_tokens,
        .queue_position = context->queue_position,
        .durability = DURABILITY_NONE,
        .state = request->state,
        .instance = context->instance,
    };
}

struct client_status_answer answer_status(const struct request *request,
                                          const struct answer_context *context)
{
    struct client_status_answer status = {
        .id = id_of(request),
        .sequence = request->sequence,
        .seed = request->seed,
        .state = request->state,
        .queue_position = context->queue_position,
        .prompt_tokens = request->prompt_tokens,
        .prompt_tokens_done = prompt_tokens_done(request),
        .completion_tokens = request->accepted,
        .text_bytes = request->text_bytes,
        .preemptions = request->preemptions,
        .age_ms = since(request->submitted_ns, context->now_ns) / NS_PER_MS,
        .worker_ready = context->worker_ready,
        .has_finish = request_is_finished(request),
    };
    if (status.has_finish)
        status.finish = finish_of(request);
    return status;
}

struct client_error answer_error(const struct refusal *refusal)
{
    struct client_error error = {
        .code = refusal->code,
        .has_field = refusal->field != NULL,
        .message = wire_text_of(refusal->message),
        .has_limit = refusal->has_limit,
        .limit = (double)refusal->limit,
        .has_retry_after_ms = refusal->retry_after_ms != 0,
        .retry_after_ms = refusal->retry_after_ms,
    };
    if (refusal->field != NULL)
        error.field = wire_text_of(refusal->field);
    return error;
}
