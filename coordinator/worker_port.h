/* The link to the worker: for each epoch a fresh nng pair0 socket at a path of its own and a fresh
 * sealed segment, so that nothing of an old epoch can reach a new worker. The socket of a fenced
 * epoch is kept, unread, until its process is known to have ended; then the epoch is over, and the
 * socket is left to the undertaker, for which nobody waits. All functions belong to the loop's
 * thread. */
#ifndef TANDEM_COORDINATOR_WORKER_PORT_H
#define TANDEM_COORDINATOR_WORKER_PORT_H

#include "common/event_loop.h"
#include "common/run_directory.h"
#include "common/status.h"
#include "common/text.h"
#include "coordinator/worker_process.h"
#include "proto/segment.h"
#include "proto/shown_result.h"
#include "proto/worker_messages.h"

#include <stdbool.h>
#include <stdint.h>

struct worker_port; /* opaque */

/* What an epoch starts with. */
struct epoch_terms {
    uint64_t epoch;
    uint64_t connection; /* of the attach port */
    struct segment_extents extents;
    struct segment_identity identity;
    pid_t pid; /* of the worker: nobody else may dial; 0 = not known */
    uid_t uid;
};

/* A started epoch; owned by the port until it is fenced. */
struct epoch_link {
    uint64_t epoch, connection;
    const char *url;
    int segment_descriptor;
    struct segment_writer *segment;
};

enum worker_event_kind {
    WORKER_EVENT_REPORT = 1, /* decoded, not judged */
    WORKER_EVENT_NONSENSE,   /* a frame that does not decode, or too many of them */
    WORKER_EVENT_UNSENT,     /* a plan could not be sent */
    WORKER_EVENT_GONE,       /* the process of a fenced epoch has ended */
};

struct worker_event {
    enum worker_event_kind kind;
    uint64_t epoch, connection;
    const struct worker_report *report; /* borrowed until the next worker_port_next */
    const char *why;                    /* of nonsense; borrowed likewise */
};

MUST_USE enum status worker_port_open(struct event_loop *loop,
                                      const struct run_directory *directory,
                                      struct worker_port **out_port, struct text *why);

/* Makes segment and socket of an epoch. STATUS_FULL, STATUS_OUT_OF_MEMORY, STATUS_SYSTEM with a
 * sentence. */
MUST_USE enum status worker_port_start(struct worker_port *port, const struct epoch_terms *terms,
                                       struct epoch_link *out_link, struct text *why);

/* STATUS_CLOSED: no such epoch. STATUS_FULL: plans wait unsent, so the worker does not read.
 * STATUS_OUT_OF_MEMORY. */
MUST_USE enum status worker_port_send(struct worker_port *port, uint64_t epoch,
                                      const struct plan *plan);

/* Marks the segment: the worker leaves as soon as it looks. Comes before its connection is closed,
 * whose end makes it look. An unknown epoch is ignored, as in worker_port_end: its start may have
 * failed. */
void worker_port_fence(struct worker_port *port, uint64_t epoch);

/* How an epoch ends. */
struct epoch_end {
    uint64_t epoch;
    bool kill;                     /* its process must go */
    uint64_t kill_at_ns;           /* but not before */
    struct worker_process process; /* handed over */
    bool process_known;
};

/* Forgets the segment, removes the path, waits for the end of the process. */
void worker_port_end(struct worker_port *port, const struct epoch_end *end, uint64_t now_ns);

/* The next thing that happened, or false. Frames of ended epochs are dropped. */
MUST_USE bool worker_port_next(struct worker_port *port, struct worker_event *out_event);

/* The result of `step` out of the worker's segment, if it is shown there: an event as a frame makes
 * it. The frame that follows is dropped if it has the same bytes, and judged like any other if not.
 */
MUST_USE bool worker_port_shown(struct worker_port *port, uint64_t epoch,
                                const struct worker_segment_reader *segment, uint64_t step,
                                struct worker_event *out_event);

/* Looks after the ended. */
void worker_port_tick(struct worker_port *port, uint64_t now_ns);
uint64_t worker_port_next_deadline_ns(const struct worker_port *port);

#endif
