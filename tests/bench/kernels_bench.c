/* Time, bytes and rates of the kernels on this machine, shapes of SmolLM2-135M.
 * Usage: kernels_bench [threads [ISA [matmul|attention|sample [TYPE]]]], ISA auto, plain, avx2,
 * avx512, avx512-bf16 or amx, TYPE one of Q4_1, Q4_0, Q8_0, BF16 and F16.
 * Every call of a product takes another copy of the weights, COPIES_BYTES in all, so that one row
 * streams from memory as a decode step does. What the machine reads and multiplies at most is
 * measured before each shape; shares are of that, rates from the median of all calls, with the best
 * beside it. */
#include "bench/probe.h"
#include "kernels/backend.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/random.h"
#include "support/isa_names.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    HIDDEN = 576,
    FFN = 1536,
    KV = 192,
    VOCABULARY = 49152,
    HEADS = 9,
    KV_HEADS = 3,
    HEAD_DIM = 64,
    LAYERS = 30,
    ROWS_MAX = 512,
    BLOCK_TOKENS = 16,
    TURNS_MAX = 700,
    COPIES_MAX = 700,
    EXIT_USAGE = 64,
};

#define COPIES_BYTES  (UINT64_C(128) << 20) /* more than caches hold but for the largest */
#define PROBE_SECONDS 0.4

struct bench {
    struct backend *backend;
    const struct backend_operations *ops;
    struct pool *probe_pool; /* as many threads as the backend */
    struct probe probe;
    float *input, *output;
    void *prepared;
};

static void *reserve(struct bench *bench, uint64_t bytes)
{
    void *memory = NULL;
    CHECK(bench->ops->memory_reserve(bench->backend, bytes, &memory) == STATUS_OK);
    return memory;
}

/* The best of several turns: what other processes on the machine take away is not the kernel's. */
static double best_seconds(const uint64_t *times, uint32_t count)
{
    uint64_t best = UINT64_MAX;
    for (uint32_t i = 0; i < count; i++)
        best = times[i] < best ? times[i] : best;
    return (double)best * 1e-9;
}

