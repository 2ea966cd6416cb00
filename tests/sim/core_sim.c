/* The simulator: core_sim [SEEDS [FIRST_SEED [EVENTS [TIMES]]]]
 * Runs the regression list, then SEEDS seeds of EVENTS events each, and prints how often each
 * transition of the core was taken. TIMES > 0: fails unless each was taken so often, and unless the
 * run had the size that RELIABILITY.md promises. The seed of a run stands on the last line before a
 * broken rule; `core_sim 1 SEED EVENTS` repeats it. */
#include "sim/simulation.h"
#include "sim/transitions.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* What a run must have had at least, to count as one. */
enum {
    EVENTS_LEAST = 1000000,
    LOSSES_LEAST = 10000,
    PREEMPTIONS_LEAST = 10000,
    STALE_LEAST = 1000
};

/* Seeds that found something, and what; run first. Once the simulator draws otherwise a seed means
 * other events, and a row is a seed like any other: each fault has a unit test and a mutant too. */
static const struct {
    uint64_t seed;
    uint32_t events;
    const char *found;
} regressions[] = {
    {55, 600, "a request whose later chunk was refused never ended"},
    {2049686, 2000, "text was shown behind text for which there was no memory"},
    {3015524, 2000, "two suspects: the one whose turn it was lacked a block, nobody was tried"},
    {3023347, 2000,
     "a position is sampled twice: who is preempted comes in before its row is back"},
};

static uint64_t number(int count, char **arguments, int index, uint64_t fallback)
{
    return index < count ? strtoull(arguments[index], NULL, 10) : fallback;
}

static void run(uint64_t seed, uint32_t events, const char *found, struct simulation *totals)
{
    printf("seed %" PRIu64 " %s\n", seed, found);
    simulation_run(seed, events, totals);
}

static uint64_t workers_lost(void)
{
    return transition_times(TRANSITION_WORKER_END_ATTACHING) +
           transition_times(TRANSITION_WORKER_END_ATTACHED) +
           transition_times(TRANSITION_WORKER_END_READY);
}

static bool is_large_enough(const struct simulation *totals)
{
    const struct {
        const char *what;
        uint64_t seen, least;
    } figures[] = {
        {"events", totals->events, EVENTS_LEAST},
        {"workers lost", workers_lost(), LOSSES_LEAST},
        {"preemptions", transition_times(TRANSITION_RUNNING_PREEMPTED), PREEMPTIONS_LEAST},
        {"stale results", transition_times(TRANSITION_RESULT_STALE), STALE_LEAST},
    };
    bool is_enough = true;
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        if (figures[i].seen >= figures[i].least)
            continue;
        printf("%" PRIu64 " %s; at least %" PRIu64 "\n", figures[i].seen, figures[i].what,
               figures[i].least);
        is_enough = false;
    }
    return is_enough;
}

int main(int argument_count, char **arguments)
{
    uint64_t seeds = number(argument_count, arguments, 1, 200);
    uint64_t first = number(argument_count, arguments, 2, 1);
    uint64_t events = number(argument_count, arguments, 3, 400);
    uint64_t times = number(argument_count, arguments, 4, 0);
    static struct simulation totals;
    setvbuf(stdout, NULL, _IOLBF, 0);
    transitions_check_table();
    for (size_t i = 0; i < sizeof regressions / sizeof *regressions; i++)
        run(regressions[i].seed, regressions[i].events, regressions[i].found, &totals);
    for (uint64_t seed = first; seed < first + seeds; seed++)
        run(seed, (uint32_t)events, "", &totals);
    uint32_t rare = transitions_print(times);
    printf("%" PRIu64 " seeds, %" PRIu64 " events, %" PRIu64 " workers lost, %" PRIu64
           " preemptions, %" PRIu64 " results (%" PRIu64 " stale), %" PRIu64
           " requests finished, %d transitions, %u too rare\n",
           seeds, totals.events, workers_lost(), transition_times(TRANSITION_RUNNING_PREEMPTED),
           totals.results, transition_times(TRANSITION_RESULT_STALE), totals.finished,
           TRANSITION_COUNT - 1, rare);
    bool is_enough = times == 0 || (is_large_enough(&totals) && rare == 0);
    return totals.finished > 0 && is_enough ? EXIT_SUCCESS : EXIT_FAILURE;
}
