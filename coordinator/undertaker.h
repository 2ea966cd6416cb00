/* Closes the sockets of ended epochs, one at a time, on a thread of its own.
 *
 * nng 1.5.2 loses a receive whose message is half read when its pipe is closed: the thread of nng
 * that takes pipes apart then waits for it for ever, and with it every later close. So a socket is
 * closed only after it has been quiet for a while, which the messages of a dead process soon are,
 * and nothing waits for the close: behind one that hangs the others stay open, a few descriptors
 * each. All functions belong to the loop's thread. */
#ifndef TANDEM_COORDINATOR_UNDERTAKER_H
#define TANDEM_COORDINATOR_UNDERTAKER_H

#include "common/duration.h"
#include "common/message_queue.h"

#include <stdbool.h>
#include <stdint.h>

#define UNDERTAKER_QUIET_NS    (500 * NS_PER_MS)
#define UNDERTAKER_PATIENCE_NS (60 * NS_PER_S)

enum { UNDERTAKER_WAITING_MAX = 64 };

/* Embedded in what is closed; zeroed before it is handed over. */
struct grave {
    bool (*is_quiet)(struct grave *grave); /* nobody is connected */
    void (*close)(struct grave *grave);    /* on another thread; may never return */
    struct grave *next;
    uint64_t since_ns, quiet_since_ns;
    bool was_quiet;
};

/* Embedded; its address must not change after undertaker_init. */
struct undertaker {
    struct grave *first; /* waiting, not owned */
    uint32_t waiting;
    struct grave *closing;       /* with the thread */
    struct message_queue closed; /* struct grave * */
    uint64_t closing_since_ns;
    bool hangs; /* told */
    uint64_t tick_ns;
};

/* STATUS_OUT_OF_MEMORY. */
MUST_USE enum status undertaker_init(struct undertaker *undertaker, struct event_loop *loop);

/* Whoever makes sockets should wait: many are still open. Not so if a close hangs, since that may
 * be for ever. */
bool undertaker_is_busy(const struct undertaker *undertaker);

/* Takes the grave over until it comes out of undertaker_next_closed, which it never does if
 * somebody stays connected to it for UNDERTAKER_PATIENCE_NS, or if its close hangs. */
void undertaker_bury(struct undertaker *undertaker, struct grave *grave, uint64_t now_ns);

/* The next grave that was closed, now the caller's, or NULL. */
struct grave *undertaker_next_closed(struct undertaker *undertaker);

void undertaker_tick(struct undertaker *undertaker, uint64_t now_ns);
uint64_t undertaker_next_deadline_ns(const struct undertaker *undertaker);

#endif
