#include "common/event_loop.h"

#include "common/check.h"
#include "common/clock.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

enum { BATCH_EVENTS = 64 };

/* What an epoll entry stands for: one of these, or TAG_SOURCES + slot with the slot's serial above.
 */
enum { TAG_WAKE = 1, TAG_TIMER, TAG_SIGNALS, TAG_SOURCES };

static uint64_t source_tag(const struct event_loop *loop, uint32_t slot)
{
    return ((uint64_t)loop->sources[slot].serial << 32) | (TAG_SOURCES + slot);
}

static enum status watch(struct event_loop *loop, int descriptor, uint32_t events, uint64_t tag)
{
    struct epoll_event event = {.events = events, .data.u64 = tag};
    if (epoll_ctl(loop->epoll, EPOLL_CTL_ADD, descriptor, &event) != 0)
        return STATUS_SYSTEM;
    return STATUS_OK;
}

enum status event_loop_open(struct event_loop *loop)
{
    *loop = (struct event_loop){
        .epoll = -1, .wake = -1, .timer = -1, .signals = -1, .armed_ns = EVENT_LOOP_NO_DEADLINE};
    for (uint32_t i = 0; i < EVENT_LOOP_SOURCES_MAX; i++)
        loop->sources[i].descriptor = -1;
    atomic_init(&loop->wake_pending, false);
    loop->epoll = epoll_create1(EPOLL_CLOEXEC);
    loop->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    loop->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    if (loop->epoll < 0 || loop->wake < 0 || loop->timer < 0)
        return STATUS_SYSTEM;
    enum status status = watch(loop, loop->wake, EPOLLIN, TAG_WAKE);
    if (status == STATUS_OK)
        status = watch(loop, loop->timer, EPOLLIN, TAG_TIMER);
    return status;
}

static void close_if_open(int *descriptor)
{
    if (*descriptor >= 0)
        close(*descriptor);
    *descriptor = -1;
}

void event_loop_close(struct event_loop *loop)
{
    close_if_open(&loop->signals);
    close_if_open(&loop->timer);
    close_if_open(&loop->wake);
    close_if_open(&loop->epoll);
}

enum status event_loop_add_signals(struct event_loop *loop, const sigset_t *set,
                                   signal_handler handle, void *context)
{
    CHECK(loop->signals < 0);
    if (pthread_sigmask(SIG_BLOCK, set, NULL) != 0)
        return STATUS_SYSTEM;
    loop->signals = signalfd(-1, set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (loop->signals < 0)
        return STATUS_SYSTEM;
    loop->handle_signal = handle;
    loop->signal_context = context;
    return watch(loop, loop->signals, EPOLLIN, TAG_SIGNALS);
}

enum status event_loop_add(struct event_loop *loop, int descriptor, uint32_t events,
                           event_handler handle, void *context)
{
    CHECK(descriptor >= 0);
    uint32_t slot = 0;
    while (slot < EVENT_LOOP_SOURCES_MAX && loop->sources[slot].descriptor >= 0)
        slot++;
    if (slot == EVENT_LOOP_SOURCES_MAX)
        return STATUS_FULL;
    struct event_source *source = &loop->sources[slot];
    source->serial++; /* what the batch still holds for an earlier owner of the slot is void */
    enum status status = watch(loop, descriptor, events, source_tag(loop, slot));
    if (status == STATUS_OK) {
        source->descriptor = descriptor;
        source->handle = handle;
        source->context = context;
    }
    return status;
}

void event_loop_remove(struct event_loop *loop, int descriptor)
{
    for (uint32_t slot = 0; slot < EVENT_LOOP_SOURCES_MAX; slot++)
        if (loop->sources[slot].descriptor == descriptor) {
            epoll_ctl(loop->epoll, EPOLL_CTL_DEL, descriptor, NULL);
            loop->sources[slot].descriptor = -1;
            return;
        }
    CHECK(!"the descriptor is watched");
}

void event_loop_wake(struct event_loop *loop)
{
    /* Only the first of many wakes costs a system call; the loop clears the mark before it looks at
     * the queues. */
    if (atomic_exchange(&loop->wake_pending, true))
        return;
    uint64_t one = 1;
    ssize_t written = write(loop->wake, &one, sizeof one);
    CHECK(written ==
          (ssize_t)sizeof one); /* the counter cannot be full: the mark keeps it at one */
}

bool event_loop_is_woken(const struct event_loop *loop)
{
    return atomic_load(&loop->wake_pending);
}

/* An armed timer that is too early costs one wake-up without a cause; that is cheaper than a system
 * call per wait, since deadlines mostly move away. */
static enum status arm(struct event_loop *loop, uint64_t deadline_ns)
{
    if (deadline_ns >= loop->armed_ns)
        return STATUS_OK;
    struct itimerspec when = {0};
    uint64_t at = deadline_ns != 0 ? deadline_ns : 1; /* zero would switch the timer off */
    when.it_value.tv_sec = (time_t)(at / NS_PER_S);
    when.it_value.tv_nsec = (long)(at % NS_PER_S);
    if (timerfd_settime(loop->timer, TFD_TIMER_ABSTIME, &when, NULL) != 0)
        return STATUS_SYSTEM;
    loop->armed_ns = deadline_ns;
    return STATUS_OK;
}

static void drain_counter(int descriptor)
{
    uint64_t count;
    ssize_t got = read(descriptor, &count, sizeof count);
    (void)got; /* EAGAIN: somebody was quicker, the counter is empty either way */
}

static void handle_signals(struct event_loop *loop)
{
    struct signalfd_siginfo received;
    while (read(loop->signals, &received, sizeof received) == (ssize_t)sizeof received)
        loop->handle_signal(loop->signal_context, (int)received.ssi_signo);
}

static void dispatch(struct event_loop *loop, const struct epoll_event *event)
{
    uint32_t tag = (uint32_t)event->data.u64;
    if (tag == TAG_WAKE) {
        drain_counter(loop->wake);
        atomic_store(&loop->wake_pending, false);
    } else if (tag == TAG_TIMER) {
        drain_counter(loop->timer);
        loop->armed_ns = EVENT_LOOP_NO_DEADLINE;
    } else if (tag == TAG_SIGNALS) {
        handle_signals(loop);
    } else {
        CHECK(tag < TAG_SOURCES + EVENT_LOOP_SOURCES_MAX);
        struct event_source *source = &loop->sources[tag - TAG_SOURCES];
        if (source->descriptor >= 0 && source->serial == (uint32_t)(event->data.u64 >> 32))
            source->handle(source->context, event->events);
    }
}

enum status event_loop_wait(struct event_loop *loop, uint64_t deadline_ns)
{
    struct epoll_event events[BATCH_EVENTS];
    enum status status = arm(loop, deadline_ns);
    if (status != STATUS_OK)
        return status;
    int count = epoll_wait(loop->epoll, events, BATCH_EVENTS, -1);
    if (count < 0)
        return errno == EINTR ? STATUS_OK : STATUS_SYSTEM;
    for (int i = 0; i < count; i++)
        dispatch(loop, &events[i]);
    return STATUS_OK;
}
