#include "coordinator/undertaker.h"

#include "common/check.h"
#include "common/log.h"

#include <pthread.h>

#define LOOK_NS (250 * NS_PER_MS)
#define HANG_NS (10 * NS_PER_S)

enum status undertaker_init(struct undertaker *undertaker, struct event_loop *loop)
{
    *undertaker = (struct undertaker){.tick_ns = EVENT_LOOP_NO_DEADLINE};
    return message_queue_init(&undertaker->closed, 1, sizeof(struct grave *), loop);
}

static void *run_errand(void *context)
{
    struct undertaker *undertaker = context;
    struct grave *grave = undertaker->closing;
    grave->close(grave);
    enum status status = message_queue_push(&undertaker->closed, &grave);
    CHECK(status == STATUS_OK); /* one at a time */
    return NULL;
}

/* Without a thread the next tick tries again. */
static bool begin_close(struct undertaker *undertaker, struct grave *grave, uint64_t now_ns)
{
    pthread_t thread;
    undertaker->closing = grave;
    undertaker->closing_since_ns = now_ns;
    if (pthread_create(&thread, NULL, run_errand, undertaker) != 0) {
        undertaker->closing = NULL;
        return false;
    }
    pthread_detach(thread);
    return true;
}

bool undertaker_is_busy(const struct undertaker *undertaker)
{
    return undertaker->waiting >= UNDERTAKER_WAITING_MAX && !undertaker->hangs;
}

void undertaker_bury(struct undertaker *undertaker, struct grave *grave, uint64_t now_ns)
{
    grave->since_ns = now_ns;
    grave->was_quiet = false;
    grave->next = undertaker->first;
    undertaker->first = grave;
    undertaker->waiting++;
    undertaker->tick_ns = now_ns;
}

struct grave *undertaker_next_closed(struct undertaker *undertaker)
{
    struct grave *grave;
    if (!message_queue_pop(&undertaker->closed, &grave))
        return NULL;
    undertaker->closing = NULL;
    undertaker->hangs = false;
    if (undertaker->first != NULL)
        undertaker->tick_ns = 0;
    return grave;
}

static bool has_settled(struct grave *grave, uint64_t now_ns)
{
    bool quiet = grave->is_quiet(grave);
    if (quiet && !grave->was_quiet)
        grave->quiet_since_ns = now_ns;
    grave->was_quiet = quiet;
    return quiet && now_ns - grave->quiet_since_ns >= UNDERTAKER_QUIET_NS;
}

static void look_at_closing(struct undertaker *undertaker, uint64_t now_ns)
{
    if (undertaker->closing == NULL || undertaker->hangs ||
        now_ns - undertaker->closing_since_ns < HANG_NS)
        return;
    undertaker->hangs = true;
    log_warn("socket_close_hangs",
             "reason=\"nng does not close the socket of an ended epoch; those "
             "of later ones stay open too\"");
}

/* Whether the grave waits no longer. */
static bool look_at(struct undertaker *undertaker, struct grave *grave, uint64_t now_ns)
{
    bool settled = has_settled(grave, now_ns);
    if (settled && undertaker->closing == NULL)
        return begin_close(undertaker, grave, now_ns);
    if (settled || now_ns - grave->since_ns < UNDERTAKER_PATIENCE_NS)
        return false;
    log_warn("socket_kept", "reason=\"somebody stays connected to an ended epoch\"");
    return true;
}

void undertaker_tick(struct undertaker *undertaker, uint64_t now_ns)
{
    if (now_ns < undertaker->tick_ns)
        return;
    look_at_closing(undertaker, now_ns);
    for (struct grave **link = &undertaker->first; *link != NULL;) {
        if (look_at(undertaker, *link, now_ns)) {
            *link = (*link)->next;
            undertaker->waiting--;
        } else {
            link = &(*link)->next;
        }
    }
    /* While a close hangs nothing else can be done; its end sets the time anew. */
    bool idle = undertaker->first == NULL && undertaker->closing == NULL;
    undertaker->tick_ns = idle || undertaker->hangs ? EVENT_LOOP_NO_DEADLINE : now_ns + LOOK_NS;
}

uint64_t undertaker_next_deadline_ns(const struct undertaker *undertaker)
{
    return undertaker->tick_ns;
}
