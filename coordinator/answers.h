/* Answers to clients out of a request's state. Texts borrow from the request. */
#ifndef TANDEM_COORDINATOR_ANSWERS_H
#define TANDEM_COORDINATOR_ANSWERS_H

#include "coordinator/admission.h"
#include "coordinator/request.h"

enum { ANSWER_TEXT_BYTES_MAX = 2 << 20 }; /* of one output; what is longer takes more than one */

/* What an answer tells beside the request itself. */
struct answer_context {
    struct id128 instance;
    uint64_t now_ns;
    uint32_t queue_position;
    bool worker_ready;
};

/* What lies past the cursors. `finish` is there when it reaches the end of a finished request. */
struct client_output answer_output(const struct request *request,
                                   const struct answer_context *context, uint64_t from_token,
                                   uint64_t from_byte);

struct client_accepted answer_accepted(const struct request *request,
                                       const struct answer_context *context);

struct client_status_answer answer_status(const struct request *request,
                                          const struct answer_context *context);

/* The texts of `refusal` must live as long as the answer. */
struct client_error answer_error(const struct refusal *refusal);

#endif
