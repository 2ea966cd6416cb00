/* Tokens per second of a model's layers and sampler in this process: a prompt of 512, one stream,
 * one stream after 1,024 positions, 8 and 32 streams. No socket, no plan. usage: model_bench
 * MODEL.gguf [threads [plain|avx2|avx512]] */
#include "common/check.h"
#include "common/clock.h"
#include "support/isa_names.h"
#include "worker/forward.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SLOTS = 32, CONTEXT = 1100, ROWS = 512, TURNS_MAX = 32 };

struct bench {
    struct backend *backend;
    struct model model;
    struct kv_pool pool;
    struct forward *forward;
    struct batch batch;
    uint32_t errors[ROWS];
};

static void open_bench(struct bench *bench, const char *path, const struct backend_options *options)
{
    struct reason reason;
    struct text *why = reason_init(&reason);
    enum status status = backend_open(options, &bench->backend, why);
    if (status == STATUS_OK)
        status = model_open(path, bench->backend, NULL, NULL, &bench->model, why);
    if (status != STATUS_OK) {
        fprintf(stderr, "%s: %s\n", path, reason.storage);
        exit(1);
    }
    const struct model_shape *shape = &bench->model.shape;
    struct kv_geometry geometry = model_shape_geometry(shape, KV_BLOCK_TOKENS_DEFAULT, KV_TYPE_F16,
                                                       (enum kv_order)bench->backend->kv_order);
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
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        for (uint32_t layer = 0; layer < shape->layers; layer++) {
            int32_t blocks[CONTEXT];
            for (uint32_t i = 0; i < logical; i++)
                blocks[i] = (int32_t)((slot * logical + i) * shape->layers + layer);
            forward_map_blocks(bench->forward, &(struct block_run){.slot = slot,
                                                                   .layer = layer,
                                                                   .count = logical,
                                                                   .blocks = blocks});
        }
    }
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
    uint32_t tokens[ROWS];
    for (uint32_t i = 0; i < count; i++)
        tokens[i] = 1000 + (slot * 7919 + (first + i) * 104729) % 40000;
    batch_add_rows(&bench->batch, slot, first, tokens, count);
    batch_add_sample(&bench->batch, &greedy);
}

static double prompt_seconds(struct bench *bench, uint32_t slot, uint32_t first, uint32_t count)
{
    batch_clear(&bench->batch);
    add_tokens(bench, slot, first, count);
    return run_step(bench);
}

static int compare_seconds(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void print_rate(const char *what, double *seconds, uint32_t turns, double tokens)
{
    qsort(seconds, turns, sizeof *seconds, compare_seconds);
    printf("%-34s median %8.1f tok/s (%7.2f ms), best %8.1f tok/s\n", what,
           tokens / seconds[turns / 2], seconds[turns / 2] * 1e3, tokens / seconds[0]);
}

static void bench_streams(struct bench *bench, const char *what, uint32_t streams, uint32_t context)
{
    double seconds[TURNS_MAX];
    for (uint32_t slot = 0; slot < streams; slot++) {
        for (uint32_t first = 0; first < context; first += ROWS)
            prompt_seconds(bench, slot, first, context - first < ROWS ? context - first : ROWS);
    }
    for (uint32_t turn = 0; turn < TURNS_MAX; turn++) {
        batch_clear(&bench->batch);
        for (uint32_t slot = 0; slot < streams; slot++)
            add_tokens(bench, slot, context + turn, 1);
        seconds[turn] = run_step(bench);
    }
    print_rate(what, seconds, TURNS_MAX, streams);
}

int main(int argc, char **argv)
{
    static struct bench bench;
    struct backend_options options = {.kind = BACKEND_CPU};
    double seconds[5];
    if (argc < 2) {
        fprintf(stderr, "usage: model_bench MODEL.gguf [threads [plain|avx2|avx512]]\n");
        return 64;
    }
    if (argc > 2)
        options.threads = (uint32_t)strtoul(argv[2], NULL, 10);
    if (argc > 3 && !isa_from_name(argv[3], &options.cpu_isa)) {
        fprintf(stderr, "%s is not " ISA_NAMES_HELP "\n", argv[3]);
        return 64;
    }
    open_bench(&bench, argv[1], &options);
    printf("%s, %u threads\n", bench.backend->name, bench.backend->threads);
    for (int turn = 0; turn < 5; turn++)
        seconds[turn] = prompt_seconds(&bench, 0, 0, 512);
    print_rate("prompt of 512", seconds, 5, 512);
    bench_streams(&bench, "1 stream after 16 positions", 1, 16);
    bench_streams(&bench, "1 stream after 1,024 positions", 1, 1024);
    bench_streams(&bench, "8 streams after 128 positions", 8, 128);
    bench_streams(&bench, "32 streams after 128 positions", 32, 128);
    return 0;
}
