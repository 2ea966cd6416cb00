/* Puts into the segment of the epoch what a plan refers to: slot rows, tokens, table entries; then
 * publishes the step. Writes only what is new since the last plan that named the slot. */
#ifndef TANDEM_COORDINATOR_PLAN_WRITER_H
#define TANDEM_COORDINATOR_PLAN_WRITER_H

#include "common/arena.h"
#include "coordinator/request.h"
#include "coordinator/slots.h"
#include "proto/plan.h"
#include "proto/segment.h"

/* What of a slot's generation is in the segment. */
struct written_slot {
    uint32_t generation, tokens, logical_blocks;
};

struct plan_writer {
    struct written_slot *written;   /* [slots] */
    struct segment_writer *segment; /* borrowed; NULL while no epoch is attached */
    uint32_t slots;
};

/* Memory is the arena's. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status plan_writer_init(struct plan_writer *writer, struct arena *arena,
                                      uint32_t slots);

/* A new epoch's segment, in which nothing is written; or NULL at its end. */
void plan_writer_attach(struct plan_writer *writer, struct segment_writer *segment);

/* Everything that one row reads. `request` owns the row's slot. */
void plan_writer_row(struct plan_writer *writer, const struct slots *slots,
                     const struct request *request, const struct plan_row *row);

/* All rows are written: CHECKs the plan as the worker will, then publishes its step. */
void plan_writer_publish(struct plan_writer *writer, const struct plan *plan);

#endif
