/* Ctrl-C (and SIGTERM, SIGHUP). While a request runs, the first one cancels it on the coordinator,
 * so that the text so far and its outcome still arrive; the second leaves at once. While nothing
 * runs, the first one leaves. */
#ifndef TANDEM_CLIENT_CLI_INTERRUPT_H
#define TANDEM_CLIENT_CLI_INTERRUPT_H

#include "client/tandem.h"
#include "common/status.h"

#include <pthread.h>
#include <stdbool.h>

/* Fields are private. Lives until the process ends: its thread does. */
struct interrupt {
    pthread_mutex_t mutex;
    pthread_cond_t cancelled;
    struct tandem *tandem; /* NULL while nothing runs */
    const char *id;
    bool seen;
    bool cancelling; /* a thread is telling the coordinator */
    void (*leave)(void);
};

/* Blocks the signals and starts the thread that waits for them; call it before tandem_open, since
 * the threads of nng inherit the mask. `leave` ends the process. STATUS_OK or STATUS_SYSTEM. */
MUST_USE enum status interrupt_start(struct interrupt *interrupt, void (*leave)(void));

/* From now on Ctrl-C cancels `id`. Both are borrowed until interrupt_end. */
void interrupt_begin(struct interrupt *interrupt, struct tandem *tandem, const char *id);

/* Whether Ctrl-C was pressed since interrupt_begin. */
bool interrupt_seen(struct interrupt *interrupt);

/* The request is over; waits for a cancellation that is on its way. Returns what interrupt_seen
 * would have. */
bool interrupt_end(struct interrupt *interrupt);

#endif
