#include "worker/forward.h"

#include "common/check.h"
#include "kernels/rope_table.h"
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

/* All pointers are backend memory inside one reservation. */
struct buffers {
    uint32_t *tokens; /* [row] */
    uint32_t *positions;
    uint32_t *slots;
    uint32_t *row_errors;
    float *hidden; /* [row][width] the residual stream */
    /* Of one turn of rows. */
    float *normed; /* [row][width] */
    float *q;      /* [row][heads * head_dim]; attention writes in place */
    float *k;      /* [row][kv_dim] */
    float *v;
    float *gate; /* [row][ffn_width] */
    float *up;
    void *prepared;
    void *attention_scratch;
    int32_t *table;    /* [slot][layer][logical] */
    float *rope_table; /* [position][cos, sin][head_dim / 2] */
    /* Of one turn of samples. */
    uint32_t *sample_rows;
    uint32_t *sample_positions;
    struct sampling *sampling;
    float *sample_hidden; /* [sample][width] */
    float *logits;        /* [sample][vocabulary] */
    uint32_t *sampled;
    float *logprobs;
    uint32_t *sample_errors;
    uint64_t *hashes;
};

/* Either `step` does the work as a whole, or the operations are called one after another into
 * `at`. */
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
    uint64_t attention_scratch_bytes;
    uint32_t turn_rows;  /* samples of one turn, at most */
    uint32_t layer_rows; /* rows of one turn, at most */
    struct buffers at;
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
    return forward->layer_rows > forward->turn_rows ? forward->layer_rows : forward->turn_rows;
}

