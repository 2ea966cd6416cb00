/* The judge of every plan. Nothing that a plan names reaches the device before it was checked on
 * the worker's own copy: rows, generations, positions, tokens, sampling parameters, blocks. A
 * refused plan changes nothing.
 *
 * One check per attachment; used by one thread. */
#ifndef TANDEM_WORKER_PLAN_CHECK_H
#define TANDEM_WORKER_PLAN_CHECK_H

#include "common/status.h"
#include "common/text.h"
#include "proto/plan.h"
#include "proto/segment.h"
#include "worker/slots.h"

#include <stdint.h>

struct plan_check; /* opaque */

/* A run of entries of the worker's block table that a plan covers for the first time. */
struct block_run {
    uint32_t slot;
    uint32_t layer;
    uint32_t first_logical;
    uint32_t count;
    const int32_t *blocks; /* [count], borrowed until the next plan */
};

/* Reads rows, tokens and blocks through `segment`, which must outlive the check. All memory is
 * taken here, bounded by the segment's extents. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status plan_check_open(const struct segment_reader *segment,
                                     struct plan_check **out_check);

/* Accepts NULL. */
void plan_check_close(struct plan_check *check);

/* Judges the next plan of the epoch. Accepted: the slot states have moved on (generation,
 * parameters, cached length), plan_check_tokens() and the block runs are those of this plan, and
 * STATUS_OK. Otherwise STATUS_BAD_MESSAGE, nothing has changed, out_verdict has refusal and row,
 * and `why` value and bound. Instance and epoch are the port's business. */
MUST_USE enum status plan_check_next(struct plan_check *check, const struct plan *plan,
                                     struct plan_verdict *out_verdict, struct text *why);

/* Input tokens of the accepted plan, row after row; for a row FROM_LAST_SAMPLE the slot's last
 * token. */
const uint32_t *plan_check_tokens(const struct plan_check *check);

/* Block runs of the accepted plan; index < plan_check_run_count(). */
uint32_t plan_check_run_count(const struct plan_check *check);
struct block_run plan_check_run(const struct plan_check *check, uint32_t index);

/* State of a slot of the segment. */
const struct slot_state *plan_check_slot(const struct plan_check *check, uint32_t slot);

/* A row of the accepted plan samples the token at `position`, which is not known yet: a later plan
 * may go on from it, with SLOT_TOKEN_PENDING as token. */
void plan_check_sampling(struct plan_check *check, uint32_t slot, uint32_t position);

/* The token is known now; ignored if the slot has moved on or has another tenant by now. */
void plan_check_sampled(struct plan_check *check, uint32_t slot, uint32_t generation,
                        uint32_t position, uint32_t token);

/* Marks what is cached of this tenant as not finite; ignored if the slot has another by now. */
void plan_check_spoiled(struct plan_check *check, uint32_t slot, uint32_t generation);

/* Forgets what is cached in all slots; generations stay. A plan that goes on from it is refused. */
void plan_check_forget(struct plan_check *check);

#endif
