#include "worker/layers.h"

#include "common/check.h"

#include <string.h>

static struct kv_view view_of(const struct layers *layers)
{
    return (struct kv_view){
        .geometry = layers->pool->geometry,
        .pool = layers->pool->memory,
        .table = layers->at.table,
        .logical_blocks = layers->logical_blocks,
    };
}

void layers_norm(const struct layers *layers, const float *input, const float *weight,
                 uint32_t rows, float *output)
{
    const struct model_shape *shape = &layers->model->shape;
    layers->backend->operations->rmsnorm(layers->backend, &(struct rmsnorm_args){
                                                              .input = input,
                                                              .weight = weight,
                                                              .rows = rows,
                                                              .columns = shape->width,
                                                              .epsilon = shape->norm_epsilon,
                                                              .output = output,
                                                          });
}

/* What the next attention reads, and how much of the products before it was made: each of them
 * fetches as much of those keys and values as its part of the work. And the weights of the next
 * product. */
struct ahead {
    struct kv_reads reads;
    uint64_t done, whole; /* products of a row */
    const struct matrix *next[MATMUL_PARTS_MAX];
    uint32_t next_count;
};

static void expect(struct ahead *ahead, const struct matrix *const *next, uint32_t count)
{
    CHECK(count <= MATMUL_PARTS_MAX);
    for (uint32_t i = 0; i < count; i++)
        ahead->next[i] = next[i];
    ahead->next_count = count;
}

static void take_part(struct ahead *ahead, struct matmul_args *args)
{
    args->soon = &ahead->reads;
    args->soon_from = (uint32_t)(ahead->done * PART_WHOLE / ahead->whole);
    for (uint32_t i = 0; i < args->part_count; i++)
        ahead->done += (uint64_t)args->parts[i].matrix->rows * args->columns;
    args->soon_to = (uint32_t)(ahead->done * PART_WHOLE / ahead->whole);
    memcpy(args->next, ahead->next, sizeof args->next);
    args->next_count = ahead->next_count;
}

