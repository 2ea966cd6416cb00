/* The simulator: core_sim [SEEDS [FIRST_SEED [EVENTS]]]. The seed of a run stands on the last line
 * before a broken rule; `core_sim 1 SEED EVENTS` repeats it. */
#include "sim/simulation.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static uint64_t number(int count, char **arguments, int index, uint64_t fallback)
{
    return index < count ? strtoull(arguments[index], NULL, 10) : fallback;
}

int main(int argument_count, char **arguments)
{
    uint64_t seeds = number(argument_count, arguments, 1, 200);
    uint64_t first = number(argument_count, arguments, 2, 1);
    uint64_t events = number(argument_count, arguments, 3, 400);
    static struct simulation totals;
    setvbuf(stdout, NULL, _IOLBF, 0);
    for (uint64_t seed = first; seed < first + seeds; seed++) {
        printf("seed %" PRIu64 "\n", seed);
        simulation_run(seed, (uint32_t)events, &totals);
    }
    printf("%" PRIu64 " seeds, %" PRIu64 " events, %" PRIu64 " results, %" PRIu64
           " workers died, %" PRIu64 " plans refused, %" PRIu64 " requests finished, %" PRIu64
           " poisoned\n",
           seeds, totals.events, totals.results, totals.deaths, totals.refusals, totals.finished,
           totals.poisoned);
    return totals.finished > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
