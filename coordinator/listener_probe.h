/* Looks at our own client listener as a client would: connects, shakes hands, asks one question and
 * reads the whole answer. nng 1.5.2 has a defect: one connect() that is closed before the handshake
 * can leave an ipc listener accepting nobody for ever, while the handshake of newcomers still
 * succeeds; only an answer proves that it lives. */
#ifndef TANDEM_COORDINATOR_LISTENER_PROBE_H
#define TANDEM_COORDINATOR_LISTENER_PROBE_H

#include "common/event_loop.h"
#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { PROBE_QUESTION_BYTES = 256 };

/* Embedded; the loop calls into it, so it must not move while it is open. */
struct listener_probe {
    struct event_loop *loop; /* borrowed */
    const char *path;        /* borrowed */
    uint8_t question[PROBE_QUESTION_BYTES];
    size_t question_bytes;
    int descriptor; /* -1: none under way */
    uint8_t head[8 + 9];
    size_t head_bytes;
    uint64_t answer_bytes, received_bytes;
    uint64_t started_ns;
    uint64_t deadline_ns; /* end of the probe under way, or start of the next */
    uint32_t failures;    /* in a row */
};

/* `message` is the body of a client request. Nothing happens before listener_probe_tick. */
void listener_probe_open(struct listener_probe *probe, struct event_loop *loop, const char *path,
                         const uint8_t *message, size_t message_bytes);
void listener_probe_close(struct listener_probe *probe);

/* Starts a probe every 2 s and ends one that takes longer than 1 s. Call at probe->deadline_ns at
 * the latest. True: two in a row had no answer; the count starts again. */
bool listener_probe_tick(struct listener_probe *probe, uint64_t now_ns);

#endif
