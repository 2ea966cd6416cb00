#include "worker/forward.h"

#include "common/check.h"
#include "kernels/rope_table.h"
#include "worker/layers.h"
#include "worker/region.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* Logits of this many rows exist at a time: a step with more samples goes through lm_head in
 * several turns, with the same bits, instead of holding [slots][vocabulary]. */
enum { SAMPLE_TURN_ROWS = 64 };

/* Rows that go through a layer together. What they leave between its operations (1.5 MB for 128
 * rows of 1,536 gates) then stays in the second and third cache; their weights come from there as
 * well. A longer step takes its rows through each layer in several turns: a row needs earlier rows
 * of the layer's keys and values only, and those are in the pool by then. */
enum { LAYER_TURN_ROWS = 128 };

/* Either `step` does the work as a whole, or the operations are called one after another into
 * the buffers of `layers`. */
struct forward {
    struct forward_options options;
    struct step *step;
    float *rope_table;           /* owned, host; for `step` */
    struct step_sample *samples; /* owned [sample], of the batch that was begun */
    uint32_t *errors;            /* owned [row], likewise */
    uint32_t sample_count, row_count;
    uint32_t in_flight;
    void *memory; /* owned */
    uint64_t memory_bytes;
    uint32_t turn_rows; /* samples of one turn, at most */
    struct layers layers;
};

static uint32_t query_dim(const struct model_shape *shape)
{
    return shape->heads * shape->head_dim;
}

static uint32_t widest_input(const struct model_shape *shape)
{
    uint32_t widest = shape->width > shape->ffn_width ? shape->width : shape->ffn_width;
    return widest > query_dim(shape) ? widest : query_dim(shape);
}

/* Rounded rows are needed for a turn of rows and for one of samples. */
static uint32_t prepared_rows(const struct forward *forward)
{
    return forward->layers.turn_rows > forward->turn_rows ? forward->layers.turn_rows
                                                          : forward->turn_rows;
}

static void place_buffers(struct forward *forward, struct region *region)
{
    const struct forward_options *options = &forward->options;
    const struct model_shape *shape = &options->model->shape;
    struct backend *backend = options->backend;
    uint64_t rows = options->rows, part = forward->layers.turn_rows, turn = forward->turn_rows;
    uint64_t query = query_dim(shape), key = kv_dim(&options->pool->geometry);
    forward->layers.at = (struct buffers){
        .tokens = region_take(region, rows, sizeof(uint32_t)),
        .positions = region_take(region, rows, sizeof(uint32_t)),
        .slots = region_take(region, rows, sizeof(uint32_t)),
        .row_errors = region_take(region, rows, sizeof(uint32_t)),
        .hidden = region_take(region, rows * shape->width, sizeof(float)),
        .addend = region_take(region, rows * shape->width, sizeof(float)),
        .normed = region_take(region, part * shape->width, sizeof(float)),
        .q = region_take(region, part * query, sizeof(float)),
        .k = region_take(region, part * key, sizeof(float)),
        .v = region_take(region, part * key, sizeof(float)),
        .gate = region_take(region, part * shape->ffn_width, sizeof(float)),
        .up = region_take(region, part * shape->ffn_width, sizeof(float)),
        .prepared = region_take(region,
                                backend->operations->prepared_bytes(backend, prepared_rows(forward),
                                                                    widest_input(shape)),
                                1),
        .attention_scratch = region_take(region, forward->layers.attention_scratch_bytes, 1),
        .table = region_take(
            region,
            kv_table_index(&options->pool->geometry, options->logical_blocks, options->slots, 0, 0),
            sizeof(int32_t)),
        .rope_table =
            region_take(region, (uint64_t)options->context * shape->head_dim, sizeof(float)),
        .sample_rows = region_take(region, turn, sizeof(uint32_t)),
        .sample_positions = region_take(region, turn, sizeof(uint32_t)),
        .sampling = region_take(region, turn, sizeof(struct sampling)),
        .sample_hidden = region_take(region, turn * shape->width, sizeof(float)),
        .logits = region_take(region, turn * shape->vocabulary, sizeof(float)),
        .sampled = region_take(region, turn, sizeof(uint32_t)),
        .logprobs = region_take(region, turn, sizeof(float)),
        .sample_errors = region_take(region, turn, sizeof(uint32_t)),
        .hashes = region_take(region, turn, sizeof(uint64_t)),
    };
}

