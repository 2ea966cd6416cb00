/* The coordinator's share of a step at 256 rows: result frame in, decoded, compared, tokens
 * appended, detokenized, matched against stops, blocks taken and given back, polls answered, next
 * plan built, written to the segment and encoded. The worker's time is not measured. usage:
 * core_bench [STEPS [ROWS]] */
#include "common/check.h"
#include "common/clock.h"
#include "common/random.h"
#include "coordinator/core.h"
#include "proto/fingerprint.h"
#include "sim/letters.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { WARM_UP_STEPS = 500, HOLD_TOKENS = 8, CONTEXT = 2048 };

struct bench {
    struct vocabulary vocabulary;
    struct core_config config;
    struct core *core;
    struct segment_writer segment;
    void *memory;
    uint8_t plan_frames[LIMIT_PLANS_IN_FLIGHT][LIMIT_WORKER_FRAME_BYTES]; /* by number modulo */
    size_t plan_bytes[LIMIT_PLANS_IN_FLIGHT];
    uint64_t plans_sent, plans_done;
    uint8_t result_frame[LIMIT_WORKER_FRAME_BYTES];
    size_t result_bytes;
    uint64_t now_ns, handle, connection;
    uint32_t live; /* requests that were submitted and did not end */
    uint64_t next_id;
    uint64_t *read_on; /* ids whose poll was answered, to be polled again outside the clock */
    uint32_t read_on_count;
    uint64_t *id_of_handle; /* by handle modulo `handles` */
    uint64_t *cursor_of_id; /* by id modulo `handles` */
    struct random random;
};

enum { HANDLES = 1 << 16 };

static void configure(struct bench *bench, uint32_t rows)
{
    struct core_config *config = &bench->config;
    letters_open(&bench->vocabulary);
    config->instance = (struct id128){{1}};
    config->vocabulary = &bench->vocabulary;
    config->model_name = "bench";
    config->model_architecture = "llama";
    config->extents = (struct segment_extents){
        .geometry = {.layers = 16,
                     .kv_heads = 8,
                     .head_dim = 64,
                     .block_tokens = KV_BLOCK_TOKENS_DEFAULT,
                     .type = KV_TYPE_F16,
                     .order = KV_ORDER_CPU},
        .slots = rows,
        .context = CONTEXT,
        .vocabulary = LETTERS_TOKENS,
        .step_tokens = 2 * rows,
    };
    struct segment_extents *extents = &config->extents;
    extents->logical_blocks = kv_blocks_for(&extents->geometry, CONTEXT);
    extents->pool_blocks = UINT64_C(16) * rows * 64;
    config->queue_requests = 2 * rows;
    config->kept_requests = 64;
    config->queue_bytes = 256 << 20;
    config->prompt_bytes = 1 << 20;
    config->kept_ns = config->orphan_ns = config->drain_timeout_ns = 1000 * NS_PER_S;
    config->calls = 4 * rows;
    struct reason why;
    CHECK(core_create(config, &bench->core, reason_init(&why)) == STATUS_OK);
    bench->read_on = calloc(HANDLES, sizeof *bench->read_on);
    bench->id_of_handle = calloc(HANDLES, sizeof *bench->id_of_handle);
    bench->cursor_of_id = calloc(HANDLES, sizeof *bench->cursor_of_id);
    CHECK(bench->read_on != NULL && bench->id_of_handle != NULL && bench->cursor_of_id != NULL);
}

static void take_answer(struct bench *bench, const struct core_answer *answer)
{
    if (answer->message.type != CLIENT_ANSWER_OUTPUT)
        return;
    uint64_t id = bench->id_of_handle[answer->handle % HANDLES];
    const struct client_output *output = &answer->message.output;
    bench->cursor_of_id[id % HANDLES] = output->from_token + output->tokens.count;
    if (output->has_finish)
        bench->live--;
    else
        bench->read_on[bench->read_on_count++] = id;
}

