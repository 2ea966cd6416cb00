/* The thread that shows that this process is scheduled (a word in the worker's segment, every 100
 * ms), and that ends the process when the executing thread shows no progress: a hung kernel cannot
 * be helped from inside. */
#ifndef TANDEM_WORKER_HEARTBEAT_H
#define TANDEM_WORKER_HEARTBEAT_H

#include "common/notify.h"
#include "common/status.h"
#include "proto/segment.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

/* Embedded; must not move. */
struct heartbeat {
    const struct notify *notify; /* borrowed */
    pthread_t thread;
    pthread_mutex_t mutex;
    struct worker_segment_writer *segment; /* borrowed; NULL = none; guarded by mutex */
    /* Of the executing thread: */
    _Atomic uint64_t moved_ns; /* last progress inside a step; 0 = no step runs */
    _Atomic uint64_t layer_ns; /* average duration of a layer */
    _Atomic uint64_t step;
    atomic_uint layer;
};

/* STATUS_SYSTEM. The thread lives as long as the process. */
MUST_USE enum status heartbeat_start(struct heartbeat *heartbeat, const struct notify *notify);

/* The segment to beat into from now on, NULL for none; the old one may be unmapped afterwards. */
void heartbeat_set_segment(struct heartbeat *heartbeat, struct worker_segment_writer *segment);

/* Executing thread: a step begins, moves on by a layer, ends. */
void heartbeat_step_begin(struct heartbeat *heartbeat, uint64_t step, uint64_t now_ns);
void heartbeat_step_layer(struct heartbeat *heartbeat, uint32_t layer, uint64_t now_ns);
void heartbeat_step_end(struct heartbeat *heartbeat);

/* Progress older than this is a hang. */
uint64_t heartbeat_hang_limit_ns(uint64_t layer_ns);

#endif
