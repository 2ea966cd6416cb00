/* Where workers knock: a plain AF_UNIX SOCK_SEQPACKET socket, because it can pass descriptors and
 * its end of file tells the truth about a death. A worker connects, is known by SO_PEERCRED, says
 * hello with its sealed segment, and keeps the connection for life. All functions belong to the
 * loop's thread. */
#ifndef TANDEM_COORDINATOR_ATTACH_PORT_H
#define TANDEM_COORDINATOR_ATTACH_PORT_H

#include "common/event_loop.h"
#include "common/status.h"
#include "common/text.h"
#include "coordinator/config.h"
#include "coordinator/worker_process.h"
#include "proto/segment.h"
#include "proto/worker_messages.h"

#include <stdbool.h>
#include <stdint.h>

/* The active worker, the standbys, and some that have not said hello yet. */
enum { ATTACH_CONNECTIONS_MAX = 16 };

struct attach_port; /* opaque */

enum attach_event_kind {
    ATTACH_EVENT_HELLO = 1, /* answer with attach_port_answer */
    ATTACH_EVENT_LOST, /* the connection or its process ended; comes once, after a hello only */
};

struct attach_event {
    enum attach_event_kind kind;
    uint64_t connection;
    const struct worker_process *process; /* borrowed until the next call */
    bool user_allowed;
    struct attach_hello hello; /* borrows from the packet until the next attach_port_next */
};

/* Listens at `path` (borrowed) with mode 0660. The statuses of packet_socket_listen,
 * STATUS_OUT_OF_MEMORY. */
MUST_USE enum status attach_port_open(struct event_loop *loop, const char *path,
                                      const struct worker_users *users,
                                      struct attach_port **out_port, struct text *why);

/* Nobody can connect any more: removes the path. Connections stay. */
void attach_port_stop_listening(struct attach_port *port);

/* Stops listening and ends every connection. */
void attach_port_close(struct attach_port *port);

/* The next thing that happened, or false. */
MUST_USE bool attach_port_next(struct attach_port *port, struct attach_event *out_event);

/* Sends an answer, with a descriptor or -1. A refused connection is closed here. A failure is no
 * status: its ATTACH_EVENT_LOST follows. */
void attach_port_answer(struct attach_port *port, uint64_t connection,
                        const struct attach_answer *answer, int passed);

/* What the worker of this connection writes; NULL when the connection is unknown. */
const struct worker_segment_reader *attach_port_segment(const struct attach_port *port,
                                                        uint64_t connection);

/* The process of this connection; NULL when the connection is unknown. */
const struct worker_process *attach_port_process(const struct attach_port *port,
                                                 uint64_t connection);

/* Ends a connection, whatever its state, and hands its process out (the receiver closes it). False:
 * unknown. */
bool attach_port_release(struct attach_port *port, uint64_t connection,
                         struct worker_process *out_process);

/* Closes connections that say nothing for too long. */
void attach_port_tick(struct attach_port *port, uint64_t now_ns);
uint64_t attach_port_next_deadline_ns(const struct attach_port *port);

#endif