/* Takes the outputs; encodes plans as the port does. */
static void drain(struct bench *bench)
{
    struct core_output output;
    while (core_next_output(bench->core, &output)) {
        if (output.kind == CORE_OUTPUT_PLAN) {
            uint64_t place = bench->plans_sent++ % LIMIT_PLANS_IN_FLIGHT;
            CHECK(plan_encode(output.plan, bench->plan_frames[place],
                              sizeof bench->plan_frames[place],
                              &bench->plan_bytes[place]) == STATUS_OK);
        } else if (output.kind == CORE_OUTPUT_ANSWER) {
            take_answer(bench, &output.answer);
        }
    }
}

static void call(struct bench *bench, uint64_t id, const struct client_request *request)
{
    bench->id_of_handle[++bench->handle % HANDLES] = id;
    core_client_request(bench->core, bench->handle, request, bench->handle, bench->now_ns);
    drain(bench);
}

static void poll(struct bench *bench, uint64_t id)
{
    uint64_t cursor = bench->cursor_of_id[id % HANDLES];
    const struct client_request request = {
        .type = CLIENT_NEXT,
        .next = {.id = {.bytes = (const char *)&id, .length = sizeof id},
                 .from_token = cursor,
                 .from_byte = cursor,
                 .hold_tokens = HOLD_TOKENS,
                 .max_wait_ms = LIMIT_WAIT_MS},
    };
    call(bench, id, &request);
}

static void submit(struct bench *bench)
{
    uint64_t id = ++bench->next_id;
    uint32_t prompt[64];
    uint32_t prompt_tokens = 1 + random_below(&bench->random, 64);
    for (uint32_t i = 0; i < prompt_tokens; i++)
        prompt[i] = 'A' + random_below(&bench->random, 26);
    struct client_request request = {
        .type = CLIENT_SUBMIT,
        .submit = {.id = {.bytes = (const char *)&id, .length = sizeof id},
                   .has_ids = true,
                   .ids = wire_tokens_of(prompt, prompt_tokens),
                   .has_max_tokens = true,
                   .max_tokens = 100 + random_below(&bench->random, 800)},
    };
    request.submit.stop.items[0] = wire_text_of("\n\nUser:");
    request.submit.stop.items[1] = wire_text_of("zzzz");
    request.submit.stop.count = 2;
    bench->cursor_of_id[id % HANDLES] = 0;
    bench->live++;
    call(bench, id, &request);
    poll(bench, id);
}

static void attach(struct bench *bench)
{
    const struct segment_extents *extents = &bench->config.extents;
    const struct kv_geometry *geometry = &extents->geometry;
    const struct attach_hello hello = {
        .version_min = PROTOCOL_VERSION_MIN,
        .version_max = PROTOCOL_VERSION_MAX,
        .layout = layout_fingerprint(),
        .arithmetic = wire_text_of("script-1"),
        .geometry = {geometry->layers, geometry->kv_heads, geometry->head_dim,
                     geometry->block_tokens, geometry->type, geometry->order},
        .blocks = extents->pool_blocks,
        .slots = extents->slots,
        .context = extents->context,
        .vocabulary = extents->vocabulary,
        .step_tokens = extents->step_tokens,
    };
    core_worker_hello(bench->core, 1, true, &hello, bench->now_ns);
    drain(bench);
    const struct segment_identity identity = {.instance = bench->config.instance, .epoch = 1};
    uint64_t bytes = coordinator_segment_bytes(extents);
    bench->memory = aligned_alloc(4096, bytes);
    CHECK(bench->memory != NULL);
    memset(bench->memory, 0, bytes);
    segment_writer_format(&bench->segment, bench->memory, extents, &identity);
    core_worker_attached(bench->core, 1, &bench->segment, bench->now_ns);
    drain(bench);
    const struct worker_ready ready = {.instance = bench->config.instance, .epoch = 1};
    core_worker_ready(bench->core, &ready, bench->now_ns);
    drain(bench);
}

/* The answer to the oldest plan, as a frame; untimed. No worker is behind it: a real one works in
 * another process and does not use up this one's caches. Returns the rows of the result. */
