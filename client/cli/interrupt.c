#include "client/cli/interrupt.h"

#include <signal.h>
#include <string.h>

static void fill_signals(sigset_t *signals)
{
    (void)sigemptyset(signals);
    (void)sigaddset(signals, SIGINT);
    (void)sigaddset(signals, SIGTERM);
    (void)sigaddset(signals, SIGHUP);
}

/* On its own thread, since the coordinator may be silent and a second Ctrl-C must still be heard.
 * An error is of no interest: the reader of the request meets it as well. */
static void *cancel(void *context)
{
    struct interrupt *interrupt = context;
    (void)pthread_mutex_lock(&interrupt->mutex);
    struct tandem *tandem = interrupt->tandem;
    const char *id = interrupt->id;
    (void)pthread_mutex_unlock(&interrupt->mutex);
    if (tandem != NULL)
        (void)tandem_cancel(tandem, id, NULL);
    (void)pthread_mutex_lock(&interrupt->mutex);
    interrupt->cancelling = false;
    (void)pthread_cond_signal(&interrupt->cancelled);
    (void)pthread_mutex_unlock(&interrupt->mutex);
    return NULL;
}

static void take_signal(struct interrupt *interrupt)
{
    (void)pthread_mutex_lock(&interrupt->mutex);
    bool last = interrupt->tandem == NULL || interrupt->seen;
    interrupt->seen = true;
    if (!last) {
        pthread_t thread;
        interrupt->cancelling = pthread_create(&thread, NULL, cancel, interrupt) == 0;
        if (interrupt->cancelling)
            (void)pthread_detach(thread);
        last = !interrupt->cancelling;
    }
    (void)pthread_mutex_unlock(&interrupt->mutex);
    if (last)
        interrupt->leave();
}

static void *wait_for_signals(void *context)
{
    sigset_t signals;
    fill_signals(&signals);
    for (;;) {
        int signal_number = 0;
        if (sigwait(&signals, &signal_number) == 0)
            take_signal(context);
    }
    return NULL;
}

enum status interrupt_start(struct interrupt *interrupt, void (*leave)(void))
{
    memset(interrupt, 0, sizeof *interrupt);
    interrupt->leave = leave;
    sigset_t signals;
    fill_signals(&signals);
    pthread_t thread;
    if (pthread_mutex_init(&interrupt->mutex, NULL) != 0 ||
        pthread_cond_init(&interrupt->cancelled, NULL) != 0 ||
        pthread_sigmask(SIG_BLOCK, &signals, NULL) != 0 ||
        pthread_create(&thread, NULL, wait_for_signals, interrupt) != 0)
        return STATUS_SYSTEM;
    (void)pthread_detach(thread);
    return STATUS_OK;
}

void interrupt_begin(struct interrupt *interrupt, struct tandem *tandem, const char *id)
{
    (void)pthread_mutex_lock(&interrupt->mutex);
    interrupt->tandem = tandem;
    interrupt->id = id;
    interrupt->seen = false;
    (void)pthread_mutex_unlock(&interrupt->mutex);
}

bool interrupt_seen(struct interrupt *interrupt)
{
    (void)pthread_mutex_lock(&interrupt->mutex);
    bool seen = interrupt->seen;
    (void)pthread_mutex_unlock(&interrupt->mutex);
    return seen;
}

bool interrupt_end(struct interrupt *interrupt)
{
    (void)pthread_mutex_lock(&interrupt->mutex);
    interrupt->tandem = NULL;
    while (interrupt->cancelling)
        (void)pthread_cond_wait(&interrupt->cancelled, &interrupt->mutex);
    bool seen = interrupt->seen;
    (void)pthread_mutex_unlock(&interrupt->mutex);
    return seen;
}
