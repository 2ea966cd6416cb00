/* The persistent step inside the backend: its memory, its weights in the order of their use, and
 * when it serves. Where the model has no instance, or there is no memory for another copy of the
 * weights, steps of few rows run as separate kernels: slower, same bits. */
#include "kernels/cuda/step_state.h"

#include "kernels/constants.h"

#include <math.h>

/* Measured on an H200 (docs/KERNELS.md). */
static const struct stream_pace PACE = {1100, 5000, 1100, 1000, 1100, 3, 2, 4};

static uint32_t rows_of(uint32_t index)
{
    return 1u << index;
}

/* Deals the rows of a product out. */
static struct stream_product deal(const struct step *step, enum shape_kind kind,
                                  uint32_t unit_groups, uint32_t ctas)
{
    const struct product *product = step_product(step, kind, 0);
    const uint32_t unit_rows = 8 * unit_groups;
    const uint32_t units = (product->rows + unit_rows - 1) / unit_rows;
    struct stream_product dealt = {};
    dealt.rows = product->rows;
    dealt.columns = product->columns;
    dealt.unit_groups = unit_groups;
    dealt.units_of_all = units / ctas;
    dealt.units_of_first = units % ctas;
    return dealt;
}

/* The largest number of units that one of `ctas` owns, of all products of a layer. */
static bool owns_more(const struct step *step, uint32_t ctas, uint32_t than)
{
    for (uint32_t kind = 0; kind < STREAM_LOGITS; kind++) {
        const uint32_t unit_groups = kind == STREAM_HEADS ? 1 : 2;
        const struct stream_product few = deal(step, (enum shape_kind)kind, unit_groups, ctas);
        const struct stream_product many = deal(step, (enum shape_kind)kind, unit_groups, than);
        if (stream_groups(&few, 0) > stream_groups(&many, 0))
            return true;
    }
    return false;
}

/* Every CTA owns rows of heads, pairs and logits: it may not run ahead of the others. Of all numbers
 * of CTAs that are about as many as multiprocessors the smallest at which none has more to do: the
 * rows are dealt out more evenly then. */
static uint32_t choose_ctas(const struct step *step)
{
    uint32_t most = step->cuda->multiprocessors;
    const enum shape_kind kinds[] = {SHAPE_HEADS, SHAPE_PAIRS, SHAPE_LOGITS};
    for (enum shape_kind kind : kinds) {
        const uint32_t rows = step_product(step, kind, 0)->rows;
        const uint32_t units = rows / (kind == SHAPE_HEADS ? 8 : 16);
        most = units < most ? units : most;
    }
    uint32_t ctas = most;
    while (ctas > most - most / 16 && !owns_more(step, ctas - 1, most))
        ctas--;
    return ctas;
}

static struct stream_shape choose_shape(const struct step *step)
{
    struct stream_shape shape = {};
    shape.ctas = choose_ctas(step);
    shape.layers = step->options.model.layers;
    for (uint32_t kind = 0; kind < STREAM_KINDS; kind++)
        shape.product[kind] =
            deal(step, (enum shape_kind)kind, kind == STREAM_HEADS ? 1 : 2, shape.ctas);
    for (uint32_t cta = 0; cta < shape.ctas; cta++) {
        const struct stream_product *logits = &shape.product[STREAM_LOGITS];
        const uint64_t bytes = shape.layers * stream_layer_bytes(&shape, cta) +
                               stream_bytes(stream_groups(logits, cta), logits->columns);
        shape.share = bytes > shape.share ? bytes : shape.share;
    }
    return shape;
}

static_assert((int)STREAM_HEADS == SHAPE_HEADS && (int)STREAM_LOGITS == SHAPE_LOGITS &&
                  (int)STREAM_KINDS == SHAPE_COUNT,
              "the kinds of products are the same");

/* Places of one copy of the exchange for `rows` rows; its size. */
static uint32_t place_exchange(const struct step *step, uint32_t rows, struct stream_exchange *out)
{
    const struct step_model *model = &step->options.model;
    const uint32_t query = model->heads * model->head_dim;
    const uint32_t widths[] = {query + 2 * kv_dim(&step->options.geometry), query, model->width,
                               model->ffn_width, model->width};
    uint32_t *places[] = {&out->heads, &out->attended, &out->middle, &out->gated, &out->next};
    uint32_t used = 0;
    for (int i = 0; i < 5; i++) {
        *places[i] = used;
        used += (widths[i] * 2 * rows + 127) / 128 * 128;
    }
    return used;
}

