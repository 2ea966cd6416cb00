#include "coordinator/flights.h"

#include "common/check.h"

#include <inttypes.h>

enum status flights_init(struct flights *flights, struct arena *arena, uint32_t slots)
{
    struct flights made = {0};
    for (int i = 0; i < LIMIT_PLANS_IN_FLIGHT; i++) {
        made.plans[i].rows = arena_alloc_array(arena, slots, sizeof *made.plans[i].rows);
        if (made.plans[i].rows == NULL)
            return STATUS_OUT_OF_MEMORY;
    }
    *flights = made;
    return STATUS_OK;
}

uint32_t flights_count(const struct flights *flights)
{
    return (uint32_t)(flights->sent - flights->answered);
}

bool flights_is_full(const struct flights *flights)
{
    return flights_count(flights) == LIMIT_PLANS_IN_FLIGHT;
}

static const struct flight *flight_of(const struct flights *flights, uint64_t step)
{
    return &flights->plans[step % LIMIT_PLANS_IN_FLIGHT];
}

const struct flight *flights_oldest(const struct flights *flights)
{
    return flights_count(flights) == 0 ? NULL : flight_of(flights, flights->answered + 1);
}

const struct flight *flights_newest(const struct flights *flights)
{
    return flights_count(flights) == 0 ? NULL : flight_of(flights, flights->sent);
}

struct flight *flights_begin(struct flights *flights)
{
    CHECK(!flights_is_full(flights));
    uint64_t step = flights->sent + 1;
    struct flight *flight = &flights->plans[step % LIMIT_PLANS_IN_FLIGHT];
    *flight = (struct flight){.step = step, .rows = flight->rows};
    return flight;
}

void flights_add(struct flight *flight, const struct flight_row *row)
{
    flight->rows[flight->row_count++] = *row;
    flight->sample_count += row->samples;
}

void flights_sent(struct flights *flights)
{
    flights->sent++;
    CHECK(flight_of(flights, flights->sent)->row_count > 0);
}

void flights_answered(struct flights *flights)
{
    CHECK(flights_count(flights) > 0);
    flights->answered++;
}

void flights_clear(struct flights *flights)
{
    flights->sent = 0;
    flights->answered = 0;
}

enum status flight_compare(const struct flight *flight, const struct result *result,
                           struct text *why)
{
    if (result->step != flight->step) {
        text_set(why, "step %" PRIu64 " where %" PRIu64 " is next", result->step, flight->step);
        return STATUS_MISMATCH;
    }
    if (result->row_count != flight->sample_count) {
        text_set(why, "%u rows where the plan samples %u", result->row_count, flight->sample_count);
        return STATUS_MISMATCH;
    }
    uint32_t answered = 0;
    for (uint32_t i = 0; i < flight->row_count; i++) {
        const struct flight_row *asked = &flight->rows[i];
        if (!asked->samples)
            continue;
        const struct result_row *row = &result->rows[answered++];
        if (row->slot != asked->slot || row->generation != asked->generation ||
            row->position != asked->first + asked->count) {
            text_set(why, "row %u is slot %u generation %u position %u where %u, %u, %u was asked",
                     answered - 1, row->slot, row->generation, row->position, asked->slot,
                     asked->generation, asked->first + asked->count);
            return STATUS_MISMATCH;
        }
    }
    return STATUS_OK;
}
