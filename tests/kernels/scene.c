#include "kernels/scene.h"

#include "common/check.h"
#include "common/float16.h"
#include "common/random.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { POISON_BYTES_MAX = 64 << 20 };

enum content { CONTENT_KEY = 1, CONTENT_VALUE, CONTENT_QUERY };

static float content_value(enum content content, uint32_t layer, struct scene_row row,
                           uint32_t head, uint32_t dim)
{
    struct random random = {((uint64_t)content << 60) ^ ((uint64_t)layer << 52) ^
                            ((uint64_t)row.slot << 44) ^ ((uint64_t)row.position << 20) ^
                            ((uint64_t)head << 12) ^ dim};
    random_next(&random);
    return (float)(random_next(&random) >> 40) * 0x1p-23f - 1.0f;
}

static float amplitude_of(const struct scene_options *options)
{
    return options->amplitude == 0.0f ? 1.0f : options->amplitude;
}

float scene_key(const struct scene_options *options, uint32_t layer, struct scene_row row,
                uint32_t kv_head, uint32_t dim)
{
    return content_value(CONTENT_KEY, layer, row, kv_head, dim) * amplitude_of(options);
}

float scene_value(const struct scene_options *options, uint32_t layer, struct scene_row row,
                  uint32_t kv_head, uint32_t dim)
{
    (void)options;
    return content_value(CONTENT_VALUE, layer, row, kv_head, dim);
}

static float scene_query(const struct scene_options *options, uint32_t layer, struct scene_row row,
                         uint32_t head, uint32_t dim)
{
    return content_value(CONTENT_QUERY, layer, row, head, dim) * amplitude_of(options);
}

static void poison(struct scene *scene)
{
    uint64_t bytes =
        scene->pool_bytes < POISON_BYTES_MAX ? scene->pool_bytes : (uint64_t)POISON_BYTES_MAX;
    memset(scene->kv.pool, 0xff, bytes); /* NaN in both types */
}

/* Physical numbers for `count` blocks: spread evenly over the pool, then permuted. */
static void map_blocks(struct scene *scene, uint64_t count, uint64_t pool_blocks)
{
    struct random random = {scene->options.shuffle};
    for (uint64_t i = 0; i < count; i++)
        scene->table[i] = (int32_t)(pool_blocks - 1 - i * (pool_blocks / count));
    for (uint64_t i = count; scene->options.shuffle != 0 && i > 1; i--) {
        uint32_t other = random_below(&random, i);
        int32_t kept = scene->table[i - 1];
        scene->table[i - 1] = scene->table[other];
        scene->table[other] = kept;
    }
}

void scene_open(struct scene *scene, struct backend *backend, const struct scene_options *options)
{
    memset(scene, 0, sizeof *scene);
    scene->options = *options;
    scene->backend = backend;
    scene->kv.geometry = (struct kv_geometry){.layers = options->layers,
                                              .kv_heads = options->kv_heads,
                                              .head_dim = options->head_dim,
                                              .block_tokens = options->block_tokens,
                                              .type = options->type,
                                              .order = backend->kv_order};
    scene->kv.logical_blocks = kv_blocks_for(&scene->kv.geometry, options->context);
    uint64_t blocks = (uint64_t)options->slots * options->layers * scene->kv.logical_blocks;
    uint64_t pool_blocks = options->pool_blocks != 0 ? options->pool_blocks : blocks;
    CHECK(pool_blocks >= blocks);
    scene->pool_bytes = pool_blocks * kv_block_bytes(&scene->kv.geometry);
    scene->kv.pool = subject_memory(backend, scene->pool_bytes);
    scene->table = malloc(blocks * sizeof *scene->table);
    CHECK(scene->table != NULL);
    poison(scene);
    map_blocks(scene, blocks, pool_blocks);
    scene->kv.table = subject_upload(backend, scene->table, blocks * sizeof *scene->table);
    scene->row_errors = subject_memory(backend, SCENE_ROWS_MAX * sizeof *scene->row_errors);
}

void scene_close(struct scene *scene)
{
    scene->backend->operations->memory_release(scene->backend, scene->kv.pool, scene->pool_bytes);
    free(scene->table);
}

/* Positions and slots of rows in backend memory. */
static struct row_places upload_places(struct backend *backend, const struct scene_row *rows,
                                       uint32_t count)
{
    uint32_t positions[SCENE_ROWS_MAX], slots[SCENE_ROWS_MAX];
    CHECK(count <= SCENE_ROWS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        positions[i] = rows[i].position;
        slots[i] = rows[i].slot;
    }
    return (struct row_places){subject_upload(backend, positions, count * sizeof *positions),
                               subject_upload(backend, slots, count * sizeof *slots)};
}