static void place_buffers(struct forward *forward, struct region *region)
{
    const struct forward_options *options = &forward->options;
    const struct model_shape *shape = &options->model->shape;
    struct backend *backend = options->backend;
    uint64_t rows = options->rows, part = forward->layer_rows, turn = forward->turn_rows;
    uint64_t query = query_dim(shape), key = kv_dim(&options->pool->geometry);
    forward->at = (struct buffers){
        .tokens = region_take(region, rows, sizeof(uint32_t)),
        .positions = region_take(region, rows, sizeof(uint32_t)),
        .slots = region_take(region, rows, sizeof(uint32_t)),
        .row_errors = region_take(region, rows, sizeof(uint32_t)),
        .hidden = region_take(region, rows * shape->width, sizeof(float)),
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
        .attention_scratch = region_take(region, forward->attention_scratch_bytes, 1),
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
    forward->layer_rows = options->rows < LAYER_TURN_ROWS ? options->rows : LAYER_TURN_ROWS;
    forward->attention_scratch_bytes = backend->operations->attention_scratch_bytes(
        backend, forward->layer_rows, shape->heads, shape->head_dim, options->context);
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
    backend->operations->upload(backend, forward->at.rope_table, forward->rope_table,
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
        backend->operations->upload(backend, forward->at.table + index, run->blocks,
                                    run->count * sizeof *run->blocks);
}

static struct kv_view view_of(const struct forward *forward)
{
    return (struct kv_view){
        .geometry = forward->options.pool->geometry,
        .pool = forward->options.pool->memory,
        .table = forward->at.table,
        .logical_blocks = forward->options.logical_blocks,
    };
}

static void norm(const struct forward *forward, const float *input, const float *weight,
                 uint32_t rows, float *output)
{
    const struct model_shape *shape = &forward->options.model->shape;
    forward->options.backend->operations->rmsnorm(forward->options.backend,
                                                  &(struct rmsnorm_args){
                                                      .input = input,
                                                      .weight = weight,
                                                      .rows = rows,
                                                      .columns = shape->width,
                                                      .epsilon = shape->norm_epsilon,
                                                      .output = output,
                                                  });
}

/* Multiplies with up to three matrices; `input` was rounded before. */
static void product(const struct forward *forward, const float *input, uint32_t rows,
                    const struct matmul_part *parts, uint32_t part_count)
{
    struct backend *backend = forward->options.backend;
    struct matmul_args args = {
        .input = input,
        .prepared = forward->at.prepared,
        .rows = rows,
        .columns = parts[0].matrix->columns,
        .part_count = part_count,
    };
    for (uint32_t i = 0; i < part_count; i++)
        args.parts[i] = parts[i];
    backend->operations->matmul(backend, &args);
}

/* What rows are rounded to for these matrices. */
static uint32_t forms_for(const struct matmul_part *parts, uint32_t part_count)
{
    uint32_t forms = 0;
    for (uint32_t i = 0; i < part_count; i++)
        forms |= weight_type_form(parts[i].matrix->type);
    return forms;
}

/* Rounds `input` and multiplies it with one matrix. */
static void multiply(const struct forward *forward, const float *input, uint32_t rows,
                     const struct matmul_part *part)
{
    struct backend *backend = forward->options.backend;
    const struct prepare_args args = {
        .input = input,
        .rows = rows,
        .columns = part->matrix->columns,
        .output = forward->at.prepared,
        .forms = forms_for(part, 1),
    };
    backend->operations->prepare(backend, &args);
    product(forward, input, rows, part, 1);
}

/* Rows first .. first + count - 1 of the step. */
struct turn {
    uint32_t first, count;
};

static struct row_places places_of(const struct forward *forward, struct turn turn)
{
    return (struct row_places){.positions = forward->at.positions + turn.first,
                               .slots = forward->at.slots + turn.first};
}

static float *hidden_of(const struct forward *forward, struct turn turn)
{
    return forward->at.hidden + (uint64_t)turn.first * forward->options.model->shape.width;
}

static struct rope_args rotation_of(const struct forward *forward, float *values, struct turn turn,
                                    uint32_t heads)
{
    const struct model_shape *shape = &forward->options.model->shape;
    return (struct rope_args){
        .values = values,
        .positions = forward->at.positions + turn.first,
        .table = forward->at.rope_table,
        .rows = turn.count,
        .heads = heads,
        .head_dim = shape->head_dim,
        .rotary_dims = shape->head_dim,
    };
}

/* Adds `addend`, which may be NULL, to the residual stream; its norm goes to at->normed, rounded as
 * the matrices ask for. */
static void norm_for(const struct forward *forward, const float *addend, const float *weight,
                     struct turn turn, uint32_t forms)
{
    const struct model_shape *shape = &forward->options.model->shape;
    struct backend *backend = forward->options.backend;
    backend->operations->norm_prepare(backend, &(struct norm_prepare_args){
                                                   .residual = hidden_of(forward, turn),
                                                   .addend = addend,
                                                   .weight = weight,
                                                   .rows = turn.count,
                                                   .columns = shape->width,
                                                   .epsilon = shape->norm_epsilon,
                                                   .output = forward->at.normed,
                                                   .prepared = forward->at.prepared,
                                                   .forms = forms,
                                               });
}

static void add_to_hidden(const struct forward *forward, const float *addend, struct turn turn)
{
    forward->options.backend->operations->add(forward->options.backend,
                                              &(struct add_args){
                                                  .accumulator = hidden_of(forward, turn),
                                                  .addend = addend,
                                                  .rows = turn.count,
                                                  .columns = forward->options.model->shape.width,
                                              });
}

/* Keys and values go into the pool before the attention reads it, those of the chunk included. */
static void place_keys(const struct forward *forward, uint32_t layer_index, struct turn turn)
{
    const struct model_shape *shape = &forward->options.model->shape;
    const struct buffers *at = &forward->at;
    struct backend *backend = forward->options.backend;
    const struct rope_write_args args = {
        .queries = rotation_of(forward, at->q, turn, shape->heads),
        .keys = rotation_of(forward, at->k, turn, shape->kv_heads),
        .write =
            {
                .keys = at->k,
                .values = at->v,
                .places = places_of(forward, turn),
                .rows = turn.count,
                .layer = layer_index,
                .kv = view_of(forward),
                .row_errors = at->row_errors + turn.first,
            },
    };
    backend->operations->rope_write(backend, &args);
}

/* Leaves what it adds to the residual stream in at->normed. */
static void attend(const struct forward *forward, uint32_t layer_index, struct turn turn)
{
    const struct step_layer *layer = &forward->options.model->weights.layer[layer_index];
    const struct buffers *at = &forward->at;
    struct backend *backend = forward->options.backend;
    const struct matmul_part inputs[] = {{layer->q, at->q}, {layer->k, at->k}, {layer->v, at->v}};
    norm_for(forward, NULL, layer->attention_norm, turn, forms_for(inputs, 3));
    product(forward, at->normed, turn.count, inputs, 3);
    place_keys(forward, layer_index, turn);
    backend->operations->attention(backend, &(struct attention_args){
                                                .queries = at->q,
                                                .places = places_of(forward, turn),
                                                .rows = turn.count,
                                                .layer = layer_index,
                                                .heads = forward->options.model->shape.heads,
                                                .kv = view_of(forward),
                                                .scratch = at->attention_scratch,
                                                .scratch_bytes = forward->attention_scratch_bytes,
                                                .output = at->q,
                                            });
    const struct matmul_part output = {layer->attention_output, at->normed};
    multiply(forward, at->q, turn.count, &output);
}

/* Adds at->normed before its norm, and its own output after its products. */
static void feed_forward(const struct forward *forward, uint32_t layer_index, struct turn turn)
{
    const struct step_layer *layer = &forward->options.model->weights.layer[layer_index];
    const struct buffers *at = &forward->at;
    struct backend *backend = forward->options.backend;
    const struct matmul_part inputs[] = {{layer->gate, at->gate}, {layer->up, at->up}};
    const struct matmul_part output = {layer->down, at->normed};
    norm_for(forward, at->normed, layer->ffn_norm, turn, forms_for(inputs, 2));
    product(forward, at->normed, turn.count, inputs, 2);
    const struct silu_prepare_args args = {
        .silu =
            {
                .gate = at->gate,
                .up = at->up,
                .rows = turn.count,
                .columns = forward->options.model->shape.ffn_width,
                .output = at->gate,
            },
        .prepared = at->prepared,
        .forms = forms_for(&output, 1),
    };
    backend->operations->silu_prepare(backend, &args);
    product(forward, at->gate, turn.count, &output, 1);
    add_to_hidden(forward, at->normed, turn);
}

/* Turns of equal length, so that the last one is no short rest. */
static void compute_layer(const struct forward *forward, uint32_t layer, uint32_t rows)
{
    uint32_t turns = (rows + forward->layer_rows - 1) / forward->layer_rows;
    for (uint32_t first = 0; turns > 0; turns--) {
        struct turn turn = {first, (rows - first + turns - 1) / turns};
        attend(forward, layer, turn);
        feed_forward(forward, layer, turn);
        first += turn.count;
    }
}

static enum status compute_layers(struct forward *forward, const struct batch *batch,
                                  uint32_t *out_errors)
{
    const struct forward_options *options = &forward->options;
    const struct buffers *at = &forward->at;
    struct backend *backend = options->backend;
    uint32_t rows = batch->row_count;
    CHECK(rows > 0 && rows <= options->rows);
    uint64_t bytes = rows * sizeof(uint32_t);
    memset(out_errors, 0, bytes);
    backend->operations->upload(backend, at->tokens, batch->tokens, bytes);
    backend->operations->upload(backend, at->positions, batch->positions, bytes);
    backend->operations->upload(backend, at->slots, batch->slots, bytes);
    backend->operations->upload(backend, at->row_errors, out_errors, bytes);
    backend->operations->embed(backend, &(struct embed_args){
                                            .table = options->model->weights.embedding,
                                            .tokens = at->tokens,
                                            .rows = rows,
                                            .output = at->hidden,
                                        });
    for (uint32_t layer = 0; layer < options->model->shape.layers; layer++) {
        compute_layer(forward, layer, rows);
        if (options->progress != NULL)
            options->progress(options->progress_context, layer + 1);
    }
    return backend->operations->download(backend, out_errors, at->row_errors, bytes);
}

/* Logits of samples first .. first + count - 1 of the batch into the turn's buffer. */
static void compute_logits(const struct forward *forward, const struct batch *batch, uint32_t first,
                           uint32_t count)
{
    const struct model *model = forward->options.model;
    const struct buffers *at = &forward->at;
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
    norm(forward, at->sample_hidden, model->weights.output_norm, count, at->sample_hidden);
    const struct matmul_part output = {model->weights.output, at->logits};
    multiply(forward, at->sample_hidden, count, &output);
}

static enum status sample_turn(const struct forward *forward, const struct batch *batch,
                               uint32_t first, uint32_t count, struct step_sample *out_samples)
{
    const struct model_shape *shape = &forward->options.model->shape;
    const struct buffers *at = &forward->at;
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
    enum status status = compute_layers(forward, batch, forward->errors);
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
        enum status status =
            backend->operations->download(backend, out_logits + done * columns, forward->at.logits,
                                          turn * columns * sizeof *out_logits);
        if (status != STATUS_OK)
            return status;
        done += turn;
    }
    return STATUS_OK;
}
