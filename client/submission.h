/* From the request of the public header to the message of the protocol. */
#ifndef TANDEM_CLIENT_SUBMISSION_H
#define TANDEM_CLIENT_SUBMISSION_H

#include "client/tandem.h"
#include "proto/client_messages.h"

/* Storage of one submission; its texts borrow from the request. Give back with submission_free. */
struct submission {
    char id[TANDEM_ID_BYTES_MAX + 1];
    struct chat_message *messages; /* owned; NULL without messages */
    struct client_request request; /* borrows from the caller's request and from `id` */
};

/* Draws an id where there is none. TANDEM_INVALID, TANDEM_TOO_LARGE or TANDEM_NO_MEMORY with
 * `error` filled; then there is nothing to give back. `out` must not be moved afterwards. */
enum tandem_result submission_init(struct submission *out, const struct tandem_request *request,
                                   struct tandem_error *error);
/* The same for `tokenize`, which has no id. */
enum tandem_result submission_init_tokenize(struct submission *out,
                                            const struct tandem_request *request,
                                            struct tandem_error *error);
void submission_free(struct submission *submission);

/* TANDEM_OK and the view of an id, or TANDEM_INVALID. */
enum tandem_result submission_id(const char *id, struct wire_text *out_id,
                                 struct tandem_error *error);

#endif
