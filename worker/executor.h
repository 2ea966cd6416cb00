/* Runs plans of one attachment: judge, compute, sample, answer. Knows no socket.
 * Used by one thread; up to two plans at a time, where the backend allows. Made anew for each
 * epoch, since it trusts nothing of an earlier one. */
#ifndef TANDEM_WORKER_EXECUTOR_H
#define TANDEM_WORKER_EXECUTOR_H

#include "common/status.h"
#include "common/text.h"
#include "kernels/backend.h"
#include "proto/plan.h"
#include "proto/result.h"
#include "proto/segment.h"
#include "worker/forward.h"
#include "worker/kv_pool.h"
#include "worker/model.h"

#include <stdbool.h>
#include <stdint.h>

struct executor; /* opaque */

struct executor_options {
    const struct model *model; /* borrowed, as the next three */
    struct backend *backend;
    struct kv_pool *pool;                 /* contents are discarded */
    const struct segment_reader *segment; /* of this epoch */
    bool hash_logits;
    bool poison_blocks;
    forward_progress progress; /* 0 when the plan was checked, then after each layer; or NULL */
    void *progress_context;
};

/* Takes all memory of the epoch. STATUS_OUT_OF_MEMORY, or STATUS_MISMATCH where the segment's
 * extents do not fit model and pool, with the reason in `why`. Close with executor_close(). */
MUST_USE enum status executor_open(const struct executor_options *options,
                                   struct executor **out_executor, struct text *why);

/* Accepts NULL. */
void executor_close(struct executor *executor);

/* Judges the next plan and begins to compute it; executor_has_room() must say so. STATUS_OK: the
 * answer comes by executor_collect(), in the order of the plans. STATUS_BAD_MESSAGE: the plan is
 * refused, the epoch is over; out_verdict says which row and reason, `why` value and bound.
 * STATUS_DEVICE_LOST: leave. Instance and epoch of the plan were compared by the port. */
MUST_USE enum status executor_begin(struct executor *executor, const struct plan *plan,
                                    struct plan_verdict *out_verdict, struct text *why);

/* Plans that were begun and not collected; whether one more may begin; whether the oldest is done.
 */
uint32_t executor_in_flight(const struct executor *executor);
bool executor_has_room(const struct executor *executor);
bool executor_ready(struct executor *executor);

/* Waits for the oldest plan: out_result is its answer but for timings.wait_ns, which the port
 * knows. STATUS_DEVICE_LOST: leave. */
MUST_USE enum status executor_collect(struct executor *executor, struct result *out_result);

/* When a device began and ended the plan collected last; see forward_span(). */
void executor_span(const struct executor *executor, struct step_span *out_span);

/* One plan from its judgement to its answer. */
MUST_USE enum status executor_run(struct executor *executor, const struct plan *plan,
                                  struct result *out_result, struct plan_verdict *out_verdict,
                                  struct text *why);

/* For an idle worker: gives the pool's memory back and forgets what is cached. A plan that goes on
 * from it would be refused, so this is for when no request is running and no plan in flight. Free
 * of cost if nothing was computed since. */
void executor_discard(struct executor *executor);

#endif
