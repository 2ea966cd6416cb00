/* The client side of the coordinator: nng REP contexts over RUN/client.ipc. Decodes requests,
 * encodes answers, and keeps the promises that nng does not: a bounded frame, always some idle
 * receivers, no client that blocks others by not reading, a listener that is alive.
 *
 * One context is one call: it receives, waits for its answer (maybe long: a poll), sends, receives
 * again. All functions belong to the loop's thread; nng's threads only move messages into a queue
 * and wake the loop. */
#ifndef TANDEM_COORDINATOR_CLIENT_PORT_H
#define TANDEM_COORDINATOR_CLIENT_PORT_H

#include "common/event_loop.h"
#include "common/status.h"
#include "common/text.h"
#include "proto/client_messages.h"

#include <stdbool.h>
#include <stdint.h>

enum {
    CLIENT_CALLS_MAX = 8192,   /* contexts; parked polls may take all but the idle ones */
    CLIENT_CALLS_IDLE_MIN = 16 /* receivers that are free, so that cancel and health never starve */
};

struct client_port; /* opaque */

enum client_event_kind {
    CLIENT_EVENT_REQUEST = 1, /* a decoded request; answer `handle` exactly once */
    CLIENT_EVENT_GONE,        /* the caller of `handle` hung up; it is not answered any more */
    CLIENT_EVENT_BAD_FRAME,   /* a frame that is no request; it was answered here */
    CLIENT_EVENT_CROWDED,     /* too few idle receivers and no room for more: answer a poll now */
};

struct client_event {
    enum client_event_kind kind;
    uint64_t handle;
    struct client_request request; /* borrows from the frame until the next client_port_next */
};

/* Listens at `path` (borrowed) with mode 0660; the caller holds the lock of the directory and has
 * removed old files. STATUS_PERMISSION, STATUS_SYSTEM, STATUS_OUT_OF_MEMORY with a sentence in
 * `why`. */
MUST_USE enum status client_port_open(struct event_loop *loop, const char *path,
                                      struct client_port **out_port, struct text *why);

/* Nobody can connect any more: removes the path. Calls under way go on. */
void client_port_stop_listening(struct client_port *port);

/* The next thing that happened, or false. */
MUST_USE bool client_port_next(struct client_port *port, struct client_event *out_event);

/* Answers a call. The answer is encoded before this returns. */
void client_port_answer(struct client_port *port, uint64_t handle,
                        const struct client_answer *answer);

/* Answers that are not yet handed to the kernel. */
uint32_t client_port_unsent(const struct client_port *port);

/* The self-test of the listener. STATUS_OK, or STATUS_CLOSED: it died too often, the process has to
 * be replaced. */
MUST_USE enum status client_port_tick(struct client_port *port, uint64_t now_ns);
uint64_t client_port_next_deadline_ns(const struct client_port *port);

#endif
