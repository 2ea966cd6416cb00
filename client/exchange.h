/* One question and its answer, repeated until it is answered or the patience is over. Every
 * question of the protocol may be repeated: `submit` is known by its id, `next` by its cursors. */
#ifndef TANDEM_CLIENT_EXCHANGE_H
#define TANDEM_CLIENT_EXCHANGE_H

#include "client/connection.h"
#include "client/tandem.h"
#include "proto/client_messages.h"

struct tandem {
    struct connection connection;
    uint32_t patience_ms;
    void (*on_retry)(void *context, const char *why);
    void *context;
};

/* An answer and the frame that it borrows from. Zeroed is empty. */
struct answer {
    nng_msg *frame;
    struct client_answer message;
};

/* Asks until an answer of type `expected` is there. The max_wait_ms of a `next` is shortened in a
 * repetition so that the whole takes at most max_wait_ms and the patience. With TANDEM_OK
 * `out_answer` is given back by answer_free; TANDEM_REFUSED: `error` has the coordinator's words.
 */
enum tandem_result exchange(const struct tandem *tandem, const struct client_request *question,
                            enum client_answer_type expected, struct answer *out_answer,
                            struct tandem_error *error);

void answer_free(struct answer *answer);

/* Copies the words of the coordinator. */
void error_from_client_error(struct tandem_error *error, const struct client_error *message);

#endif
