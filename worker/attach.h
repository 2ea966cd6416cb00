/* The worker's side of the attach socket: tries for ever to reach a coordinator, says hello, waits
 * for its answer, and notices its end. Whoever is started first waits here for the other. One
 * thread, inside its loop. */
#ifndef TANDEM_WORKER_ATTACH_H
#define TANDEM_WORKER_ATTACH_H

#include "common/event_loop.h"
#include "common/status.h"
#include "proto/worker_messages.h"

#include <stdbool.h>
#include <stdint.h>

enum attach_state {
    ATTACH_WAITING = 1, /* for the next try */
    ATTACH_GREETED,     /* said hello, no answer yet, or standby */
    ATTACH_ATTACHED,
};

enum attach_event_kind {
    ATTACH_EVENT_ATTACHED =
        1, /* `answer.attach`, and `descriptor` (owned by the receiver) of its segment */
    ATTACH_EVENT_STANDBY, /* another worker is active; the connection stays */
    ATTACH_EVENT_REFUSED, /* by name; the connection is closed */
    ATTACH_EVENT_LOST,    /* the coordinator closed or died; the next try follows by itself */
};

struct attach_event {
    enum attach_event_kind kind;
    struct attach_answer answer; /* texts borrow until the next attach_next */
    int descriptor;
};

/* Embedded; must not move while it is open. */
struct attach {
    struct event_loop *loop;          /* borrowed */
    const char *path;                 /* borrowed */
    const struct attach_hello *hello; /* borrowed */
    int segment;                      /* borrowed descriptor that goes with the hello */
    enum attach_state state;
    int descriptor; /* -1 = not connected */
    bool readable, waiting_told;
    uint64_t retry_ns, pause_ns; /* when, and the length of the pause before it */
    uint8_t packet[LIMIT_ATTACH_BYTES];
};

void attach_open(struct attach *attach, struct event_loop *loop, const char *path,
                 const struct attach_hello *hello);
void attach_close(struct attach *attach);

/* The segment of the next hello; a new one for each attachment. */
void attach_set_segment(struct attach *attach, int descriptor);

/* Ends a connection from this side and tries again after a pause. */
void attach_retry(struct attach *attach, uint64_t now_ns);

/* Connects when it is time. STATUS_PERMISSION: this user may not; anything else is tried again for
 * ever. */
MUST_USE enum status attach_tick(struct attach *attach, uint64_t now_ns);
uint64_t attach_next_deadline_ns(const struct attach *attach);

/* The next thing that happened, or false. */
MUST_USE bool attach_next(struct attach *attach, struct attach_event *out_event, uint64_t now_ns);

#endif
