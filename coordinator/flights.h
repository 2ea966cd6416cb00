/* The plans that were sent and not answered, at most two, and what each of them named: the mirror
 * in which a result is compared, row by row, before a token of it is believed. */
#ifndef TANDEM_COORDINATOR_FLIGHTS_H
#define TANDEM_COORDINATOR_FLIGHTS_H

#include "common/arena.h"
#include "common/text.h"
#include "coordinator/request.h"
#include "proto/plan.h"
#include "proto/result.h"

struct flight_row {
    struct request_name request;
    uint32_t slot, generation;
    uint32_t first, count; /* positions computed */
    bool samples;          /* then the sampled position is first + count */
};

struct flight {
    uint64_t step;
    uint32_t row_count, sample_count;
    bool is_trial;           /* one row alone, to see whether it ends the worker */
    struct flight_row *rows; /* [LIMIT_SLOTS] */
};

struct flights {
    struct flight plans[LIMIT_PLANS_IN_FLIGHT]; /* by step modulo */
    uint64_t sent, answered;                    /* newest steps of this epoch */
};

/* Memory is the arena's. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status flights_init(struct flights *flights, struct arena *arena, uint32_t slots);

uint32_t flights_count(const struct flights *flights);
bool flights_is_full(const struct flights *flights);

/* The oldest unanswered plan, or NULL; and the one after it. */
const struct flight *flights_oldest(const struct flights *flights);
const struct flight *flights_newest(const struct flights *flights);

/* An empty record for the next step; rows are appended, then flights_sent. */
struct flight *flights_begin(struct flights *flights);
void flights_add(struct flight *flight, const struct flight_row *row);
void flights_sent(struct flights *flights);

/* The oldest is answered. */
void flights_answered(struct flights *flights);
/* The epoch is over: steps count from 1 again. */
void flights_clear(struct flights *flights);

/* Whether the rows of a result are those that the plan asked for: step, number, order, slot,
 * generation and position. STATUS_OK, or STATUS_MISMATCH with a sentence. */
MUST_USE enum status flight_compare(const struct flight *flight, const struct result *result,
                                    struct text *why);

#endif
