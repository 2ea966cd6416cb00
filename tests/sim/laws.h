/* What must hold after every event, worked out in the simplest way from what the world saw and from
 * the core's tables: nothing that an unanswered plan names is used again, whoever can work does,
 * whoever waits has a reason, nothing is due that has not happened, and the core will wake in time.
 * Breaking one ends the process by CHECK. */
#ifndef TANDEM_TESTS_SIM_LAWS_H
#define TANDEM_TESTS_SIM_LAWS_H

#include "coordinator/core.h"

enum { LAW_SLOTS = 8, LAW_BLOCKS = 256 };

struct simulation;

/* What one row of a plan named. */
struct law_row {
    uint32_t slot, generation, subject;
    uint32_t first_block, logical_blocks; /* place in `blocks`, [layer][logical] */
};

/* A plan that the worker has not answered. */
struct law_plan {
    uint64_t step;
    uint32_t row_count, block_count;
    struct law_row rows[LAW_SLOTS];
    int32_t blocks[LAW_BLOCKS];
};

struct laws {
    uint64_t steps; /* sent in this epoch */
    uint32_t plan_count;
    struct law_plan plans[LIMIT_PLANS_IN_FLIGHT]; /* oldest first */
    uint32_t generations[LAW_SLOTS];              /* newest seen */
    uint64_t orphaned;                            /* as the core counted them */
    bool has_lingered;
};

/* The core sent a plan; the worker is about to give its honest answer to the oldest; the epoch is
 * over, and whoever was in its oldest plan may be blamed. */
void laws_plan_sent(struct simulation *sim, const struct plan *plan,
                    const struct segment_reader *segment);
void laws_plan_answered(struct simulation *sim, uint64_t step);
void laws_epoch_ended(struct simulation *sim, enum core_fence_reason reason);

/* After every event; and after one that moved time. */
void laws_check(struct simulation *sim);
void laws_check_time(const struct simulation *sim);

#endif