void scene_write(struct scene *scene, uint32_t layer, uint32_t slot, uint32_t first, uint32_t count)
{
    const struct scene_options *options = &scene->options;
    uint32_t dims = kv_dim(&scene->kv.geometry);
    uint64_t bytes = (uint64_t)count * dims * sizeof(float);
    float *keys = calloc(1, bytes), *values = calloc(1, bytes);
    struct scene_row rows[SCENE_ROWS_MAX];
    CHECK(keys != NULL && values != NULL && count <= SCENE_ROWS_MAX);
    for (uint32_t i = 0; i < count; i++) {
        rows[i] = (struct scene_row){slot, first + i};
        for (uint32_t d = 0; d < dims; d++) {
            uint32_t head = d / options->head_dim, dim = d % options->head_dim;
            keys[(size_t)i * dims + d] = scene_key(options, layer, rows[i], head, dim);
            values[(size_t)i * dims + d] = scene_value(options, layer, rows[i], head, dim);
        }
    }
    struct kv_write_args args = {.keys = subject_upload(scene->backend, keys, bytes),
                                 .values = subject_upload(scene->backend, values, bytes),
                                 .places = upload_places(scene->backend, rows, count),
                                 .rows = count,
                                 .layer = layer,
                                 .kv = scene->kv,
                                 .row_errors = scene->row_errors};
    scene->backend->operations->kv_write(scene->backend, &args);
    free(values);
    free(keys);
}

void scene_attend(struct scene *scene, uint32_t layer, const struct scene_row *rows, uint32_t count,
                  bool in_place, float *output)
{
    const struct scene_options *options = &scene->options;
    const struct backend_operations *ops = scene->backend->operations;
    uint32_t dims = options->heads * options->head_dim;
    uint64_t bytes = (uint64_t)count * dims * sizeof(float);
    float *queries = malloc(bytes);
    CHECK(queries != NULL);
    for (uint64_t i = 0; i < (uint64_t)count * dims; i++)
        queries[i] =
            scene_query(options, layer, rows[i / dims], (uint32_t)(i % dims) / options->head_dim,
                        (uint32_t)(i % dims) % options->head_dim);
    float *uploaded = subject_upload(scene->backend, queries, bytes);
    float *result = in_place ? uploaded : subject_memory(scene->backend, bytes);
    uint64_t scratch_bytes = ops->attention_scratch_bytes(scene->backend, count, options->heads,
                                                          options->head_dim, options->context);
    struct attention_args args = {.queries = uploaded,
                                  .places = upload_places(scene->backend, rows, count),
                                  .rows = count,
                                  .layer = layer,
                                  .heads = options->heads,
                                  .kv = scene->kv,
                                  .scratch = subject_memory(scene->backend, scratch_bytes),
                                  .scratch_bytes = scratch_bytes,
                                  .output = result};
    ops->attention(scene->backend, &args);
    subject_download(scene->backend, output, result, bytes);
    ops->memory_release(scene->backend, args.scratch, scratch_bytes);
    free(queries);
}

static double pool_rounded(const struct scene_options *options, float value)
{
    return (double)(options->type == KV_TYPE_F16 ? fp16_to_float(fp16_from_float(value)) : value);
}

/* Scores of one head over keys 0..position in units of the exponent; returns the largest sum of |q
 * k|. */
static double expect_scores(const struct scene_options *options, uint32_t layer,
                            struct scene_row row, uint32_t head, double *scores)
{
    uint32_t kv_head = head / (options->heads / options->kv_heads);
    double largest = 0;
    for (uint32_t key = 0; key <= row.position; key++) {
        struct scene_row place = {row.slot, key};
        double score = 0, magnitude = 0;
        for (uint32_t dim = 0; dim < options->head_dim; dim++) {
            double q = (double)scene_query(options, layer, row, head, dim);
            double k = pool_rounded(options, scene_key(options, layer, place, kv_head, dim));
            score += q * k;
            magnitude += fabs(q * k);
        }
        scores[key] = score / sqrt(options->head_dim);
        largest = fmax(largest, magnitude / sqrt(options->head_dim));
    }
    return largest;
}

/* A score is off by one rounding per step of its chain, a probability by as much, relatively;
 * values are within [-1, 1), and the sums over keys add one rounding per key of a segment and a few
 * per tile and merge. */
void scene_expect(const struct scene_options *options, uint32_t layer, struct scene_row row,
                  struct expectation *expected)
{
    double *scores = malloc((row.position + 1) * sizeof *scores);
    CHECK(scores != NULL);
    for (uint32_t head = 0; head < options->heads; head++) {
        uint32_t kv_head = head / (options->heads / options->kv_heads);
        double magnitude = expect_scores(options, layer, row, head, scores);
        double largest = -INFINITY, sum = 0;
        for (uint32_t key = 0; key <= row.position; key++)
            largest = fmax(largest, scores[key]);
        for (uint32_t key = 0; key <= row.position; key++)
            sum += scores[key] = exp(scores[key] - largest);
        double error = (options->head_dim + 8) * FLOAT_EPSILON * magnitude;
        double bound = 2 * (exp(error) - 1) + 320 * FLOAT_EPSILON;
        for (uint32_t dim = 0; dim < options->head_dim; dim++) {
            double value = 0;
            for (uint32_t key = 0; key <= row.position; key++) {
                struct scene_row place = {row.slot, key};
                value += scores[key] *
                         pool_rounded(options, scene_value(options, layer, place, kv_head, dim));
            }
            expected[head * options->head_dim + dim] = (struct expectation){value / sum, bound};
        }
    }
    free(scores);
}