static int compare_times(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static double median_seconds(uint64_t *times, uint32_t count)
{
    qsort(times, count, sizeof *times, compare_times);
    return (double)times[count / 2] * 1e-9;
}

static struct matrix *random_matrix(struct bench *bench, uint32_t type, uint32_t rows,
                                    uint32_t columns)
{
    uint64_t bytes = rows * weight_row_bytes(type, columns);
    uint8_t *source = malloc(bytes);
    struct random random = {rows + columns};
    CHECK(source != NULL);
    for (uint64_t i = 0; i < bytes; i += i < 4096 ? 1 : 4096) {
        if (i < 4096)
            source[i] = (uint8_t)(random_next(&random) & 0x37); /* small finite halves and floats */
        else
            memcpy(source + i, source, bytes - i < 4096 ? bytes - i : 4096);
    }
    struct matrix *matrix = NULL;
    struct matrix_source description = {
        .type = type, .rows = rows, .columns = columns, .bytes = source};
    CHECK(bench->ops->matrix_load(bench->backend, &description, &matrix) == STATUS_OK);
    free(source);
    return matrix;
}

struct shape {
    const char *name;
    uint32_t part_count, outputs[MATMUL_PARTS_MAX], columns, type;
};

static const struct shape shapes[] = {
    {"q,k,v 960x576", 3, {HIDDEN, KV, KV}, HIDDEN, 0},
    {"o 576x576", 1, {HIDDEN, 0, 0}, HIDDEN, 0},
    {"gate,up 3072x576", 2, {FFN, FFN, 0}, HIDDEN, 0},
    {"down 576x1536", 1, {HIDDEN, 0, 0}, FFN, 0},
    {"lm_head 49152x576", 1, {VOCABULARY, 0, 0}, HIDDEN, WEIGHT_TYPE_Q8_0},
};

static bool is_float(uint32_t type)
{
    return weight_type_form(type) != ACTIVATION_FORM_INTEGERS;
}

struct loaded {
    struct matmul_args args;
    uint64_t bytes;
};

static struct loaded load_shape(struct bench *bench, const struct shape *shape, uint32_t type)
{
    struct loaded loaded = {.args = {.input = bench->input,
                                     .prepared = bench->prepared,
                                     .columns = shape->columns,
                                     .part_count = shape->part_count}};
    float *output = bench->output;
    bool quantized_head = shape->type != 0 && !is_float(type); /* as files have it */
    for (uint32_t part = 0; part < shape->part_count; part++) {
        struct matrix *matrix = random_matrix(bench, quantized_head ? shape->type : type,
                                              shape->outputs[part], shape->columns);
        loaded.args.parts[part] = (struct matmul_part){matrix, output};
        output += (uint64_t)ROWS_MAX * shape->outputs[part];
        loaded.bytes += matrix->bytes;
    }
    return loaded;
}

static void prepare_input(struct bench *bench, uint32_t rows, const struct matmul_args *product)
{
    struct prepare_args args = {bench->input, rows, product->columns, bench->prepared,
                                weight_type_form(product->parts[0].matrix->type)};
    bench->ops->prepare(bench->backend, &args);
}

/* Copies of one shape. */
struct copies {
    struct loaded *loaded; /* owned */
    uint32_t count;
    double products; /* of a row */
};

static struct copies load_copies(struct bench *bench, const struct shape *shape, uint32_t type)
{
    struct copies copies = {calloc(COPIES_MAX, sizeof(struct loaded)), 0, 0};
    CHECK(copies.loaded != NULL);
    uint64_t bytes = 0;
    while (copies.count < COPIES_MAX && bytes < COPIES_BYTES) {
        copies.loaded[copies.count] = load_shape(bench, shape, type);
        bytes += copies.loaded[copies.count++].bytes;
    }
    for (uint32_t part = 0; part < shape->part_count; part++)
        copies.products += (double)shape->outputs[part] * shape->columns;
    return copies;
}

static void free_copies(struct bench *bench, struct copies *copies)
{
    for (uint32_t copy = 0; copy < copies->count; copy++) {
        const struct matmul_args *args = &copies->loaded[copy].args;
        for (uint32_t part = 0; part < args->part_count; part++)
            bench->ops->matrix_free(bench->backend,
                                    (struct matrix *)(uintptr_t)args->parts[part].matrix);
    }
    free(copies->loaded);
}

/* Products per second at most, of the instruction that the kernels of a type use. */
static double peak_of(const struct bench *bench, uint32_t type)
{
    switch (weight_type_form(type)) {
    case ACTIVATION_FORM_INTEGERS:
        return bench->probe.integer_macs_per_s;
    case ACTIVATION_FORM_BF16:
        return bench->probe.bf16_macs_per_s;
    default:
        return bench->probe.float_macs_per_s;
    }
}

static void print_product(const struct bench *bench, const char *name, uint32_t rows,
                          const struct copies *copies, const double *median_and_best)
{
    const struct matmul_args *args = &copies->loaded[0].args;
    double seconds = median_and_best[0], bytes = (double)copies->loaded[0].bytes;
    double peak = peak_of(bench, args->parts[0].matrix->type);
    printf(
        "  %-18s %4u rows %9.1f us (best %9.1f) %6.2f MB %6.1f GB/s %4.0f%% of read %7.1f GMAC/s "
        "%4.0f%% of peak\n",
        name, rows, seconds * 1e6, median_and_best[1] * 1e6, bytes * 1e-6, bytes / seconds * 1e-9,
        100 * bytes / seconds / bench->probe.again_bytes_per_s,
        copies->products * rows / seconds * 1e-9, 100 * copies->products * rows / seconds / peak);
}

static void bench_shape(struct bench *bench, const struct shape *shape, uint32_t type)
{
    static const uint32_t row_counts[] = {1, 8, 32, 256};
    struct copies copies = load_copies(bench, shape, type);
    bench->probe = probe_machine(bench->probe_pool, COPIES_BYTES, PROBE_SECONDS);
    printf("  ");
    probe_print(&bench->probe, bench->probe_pool);
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
        uint64_t times[TURNS_MAX];
        uint32_t rows = row_counts[i];
        uint32_t turns = rows == 1 ? 2 * copies.count : rows < 256 ? 20 : 6;
        turns = turns < TURNS_MAX ? turns : TURNS_MAX;
        prepare_input(bench, rows, &copies.loaded[0].args);
        for (uint32_t turn = 0; turn < turns; turn++) {
            struct matmul_args *args = &copies.loaded[turn % copies.count].args;
            args->rows = rows;
            uint64_t start = clock_now_ns();
            bench->ops->matmul(bench->backend, args);
            times[turn] = clock_now_ns() - start;
        }
        const double median_and_best[] = {median_seconds(times, turns), best_seconds(times, turns)};
        print_product(bench, shape->name, rows, &copies, median_and_best);
    }
    free_copies(bench, &copies);
}

/* All matmuls of a decode step or of a prompt, with the small operations between them, attention
 * left out. */