static uint64_t partials_bytes(const struct step *step)
{
    const struct step_model *model = &step->options.model;
    return (uint64_t)2 * STREAM_ROWS_MAX * STREAM_SEGMENTS_MAX * model->heads *
           (model->head_dim + 2) * sizeof(float);
}

static uint64_t layer_exchange_bytes(const struct step *step)
{
    return (uint64_t)2 * LAYER_EXCHANGED_MAX * step->options.model.width * sizeof(__nv_bfloat16);
}

/* [partials][two copies for each number of rows][exchange of the layer kernel], all unwritten, then
 * [norms][signals][parities]. */
static enum status take_memory(struct step *step)
{
    struct stream_state *stream = &step->stream;
    const struct step_model *model = &step->options.model;
    struct stream_exchange place = {};
    uint64_t unwritten = partials_bytes(step);
    for (uint32_t i = 0; i < STREAM_INSTANCES; i++)
        unwritten += 2 * (uint64_t)place_exchange(step, rows_of(i), &place);
    unwritten += layer_exchange_bytes(step);
    const uint64_t norms = (uint64_t)(2 * model->layers + 1) * model->width * sizeof(float);
    const uint64_t zeros =
        LAYER_INSTANCES * sizeof(struct layer_signals) + STREAM_INSTANCES * sizeof(uint32_t);
    stream->memory_bytes = unwritten + norms + zeros;
    stream->weights_bytes = stream->shape.share * stream->shape.ctas;
    enum status status = cuda_take(step->cuda, stream->memory_bytes, false, &stream->memory);
    if (status == STATUS_OK)
        status = cuda_take(step->cuda, stream->weights_bytes, false, &stream->weights);
    if (status != STATUS_OK)
        return status;
    stream->norms = (float *)((uint8_t *)stream->memory + unwritten);
    stream->exchange = (__nv_bfloat16 *)((uint8_t *)stream->norms - layer_exchange_bytes(step));
    stream->signals = (struct layer_signals *)((uint8_t *)stream->norms + norms);
    stream->parities = (uint32_t *)(stream->signals + LAYER_INSTANCES);
    cudaError_t error = cudaMemsetAsync(stream->memory, 0xff, unwritten, step->cuda->stream);
    if (error == cudaSuccess)
        error = cudaMemsetAsync(stream->signals, 0, zeros, step->cuda->stream);
    return cuda_status(error, "stream");
}

static enum status fill_memory(struct step *step)
{
    struct stream_state *stream = &step->stream;
    const struct step_model *model = &step->options.model;
    cudaStream_t order = step->cuda->stream;
    const uint64_t row = model->width * sizeof(float);
    cudaError_t error = cudaSuccess;
    for (uint32_t layer = 0; layer < model->layers && error == cudaSuccess; layer++) {
        float *to = stream->norms + (uint64_t)2 * layer * model->width;
        error = cudaMemcpyAsync(to, model->layer[layer].attention_norm, row,
                                cudaMemcpyDeviceToDevice, order);
        if (error == cudaSuccess)
            error = cudaMemcpyAsync(to + model->width, model->layer[layer].ffn_norm, row,
                                    cudaMemcpyDeviceToDevice, order);
        for (uint32_t kind = 0; kind < STREAM_LOGITS && error == cudaSuccess; kind++)
            error = stream_pack(&stream->shape, step_product(step, (enum shape_kind)kind, layer),
                                layer, kind, (uint8_t *)stream->weights, order);
    }
    if (error == cudaSuccess)
        error = cudaMemcpyAsync(stream->norms + (uint64_t)2 * model->layers * model->width,
                                model->output_norm, row, cudaMemcpyDeviceToDevice, order);
    if (error == cudaSuccess)
        error = stream_pack(&stream->shape, step_product(step, SHAPE_LOGITS, 0), model->layers,
                            STREAM_LOGITS, (uint8_t *)stream->weights, order);
    return cuda_status(error, "stream");
}