static enum status fill_rope_table(struct forward *forward)
{
    const struct model_shape *shape = &forward->options.model->shape;
    const struct rope_parameters parameters = {
        .theta = shape->rope_base,
        .rotary_dims = shape->head_dim,
        .positions = forward->options.context,
        .frequency_factors = shape->rope_factor,
    };
    size_t bytes = rope_table_elements(&parameters) * sizeof(float);
    forward->rope_table = malloc(bytes);
    if (forward->rope_table == NULL)
        return STATUS_OUT_OF_MEMORY;
    rope_table_fill(&parameters, forward->rope_table);
    return STATUS_OK;
}

/* A backend with whole steps. */
static enum status open_step(struct forward *forward, struct text *why)
{
    const struct forward_options *options = &forward->options;
    const struct model_shape *shape = &options->model->shape;
    const struct weights *weights = &options->model->weights;
    const struct step_options step_options = {
        .model =
            {
                .layers = shape->layers,
                .width = shape->width,
                .ffn_width = shape->ffn_width,
                .heads = shape->heads,
                .kv_heads = shape->kv_heads,
                .head_dim = shape->head_dim,
                .vocabulary = shape->vocabulary,
                .tokens = shape->tokens,
                .norm_epsilon = shape->norm_epsilon,
                .layer = weights->layer,
                .output_norm = weights->output_norm,
                .embedding = weights->embedding,
                .output = weights->output,
                .rope_table = forward->rope_table,
            },
        .geometry = options->pool->geometry,
        .pool = options->pool->memory,
        .slots = options->slots,
        .context = options->context,
        .logical_blocks = options->logical_blocks,
        .rows = options->rows,
        .samples = options->samples,
        .hash_logits = options->hash_logits,
        .progress = options->progress,
        .progress_context = options->progress_context,
    };
    return options->backend->steps->open(options->backend, &step_options, &forward->step, why);
}

/* A backend with operations. */
static enum status open_buffers(struct forward *forward, struct text *why)
{
    const struct forward_options *options = &forward->options;
    const struct model_shape *shape = &options->model->shape;
    struct backend *backend = options->backend;
    forward->turn_rows = options->samples < SAMPLE_TURN_ROWS ? options->samples : SAMPLE_TURN_ROWS;
    forward->layers = (struct layers){
        .model = options->model,
        .backend = backend,
        .pool = options->pool,
        .logical_blocks = options->logical_blocks,
        .rows = options->rows,
        .turn_rows = options->rows < LAYER_TURN_ROWS ? options->rows : LAYER_TURN_ROWS,
        .progress = options->progress,
        .progress_context = options->progress_context,
    };
    forward->layers.attention_scratch_bytes = backend->operations->attention_scratch_bytes(
        backend, forward->layers.turn_rows, shape->heads, shape->head_dim, options->context);
    struct region measure = {0};
    place_buffers(forward, &measure);
    forward->memory_bytes = measure.used;
    enum status status =
        measure.overflow
            ? STATUS_OUT_OF_MEMORY
            : backend->operations->memory_reserve(backend, measure.used, &forward->memory);
    if (status != STATUS_OK) {
        text_set(why, "cannot reserve the buffers of a step of %" PRIu32 " rows: %s", options->rows,
                 status_text(status));
        return status;
    }
    struct region region = {.base = forward->memory};
    place_buffers(forward, &region);
    uint64_t elements = (uint64_t)options->context * shape->head_dim;
    backend->operations->upload(backend, forward->layers.at.rope_table, forward->rope_table,
                                elements * sizeof(float));
    return STATUS_OK;
}