static void bench_step(struct bench *bench, uint32_t type)
{
    static const uint32_t row_counts[] = {1, 8, 32, 512};
    struct loaded loaded[LAYERS][4], head = load_shape(bench, &shapes[4], type);
    float *weight = reserve(bench, HIDDEN * sizeof(float));
    for (uint32_t layer = 0; layer < LAYERS; layer++) {
        for (int s = 0; s < 4; s++)
            loaded[layer][s] = load_shape(bench, &shapes[s], type);
    }
    for (size_t i = 0; i < sizeof row_counts / sizeof *row_counts; i++) {
        uint32_t rows = row_counts[i], turns = rows < 32 ? 15 : 3;
        uint64_t times[TURNS_MAX];
        for (uint32_t turn = 0; turn < turns; turn++) {
            uint64_t start = clock_now_ns();
            struct rmsnorm_args norm = {bench->input, weight, rows, HIDDEN, 1e-5f, bench->output};
            struct silu_mul_args silu = {bench->output, bench->output, rows, FFN, bench->output};
            for (uint32_t layer = 0; layer < LAYERS; layer++) {
                for (int s = 0; s < 4; s++) {
                    if (s % 2 == 0)
                        bench->ops->rmsnorm(bench->backend, &norm);
                    if (s == 3)
                        bench->ops->silu_mul(bench->backend, &silu);
                    prepare_input(bench, rows, &loaded[layer][s].args);
                    loaded[layer][s].args.rows = rows;
                    bench->ops->matmul(bench->backend, &loaded[layer][s].args);
                }
            }
            head.args.rows = rows <= 32 ? rows : 1;
            prepare_input(bench, head.args.rows, &head.args);
            bench->ops->matmul(bench->backend, &head.args);
            times[turn] = clock_now_ns() - start;
        }
        double seconds = best_seconds(times, turns);
        printf("  step without attention %4u rows %9.2f ms %8.0f rows/s\n", rows, seconds * 1e3,
               rows / seconds);
    }
}

static void bench_sample(struct bench *bench)
{
    static const struct sampling ways[] = {
        {1, 0.0f, 1.0f, 0.0f, 0}, {1, 0.8f, 1.0f, 0.0f, 0}, {1, 0.8f, 0.9f, 0.05f, 40}};
    struct random random = {7};
    uint32_t position = 5, token, error = 0;
    float logprob;
    for (uint32_t i = 0; i < VOCABULARY; i++)
        bench->output[i] = (float)(random_next(&random) >> 40) * 0x1p-20f - 8.0f;
    for (size_t way = 0; way < sizeof ways / sizeof *ways; way++) {
        uint64_t times[50];
        struct sample_args args = {bench->output, &ways[way], &position, 1,     VOCABULARY,
                                   VOCABULARY,    &token,     &logprob,  &error};
        for (int turn = 0; turn < 50; turn++) {
            uint64_t start = clock_now_ns();
            bench->ops->sample(bench->backend, &args);
            times[turn] = clock_now_ns() - start;
        }
        printf("  sample, temperature %.1f top_k %u top_p %.1f: %.1f us a row\n",
               (double)ways[way].temperature, ways[way].top_k, (double)ways[way].top_p,
               best_seconds(times, 50) * 1e6);
    }
}

struct attention_bench {
    struct kv_view kv;
    uint32_t *positions, *slots;
    void *scratch;
    uint64_t scratch_bytes, pool_bytes;
};

static void fill_pool(struct attention_bench *a)
{
    uint16_t *halves = a->kv.pool;
    float *floats = a->kv.pool;
    uint64_t bytes = kv_element_bytes(&a->kv.geometry);
    for (uint64_t i = 0; i < a->pool_bytes / bytes; i++) {
        if (bytes == 2)
            halves[i] = 0x2e66; /* 0.1 */
        else
            floats[i] = 0.1f;
    }
}

