/* Times of whole steps on a device, of the worker's part alone: the shape of Llama-3.2-1B with
 * random weights, two steps in flight, every row at its full context. Each case is the median of
 * TURNS turns of STEPS steps, with the fastest and the slowest beside it. usage: step_bench
 * [profile] [ROWS:CONTEXT...] `profile` marks one step of each case, and one prefill, for a
 * profiler. */
#include "step_model.h"

#include <cuda_profiler_api.h>
#include <stdbool.h>

enum { PREFILL_ROWS = 2048, STEPS = 96, WARM = 16, TURNS = 5 };

static struct world_batch batch;
static struct step_sample samples[WORLD_SAMPLES];
static uint32_t errors[WORLD_ROWS];
static const struct sampling GREEDY = {.top_p = 1};
static bool profiling;

static void mark(bool begin)
{
    if (profiling && (begin ? cudaProfilerStart() : cudaProfilerStop()) != cudaSuccess)
        printf("cannot mark for the profiler\n");
}

/* Fills all contexts: chunks of at most PREFILL_ROWS rows, several slots in one. */
static double fill(struct step_world *world, uint32_t slots, uint32_t length)
{
    uint64_t start_ns = clock_now_ns();
    uint32_t per_slot = length < PREFILL_ROWS ? length : PREFILL_ROWS;
    for (uint32_t slot = 0; slot < slots;) {
        uint32_t together = PREFILL_ROWS / per_slot;
        together = together < slots - slot ? together : slots - slot;
        for (uint32_t first = 0; first < length; first += per_slot) {
            uint32_t count = length - first < per_slot ? length - first : per_slot;
            batch_start(&batch);
            for (uint32_t i = 0; i < together; i++) {
                for (uint32_t j = 0; j < count; j++)
                    batch_row(&batch, slot + i, first + j, (slot * 7919 + j * 31) % 120000);
                batch_sample(&batch, &GREEDY);
            }
            batch_run(world, &batch, samples);
        }
        slot += together;
    }
    return (double)(clock_now_ns() - start_ns) / 1e6;
}

/* Milliseconds of one step of `rows` rows around `context`, and the share of the device's time that
 * lies between two steps. */
static double decode(struct step_world *world, uint32_t rows, uint32_t context, double *out_idle)
{
    const struct step_operations *steps = world->backend->steps;
    struct step_span before = {0}, span = {0};
    uint64_t start_ns = 0, idle_ns = 0, first_ns = 0;
    for (uint32_t i = 0; i <= STEPS + WARM; i++) {
        if (i == WARM) {
            start_ns = clock_now_ns();
            mark(true);
        }
        if (i == WARM + 1)
            mark(false);
        if (i < STEPS + WARM) {
            batch_start(&batch);
            for (uint32_t row = 0; row < rows; row++) {
                batch_row(&batch, row, context + i, i == 0 ? 1 : STEP_TOKEN_LAST_SAMPLE);
                batch_sample(&batch, &GREEDY);
            }
            world_must(steps->begin(world->step, &batch.view), "begin", NULL);
        }
        if (i == 0)
            continue;
        world_must(steps->collect(world->step, samples, errors), "collect", NULL);
        steps->span(world->step, &span);
        if (i <= WARM)
            first_ns = span.ended_ns;
        else if (span.begun_ns > before.ended_ns)
            idle_ns += span.begun_ns - before.ended_ns;
        before = span;
    }
    *out_idle = (double)idle_ns / (double)(span.ended_ns - first_ns);
    return (double)(clock_now_ns() - start_ns) / 1e6 / STEPS;
}

/* Weights and keys and values once, at the read limit; products at the limit of the matrix units.
 */
static double floor_of(const struct step_world *world, uint32_t rows, uint32_t context)
{
    const struct step_shape *s = &world->shape;
    double layer = (double)s->width * (s->heads + 2 * s->kv_heads) * s->head_dim +
                   (double)s->width * s->heads * s->head_dim + 3.0 * s->width * s->ffn_width;
    double weights = layer * s->layers + (double)s->vocabulary * s->width;
    double bytes = weights * 2 / 4.55e9, flops = weights * 2 * rows / 775e9;
    double kv = (double)rows * context * s->layers * kv_dim(&world->geometry) * 4 / 4.55e9;
    return (bytes > flops ? bytes : flops) + kv;
}

static int compare(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;
    return left < right ? -1 : left > right;
}

static void print_case(struct step_world *world, uint32_t rows, uint32_t context)
{
    double times[TURNS], idles[TURNS];
    uint32_t turns = profiling ? 1 : TURNS;
    for (uint32_t i = 0; i < turns; i++)
        times[i] = decode(world, rows, context - (STEPS + WARM) / 2, &idles[i]);
    qsort(times, turns, sizeof *times, compare);
    qsort(idles, turns, sizeof *idles, compare);
    double ms = times[turns / 2], idle = idles[turns / 2];
    double least = floor_of(world, rows, context);
    printf("decode rows %3u context %5u: %7.3f ms/step (%.3f to %.3f) %9.0f tok/s, floor %6.3f ms "
           "= %4.1f %%, idle "
           "%4.2f %%\n",
           rows, context, ms, times[0], times[turns - 1], rows / ms * 1e3, least, least / ms * 100,
           idle * 100);
    fflush(stdout);
}

int main(int count, char **arguments)
{
    static const struct step_shape llama = {"llama-1b", 16, 2048, 8192, 32, 8, 64, 128256};
    static const uint32_t sweep[] = {1, 2, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256};
    struct step_world world;
    uint64_t start_ns = clock_now_ns();
    world_open(&world, &llama, 256, 2304);
    printf("weights ready after %.0f ms\n", (double)(clock_now_ns() - start_ns) / 1e6);
    world_start(&world, PREFILL_ROWS, false);
    for (uint32_t slot = 0; slot < 256; slot++)
        world_map(&world, slot);
    profiling = count > 1 && strcmp(arguments[1], "profile") == 0;
    double prefill[TURNS + 1];
    for (uint32_t i = 0; i <= TURNS; i++) {
        if (i == TURNS)
            mark(true);
        prefill[i] = fill(&world, 1, 2048);
    }
    mark(false);
    qsort(prefill + 1, TURNS, sizeof *prefill, compare); /* the first warms up */
    printf("prefill 2048: %7.3f ms (%.3f to %.3f)\n", prefill[1 + TURNS / 2], prefill[1],
           prefill[TURNS]);
    fill(&world, 256, 256);
    for (int i = profiling ? 2 : 1; i < count; i++) {
        char *rest;
        uint32_t rows = (uint32_t)strtoul(arguments[i], &rest, 10);
        print_case(&world, rows, (uint32_t)strtoul(rest + 1, NULL, 10));
    }
    for (uint32_t i = 0; count == 1 && i < sizeof sweep / sizeof *sweep; i++)
        print_case(&world, sweep[i], 256);
    if (count == 1) {
        fill(&world, 64, 1100);
        print_case(&world, 1, 128);
        print_case(&world, 1, 1024);
        print_case(&world, 8, 1024);
        print_case(&world, 64, 1024);
        print_case(&world, 1, 2048);
    }
    world_close(&world);
    return 0;
}
