/* A loop that is awake when the next result is due. Steps that follow each other take about the
 * same time, so the last ones tell when; then the worker's segment is watched for a moment, and the
 * result is had without the three threads that a frame wakes on its way. Not on two cores or fewer.
 */
#ifndef TANDEM_COORDINATOR_STEP_WATCH_H
#define TANDEM_COORDINATOR_STEP_WATCH_H

#include "common/duration.h"
#include "common/event_loop.h"
#include "proto/shown_result.h"

#include <stdbool.h>
#include <stdint.h>

#define STEP_WATCH_NS (50 * NS_PER_US) /* of each step, at most */
/* Shorter steps would be watched for much of their time; longer ones are few, and vary. */
#define STEP_WATCH_LEAST_NS (200 * NS_PER_US)
#define STEP_WATCH_MOST_NS  (100 * NS_PER_MS)

struct step_watch {
    bool allowed;
    uint64_t last_ns;     /* of the last result; 0 = none, or no plan followed it at once */
    uint64_t interval_ns; /* average; 0 = not known */
};

void step_watch_open(struct step_watch *watch);

/* The result of `step` came at `now_ns`. `segment` knows when it was shown, if it was.
 * `goes_on`: the worker has the next plan already. */
void step_watch_result(struct step_watch *watch, const struct worker_segment_reader *segment,
                       uint64_t step, bool goes_on, uint64_t now_ns);

/* From when to when the next result is probably shown; false: not to be told. */
bool step_watch_window(const struct step_watch *watch, uint64_t *out_begin_ns,
                       uint64_t *out_end_ns);

/* Before the loop sleeps: watches for `step` if it is due now, or lets the loop wake up when it
 * will be. True: it is shown. */
bool step_watch_look(const struct step_watch *watch, const struct event_loop *loop,
                     const struct worker_segment_reader *segment, uint64_t step,
                     uint64_t *deadline_ns);

#endif
