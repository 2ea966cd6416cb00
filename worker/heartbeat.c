#include "worker/heartbeat.h"

#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/log.h"

#include <inttypes.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define BEAT_NS       (100 * NS_PER_MS)
#define HANG_LEAST_NS (5 * NS_PER_S)

enum { HANG_LAYERS = 50, AVERAGE_SHARE = 8 };

uint64_t heartbeat_hang_limit_ns(uint64_t layer_ns)
{
    uint64_t limit_ns = HANG_LAYERS * layer_ns;
    return limit_ns > HANG_LEAST_NS ? limit_ns : HANG_LEAST_NS;
}

/* Silence is counted in beats, not read from the clock: a process that was stopped for a while did
 * not hang. */
struct silence {
    uint64_t moved_ns; /* the progress that was last seen */
    uint64_t beats;    /* since then */
};

static void watch_step(const struct heartbeat *heartbeat, struct silence *silence)
{
    uint64_t moved_ns = atomic_load(&heartbeat->moved_ns);
    silence->beats = moved_ns == silence->moved_ns ? silence->beats + 1 : 0;
    silence->moved_ns = moved_ns;
    uint64_t silent_ns = silence->beats * BEAT_NS;
    if (moved_ns == 0 || silent_ns < heartbeat_hang_limit_ns(atomic_load(&heartbeat->layer_ns)))
        return;
    log_error("worker_hang", "step=%" PRIu64 " layer=%u silent_ms=%" PRIu64,
              atomic_load(&heartbeat->step), atomic_load(&heartbeat->layer), silent_ns / NS_PER_MS);
    /* At once: an orderly end would wait for the thread that hangs. */
    _exit(EXIT_CODE_INTERNAL);
}

static void *beat(void *context)
{
    struct heartbeat *heartbeat = context;
    struct silence silence = {0};
    uint64_t notified_ns = 0;
    for (;;) {
        uint64_t now_ns = clock_now_ns();
        pthread_mutex_lock(&heartbeat->mutex);
        if (heartbeat->segment != NULL)
            worker_segment_beat(heartbeat->segment, now_ns);
        pthread_mutex_unlock(&heartbeat->mutex);
        watch_step(heartbeat, &silence);
        uint64_t interval_ns = heartbeat->notify->watchdog_ns / 2;
        if (interval_ns != 0 && now_ns >= notified_ns + interval_ns) {
            notify_watchdog(heartbeat->notify);
            notified_ns = now_ns;
        }
        struct timespec pause = {.tv_nsec = BEAT_NS};
        nanosleep(&pause, NULL);
    }
    return NULL;
}

enum status heartbeat_start(struct heartbeat *heartbeat, const struct notify *notify)
{
    *heartbeat = (struct heartbeat){.notify = notify};
    pthread_mutex_init(&heartbeat->mutex, NULL);
    return pthread_create(&heartbeat->thread, NULL, beat, heartbeat) == 0 ? STATUS_OK
                                                                          : STATUS_SYSTEM;
}

void heartbeat_set_segment(struct heartbeat *heartbeat, struct worker_segment_writer *segment)
{
    pthread_mutex_lock(&heartbeat->mutex);
    heartbeat->segment = segment;
    if (segment != NULL) /* a reader may look before the next beat */
        worker_segment_beat(segment, clock_now_ns());
    pthread_mutex_unlock(&heartbeat->mutex);
}

void heartbeat_step_begin(struct heartbeat *heartbeat, uint64_t step, uint64_t now_ns)
{
    atomic_store(&heartbeat->step, step);
    atomic_store(&heartbeat->layer, 0);
    atomic_store(&heartbeat->moved_ns, now_ns);
}

void heartbeat_step_layer(struct heartbeat *heartbeat, uint32_t layer, uint64_t now_ns)
{
    uint64_t took_ns = now_ns - atomic_load(&heartbeat->moved_ns);
    uint64_t average_ns = atomic_load(&heartbeat->layer_ns);
    average_ns = average_ns == 0
                     ? took_ns
                     : average_ns - average_ns / AVERAGE_SHARE + took_ns / AVERAGE_SHARE;
    atomic_store(&heartbeat->layer_ns, average_ns);
    atomic_store(&heartbeat->layer, layer);
    atomic_store(&heartbeat->moved_ns, now_ns);
}

void heartbeat_step_end(struct heartbeat *heartbeat)
{
    atomic_store(&heartbeat->moved_ns, 0);
}
