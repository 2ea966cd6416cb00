#include "client/submission.h"

#include "client/error.h"
#include "common/id128.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum tandem_result submission_id(const char *id, struct wire_text *out_id,
                                 struct tandem_error *error)
{
    if (id == NULL || id[0] == '\0' || strlen(id) > TANDEM_ID_BYTES_MAX)
        return error_set_limit(error, TANDEM_INVALID, "id", TANDEM_ID_BYTES_MAX,
                               "the id must have 1 to %d bytes", TANDEM_ID_BYTES_MAX);
    *out_id = wire_text_of(id);
    return TANDEM_OK;
}

enum tandem_result tandem_draw_id(char out_id[33], struct tandem_error *error)
{
    struct id128 drawn;
    if (getrandom(drawn.bytes, sizeof drawn.bytes, 0) != (ssize_t)sizeof drawn.bytes)
        return error_set(error, TANDEM_NO_MEMORY, "id", "the system gives no random bits");
    (void)id128_format(&drawn, out_id);
    return TANDEM_OK;
}

static enum tandem_result take_id(struct submission *submission, const char *id,
                                  struct tandem_error *error)
{
    struct wire_text checked;
    enum tandem_result result =
        id == NULL ? tandem_draw_id(submission->id, error) : submission_id(id, &checked, error);
    if (result != TANDEM_OK)
        return result;
    if (id != NULL)
        memcpy(submission->id, id, strlen(id) + 1);
    submission->request.submit.id = wire_text_of(submission->id);
    return TANDEM_OK;
}

/* Lengths above the frame limit are refused here, so that all others fit 32 bits. */
static enum tandem_result take_text(const char *bytes, size_t length, const char *field,
                                    struct wire_text *out_text, struct tandem_error *error)
{
    if (length == 0)
        length = strlen(bytes);
    if (length > TANDEM_FRAME_BYTES_MAX)
        return error_set_limit(error, TANDEM_TOO_LARGE, field, TANDEM_FRAME_BYTES_MAX,
                               "%s is %zu bytes long, the limit of a whole request is %d", field,
                               length, TANDEM_FRAME_BYTES_MAX);
    *out_text = (struct wire_text){bytes, (uint32_t)length};
    return TANDEM_OK;
}

static enum tandem_result take_ids(const uint32_t *ids, size_t count, const char *field,
                                   struct wire_tokens *out_tokens, struct tandem_error *error)
{
    if (count > TANDEM_FRAME_BYTES_MAX / sizeof *ids)
        return error_set_limit(error, TANDEM_TOO_LARGE, field, TANDEM_FRAME_BYTES_MAX / sizeof *ids,
                               "%s has %zu ids, the limit is %zu", field, count,
                               TANDEM_FRAME_BYTES_MAX / sizeof *ids);
    *out_tokens = wire_tokens_of(ids, (uint32_t)count);
    return TANDEM_OK;
}

static enum tandem_result take_messages(struct submission *submission,
                                        const struct tandem_request *request,
                                        struct wire_list *out_list, struct tandem_error *error)
{
    if (request->message_count == 0 || request->message_count > LIMIT_CHAT_MESSAGES)
        return error_set_limit(error, TANDEM_INVALID, "messages", LIMIT_CHAT_MESSAGES,
                               "there are %zu messages, allowed are 1 to %d",
                               request->message_count, LIMIT_CHAT_MESSAGES);
    struct chat_message *messages = calloc(request->message_count, sizeof *messages);
    if (messages == NULL)
        return error_set(error, TANDEM_NO_MEMORY, "messages", "out of memory");
    enum tandem_result result = TANDEM_OK;
    for (size_t i = 0; i < request->message_count && result == TANDEM_OK; i++) {
        const struct tandem_message *message = &request->messages[i];
        if (message->role == NULL || message->content == NULL)
            result = error_set(error, TANDEM_INVALID, "messages",
                               "message %zu has no role or no content", i);
        if (result == TANDEM_OK)
            result = take_text(message->role, 0, "role", &messages[i].role, error);
        if (result == TANDEM_OK)
            result = take_text(message->content, message->content_bytes, "content",
                               &messages[i].content, error);
    }
    if (result != TANDEM_OK) {
        free(messages);
        return result;
    }
    submission->messages = messages;
    *out_list = (struct wire_list){.items = messages, .count = (uint32_t)request->message_count};
    return TANDEM_OK;
}