/* One layer after the other, as a step does, over blocks in random order. */
static void bench_attention(struct bench *bench, uint32_t rows, uint32_t context, bool prompt,
                            uint32_t type)
{
    uint32_t sequences = prompt ? 1 : rows, logical = (context + BLOCK_TOKENS - 1) / BLOCK_TOKENS;
    struct attention_bench a = {.kv = {.logical_blocks = logical}};
    a.kv.geometry =
        (struct kv_geometry){LAYERS, KV_HEADS, HEAD_DIM, BLOCK_TOKENS, type, KV_ORDER_CPU};
    uint32_t blocks = sequences * LAYERS * logical;
    a.pool_bytes = blocks * kv_block_bytes(&a.kv.geometry);
    a.kv.pool = reserve(bench, a.pool_bytes);
    fill_pool(&a);
    int32_t *table = reserve(bench, blocks * sizeof *table);
    struct random random = {3};
    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t other = random_below(&random, i + 1);
        table[i] = table[other];
        table[other] = (int32_t)i;
    }
    a.kv.table = table;
    a.positions = reserve(bench, rows * sizeof(uint32_t));
    a.slots = reserve(bench, rows * sizeof(uint32_t));
    for (uint32_t row = 0; row < rows; row++) {
        a.positions[row] = prompt ? context - rows + row : context - 1;
        a.slots[row] = prompt ? 0 : row;
    }
    a.scratch_bytes =
        bench->ops->attention_scratch_bytes(bench->backend, rows, HEADS, HEAD_DIM, context);
    a.scratch = reserve(bench, a.scratch_bytes);
    uint64_t times[20];
    for (int turn = 0; turn < (prompt ? 5 : 20); turn++) {
        uint64_t start = clock_now_ns();
        for (uint32_t layer = 0; layer < LAYERS; layer++) {
            struct attention_args args = {
                bench->input, {a.positions, a.slots}, rows,         layer, HEADS, a.kv,
                a.scratch,    a.scratch_bytes,        bench->output};
            bench->ops->attention(bench->backend, &args);
        }
        times[turn] = clock_now_ns() - start;
    }
    double seconds = best_seconds(times, prompt ? 5 : 20);
    printf("  attention %s %s %4u rows, context %5u: %8.2f ms for %d layers, %5.1f GB/s of pool\n",
           type == KV_TYPE_F16 ? "F16" : "F32", prompt ? "prompt" : "decode", rows, context,
           seconds * 1e3, LAYERS, (double)a.pool_bytes / seconds * 1e-9);
    bench->ops->memory_release(bench->backend, a.kv.pool, a.pool_bytes);
}

static void bench_contexts(struct bench *bench)
{
    bench_attention(bench, 1, 128, false, KV_TYPE_F16);
    bench_attention(bench, 1, 1024, false, KV_TYPE_F16);
    bench_attention(bench, 1, 1024, false, KV_TYPE_F32);
    bench_attention(bench, 8, 160, false, KV_TYPE_F16);
    bench_attention(bench, 32, 160, false, KV_TYPE_F16);
    bench_attention(bench, 512, 512, true, KV_TYPE_F16);
}

/* `only` NULL: all types. */
static void bench_products(struct bench *bench, const char *only)
{
    static const struct {
        const char *name;
        uint32_t type;
    } types[] = {{"Q4_1", WEIGHT_TYPE_Q4_1},
                 {"Q4_0", WEIGHT_TYPE_Q4_0},
                 {"Q8_0", WEIGHT_TYPE_Q8_0},
                 {"BF16", WEIGHT_TYPE_BF16},
                 {"F16", WEIGHT_TYPE_F16}};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        if (only != NULL && strcmp(only, types[i].name) != 0)
            continue;
        printf("%s\n", types[i].name);
        for (size_t s = 0; s < sizeof shapes / sizeof *shapes; s++)
            bench_shape(bench, &shapes[s], types[i].type);
        bench_step(bench, types[i].type);
    }
}

int main(int argc, char **argv)
{
    struct backend_options options = {.kind = BACKEND_CPU, .cpu_isa = CPU_ISA_AUTO};
    struct bench bench = {NULL};
    struct reason reason;
    if (argc > 1)
        options.threads = (uint32_t)strtoul(argv[1], NULL, 10);
    if (argc > 2 && !isa_from_name(argv[2], &options.cpu_isa)) {
        fprintf(stderr, "%s is not " ISA_NAMES_HELP "\n", argv[2]);
        return EXIT_USAGE;
    }
    if (backend_open(&options, &bench.backend, reason_init(&reason)) != STATUS_OK) {
        fprintf(stderr, "%s\n", reason.storage);
        return 1;
    }
    bench.ops = bench.backend->operations;
    CHECK(pool_open(bench.backend->threads, &bench.probe_pool) == STATUS_OK);
    bench.input = reserve(&bench, (uint64_t)ROWS_MAX * FFN * sizeof(float));
    bench.output = reserve(&bench, (uint64_t)ROWS_MAX * VOCABULARY * sizeof(float));
    bench.prepared = reserve(&bench, bench.ops->prepared_bytes(bench.backend, ROWS_MAX, FFN));
    struct random random = {1};
    for (uint32_t i = 0; i < ROWS_MAX * FFN; i++)
        bench.input[i] = (float)(random_next(&random) >> 40) * 0x1p-23f - 1.0f;
    printf("%s, %u threads\n", bench.backend->name, bench.backend->threads);
    bool all = argc <= 3;
    if (all || *argv[3] == 'm')
        bench_products(&bench, argc > 4 ? argv[4] : NULL);
    if (all || *argv[3] == 's')
        bench_sample(&bench);
    if (all || *argv[3] == 'a')
        bench_contexts(&bench);
    pool_close(bench.probe_pool);
    return 0;
}
