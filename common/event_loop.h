/* The one loop of a process: file descriptors, one deadline, signals, and wake-ups from other
 * threads. All functions belong to the loop's thread, but event_loop_wake. Handlers run inside
 * event_loop_wait. */
#ifndef TANDEM_COMMON_EVENT_LOOP_H
#define TANDEM_COMMON_EVENT_LOOP_H

#include "common/status.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

enum { EVENT_LOOP_SOURCES_MAX = 128 };
#define EVENT_LOOP_NO_DEADLINE UINT64_MAX

/* `events` are those of epoll. */
typedef void (*event_handler)(void *context, uint32_t events);
typedef void (*signal_handler)(void *context, int signal_number);

/* One watched descriptor. A slot of the loop: released slots are not reused before the current
 * batch has ended. */
struct event_source {
    int descriptor; /* borrowed; -1 = free slot */
    uint32_t serial;
    event_handler handle;
    void *context;
};

struct event_loop {
    int epoll, wake, timer, signals; /* owned */
    uint64_t armed_ns;               /* what the timer is set to; EVENT_LOOP_NO_DEADLINE = off */
    atomic_bool wake_pending;
    signal_handler handle_signal;
    void *signal_context;
    struct event_source sources[EVENT_LOOP_SOURCES_MAX];
};

/* STATUS_SYSTEM. A loop whose open failed may be closed. */
MUST_USE enum status event_loop_open(struct event_loop *loop);
void event_loop_close(struct event_loop *loop);

/* Blocks `set` for this thread and those made later, and delivers the signals to `handle` inside
 * the loop. Once. */
MUST_USE enum status event_loop_add_signals(struct event_loop *loop, const sigset_t *set,
                                            signal_handler handle, void *context);

/* Watches `descriptor` until event_loop_remove; level-triggered. STATUS_FULL, STATUS_SYSTEM. */
MUST_USE enum status event_loop_add(struct event_loop *loop, int descriptor, uint32_t events,
                                    event_handler handle, void *context);

/* Call before the descriptor is closed. No handler runs for it any more, also not in the current
 * batch. */
void event_loop_remove(struct event_loop *loop, int descriptor);

/* Any thread: the loop's next (or current) wait returns. Many wakes may be one. */
void event_loop_wake(struct event_loop *loop);

/* Somebody did, and the loop did not return from a wait since. */
bool event_loop_is_woken(const struct event_loop *loop);

/* Waits for an event, a wake or `deadline_ns` (CLOCK_MONOTONIC), runs the handlers, returns. It may
 * return early without a cause. STATUS_SYSTEM. */
MUST_USE enum status event_loop_wait(struct event_loop *loop, uint64_t deadline_ns);

#endif