static enum status check_options(const struct forward_options *options, struct text *why)
{
    const struct model_shape *shape = &options->model->shape;
    const struct kv_geometry *pool = &options->pool->geometry;
    if (pool->layers != shape->layers || pool->kv_heads != shape->kv_heads ||
        pool->head_dim != shape->head_dim || pool->order != options->backend->kv_order) {
        text_set(why, "the KV pool was made for another model or backend");
        return STATUS_INVALID;
    }
    if (options->context == 0 || options->context > shape->context || options->rows == 0 ||
        options->samples == 0 || options->slots == 0 ||
        options->logical_blocks < kv_blocks_for(pool, options->context)) {
        text_set(why,
                 "%" PRIu32 " slots of %" PRIu32 " positions in %" PRIu32 " blocks, %" PRIu32
                 " rows: the model has %" PRIu32 " positions",
                 options->slots, options->context, options->logical_blocks, options->rows,
                 shape->context);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

enum status forward_open(const struct forward_options *options, struct forward **out_forward,
                         struct text *why)
{
    enum status status = check_options(options, why);
    if (status != STATUS_OK)
        return status;
    struct forward *forward = calloc(1, sizeof *forward);
    if (forward == NULL)
        return STATUS_OUT_OF_MEMORY;
    forward->options = *options;
    forward->samples = calloc(options->samples, sizeof *forward->samples);
    forward->errors = calloc(options->rows, sizeof *forward->errors);
    status = forward->samples != NULL && forward->errors != NULL ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    if (status == STATUS_OK)
        status = fill_rope_table(forward);
    if (status == STATUS_OK)
        status =
            options->backend->steps != NULL ? open_step(forward, why) : open_buffers(forward, why);
    if (status != STATUS_OK) {
        forward_close(forward);
        return status;
    }
    *out_forward = forward;
    return STATUS_OK;
}

void forward_close(struct forward *forward)
{
    if (forward == NULL)
        return;
    struct backend *backend = forward->options.backend;
    if (forward->step != NULL)
        backend->steps->close(forward->step);
    backend->operations->memory_release(backend, forward->memory, forward->memory_bytes);
    free(forward->rope_table);
    free(forward->samples);
    free(forward->errors);
    free(forward);
}

void forward_map_blocks(struct forward *forward, const struct block_run *run)
{
    struct kv_pool *pool = forward->options.pool;
    CHECK(run->slot < forward->options.slots && run->layer < pool->geometry.layers &&
          run->first_logical + run->count <= forward->options.logical_blocks);
    for (uint32_t i = 0; i < run->count; i++) {
        CHECK(run->blocks[i] >= 0 && (uint32_t)run->blocks[i] < pool->blocks);
        if (forward->options.poison_blocks)
            kv_pool_poison(pool, (uint32_t)run->blocks[i]);
    }
    struct backend *backend = forward->options.backend;
    uint64_t index = kv_table_index(&pool->geometry, forward->options.logical_blocks, run->slot,
                                    run->layer, run->first_logical);
    if (forward->step != NULL)
        backend->steps->map_blocks(forward->step, (uint32_t)index, run->blocks, run->count);
    else
        backend->operations->upload(backend, forward->layers.at.table + index, run->blocks,
                                    run->count * sizeof *run->blocks);
}

/* Logits of samples first .. first + count - 1 of the batch into the turn's buffer. */
static void compute_logits(const struct forward *forward, const struct batch *batch, uint32_t first,
                           uint32_t count)
{
    const struct model *model = forward->options.model;
    const struct buffers *at = &forward->layers.at;
    struct backend *backend = forward->options.backend;
    CHECK(count <= forward->turn_rows);
    backend->operations->upload(backend, at->sample_rows, batch->sample_rows + first,
                                count * sizeof *batch->sample_rows);
    backend->operations->gather(backend, &(struct gather_args){
                                             .input = at->hidden,
                                             .rows_taken = at->sample_rows,
                                             .rows = count,
                                             .columns = model->shape.width,
                                             .output = at->sample_hidden,
                                         });
    layers_norm(&forward->layers, at->sample_hidden, model->weights.output_norm, count,
                at->sample_hidden);
    const struct matmul_part output = {model->weights.output, at->logits};
    layers_multiply(&forward->layers, at->sample_hidden, count, &output);
}

static enum status sample_turn(const struct forward *forward, const struct batch *batch,
                               uint32_t first, uint32_t count, struct step_sample *out_samples)
{
    const struct model_shape *shape = &forward->options.model->shape;
    const struct buffers *at = &forward->layers.at;
    struct backend *backend = forward->options.backend;
    const struct backend_operations *operations = backend->operations;
    uint32_t tokens[SAMPLE_TURN_ROWS], errors[SAMPLE_TURN_ROWS] = {0};
    float logprobs[SAMPLE_TURN_ROWS];
    uint64_t hashes[SAMPLE_TURN_ROWS] = {0};
    operations->upload(backend, at->sampling, batch->sampling + first,
                       count * sizeof *batch->sampling);
    operations->upload(backend, at->sample_positions, batch->sample_positions + first,
                       count * sizeof *batch->sample_positions);
    operations->upload(backend, at->sample_errors, errors, count * sizeof *errors);
    operations->sample(backend, &(struct sample_args){
                                    .logits = at->logits,
                                    .sampling = at->sampling,
                                    .positions = at->sample_positions,
                                    .rows = count,
                                    .columns = shape->vocabulary,
                                    .vocabulary = shape->tokens,
                                    .tokens = at->sampled,
                                    .logprobs = at->logprobs,
                                    .row_errors = at->sample_errors,
                                });
    enum status status = STATUS_OK;
    if (forward->options.hash_logits) {
        operations->hash(backend, &(struct hash_args){
                                      .values = at->logits,
                                      .rows = count,
                                      .columns = shape->vocabulary,
                                      .hashes = at->hashes,
                                  });
        status = operations->download(backend, hashes, at->hashes, count * sizeof *hashes);
    }
    if (status == STATUS_OK)
        status = operations->download(backend, tokens, at->sampled, count * sizeof *tokens);
    if (status == STATUS_OK)
        status = operations->download(backend, logprobs, at->logprobs, count * sizeof *logprobs);
    if (status == STATUS_OK)
        status = operations->download(backend, errors, at->sample_errors, count * sizeof *errors);
    for (uint32_t i = 0; status == STATUS_OK && i < count; i++)
        out_samples[i] = (struct step_sample){tokens[i], logprobs[i], errors[i], hashes[i]};
    return status;
}

static enum status compute_samples(struct forward *forward, const struct batch *batch,
                                   struct step_sample *out_samples)
{
    for (uint32_t first = 0; first < batch->sample_count;) {
        uint32_t left = batch->sample_count - first;
        uint32_t count = left < forward->turn_rows ? left : forward->turn_rows;
        compute_logits(forward, batch, first, count);
        enum status status = sample_turn(forward, batch, first, count, out_samples + first);
        if (status != STATUS_OK)
            return status;
        first += count;
    }
    return STATUS_OK;
}

uint32_t forward_depth(const struct forward *forward)
{
    return forward->step != NULL ? STEPS_IN_FLIGHT : 1;
}

enum status forward_begin(struct forward *forward, const struct batch *batch)
{
    CHECK(forward->in_flight < forward_depth(forward));
    CHECK(batch->sample_count <= forward->options.samples);
    forward->options.pool->touched = true;
    forward->in_flight++;
    if (forward->step != NULL) {
        const struct step_batch step_batch = {
            .row_count = batch->row_count,
            .sample_count = batch->sample_count,
            .tokens = batch->tokens,
            .positions = batch->positions,
            .slots = batch->slots,
            .sample_rows = batch->sample_rows,
            .sample_positions = batch->sample_positions,
            .sampling = batch->sampling,
        };
        return forward->options.backend->steps->begin(forward->step, &step_batch);
    }
    forward->row_count = batch->row_count;
    forward->sample_count = batch->sample_count;
    enum status status = layers_compute(&forward->layers, batch, forward->errors);
    return status == STATUS_OK ? compute_samples(forward, batch, forward->samples) : status;
}

bool forward_ready(struct forward *forward)
{
    CHECK(forward->in_flight > 0);
    return forward->step == NULL || forward->options.backend->steps->ready(forward->step);
}

enum status forward_collect(struct forward *forward, struct step_sample *out_samples,
                            uint32_t *out_errors)
{
    CHECK(forward->in_flight > 0);
    forward->in_flight--;
    if (forward->step != NULL)
        return forward->options.backend->steps->collect(forward->step, out_samples, out_errors);
    memcpy(out_samples, forward->samples, forward->sample_count * sizeof *out_samples);
    memcpy(out_errors, forward->errors, forward->row_count * sizeof *out_errors);
    return STATUS_OK;
}

void forward_span(const struct forward *forward, struct step_span *out_span)
{
    *out_span = (struct step_span){0};
    if (forward->step != NULL)
        forward->options.backend->steps->span(forward->step, out_span);
}

enum status forward_logits(struct forward *forward, const struct batch *batch, uint32_t first,
                           uint32_t count, float *out_logits)
{
    struct backend *backend = forward->options.backend;
    uint64_t columns = forward->options.model->shape.vocabulary;
    CHECK(first <= batch->sample_count && count <= batch->sample_count - first);
    if (forward->step != NULL)
        return backend->steps->logits(forward->step, first, count, out_logits);
    for (uint32_t done = 0; done < count;) {
        uint32_t left = count - done;
        uint32_t turn = left < forward->turn_rows ? left : forward->turn_rows;
        compute_logits(forward, batch, first + done, turn);
        enum status status = backend->operations->download(backend, out_logits + done * columns,
                                                           forward->layers.at.logits,
                                                           turn * columns * sizeof *out_logits);
        if (status != STATUS_OK)
            return status;
        done += turn;
    }
    return STATUS_OK;
}