/* Multiplies with up to three matrices; `input` was rounded before. `ahead` may be NULL. */
static void product(const struct layers *layers, const float *input, uint32_t rows,
                    const struct matmul_part *parts, uint32_t part_count, struct ahead *ahead)
{
    struct backend *backend = layers->backend;
    struct matmul_args args = {
        .input = input,
        .prepared = layers->at.prepared,
        .rows = rows,
        .columns = parts[0].matrix->columns,
        .part_count = part_count,
    };
    for (uint32_t i = 0; i < part_count; i++)
        args.parts[i] = parts[i];
    if (ahead != NULL)
        take_part(ahead, &args);
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

static void multiply(const struct layers *layers, const float *input, uint32_t rows,
                     const struct matmul_part *part, struct ahead *ahead)
{
    struct backend *backend = layers->backend;
    const struct prepare_args args = {
        .input = input,
        .rows = rows,
        .columns = part->matrix->columns,
        .output = layers->at.prepared,
        .forms = forms_for(part, 1),
    };
    backend->operations->prepare(backend, &args);
    product(layers, input, rows, part, 1, ahead);
}

void layers_multiply(const struct layers *layers, const float *input, uint32_t rows,
                     const struct matmul_part *part)
{
    multiply(layers, input, rows, part, NULL);
}

/* Rows first .. first + count - 1 of the step on their way through a layer. */
struct turn {
    uint32_t layer, first, count;
};

static struct row_places places_of(const struct layers *layers, struct turn turn)
{
    return (struct row_places){.positions = layers->at.positions + turn.first,
                               .slots = layers->at.slots + turn.first};
}

/* From the attention before: the products up to the one of `next` are those of a whole layer. */
static void look_ahead(const struct layers *layers, struct turn next, struct ahead *ahead)
{
    const struct model_shape *shape = &layers->model->shape;
    uint64_t query = (uint64_t)shape->heads * shape->head_dim,
             key = kv_dim(&layers->pool->geometry);
    *ahead = (struct ahead){
        .reads = {places_of(layers, next), next.count, next.layer, view_of(layers)},
        .whole = (2 * (query + key) + UINT64_C(3) * shape->ffn_width) * shape->width,
    };
}

static float *hidden_of(const struct layers *layers, struct turn turn)
{
    return layers->at.hidden + (uint64_t)turn.first * layers->model->shape.width;
}

static float *addend_of(const struct layers *layers, struct turn turn)
{
    return layers->at.addend + (uint64_t)turn.first * layers->model->shape.width;
}

static struct rope_args rotation_of(const struct layers *layers, float *values, struct turn turn,
                                    uint32_t heads)
{
    const struct model_shape *shape = &layers->model->shape;
    return (struct rope_args){
        .values = values,
        .positions = layers->at.positions + turn.first,
        .table = layers->at.rope_table,
        .rows = turn.count,
        .heads = heads,
        .head_dim = shape->head_dim,
        .rotary_dims = shape->head_dim,
    };
}

/* Adds `addend`, which may be NULL, to the residual stream; its norm goes to at->normed, rounded as
 * the matrices ask for. */
static void norm_for(const struct layers *layers, const float *addend, const float *weight,
                     struct turn turn, uint32_t forms)
{
    const struct model_shape *shape = &layers->model->shape;
    struct backend *backend = layers->backend;
    backend->operations->norm_prepare(backend, &(struct norm_prepare_args){
                                                   .residual = hidden_of(layers, turn),
                                                   .addend = addend,
                                                   .weight = weight,
                                                   .rows = turn.count,
                                                   .columns = shape->width,
                                                   .epsilon = shape->norm_epsilon,
                                                   .output = layers->at.normed,
                                                   .prepared = layers->at.prepared,
                                                   .forms = forms,
                                               });
}

/* What the last layer adds: no norm follows that would. */
static void add_last(const struct layers *layers, uint32_t rows)
{
    layers->backend->operations->add(layers->backend, &(struct add_args){
                                                          .accumulator = layers->at.hidden,
                                                          .addend = layers->at.addend,
                                                          .rows = rows,
                                                          .columns = layers->model->shape.width,
                                                      });
}

/* Keys and values go into the pool before the attention reads it, those of the chunk included. */
static void place_keys(const struct layers *layers, struct turn turn)
{
    const struct model_shape *shape = &layers->model->shape;
    const struct buffers *at = &layers->at;
    struct backend *backend = layers->backend;
    const struct rope_write_args args = {
        .queries = rotation_of(layers, at->q, turn, shape->heads),
        .keys = rotation_of(layers, at->k, turn, shape->kv_heads),
        .write =
            {
                .keys = at->k,
                .values = at->v,
                .places = places_of(layers, turn),
                .rows = turn.count,
                .layer = turn.layer,
                .kv = view_of(layers),
                .row_errors = at->row_errors + turn.first,
            },
    };
    backend->operations->rope_write(backend, &args);
}

/* Adds what the layer before left for it to the residual stream, and leaves what it adds itself.
 * `next` comes after this turn. */
static void attend(const struct layers *layers, struct turn turn, struct turn next,
                   struct ahead *ahead)
{
    const struct step_layer *layer = &layers->model->weights.layer[turn.layer];
    const struct buffers *at = &layers->at;
    struct backend *backend = layers->backend;
    const struct matmul_part inputs[] = {{layer->q, at->q}, {layer->k, at->k}, {layer->v, at->v}};
    const float *addend = turn.layer > 0 ? addend_of(layers, turn) : NULL;
    norm_for(layers, addend, layer->attention_norm, turn, forms_for(inputs, 3));
    expect(ahead, (const struct matrix *[]){layer->attention_output}, 1);
    product(layers, at->normed, turn.count, inputs, 3, ahead);
    place_keys(layers, turn);
    backend->operations->attention(backend, &(struct attention_args){
                                                .queries = at->q,
                                                .places = places_of(layers, turn),
                                                .rows = turn.count,
                                                .layer = turn.layer,
                                                .heads = layers->model->shape.heads,
                                                .kv = view_of(layers),
                                                .scratch = at->attention_scratch,
                                                .scratch_bytes = layers->attention_scratch_bytes,
                                                .output = at->q,
                                            });
    look_ahead(layers, next, ahead);
    expect(ahead, (const struct matrix *[]){layer->gate, layer->up}, 2);
    const struct matmul_part output = {layer->attention_output, addend_of(layers, turn)};
    multiply(layers, at->q, turn.count, &output, ahead);
}

/* What the first product of a turn multiplies with; behind the last one come the logits. */
static void expect_inputs(const struct layers *layers, struct turn turn, struct ahead *ahead)
{
    const struct weights *weights = &layers->model->weights;
    const struct step_layer *layer = &weights->layer[turn.layer];
    if (turn.count == 0)
        expect(ahead, (const struct matrix *[]){weights->output}, 1);
    else
        expect(ahead, (const struct matrix *[]){layer->q, layer->k, layer->v}, 3);
}

/* Adds what the attention left, and leaves what it adds itself. */
static void feed_forward(const struct layers *layers, struct turn turn, struct turn next,
                         struct ahead *ahead)
{
    const struct step_layer *layer = &layers->model->weights.layer[turn.layer];
    const struct buffers *at = &layers->at;
    struct backend *backend = layers->backend;
    const struct matmul_part inputs[] = {{layer->gate, at->gate}, {layer->up, at->up}};
    const struct matmul_part output = {layer->down, addend_of(layers, turn)};
    norm_for(layers, addend_of(layers, turn), layer->ffn_norm, turn, forms_for(inputs, 2));
    expect(ahead, (const struct matrix *[]){layer->down}, 1);
    product(layers, at->normed, turn.count, inputs, 2, ahead);
    const struct silu_prepare_args args = {
        .silu =
            {
                .gate = at->gate,
                .up = at->up,
                .rows = turn.count,
                .columns = layers->model->shape.ffn_width,
                .output = at->gate,
            },
        .prepared = at->prepared,
        .forms = forms_for(&output, 1),
    };
    backend->operations->silu_prepare(backend, &args);
    expect_inputs(layers, next, ahead);
    product(layers, at->gate, turn.count, &output, 1, ahead);
}

/* Turn `index` of the step, which has `turns` in each layer: of equal length, so that the last one
 * is no short rest. Behind the last layer nothing comes. */
static struct turn turn_at(const struct layers *layers, uint32_t rows, uint32_t turns,
                           uint32_t index)
{
    uint32_t layer = index / turns, part = index % turns;
    if (layer == layers->model->shape.layers)
        return (struct turn){0};
    uint32_t first = (uint32_t)((uint64_t)rows * part / turns);
    uint32_t end = (uint32_t)((uint64_t)rows * (part + 1) / turns);
    return (struct turn){layer, first, end - first};
}

/* All turns of a layer, then those of the next. */
static void compute_layers(const struct layers *layers, uint32_t rows)
{
    uint32_t turns = (rows + layers->turn_rows - 1) / layers->turn_rows;
    struct turn turn = turn_at(layers, rows, turns, 0);
    struct ahead ahead;
    look_ahead(layers, turn, &ahead);
    for (uint32_t index = 0; index < layers->model->shape.layers * turns; index++) {
        struct turn next = turn_at(layers, rows, turns, index + 1);
        attend(layers, turn, next, &ahead);
        feed_forward(layers, turn, next, &ahead);
        if ((index + 1) % turns == 0 && layers->progress != NULL)
            layers->progress(layers->progress_context, turn.layer + 1);
        turn = next;
    }
    add_last(layers, rows);
}

enum status layers_compute(const struct layers *layers, const struct batch *batch,
                           uint32_t *out_errors)
{
    const struct buffers *at = &layers->at;
    struct backend *backend = layers->backend;
    uint32_t rows = batch->row_count;
    CHECK(rows > 0 && rows <= layers->rows);
    uint64_t bytes = rows * sizeof(uint32_t);
    memset(out_errors, 0, bytes);
    backend->operations->upload(backend, at->tokens, batch->tokens, bytes);
    backend->operations->upload(backend, at->positions, batch->positions, bytes);
    backend->operations->upload(backend, at->slots, batch->slots, bytes);
    backend->operations->upload(backend, at->row_errors, out_errors, bytes);
    backend->operations->embed(backend, &(struct embed_args){
                                            .table = layers->model->weights.embedding,
                                            .tokens = at->tokens,
                                            .rows = rows,
                                            .output = at->hidden,
                                        });
    compute_layers(layers, rows);
    return backend->operations->download(backend, out_errors, at->row_errors, bytes);
}
