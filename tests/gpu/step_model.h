/* A model with random weights and a step over it, for tests and timings on a device. */
#ifndef TANDEM_TESTS_GPU_STEP_MODEL_H
#define TANDEM_TESTS_GPU_STEP_MODEL_H

#include "common/check.h"
#include "common/clock.h"
#include "common/float16.h"
#include "common/random.h"
#include "kernels/backend.h"
#include "kernels/rope_table.h"
#include "kernels/step.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORLD_NO_DEVICE = 77 }; /* tells ctest that there is nothing to test on */

struct step_shape {
    const char *name;
    uint32_t layers, width, ffn_width, heads, kv_heads, head_dim, vocabulary;
};

struct step_world {
    struct step_shape shape;
    struct backend *backend;
    struct step_model model;
    struct step_layer *layers;
    struct matrix **matrices;
    uint32_t matrix_count;
    void *norms;
    uint64_t norms_bytes;
    float *rope;
    struct kv_geometry geometry;
    void *pool;
    uint64_t pool_bytes;
    uint32_t slots, context, logical_blocks;
    uint32_t shuffle; /* multiplies logical block numbers: odd */
    bool separate_kernels;
    uint32_t planted;
    struct step *step;
};

static inline void world_must(enum status status, const char *what, const struct reason *reason)
{
    if (status == STATUS_OK)
        return;
    printf("FAIL %s: %s %s\n", what, status_text(status), reason != NULL ? reason->storage : "");
    exit(1);
}

/* About normal, standard deviation `scale`. */
static inline struct matrix *world_matrix(struct step_world *world, uint32_t rows, uint32_t columns,
                                          float scale)
{
    uint64_t count = (uint64_t)rows * columns;
    uint16_t *values = malloc(count * sizeof *values);
    struct random random = {world->matrix_count + 1};
    CHECK(values != NULL);
    for (uint64_t i = 0; i < count; i += 4) {
        uint64_t bits = random_next(&random), more = random_next(&random);
        for (uint64_t j = 0; j < 4 && i + j < count; j++) {
            float sum = (float)(bits >> (16 * j) & 0xff) + (float)(bits >> (16 * j + 8) & 0xff) +
                        (float)(more >> (16 * j) & 0xff) + (float)(more >> (16 * j + 8) & 0xff);
            values[i + j] = bf16_from_float((sum - 510.0f) / 148.0f * scale);
        }
    }
    const struct matrix_source source = {
        .type = WEIGHT_TYPE_BF16, .rows = rows, .columns = columns, .bytes = values};
    struct matrix *matrix;
    world_must(world->backend->operations->matrix_load(world->backend, &source, &matrix), "load",
               NULL);
    free(values);
    world->matrices[world->matrix_count++] = matrix;
    return matrix;
}

static inline void world_join(struct step_world *world, struct matrix **parts, uint32_t count,
                              enum matrix_join_order order)
{
    world_must(world->backend->operations->matrix_join(world->backend, parts, count, order,
                                                       world->shape.head_dim),
               "join", NULL);
}