static uint32_t work(struct bench *bench)
{
    static struct result result;
    static struct worker_order order;
    struct wire_error error;
    uint64_t place = bench->plans_done++ % LIMIT_PLANS_IN_FLIGHT;
    CHECK(worker_order_decode(bench->plan_frames[place], bench->plan_bytes[place], &order,
                              &error) == STATUS_OK);
    result.instance = order.plan.instance;
    result.epoch = order.plan.epoch;
    result.step = order.plan.step;
    result.timings = (struct worker_timings){.compute_ns = 600 * NS_PER_US};
    result.row_count = 0;
    for (uint32_t i = 0; i < order.plan.row_count; i++) {
        const struct plan_row *row = &order.plan.rows[i];
        if ((row->flags & PLAN_ROW_SAMPLE) == 0)
            continue;
        result.rows[result.row_count++] = (struct result_row){
            .slot = row->slot,
            .generation = row->generation,
            .position = row->first_position + row->count,
            .token = 'a' + random_below(&bench->random, 26),
            .logprob = -1,
        };
    }
    CHECK(result_encode(&result, bench->result_frame, sizeof bench->result_frame,
                        &bench->result_bytes) == STATUS_OK);
    return result.row_count;
}

/* What this thread computed, whoever else used the machine meanwhile. */
static uint64_t thread_cpu_ns(void)
{
    struct timespec time;
    CHECK(clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) == 0);
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

/* Frame in to plan out. */
static uint64_t take_result(struct bench *bench, uint64_t *out_cpu_ns)
{
    static struct worker_report report;
    struct wire_error error;
    uint64_t begin = clock_now_ns(), cpu_begin = thread_cpu_ns();
    CHECK(worker_report_decode(bench->result_frame, bench->result_bytes, &report, &error) ==
          STATUS_OK);
    core_worker_result(bench->core, &report.result, begin);
    drain(bench);
    uint64_t end = clock_now_ns();
    *out_cpu_ns = thread_cpu_ns() - cpu_begin;
    return end - begin;
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void report(const char *clock, uint64_t *times, uint32_t count)
{
    qsort(times, count, sizeof *times, compare);
    printf("%-5s median %6.1f us, p99 %6.1f us, max %8.1f us\n", clock,
           (double)times[count / 2] / 1e3, (double)times[count - 1 - count / 100] / 1e3,
           (double)times[count - 1] / 1e3);
}

int main(int argument_count, char **arguments)
{
    uint32_t steps = argument_count > 1 ? (uint32_t)strtoul(arguments[1], NULL, 10) : 10000;
    uint32_t rows = argument_count > 2 ? (uint32_t)strtoul(arguments[2], NULL, 10) : 256;
    static struct bench bench = {.random = {.state = 1}};
    bench.now_ns = clock_now_ns();
    configure(&bench, rows);
    attach(&bench);
    uint64_t *times = calloc(steps, sizeof *times), *cpu_times = calloc(steps, sizeof *times);
    CHECK(times != NULL && cpu_times != NULL && steps > 0);
    uint64_t sampled = 0;
    for (uint32_t step = 0; step < WARM_UP_STEPS + steps; step++) {
        bench.now_ns = clock_now_ns();
        while (bench.live < rows + rows / 4)
            submit(&bench);
        while (bench.read_on_count > 0)
            poll(&bench, bench.read_on[--bench.read_on_count]);
        uint32_t result_rows = work(&bench);
        uint64_t cpu_ns, time = take_result(&bench, &cpu_ns);
        if (step >= WARM_UP_STEPS) {
            times[step - WARM_UP_STEPS] = time;
            cpu_times[step - WARM_UP_STEPS] = cpu_ns;
            sampled += result_rows;
        }
    }
    printf("result in to plan out: %u steps, %.1f sampled rows each\n", steps,
           (double)sampled / steps);
    report("wall", times, steps);
    report("cpu", cpu_times, steps);
    core_destroy(bench.core);
    vocabulary_free(&bench.vocabulary);
    free(bench.memory);
    free(bench.read_on);
    free(bench.id_of_handle);
    free(bench.cursor_of_id);
    free(times);
    free(cpu_times);
    return EXIT_SUCCESS;
}