/* Arguments of each instance that fits; the row errors depend on the exchange of the step. */
static enum status prepare_instances(struct step *step)
{
    struct stream_state *stream = &step->stream;
    const struct step_model *model = &step->options.model;
    uint8_t *next = (uint8_t *)stream->memory + partials_bytes(step);
    for (uint32_t i = 0; i < STREAM_INSTANCES; i++) {
        if (!stream_serves(rows_of(i), model->width, model->head_dim))
            break;
        struct stream_args args = {};
        args.shape = stream->shape;
        args.exchange.bytes = place_exchange(step, rows_of(i), &args.exchange);
        args.exchange.base = next;
        next += 2 * (uint64_t)args.exchange.bytes;
        args.exchange.partials = (float *)stream->memory;
        args.exchange.parity = stream->parities + i;
        args.pace = PACE;
        args.planted = step->options.planted;
        args.kv = step_target(step, 0, 0);
        args.weights = (const uint8_t *)stream->weights;
        args.norms = stream->norms;
        args.residual = step->at.residual;
        args.counts = step->at.counts;
        args.logits = step->at.logits;
        args.progress = step->progress;
        args.norm_epsilon = model->norm_epsilon;
        args.scale = step_attention_scale(model);
        const cudaError_t error = stream_prepare(&args, rows_of(i));
        if (error == cudaErrorInvalidConfiguration)
            break; /* so many rows leave no room for the ring */
        if (error != cudaSuccess)
            return cuda_status(error, "stream");
        stream->args[stream->instances++] = args;
    }
    return STATUS_OK;
}

/* Arguments of the layer kernel, but for the layer. */
static enum status prepare_layers(struct step *step)
{
    struct stream_state *stream = &step->stream;
    if (!layer_serves(&stream->shape, step->cuda->multiprocessors))
        return STATUS_OK;
    for (uint32_t i = 0; i < LAYER_INSTANCES; i++) {
        struct layer_args args = {};
        args.shape = stream->shape;
        args.weights = (const uint8_t *)stream->weights;
        args.norms = stream->norms;
        args.rows = layer_rows(i);
        args.count = &step->at.counts->rows;
        args.attended = step->at.attended;
        args.residual = step->at.residual;
        args.normed = step->at.normed;
        args.gated = step->at.gated;
        args.heads = step->at.products;
        args.signals = stream->signals + i;
        args.exchange = stream->exchange;
        args.progress = step->progress;
        args.norm_epsilon = step->options.model.norm_epsilon;
        args.planted = step->options.planted;
        const cudaError_t error = layer_prepare(&args);
        if (error != cudaSuccess)
            return cuda_status(error, "layer");
        stream->layer[i] = args;
    }
    stream->layers = true;
    return STATUS_OK;
}

enum status step_stream_open(struct step *step)
{
    struct stream_state *stream = &step->stream;
    const struct step_model *model = &step->options.model;
    stream->shape = choose_shape(step);
    if (step->options.separate_kernels || stream->shape.ctas == 0 ||
        stream_groups(&stream->shape.product[STREAM_OUTPUT], 0) > STREAM_RESIDUAL_MAX ||
        !stream_serves(1, model->width, model->head_dim))
        return STATUS_OK;
    enum status status = take_memory(step);
    if (status == STATUS_OUT_OF_MEMORY) {
        step_stream_close(step);
        stream->memory = stream->weights = NULL;
        log_warn("persistent_step_off",
                 "needed=%llu effect=\"no memory for a third copy of the weights: results "
                 "unchanged, steps of few rows slower\"",
                 (unsigned long long)(stream->memory_bytes + stream->weights_bytes));
        return STATUS_OK;
    }
    if (status == STATUS_OK)
        status = fill_memory(step);
    if (status == STATUS_OK)
        status = prepare_layers(step);
    return status == STATUS_OK ? prepare_instances(step) : status;
}

void step_stream_close(struct step *step)
{
    (void)cudaFree(step->stream.memory);
    (void)cudaFree(step->stream.weights);
}

uint32_t step_stream_rows(const struct step *step, uint32_t instance)
{
    return instance < step->stream.instances ? rows_of(instance) : 0;
}

bool step_stream_serves(const struct step *step, const struct step_plan *plan,
                        const uint32_t *positions, uint32_t *out_instance)
{
    const struct stream_state *stream = &step->stream;
    uint32_t instance = 0, segments = 0;
    while (instance < stream->instances && rows_of(instance) < plan->rows)
        instance++;
    if (instance >= stream->instances)
        return false;
    for (uint32_t row = 0; row < plan->rows; row++) {
        const uint32_t own = positions[row] / ATTENTION_SEGMENT_KEYS + 1;
        if (own > STREAM_SEGMENTS_MAX)
            return false;
        segments += own;
    }
    *out_instance = instance;
    return segments * step->options.model.kv_heads <= stream->shape.ctas * STREAM_ITEMS_MAX;
}

enum status step_stream_enqueue(struct step *step, const struct step_plan *plan)
{
    uint32_t instance = 0;
    while (rows_of(instance) < plan->rows)
        instance++;
    struct stream_args args = step->stream.args[instance];
    args.kv.row_errors = step->exchanges[plan->exchange].answer.row_errors;
    return cuda_status(stream_launch(&args, rows_of(instance), step->cuda->stream), "stream");
}