static inline void world_weights(struct step_world *world)
{
    const struct step_shape *shape = &world->shape;
    uint32_t query = shape->heads * shape->head_dim, key = shape->kv_heads * shape->head_dim;
    float *host = calloc(shape->width, sizeof *host);
    struct random random = {77};
    for (uint32_t i = 0; i < shape->width; i++)
        host[i] = bf16_to_float(bf16_from_float(0.5f + (float)random_below(&random, 1000) / 1000));
    world->norms_bytes = shape->width * sizeof *host;
    world_must(world->backend->operations->memory_reserve(world->backend, world->norms_bytes,
                                                          &world->norms),
               "norms", NULL);
    world->backend->operations->upload(world->backend, world->norms, host, world->norms_bytes);
    free(host);
    world->matrices = calloc(7 * shape->layers + 1, sizeof *world->matrices);
    world->layers = calloc(shape->layers, sizeof *world->layers);
    for (uint32_t i = 0; i < shape->layers; i++) {
        struct step_layer *layer = &world->layers[i];
        layer->attention_norm = layer->ffn_norm = world->norms;
        struct matrix *heads[] = {layer->q = world_matrix(world, query, shape->width, 0.04f),
                                  layer->k = world_matrix(world, key, shape->width, 0.04f),
                                  layer->v = world_matrix(world, key, shape->width, 0.03f)};
        layer->attention_output = world_matrix(world, shape->width, query, 0.03f);
        struct matrix *pairs[] = {
            layer->gate = world_matrix(world, shape->ffn_width, shape->width, 0.03f),
            layer->up = world_matrix(world, shape->ffn_width, shape->width, 0.03f)};
        layer->down = world_matrix(world, shape->width, shape->ffn_width, 0.02f);
        world_join(world, heads, 3, MATRIX_JOIN_HEADS);
        world_join(world, &layer->attention_output, 1, MATRIX_JOIN_PLAIN);
        world_join(world, pairs, 2, MATRIX_JOIN_PAIRS);
        world_join(world, &layer->down, 1, MATRIX_JOIN_PLAIN);
    }
    struct matrix *embedding = world_matrix(world, shape->vocabulary, shape->width, 0.05f);
    world_join(world, &embedding, 1, MATRIX_JOIN_PLAIN);
    world->model = (struct step_model){
        .layers = shape->layers,
        .width = shape->width,
        .ffn_width = shape->ffn_width,
        .heads = shape->heads,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .vocabulary = shape->vocabulary,
        .tokens = shape->vocabulary,
        .norm_epsilon = 1e-5f,
        .layer = world->layers,
        .output_norm = world->norms,
        .embedding = embedding,
        .output = embedding,
        .rope_table = world->rope,
    };
}

/* Everything but the step. `fault` comes in that step of each world_start. */
static inline void world_open_faulty(struct step_world *world, const struct step_shape *shape,
                                     uint32_t slots, uint32_t context, struct backend_fault fault)
{
    struct reason reason;
    *world = (struct step_world){.shape = *shape, .slots = slots, .context = context, .shuffle = 1};
    const struct backend_options options = {.kind = BACKEND_CUDA, .fault = fault};
    enum status status = backend_open(&options, &world->backend, reason_init(&reason));
    if (status == STATUS_UNSUPPORTED) {
        printf("%s\n", reason.storage);
        exit(WORLD_NO_DEVICE);
    }
    world_must(status, "open", &reason);
    world->geometry = (struct kv_geometry){
        .layers = shape->layers,
        .kv_heads = shape->kv_heads,
        .head_dim = shape->head_dim,
        .block_tokens = KV_BLOCK_TOKENS_DEFAULT,
        .type = KV_TYPE_BF16,
        .order = KV_ORDER_CUDA,
    };
    world->logical_blocks = kv_blocks_for(&world->geometry, context);
    world->pool_bytes =
        kv_block_bytes(&world->geometry) * shape->layers * world->logical_blocks * slots;
    world_must(
        world->backend->operations->memory_reserve(world->backend, world->pool_bytes, &world->pool),
        "pool", NULL);
    const struct rope_parameters rope = {
        .theta = 500000, .rotary_dims = shape->head_dim, .positions = context};
    world->rope = malloc(rope_table_elements(&rope) * sizeof *world->rope);
    rope_table_fill(&rope, world->rope);
    world_weights(world);
}

static inline void world_open(struct step_world *world, const struct step_shape *shape,
                              uint32_t slots, uint32_t context)
{
    world_open_faulty(world, shape, slots, context, (struct backend_fault){0});
}

