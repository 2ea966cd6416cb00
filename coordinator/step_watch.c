#include "coordinator/step_watch.h"

#include "common/clock.h"

#include <unistd.h>

enum { AVERAGE_SHARE = 4 };

void step_watch_open(struct step_watch *watch)
{
    *watch = (struct step_watch){.allowed = sysconf(_SC_NPROCESSORS_ONLN) > 2};
}

static void take_gap(struct step_watch *watch, uint64_t gap_ns)
{
    uint64_t average_ns = watch->interval_ns;
    /* Another kind of step: the average starts anew. */
    if (average_ns == 0 || gap_ns > 2 * average_ns || gap_ns < average_ns / 2)
        watch->interval_ns = gap_ns;
    else
        watch->interval_ns = average_ns - average_ns / AVERAGE_SHARE + gap_ns / AVERAGE_SHARE;
}

void step_watch_result(struct step_watch *watch, const struct worker_segment_reader *segment,
                       uint64_t step, bool goes_on, uint64_t now_ns)
{
    uint64_t shown_ns = segment == NULL ? 0 : worker_segment_shown_ns(segment, step);
    /* What another process wrote: only a time that can be is taken. */
    uint64_t at_ns = shown_ns > watch->last_ns && shown_ns <= now_ns ? shown_ns : now_ns;
    if (watch->last_ns != 0 && at_ns > watch->last_ns)
        take_gap(watch, at_ns - watch->last_ns);
    watch->last_ns = goes_on ? at_ns : 0;
}

bool step_watch_window(const struct step_watch *watch, uint64_t *out_begin_ns, uint64_t *out_end_ns)
{
    if (!watch->allowed || watch->last_ns == 0 || watch->interval_ns < STEP_WATCH_LEAST_NS ||
        watch->interval_ns > STEP_WATCH_MOST_NS)
        return false;
    *out_begin_ns = watch->last_ns + watch->interval_ns - STEP_WATCH_NS / 2;
    *out_end_ns = *out_begin_ns + STEP_WATCH_NS;
    return true;
}

bool step_watch_look(const struct step_watch *watch, const struct event_loop *loop,
                     const struct worker_segment_reader *segment, uint64_t step,
                     uint64_t *deadline_ns)
{
    uint64_t begin_ns, end_ns, now_ns = clock_now_ns();
    if (step == 0 || segment == NULL || !step_watch_window(watch, &begin_ns, &end_ns))
        return false;
    if (now_ns < begin_ns && begin_ns < *deadline_ns)
        *deadline_ns = begin_ns;
    if (now_ns < begin_ns)
        return false;
    while (now_ns < end_ns && !event_loop_is_woken(loop)) {
        if (worker_segment_shows_result(segment, step))
            return true;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
        now_ns = clock_now_ns();
    }
    return false;
}
