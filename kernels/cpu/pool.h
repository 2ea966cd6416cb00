/* Threads that compute one job at a time. A job is a range of items cut into shares. Each thread,
 * the caller included, first takes those of its own part of the range, from front to back:
 * operations that cut the same rows find what they made before in the thread's own caches. Whoever
 * is free then takes from the back of the others' parts, so a thread that the system keeps off its
 * processor delays at most the share it holds. When the caller has waited for that for 100 us it
 * gives the thread its own processor and sleeps; before its next share the thread leaves the
 * processor of the caller again. Idle threads spin for some tens of microseconds (the gap between
 * two operations of a step) and then sleep: an idle pool costs nothing. Which thread does which
 * share never changes a result: shares write disjoint memory. */
#ifndef TANDEM_KERNELS_CPU_POOL_H
#define TANDEM_KERNELS_CPU_POOL_H

#include "common/status.h"

#include <sched.h>
#include <stdint.h>

struct pool; /* opaque */

struct pool_range {
    const uint8_t *memory;
    uint64_t bytes; /* 0: nothing */
};

enum { POOL_THREADS_MAX = 256 };

/* Items begin..end-1, on some thread of the pool, with the floating-point environment of the
 * arithmetic. */
typedef void (*pool_task)(const void *context, uint32_t begin, uint32_t end);

/* `threads` in [1, POOL_THREADS_MAX], the caller's included. STATUS_OUT_OF_MEMORY or STATUS_SYSTEM.
 */
MUST_USE enum status pool_open(uint32_t threads, struct pool **out_pool);

/* Ends the threads. Accepts NULL. */
void pool_close(struct pool *pool);

uint32_t pool_threads(const struct pool *pool);

/* Keeps a thread, not the caller's, on some processors, except while the caller waits for it and it
 * would not run there. Where the system refuses them the thread stays where it is. Before the first
 * job. */
void pool_keep(struct pool *pool, uint32_t thread, const cpu_set_t *processors);

/* Runs items 0..items-1 in shares of up to `grain` >= 1 items and returns when all are done. What
 * fits one share runs on the caller's thread. One caller at a time; not from inside a task.
 * `context` is borrowed. */
void pool_run(struct pool *pool, pool_task task, const void *context, uint32_t items,
              uint32_t grain);

/* As pool_run(). A thread that has done its share and waits, for the others or for the next job,
 * fetches ranges[its index] into its second cache meanwhile: [pool_threads()], the caller's first.
 * A hint: what has not been fetched when the wait ends is left. */
void pool_run_fetching(struct pool *pool, pool_task task, const void *context, uint32_t items,
                       uint32_t grain, const struct pool_range *ranges);

/* The first of `shares` shares that falls to a thread; thread = pool_threads(): the end. */
uint32_t pool_first_share(const struct pool *pool, uint32_t shares, uint32_t thread);

/* Rows of a share for elementwise operations on `rows` rows of `columns` elements: worth handing
 * out, and no more shares than even out. */
uint32_t pool_row_grain(const struct pool *pool, uint32_t rows, uint32_t columns);

/* The floating-point environment of the arithmetic: round to nearest even, no flush to zero,
 * denormals kept, exceptions masked. pool_run() checks it in every thread that takes a share. */
void float_environment_set(void);

#endif