static inline struct step_options world_options(const struct step_world *world, uint32_t rows,
                                                bool hash_logits)
{
    return (struct step_options){
        .model = world->model,
        .geometry = world->geometry,
        .pool = world->pool,
        .slots = world->slots,
        .context = world->context,
        .logical_blocks = world->logical_blocks,
        .rows = rows,
        .samples = world->slots < rows ? world->slots : rows,
        .hash_logits = hash_logits,
        .separate_kernels = world->separate_kernels,
        .planted = world->planted,
    };
}

static inline void world_start(struct step_world *world, uint32_t rows, bool hash_logits)
{
    struct reason reason;
    const struct step_options options = world_options(world, rows, hash_logits);
    if (world->step != NULL)
        world->backend->steps->close(world->step);
    world_must(
        world->backend->steps->open(world->backend, &options, &world->step, reason_init(&reason)),
        "step", &reason);
}

/* All blocks of a slot; `shuffle` decides where they lie. */
static inline void world_map(struct step_world *world, uint32_t slot)
{
    uint32_t total = world->slots * world->logical_blocks;
    for (uint32_t layer = 0; layer < world->shape.layers; layer++)
        for (uint32_t logical = 0; logical < world->logical_blocks; logical++) {
            uint64_t index = (uint64_t)slot * world->logical_blocks + logical;
            index = index * world->shuffle % total;
            int32_t block = (int32_t)(index * world->shape.layers + layer);
            world->backend->steps->map_blocks(world->step,
                                              (uint32_t)kv_table_index(&world->geometry,
                                                                       world->logical_blocks, slot,
                                                                       layer, logical),
                                              &block, 1);
        }
}

static inline void world_close(struct step_world *world)
{
    const struct backend_operations *operations = world->backend->operations;
    world->backend->steps->close(world->step);
    for (uint32_t i = 0; i < world->matrix_count; i++)
        operations->matrix_free(world->backend, world->matrices[i]);
    operations->memory_release(world->backend, world->norms, world->norms_bytes);
    operations->memory_release(world->backend, world->pool, world->pool_bytes);
    free(world->matrices);
    free(world->layers);
    free(world->rope);
    backend_close(world->backend);
}

/* ---- Batches ---- */

enum { WORLD_ROWS = 4096, WORLD_SAMPLES = 512 };

struct world_batch {
    struct step_batch view;
    uint32_t tokens[WORLD_ROWS], positions[WORLD_ROWS], slots[WORLD_ROWS];
    uint32_t sample_rows[WORLD_SAMPLES], sample_positions[WORLD_SAMPLES];
    struct sampling sampling[WORLD_SAMPLES];
};

static inline void batch_start(struct world_batch *batch)
{
    batch->view = (struct step_batch){.tokens = batch->tokens,
                                      .positions = batch->positions,
                                      .slots = batch->slots,
                                      .sample_rows = batch->sample_rows,
                                      .sample_positions = batch->sample_positions,
                                      .sampling = batch->sampling};
}

static inline void batch_row(struct world_batch *batch, uint32_t slot, uint32_t position,
                             uint32_t token)
{
    uint32_t row = batch->view.row_count++;
    CHECK(row < WORLD_ROWS);
    batch->tokens[row] = token;
    batch->positions[row] = position;
    batch->slots[row] = slot;
}

static inline void batch_sample(struct world_batch *batch, const struct sampling *sampling)
{
    uint32_t sample = batch->view.sample_count++, row = batch->view.row_count - 1;
    CHECK(sample < WORLD_SAMPLES);
    batch->sample_rows[sample] = row;
    batch->sample_positions[sample] = batch->positions[row] + 1;
    batch->sampling[sample] = *sampling;
}

static inline void batch_run(struct step_world *world, const struct world_batch *batch,
                             struct step_sample *out_samples)
{
    static uint32_t errors[WORLD_ROWS];
    const struct step_operations *steps = world->backend->steps;
    world_must(steps->begin(world->step, &batch->view), "begin", NULL);
    world_must(steps->collect(world->step, out_samples, errors), "collect", NULL);
}

#endif
