/* The worker's own rate: tokens per second of a model's layers and sampler in this process, without
 * socket or plan, on workloads as llama.cpp's tools run them.
 *
 * usage: model_bench MODEL.gguf [--threads=N] [--isa=ISA] [--kv=f16|f32] [--busy=N] [--chunk=N]
 *                    [--profile] WORKLOAD...
 * pp512      a prompt of 512 tokens, one sample, in chunks of --chunk rows (512)
 * tg128      128 tokens of one stream, one step each, from an empty pool
 * tg64@1024  64 tokens of one stream after 1,024 positions
 * b8, b32    8 and 32 streams, each with a prompt of 128: 64 steps of that many rows
 * probe      what the machine reads and multiplies at most; `again`: of as many bytes as a step
 *            reads weights
 * costs      bytes of weights that a step reads, products of a token, those of lm_head and, for
 *            each key it sees, of attention; bytes of keys and values of a position; the form of
 *            activations that the weights take (enum activation_form)
 * --profile prints the time of each operation under its workload.
 * --busy=N starts N processes that do nothing but compute, for as long as the benchmark runs. */
#include "bench/probe.h"
#include "bench/profile.h"
#include "bench/workload.h"
#include "common/check.h"
#include "common/clock.h"
#include "support/isa_names.h"
#include "worker/forward.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

enum {
    SLOTS = 32,
    CONTEXT = 1152,
    ROWS = 512,
    BATCH_PROMPT = 128,
    BATCH_STEPS = 64,
    STEPS_MAX = 1024,
    BUSY_MAX = 64,
    WARM_STEPS = 4,
    PAGE_BYTES = 4096,
    EXIT_USAGE = 64,
};

#define PROBE_SECONDS 0.75

struct bench {
    struct backend_options backend_options;
    struct backend *backend;
    struct model model;
    struct kv_pool pool;
    struct forward *forward;
    struct batch batch;
    uint32_t chunk, kv_type, busy;
    bool profile;
    uint32_t mapped[SLOTS], dealt; /* logical blocks of a slot; physical ones in all */
    pid_t busy_pids[BUSY_MAX];
    uint32_t errors[ROWS];
};

static void open_bench(struct bench *bench, const char *path)
{
    struct reason reason;
    struct text *why = reason_init(&reason);
    enum status status = backend_open(&bench->backend_options, &bench->backend, why);
    if (status == STATUS_OK && bench->profile)
        profile_install(bench->backend);
    if (status == STATUS_OK)
        status = model_open(path, bench->backend, NULL, NULL, &bench->model, why);
    if (status != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", path, reason.storage);
        exit(1);
    }
    const struct model_shape *shape = &bench->model.shape;
    struct kv_geometry geometry = model_shape_geometry(
        shape, KV_BLOCK_TOKENS_DEFAULT, bench->kv_type, (enum kv_order)bench->backend->kv_order);
    uint32_t logical = kv_blocks_for(&geometry, CONTEXT);
    uint64_t pool_bytes = (uint64_t)SLOTS * logical * shape->layers * kv_block_bytes(&geometry);
    struct forward_options forward = {.model = &bench->model,
                                      .backend = bench->backend,
                                      .pool = &bench->pool,
                                      .slots = SLOTS,
                                      .context = CONTEXT,
                                      .logical_blocks = logical,
                                      .rows = ROWS,
                                      .samples = SLOTS};
    CHECK(kv_pool_open(bench->backend, &geometry, pool_bytes, &bench->pool, why) == STATUS_OK);
    CHECK(forward_open(&forward, &bench->forward, why) == STATUS_OK);
    CHECK(batch_init(&bench->batch, ROWS, SLOTS) == STATUS_OK);
}

/* Touches the pages of a block, as a service that has run for a while has touched all of its pool,
 * and llama.cpp its own. */
static void touch_block(struct bench *bench, uint32_t block)
{
    const struct kv_geometry *g = &bench->pool.geometry;
    uint8_t *first = (uint8_t *)bench->pool.memory + kv_block_offset(g, block);
    for (uint64_t at = 0; at < kv_block_bytes(g); at += PAGE_BYTES)
        first[at] = 0;
}

/* Blocks are dealt as the coordinator does it: when a position needs them, one for each layer, in
 * the order of the steps. */
static void deal_blocks(struct bench *bench, uint32_t slot, uint32_t positions)
{
    const struct kv_geometry *g = &bench->pool.geometry;
    for (; bench->mapped[slot] < kv_blocks_for(g, positions); bench->mapped[slot]++) {
        for (uint32_t layer = 0; layer < g->layers; layer++) {
            int32_t block = (int32_t)bench->dealt++;
            touch_block(bench, (uint32_t)block);
            forward_map_blocks(bench->forward,
                               &(struct block_run){.slot = slot,
                                                   .layer = layer,
                                                   .first_logical = bench->mapped[slot],
                                                   .count = 1,
                                                   .blocks = &block});
        }
    }
}

