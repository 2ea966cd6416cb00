/* Submission, streaming and cancellation as the public header shows them. */
#include "client/error.h"
#include "client/exchange.h"
#include "client/finish.h"
#include "client/submission.h"
#include "client/tandem.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct tandem_stream {
    const struct tandem *tandem; /* borrowed */
    char id[TANDEM_ID_BYTES_MAX + 1];
    char instance[ID128_TEXT_BYTES]; /* of the coordinator that accepted; "" after tandem_resume */
    struct tandem_accepted accepted;
    uint64_t from_token;
    uint64_t from_byte;
    bool finished;
    struct tandem_finish finish;
    struct answer answer; /* holds the text of the last news */
    uint32_t *tokens;     /* of the last news */
    uint32_t token_capacity;
};

static struct tandem_stream *stream_make(const struct tandem *tandem, const char *id)
{
    struct tandem_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL)
        return NULL;
    stream->tandem = tandem;
    (void)snprintf(stream->id, sizeof stream->id, "%s", id);
    stream->accepted.id = stream->id;
    return stream;
}

static void take_acceptance(struct tandem_stream *stream, const struct client_accepted *accepted)
{
    stream->accepted.sequence = accepted->sequence;
    stream->accepted.seed = accepted->seed;
    stream->accepted.prompt_tokens = accepted->prompt_tokens;
    stream->accepted.queue_position = accepted->queue_position;
    stream->accepted.state = state_from_message(accepted->state);
    (void)id128_format(&accepted->instance, stream->instance);
}

enum tandem_result tandem_submit(struct tandem *tandem, const struct tandem_request *request,
                                 struct tandem_stream **out_stream, struct tandem_error *error)
{
    struct submission submission;
    enum tandem_result result = submission_init(&submission, request, error);
    if (result != TANDEM_OK)
        return result;
    struct tandem_stream *stream = stream_make(tandem, submission.id);
    if (stream == NULL) {
        result = error_set(error, TANDEM_NO_MEMORY, "", "out of memory");
    } else {
        struct answer answer = {0};
        result = exchange(tandem, &submission.request, CLIENT_ANSWER_ACCEPTED, &answer, error);
        if (result == TANDEM_OK)
            take_acceptance(stream, &answer.message.accepted);
        answer_free(&answer);
    }
    submission_free(&submission);
    if (result == TANDEM_OK)
        *out_stream = stream;
    else
        tandem_stream_close(stream);
    return result;
}

enum tandem_result tandem_resume(struct tandem *tandem, const char *id, uint64_t from_token,
                                 uint64_t from_byte, struct tandem_stream **out_stream,
                                 struct tandem_error *error)
{
    struct wire_text checked;
    enum tandem_result result = submission_id(id, &checked, error);
    if (result != TANDEM_OK)
        return result;
    struct tandem_stream *stream = stream_make(tandem, id);
    if (stream == NULL)
        return error_set(error, TANDEM_NO_MEMORY, "", "out of memory");
    stream->from_token = from_token;
    stream->from_byte = from_byte;
    *out_stream = stream;
    return TANDEM_OK;
}

const struct tandem_accepted *tandem_stream_accepted(const struct tandem_stream *stream)
{
    return &stream->accepted;
}

void tandem_stream_cursors(const struct tandem_stream *stream, uint64_t *out_from_token,
                           uint64_t *out_from_byte)
{
    *out_from_token = stream->from_token;
    *out_from_byte = stream->from_byte;
}

void tandem_stream_close(struct tandem_stream *stream)
{
    if (stream == NULL)
        return;
    answer_free(&stream->answer);
    free(stream->tokens);
    free(stream);
}

static enum tandem_result reserve_tokens(struct tandem_stream *stream, uint32_t count,
                                         struct tandem_error *error)
{
    if (count <= stream->token_capacity)
        return TANDEM_OK;
    uint32_t *tokens = realloc(stream->tokens, (size_t)count * sizeof *tokens);
    if (tokens == NULL)
        return error_set(error, TANDEM_NO_MEMORY, "", "out of memory");
    stream->tokens = tokens;
    stream->token_capacity = count;
    return TANDEM_OK;
}

