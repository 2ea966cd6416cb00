#include "client/exchange.h"

#include "client/error.h"
#include "client/request_check.h"
#include "common/check.h"
#include "common/clock.h"

#include <stdio.h>
#include <string.h>

_Static_assert((int)TANDEM_FRAME_BYTES_MAX == (int)LIMIT_CLIENT_FRAME_BYTES,
               "the header promises the bound");
_Static_assert((int)TANDEM_ID_BYTES_MAX == (int)LIMIT_REQUEST_ID_BYTES,
               "the header promises the bound");
_Static_assert((int)TANDEM_STOPS_MAX == (int)LIMIT_STOP_STRINGS, "the header promises the bound");
_Static_assert((int)TANDEM_WAIT_MS_MAX == (int)LIMIT_WAIT_MS, "the header promises the bound");

/* How often a question is asked of a coordinator that is silent: one that is busy answers within
 * milliseconds, one that lost the question never does. */
enum { TRIES = 3 };

void answer_free(struct answer *answer)
{
    if (answer->frame != NULL)
        nng_msg_free(answer->frame);
    memset(answer, 0, sizeof *answer);
}

static void copy_text(char *out, size_t capacity, struct wire_text text)
{
    (void)snprintf(out, capacity, "%.*s", (int)text.length, text.bytes);
}

void error_from_client_error(struct tandem_error *error, const struct client_error *message)
{
    if (error == NULL)
        return;
    memset(error, 0, sizeof *error);
    (void)snprintf(error->code, sizeof error->code, "%s", error_code_name(message->code));
    if (message->has_field)
        copy_text(error->field, sizeof error->field, message->field);
    copy_text(error->message, sizeof error->message, message->message);
    error->has_limit = message->has_limit;
    error->limit = message->has_limit ? message->limit : 0;
    error->retry_after_ms = message->has_retry_after_ms ? message->retry_after_ms : 0;
    if (message->has_instance)
        (void)id128_format(&message->instance, error->instance);
}

/* A fresh frame: nng owns the one that was sent. */
static enum tandem_result encode(const struct client_request *question, nng_msg **out_frame,
                                 struct tandem_error *error)
{
    size_t bytes = 0;
    enum status status = client_request_encode(question, NULL, 0, &bytes);
    CHECK(status == STATUS_OK);
    if (bytes > LIMIT_CLIENT_FRAME_BYTES)
        return error_set_limit(error, TANDEM_TOO_LARGE, "", LIMIT_CLIENT_FRAME_BYTES,
                               "the request is %zu bytes long, the limit is %d", bytes,
                               LIMIT_CLIENT_FRAME_BYTES);
    nng_msg *frame = NULL;
    if (nng_msg_alloc(&frame, bytes) != 0)
        return error_set(error, TANDEM_NO_MEMORY, "", "out of memory for a message of %zu bytes",
                         bytes);
    status = client_request_encode(question, nng_msg_body(frame), bytes, &bytes);
    CHECK(status == STATUS_OK);
    *out_frame = frame;
    return TANDEM_OK;
}

/* Takes `frame`. */
static enum tandem_result judge(nng_msg *frame, enum client_answer_type expected,
                                struct answer *out_answer, struct tandem_error *error)
{
    struct answer answer = {.frame = frame};
    struct wire_error why;
    enum tandem_result result = TANDEM_OK;
    if (client_answer_decode(nng_msg_body(frame), nng_msg_len(frame), &answer.message, &why) !=
        STATUS_OK) {
        result =
            error_set(error, TANDEM_BAD_REPLY, "", "the answer cannot be read: %s", why.message);
    } else if (answer.message.type == CLIENT_ANSWER_ERROR) {
        error_from_client_error(error, &answer.message.error);
        result = TANDEM_REFUSED;
    } else if (answer.message.type != expected) {
        result =
            error_set(error, TANDEM_BAD_REPLY, "", "the answer is of type %d where %d was expected",
                      (int)answer.message.type, (int)expected);
    }
    if (result == TANDEM_OK)
        *out_answer = answer;
    else
        nng_msg_free(frame);
    return result;
}

static enum tandem_result give_up(const struct tandem *tandem, enum connection_outcome outcome,
                                  struct tandem_error *error)
{
    const char *directory = tandem->connection.directory.path;
    if (outcome == CONNECTION_SILENT)
        return error_set(error, TANDEM_TIMEOUT, "",
                         "the coordinator in %s gave no answer for %u ms", directory,
                         tandem->patience_ms);
    return error_set(error, TANDEM_UNAVAILABLE, "",
                     "the coordinator in %s went away and did not come back within %u ms",
                     directory, tandem->patience_ms);
}

static void tell_retry(const struct tandem *tandem, enum connection_outcome outcome)
{
    if (tandem->on_retry != NULL)
        tandem->on_retry(tandem->context, outcome == CONNECTION_SILENT
                                              ? "the coordinator is silent, asking again"
                                              : "the connection was cut, asking again");
}

static uint32_t smaller(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

enum tandem_result exchange(const struct tandem *tandem, const struct client_request *question,
                            enum client_answer_type expected, struct answer *out_answer,
                            struct tandem_error *error)
{
    enum tandem_result result = request_check(question, error);
    if (result != TANDEM_OK)
        return result;
    struct client_request current = *question;
    const uint32_t wait_ms = question->type == CLIENT_NEXT ? question->next.max_wait_ms : 0;
    const uint64_t end_ns = clock_now_ns() + ((uint64_t)wait_ms + tandem->patience_ms) * NS_PER_MS;
    /* For so long an answer may be overdue, and for the whole patience a connection may be missing,
     * however long the coordinator was to wait for news. */
    const uint32_t try_ms = tandem->patience_ms / TRIES + 1;
    uint32_t left_ms = wait_ms + tandem->patience_ms;
    for (;;) {
        uint32_t overdue_ms = smaller(try_ms, left_ms);
        uint32_t current_wait_ms = smaller(wait_ms, left_ms - overdue_ms);
        if (current.type == CLIENT_NEXT)
            current.next.max_wait_ms = current_wait_ms;
        nng_msg *frame = NULL;
        result = encode(&current, &frame, error);
        if (result != TANDEM_OK)
            return result;
        enum connection_outcome outcome =
            connection_try(&tandem->connection, frame, smaller(left_ms, tandem->patience_ms),
                           current_wait_ms + overdue_ms, &frame);
        if (outcome == CONNECTION_ANSWERED)
            return judge(frame, expected, out_answer, error);
        if (outcome == CONNECTION_EXHAUSTED)
            return error_set(error, TANDEM_NO_MEMORY, "", "out of memory, threads or descriptors");
        uint64_t now_ns = clock_now_ns();
        if (outcome == CONNECTION_NOT_SENT || now_ns + NS_PER_MS > end_ns)
            return give_up(tandem, outcome, error);
        left_ms = (uint32_t)((end_ns - now_ns) / NS_PER_MS);
        tell_retry(tandem, outcome);
    }
}