static void take_back_blocks(struct bench *bench)
{
    bench->dealt = 0;
    memset(bench->mapped, 0, sizeof bench->mapped);
}

/* One step of the filled batch; seconds. */
static double run_step(struct bench *bench)
{
    struct step_sample samples[SLOTS];
    uint64_t start = clock_now_ns();
    CHECK(forward_begin(bench->forward, &bench->batch) == STATUS_OK);
    CHECK(forward_collect(bench->forward, samples, bench->errors) == STATUS_OK);
    return (double)(clock_now_ns() - start) * 1e-9;
}

/* `count` tokens of a slot from `first` on, one sample after the last. */
static void add_tokens(struct bench *bench, uint32_t slot, uint32_t first, uint32_t count)
{
    const struct sampling greedy = {.top_p = 1};
    uint32_t tokens[ROWS], vocabulary = bench->model.shape.tokens;
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = (slot * 7919 + (first + i) * 104729) % vocabulary;
    deal_blocks(bench, slot, first + count);
    batch_add_rows(&bench->batch, slot, first, tokens, count);
    batch_add_sample(&bench->batch, &greedy);
}

/* Seconds of a whole prompt. */
static double run_prompt(struct bench *bench, uint32_t slot, uint32_t tokens)
{
    double seconds = 0;
    for (uint32_t first = 0; first < tokens; first += bench->chunk) {
        uint32_t left = tokens - first;
        batch_clear(&bench->batch);
        add_tokens(bench, slot, first, left < bench->chunk ? left : bench->chunk);
        seconds += run_step(bench);
    }
    return seconds;
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* The rate is that of all steps together; the median step tells what a quiet machine would do. */
static void print_rate(const struct bench *bench, const char *what, double *seconds, uint32_t steps,
                       double tokens_per_step)
{
    double all = 0;
    for (uint32_t i = 0; i < steps; i++)
        all += seconds[i];
    qsort(seconds, steps, sizeof *seconds, compare_seconds);
    printf("%-10s %8.1f tok/s  step %8.3f ms mean, %8.3f median, %8.3f best, %8.3f worst\n", what,
           tokens_per_step * steps / all, all / steps * 1e3, seconds[steps / 2] * 1e3,
           seconds[0] * 1e3, seconds[steps - 1] * 1e3);
    if (bench->profile)
        profile_print(all, steps);
    fflush(stdout);
}

/* `streams` streams with prompts of `context` tokens: `steps` steps of one row each. */
static void bench_streams(struct bench *bench, const char *what, uint32_t streams, uint32_t context,
                          uint32_t steps)
{
    double seconds[STEPS_MAX];
    take_back_blocks(bench);
    for (uint32_t slot = 0; slot < streams; slot++)
        run_prompt(bench, slot, context);
    profile_clear();
    for (uint32_t step = 0; step < steps; step++) {
        batch_clear(&bench->batch);
        for (uint32_t slot = 0; slot < streams; slot++)
            add_tokens(bench, slot, context + step, 1);
        seconds[step] = run_step(bench);
    }
    print_rate(bench, what, seconds, steps, streams);
}

/* Of all weights that a step reads. */
static uint64_t weight_bytes(const struct bench *bench)
{
    const struct weights *weights = &bench->model.weights;
    uint64_t bytes = weights->output->bytes;
    for (uint32_t i = 0; i < bench->model.shape.layers; i++) {
        const struct step_layer *layer = &weights->layer[i];
        bytes += layer->q->bytes + layer->k->bytes + layer->v->bytes +
                 layer->attention_output->bytes + layer->gate->bytes + layer->up->bytes +
                 layer->down->bytes;
    }
    return bytes;
}

static void bench_probe(struct bench *bench)
{
    struct pool *pool;
    CHECK(pool_open(bench->backend->threads, &pool) == STATUS_OK);
    struct probe probe = probe_machine(pool, weight_bytes(bench), PROBE_SECONDS);
    probe_print(&probe, pool);
    pool_close(pool);
}

static void print_costs(const struct bench *bench)
{
    const struct model_shape *shape = &bench->model.shape;
    const struct weights *weights = &bench->model.weights;
    const struct step_layer *layer = &weights->layer[0];
    const struct matrix *matrices[] = {layer->q,    layer->k,  layer->v,   layer->attention_output,
                                       layer->gate, layer->up, layer->down};
    uint64_t products = 0;
    for (size_t i = 0; i < sizeof matrices / sizeof *matrices; i++)
        products += (uint64_t)shape->layers * matrices[i]->rows * matrices[i]->columns;
    uint64_t head = (uint64_t)weights->output->rows * weights->output->columns;
    uint64_t attention = UINT64_C(2) * shape->layers * shape->heads * shape->head_dim;
    printf("costs bytes=%llu macs=%llu head_macs=%llu attention_macs=%llu kv_bytes=%llu "
           "vocabulary=%u form=%u head_form=%u\n",
           (unsigned long long)weight_bytes(bench), (unsigned long long)(products + head),
           (unsigned long long)head, (unsigned long long)attention,
           (unsigned long long)(shape->layers * kv_block_bytes(&bench->pool.geometry) /
                                bench->pool.geometry.block_tokens),
           shape->tokens, weight_type_form(layer->q->type),
           weight_type_form(weights->output->type));
}

/* false: not a workload, or beyond the limits of this program. */
static bool run_workload(struct bench *bench, const char *text)
{
    struct workload workload;
    if (strcmp(text, "probe") == 0) {
        bench_probe(bench);
        return true;
    }
    if (strcmp(text, "costs") == 0) {
        print_costs(bench);
        return true;
    }
    if (!workload_parse(text, &workload))
        return false;
    if (workload.kind == WORKLOAD_PROMPT && workload.count <= CONTEXT) {
        profile_clear();
        take_back_blocks(bench);
        double seconds = run_prompt(bench, 0, workload.count);
        print_rate(bench, text, &seconds, 1, workload.count);
    } else if (workload.kind == WORKLOAD_STREAM && workload.count <= STEPS_MAX &&
               workload.count + workload.depth <= CONTEXT) {
        bench_streams(bench, text, 1, workload.depth, workload.count);
    } else if (workload.kind == WORKLOAD_BATCH && workload.count <= SLOTS) {
        bench_streams(bench, text, workload.count, BATCH_PROMPT, BATCH_STEPS);
    } else {
        return false;
    }
    return true;
}

static void start_busy(struct bench *bench)
{
    for (uint32_t i = 0; i < bench->busy; i++) {
        bench->busy_pids[i] = fork();
        CHECK(bench->busy_pids[i] >= 0);
        if (bench->busy_pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            for (volatile uint32_t turn = 0;; turn++)
                continue;
        }
    }
}

static void end_busy(struct bench *bench)
{
    for (uint32_t i = 0; i < bench->busy; i++) {
        kill(bench->busy_pids[i], SIGKILL);
        waitpid(bench->busy_pids[i], NULL, 0);
    }
}

/* The number behind `name` at the start of `text`, at most `most`; false for anything else. */
static bool take_number(const char *text, const char *name, uint32_t most, uint32_t *out_number)
{
    const char *rest;
    uint32_t number;
    size_t length = strlen(name);
    if (strncmp(text, name, length) != 0 || !workload_number(text + length, '\0', &number, &rest) ||
        number > most)
        return false;
    *out_number = number;
    return true;
}

static bool take_option(struct bench *bench, const char *text)
{
    if (strncmp(text, "--isa=", 6) == 0)
        return isa_from_name(text + 6, &bench->backend_options.cpu_isa);
    if (strcmp(text, "--kv=f16") == 0 || strcmp(text, "--kv=f32") == 0) {
        bench->kv_type = strcmp(text, "--kv=f16") == 0 ? KV_TYPE_F16 : KV_TYPE_F32;
        return true;
    }
    if (strcmp(text, "--profile") == 0) {
        bench->profile = true;
        return true;
    }
    return take_number(text, "--threads=", POOL_THREADS_MAX, &bench->backend_options.threads) ||
           take_number(text, "--busy=", BUSY_MAX, &bench->busy) ||
           (take_number(text, "--chunk=", ROWS, &bench->chunk) && bench->chunk >= 1);
}

int main(int argc, char **argv)
{
    static struct bench bench = {
        .backend_options = {.kind = BACKEND_CPU}, .chunk = ROWS, .kv_type = KV_TYPE_F16};
    int argument = 2;
    while (argument < argc && take_option(&bench, argv[argument]))
        argument++;
    if (argument >= argc || strncmp(argv[argument], "--", 2) == 0) {
        fprintf(stderr,
                "usage: model_bench MODEL.gguf [--threads=N] [--isa=ISA] [--kv=f16|f32] [--busy=N] "
                "[--chunk=N] [--profile] WORKLOAD... (pp512 tg128 tg64@1024 b8 b32 probe); ISA "
                "is " ISA_NAMES_HELP "\n");
        return EXIT_USAGE;
    }
    open_bench(&bench, argv[1]);
    printf("%s, %u threads\n", bench.backend->name, bench.backend->threads);
    bench_streams(&bench, "warm", 1, BATCH_PROMPT, WARM_STEPS);
    start_busy(&bench);
    bool good = true;
    for (; good && argument < argc; argument++) {
        good = run_workload(&bench, argv[argument]);
        if (!good)
            fprintf(stderr, "model_bench: %s is no workload\n", argv[argument]);
    }
    end_busy(&bench);
    return good ? 0 : EXIT_USAGE;
}
