/* The worker's end of one epoch's nng pair0: plans in, results out. A fresh one for each
 * attachment; an old one is abandoned, since closing under traffic can hang in nng. Belongs to the
 * loop's thread. */
#ifndef TANDEM_WORKER_COORDINATOR_PORT_H
#define TANDEM_WORKER_COORDINATOR_PORT_H

#include "common/event_loop.h"
#include "common/status.h"
#include "common/text.h"
#include "proto/segment.h"
#include "proto/worker_messages.h"

#include <stdbool.h>
#include <stdint.h>

struct coordinator_port; /* opaque */

/* Dials `url`; once, without tries: the coordinator listens before it says where.
 * STATUS_OUT_OF_MEMORY, STATUS_SYSTEM with a sentence in `why`. */
MUST_USE enum status coordinator_port_open(struct event_loop *loop, const char *url,
                                           struct coordinator_port **out_port, struct text *why);

/* Leaves the socket to a thread of its own. Accepts NULL. */
void coordinator_port_abandon(struct coordinator_port *port);

struct coordinator_order {
    const struct worker_order *order; /* borrowed until the next coordinator_port_next */
    uint64_t received_ns;
};

/* STATUS_OK with the next order, STATUS_AGAIN when there is none, STATUS_BAD_MESSAGE with a
 * sentence in `why`. */
MUST_USE enum status coordinator_port_next(struct coordinator_port *port,
                                           struct coordinator_order *out_order, struct text *why);

/* Looks for an order for at most `spin_ns` before the caller sleeps. */
void coordinator_port_spin(struct coordinator_port *port, uint64_t spin_ns);

/* Whether an order waits. */
bool coordinator_port_waiting(const struct coordinator_port *port);

/* Encodes and sends; a result is first shown in `segment`, unless that is NULL. STATUS_FULL: the
 * coordinator does not read. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status coordinator_port_send(struct coordinator_port *port,
                                           const struct worker_report *report,
                                           struct worker_segment_writer *segment);

/* Reports that are not yet handed to the kernel. */
uint32_t coordinator_port_unsent(const struct coordinator_port *port);

#endif