/* What is to be continued: exactly one of the three. */
static enum tandem_result take_input(struct submission *submission,
                                     const struct tandem_request *request,
                                     struct tandem_error *error)
{
    struct client_submit *submit = &submission->request.submit;
    const int given =
        (request->prompt != NULL) + (request->ids != NULL) + (request->messages != NULL);
    if (given != 1)
        return error_set(error, TANDEM_INVALID, "prompt",
                         "exactly one of prompt, ids and messages must be given, not %d", given);
    submit->has_prompt = request->prompt != NULL;
    submit->has_ids = request->ids != NULL;
    submit->has_messages = request->messages != NULL;
    if (submit->has_prompt)
        return take_text(request->prompt, request->prompt_bytes, "prompt", &submit->prompt, error);
    if (submit->has_ids)
        return take_ids(request->ids, request->id_count, "ids", &submit->ids, error);
    return take_messages(submission, request, &submit->messages, error);
}

static enum tandem_result take_stops(struct client_submit *submit,
                                     const struct tandem_request *request,
                                     struct tandem_error *error)
{
    if (request->stop_count > TANDEM_STOPS_MAX)
        return error_set_limit(error, TANDEM_INVALID, "stop", TANDEM_STOPS_MAX,
                               "there are %zu stop strings, the limit is %d", request->stop_count,
                               TANDEM_STOPS_MAX);
    enum tandem_result result = TANDEM_OK;
    for (size_t i = 0; i < request->stop_count && result == TANDEM_OK; i++)
        result = take_text(request->stops[i], 0, "stop", &submit->stop.items[i], error);
    submit->stop.count = (uint32_t)request->stop_count;
    if (result == TANDEM_OK)
        result = take_ids(request->stop_ids, request->stop_id_count, "stop_token_ids",
                          &submit->stop_token_ids, error);
    return result;
}

static void take_sampling(struct client_submit *submit, const struct tandem_request *request)
{
    submit->temperature = request->temperature;
    submit->top_k = request->top_k;
    submit->has_top_p = request->top_p != 0;
    submit->top_p = request->top_p;
    submit->min_p = request->min_p;
    submit->has_seed = request->has_seed;
    submit->seed = request->seed;
    submit->has_max_tokens = request->max_tokens != 0;
    submit->max_tokens = request->max_tokens;
    submit->has_deadline_ms = request->deadline_ms != 0;
    submit->deadline_ms = request->deadline_ms;
    submit->ignore_eos = request->ignore_eos;
    submit->detach = request->detach;
    submit->has_parse_special = request->plain_text;
    submit->parse_special = !request->plain_text;
}

enum tandem_result submission_init(struct submission *out, const struct tandem_request *request,
                                   struct tandem_error *error)
{
    memset(out, 0, sizeof *out);
    out->request.type = CLIENT_SUBMIT;
    take_sampling(&out->request.submit, request);
    enum tandem_result result = take_id(out, request->id, error);
    if (result == TANDEM_OK)
        result = take_stops(&out->request.submit, request, error);
    if (result == TANDEM_OK)
        result = take_input(out, request, error);
    return result;
}

enum tandem_result submission_init_tokenize(struct submission *out,
                                            const struct tandem_request *request,
                                            struct tandem_error *error)
{
    memset(out, 0, sizeof *out);
    out->request.type = CLIENT_TOKENIZE;
    struct client_tokenize *tokenize = &out->request.tokenize;
    if ((request->prompt != NULL) == (request->messages != NULL) || request->ids != NULL)
        return error_set(error, TANDEM_INVALID, "prompt",
                         "exactly one of prompt and messages must be given");
    tokenize->has_prompt = request->prompt != NULL;
    tokenize->has_messages = request->messages != NULL;
    tokenize->has_parse_special = request->plain_text;
    tokenize->parse_special = !request->plain_text;
    return tokenize->has_prompt ? take_text(request->prompt, request->prompt_bytes, "prompt",
                                            &tokenize->prompt, error)
                                : take_messages(out, request, &tokenize->messages, error);
}

void submission_free(struct submission *submission)
{
    free(submission->messages);
    memset(submission, 0, sizeof *submission);
}
