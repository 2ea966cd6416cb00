/* The nng side of the library: one REQ socket with one dialer that reconnects by itself.
 * Knows no message. Safe for use by several threads at the same time: each attempt has its own nng
 * context. Opaque to callers except for the path of the run directory. */
#ifndef TANDEM_CLIENT_CONNECTION_H
#define TANDEM_CLIENT_CONNECTION_H

#include "client/tandem.h"
#include "common/run_directory.h"

#include <nng/nng.h>

struct connection {
    nng_socket socket;
    struct run_directory directory; /* where a coordinator answered */
};

/* How one attempt ended. */
enum connection_outcome {
    CONNECTION_ANSWERED = 1,
    CONNECTION_NOT_SENT, /* no connection within the time */
    CONNECTION_CUT,      /* the connection went away after the question was sent */
    CONNECTION_SILENT,   /* no answer within the time */
    CONNECTION_EXHAUSTED /* no memory, threads or descriptors */
};

/* Dials `run_dir`, or where the header of the library says when it is NULL; never waits for a
 * coordinator to appear. Close with connection_close. */
enum tandem_result connection_open(struct connection *connection, const char *run_dir,
                                   struct tandem_error *error);
void connection_close(struct connection *connection);

/* Sends `question` and waits for its answer. `question` is consumed in any case; with
 * CONNECTION_ANSWERED *out_answer is freed by the caller. Times are at least 1 ms. */
enum connection_outcome connection_try(const struct connection *connection, nng_msg *question,
                                       uint32_t send_ms, uint32_t answer_ms, nng_msg **out_answer);

#endif