static enum tandem_result take_output(struct tandem_stream *stream,
                                      const struct client_output *message,
                                      struct tandem_output *output, struct tandem_error *error)
{
    if (message->from_token != stream->from_token || message->from_byte != stream->from_byte)
        return error_set(error, TANDEM_BAD_REPLY, "",
                         "the news begin at token %" PRIu64 " and byte %" PRIu64 ", not at %" PRIu64
                         " and %" PRIu64,
                         message->from_token, message->from_byte, stream->from_token,
                         stream->from_byte);
    enum tandem_result result = reserve_tokens(stream, message->tokens.count, error);
    if (result != TANDEM_OK)
        return result;
    output->token_count = wire_tokens_copy(&message->tokens, stream->tokens, message->tokens.count);
    output->tokens = stream->tokens;
    output->text = message->text.bytes;
    output->text_bytes = message->text.length;
    output->state = state_from_message(message->state);
    output->queue_position = message->queue_position;
    output->prompt_tokens = message->prompt_tokens;
    output->prompt_tokens_done = message->prompt_tokens_done;
    output->worker_ready = message->worker_ready;
    stream->from_token += output->token_count;
    stream->from_byte += output->text_bytes;
    if (message->has_finish) {
        finish_from_message(&stream->finish, &message->finish);
        stream->finished = true;
    }
    return TANDEM_OK;
}

/* An unknown id may be a typo; after an acceptance it is a coordinator that was restarted. */
static void explain_not_found(const struct tandem_stream *stream, struct tandem_error *error)
{
    if (error == NULL || strcmp(error->code, "not_found") != 0 || stream->instance[0] == '\0' ||
        error->instance[0] == '\0' || strcmp(error->instance, stream->instance) == 0)
        return;
    (void)snprintf(error->message, sizeof error->message,
                   "the coordinator was restarted and no longer knows this request: submit again");
}

enum tandem_result tandem_next(struct tandem_stream *stream, uint32_t max_wait_ms,
                               uint32_t hold_tokens, struct tandem_output *out_output,
                               struct tandem_error *error)
{
    struct tandem_output output = {0};
    if (!stream->finished) {
        struct client_request question = {.type = CLIENT_NEXT};
        question.next = (struct client_next){.id = wire_text_of(stream->id),
                                             .from_token = stream->from_token,
                                             .from_byte = stream->from_byte,
                                             .hold_tokens = hold_tokens,
                                             .max_wait_ms = max_wait_ms};
        struct answer answer = {0};
        enum tandem_result result =
            exchange(stream->tandem, &question, CLIENT_ANSWER_OUTPUT, &answer, error);
        if (result != TANDEM_OK) {
            explain_not_found(stream, error);
            return result;
        }
        result = take_output(stream, &answer.message.output, &output, error);
        if (result != TANDEM_OK) {
            answer_free(&answer);
            return result;
        }
        answer_free(&stream->answer);
        stream->answer = answer;
    }
    if (stream->finished) {
        output.state = TANDEM_FINISHED;
        output.finished = true;
        output.finish = stream->finish;
    }
    *out_output = output;
    return TANDEM_OK;
}

enum tandem_result tandem_cancel(struct tandem *tandem, const char *id, struct tandem_error *error)
{
    struct client_request question = {.type = CLIENT_CANCEL};
    enum tandem_result result = submission_id(id, &question.cancel.id, error);
    if (result != TANDEM_OK)
        return result;
    struct answer answer = {0};
    result = exchange(tandem, &question, CLIENT_ANSWER_OUTPUT, &answer, error);
    answer_free(&answer);
    return result;
}

static enum tandem_result read_all(struct tandem *tandem, struct tandem_stream *stream,
                                   tandem_piece piece, void *context,
                                   struct tandem_finish *out_finish, struct tandem_error *error)
{
    bool wanted = true;
    for (;;) {
        struct tandem_output output;
        enum tandem_result result = tandem_next(stream, TANDEM_WAIT_MS_MAX, 1, &output, error);
        if (result != TANDEM_OK)
            return result;
        bool go_on = !wanted || piece == NULL || piece(context, &output);
        if (output.finished) {
            *out_finish = output.finish;
            return TANDEM_OK;
        }
        if (wanted && !go_on) {
            wanted = false; /* what still comes is not shown */
            result = tandem_cancel(tandem, stream->id, error);
            if (result != TANDEM_OK)
                return result;
        }
    }
}

enum tandem_result tandem_generate(struct tandem *tandem, const struct tandem_request *request,
                                   tandem_piece piece, void *context,
                                   struct tandem_finish *out_finish, struct tandem_error *error)
{
    struct tandem_stream *stream = NULL;
    enum tandem_result result = tandem_submit(tandem, request, &stream, error);
    if (result != TANDEM_OK)
        return result;
    struct tandem_finish finish;
    result = read_all(tandem, stream, piece, context, &finish, error);
    tandem_stream_close(stream);
    if (result != TANDEM_OK)
        return result;
    if (out_finish != NULL)
        *out_finish = finish;
    if (!finish.failed)
        return TANDEM_OK;
    (void)error_set(error, TANDEM_REFUSED, "", "%s", finish.message);
    if (error != NULL)
        memcpy(error->code, finish.reason, sizeof error->code);
    return TANDEM_REFUSED;
}
