#include "worker/weights.h"

#include "common/check.h"
#include "common/float16.h"

#define XXH_INLINE_ALL
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* Where a tensor of the file goes: a matrix, or a run of floats in `vectors`. Both NULL: it is not
 * computed with. */
struct destination {
    struct matrix **matrix;
    const float **vector;
    uint32_t interleaved_heads; /* 0: rows stay where they are */
    enum model_tensor role;
    uint32_t layer;
};

struct loader {
    const struct weights_source *source;
    struct backend *backend;
    struct weights *weights;
    struct destination *destinations; /* owned [tensors of the file] */
    uint32_t *row_order;              /* owned [heads * head_dim] */
    float *vectors;                   /* owned, host copy of weights->vectors */
    uint64_t vectors_used;            /* floats */
};

/* 0 for a type that is no weight. */
static uint32_t weight_type_of(uint32_t type)
{
    static const uint8_t types[] = {
        [GGUF_TENSOR_F32] = WEIGHT_TYPE_F32,   [GGUF_TENSOR_F16] = WEIGHT_TYPE_F16,
        [GGUF_TENSOR_BF16] = WEIGHT_TYPE_BF16, [GGUF_TENSOR_Q8_0] = WEIGHT_TYPE_Q8_0,
        [GGUF_TENSOR_Q4_0] = WEIGHT_TYPE_Q4_0, [GGUF_TENSOR_Q4_1] = WEIGHT_TYPE_Q4_1,
    };
    return type < sizeof types ? types[type] : 0;
}

void weights_half_split_order(uint32_t heads, uint32_t head_dim, uint32_t *out_order)
{
    uint32_t pairs = head_dim / 2;
    for (uint32_t head = 0; head < heads; head++)
        for (uint32_t half = 0; half < 2; half++)
            for (uint32_t pair = 0; pair < pairs; pair++)
                out_order[head * head_dim + half * pairs + pair] =
                    head * head_dim + 2 * pair + half;
}

/* Which field takes which tensor. Heads stand interleaved in GGUF only. */
static struct destination destination_of(struct loader *loader, enum model_tensor role,
                                         uint32_t index)
{
    struct weights *weights = loader->weights;
    const struct model_shape *shape = loader->source->shape;
    bool interleaved = model_file_kind_of(loader->source->file) == MODEL_FILE_GGUF;
    struct step_layer *layer = &weights->layer[index];
    switch (role) {
    case MODEL_TENSOR_EMBEDDING:
        return (struct destination){.matrix = &weights->embedding};
    case MODEL_TENSOR_OUTPUT_NORM:
        return (struct destination){.vector = &weights->output_norm};
    case MODEL_TENSOR_OUTPUT:
        /* A directory that ties may still hold a copy of the embedding. */
        return (struct destination){.matrix = shape->tied_output ? NULL : &weights->output};
    case MODEL_TENSOR_ATTENTION_NORM:
        return (struct destination){.vector = &layer->attention_norm};
    case MODEL_TENSOR_ATTENTION_Q:
        return (struct destination){.matrix = &layer->q,
                                    .interleaved_heads = interleaved ? shape->heads : 0};
    case MODEL_TENSOR_ATTENTION_K:
        return (struct destination){.matrix = &layer->k,
                                    .interleaved_heads = interleaved ? shape->kv_heads : 0};
    case MODEL_TENSOR_ATTENTION_V:
        return (struct destination){.matrix = &layer->v};
    case MODEL_TENSOR_ATTENTION_OUTPUT:
        return (struct destination){.matrix = &layer->attention_output};
    case MODEL_TENSOR_FFN_NORM:
        return (struct destination){.vector = &layer->ffn_norm};
    case MODEL_TENSOR_FFN_GATE:
        return (struct destination){.matrix = &layer->gate};
    case MODEL_TENSOR_FFN_UP:
        return (struct destination){.matrix = &layer->up};
    case MODEL_TENSOR_FFN_DOWN:
        return (struct destination){.matrix = &layer->down};
    case MODEL_TENSOR_ROPE_FACTORS:
    case MODEL_TENSOR_ROTARY_FREQUENCIES:
    case MODEL_TENSOR_COUNT:
        break;
    }
    return (struct destination){0};
}

/* Tensors are read in the order of the file, so that the disk is read once and forwards. */
static void plan_destinations(struct loader *loader)
{
    const struct weights_source *source = loader->source;
    const struct model_file_tensor *first = model_file_tensor_at(source->file, 0);
    for (enum model_tensor role = MODEL_TENSOR_EMBEDDING; role < MODEL_TENSOR_COUNT; role++)
        for (uint32_t layer = 0; layer < source->shape->layers; layer++) {
            const struct model_file_tensor *tensor = model_file_find(source->file, role, layer);
            if (tensor == NULL)
                continue;
            loader->destinations[tensor - first] = destination_of(loader, role, layer);
            loader->destinations[tensor - first].role = role;
            loader->destinations[tensor - first].layer = layer;
        }
}

static float element(uint32_t type, const uint8_t *bytes, uint64_t index)
{
    uint16_t half;
    float value;
    if (type == GGUF_TENSOR_F32) {
        memcpy(&value, bytes + index * sizeof value, sizeof value);
        return value;
    }
    memcpy(&half, bytes + index * sizeof half, sizeof half);
    return type == GGUF_TENSOR_F16 ? fp16_to_float(half) : bf16_to_float(half);
}

static enum status load_vector(struct loader *loader, const struct model_file_tensor *tensor,
                               const float **vector, struct text *why)
{
    float *host = loader->vectors + loader->vectors_used;
    for (uint64_t i = 0; i < tensor->extent[0]; i++) {
        host[i] = element(tensor->type, tensor->content, i);
        if (!isfinite(host[i]))
            return text_refuse(why, STATUS_BAD_FILE, "tensor", tensor->name,
                               "holds a value that is not finite at index %" PRIu64, i);
    }
    *vector = loader->weights->vectors + loader->vectors_used;
    loader->vectors_used += tensor->extent[0];
    return STATUS_OK;
}

/* Which matrices a product takes together; a step multiplies the others alone. */
static void name_parts(const struct model_file *file, const struct destination *destination,
                       struct matrix_source *source)
{
    static const enum model_tensor together[][MATMUL_PARTS_MAX] = {
        {MODEL_TENSOR_ATTENTION_Q, MODEL_TENSOR_ATTENTION_K, MODEL_TENSOR_ATTENTION_V},
        {MODEL_TENSOR_FFN_GATE, MODEL_TENSOR_FFN_UP, MODEL_TENSOR_COUNT},
    };
    const enum model_tensor *parts = NULL;
    for (size_t i = 0; i < sizeof together / sizeof together[0]; i++)
        for (uint32_t part = 0; part < MATMUL_PARTS_MAX; part++)
            if (together[i][part] == destination->role) {
                parts = together[i];
                source->part = part;
            }
    for (uint32_t part = 0; parts != NULL && part < MATMUL_PARTS_MAX; part++)
        if (parts[part] != MODEL_TENSOR_COUNT)
            source->part_rows[part] =
                (uint32_t)model_file_find(file, parts[part], destination->layer)->extent[1];
}

static enum status load_matrix(struct loader *loader, const struct model_file_tensor *tensor,
                               const struct destination *destination, struct text *why)
{
    struct matrix_source source = {
        .type = weight_type_of(tensor->type),
        .rows = (uint32_t)tensor->extent[1],
        .columns = (uint32_t)tensor->extent[0],
        .bytes = tensor->content,
    };
    CHECK(source.rows * weight_row_bytes(source.type, source.columns) == tensor->bytes);
    name_parts(loader->source->file, destination, &source);
    if (destination->interleaved_heads != 0) {
        uint32_t head_dim = loader->source->shape->head_dim;
        CHECK(destination->interleaved_heads * head_dim == source.rows);
        weights_half_split_order(destination->interleaved_heads, head_dim, loader->row_order);
        source.row_order = loader->row_order;
    }
    struct backend *backend = loader->backend;
    enum status status = backend->operations->matrix_load(backend, &source, destination->matrix);
    if (status != STATUS_OK)
        return text_refuse(why, status, "tensor", tensor->name, "cannot be loaded: %s",
                           status_text(status));
    loader->weights->bytes += (*destination->matrix)->bytes;
    return STATUS_OK;
}

static enum status load_tensors(struct loader *loader, struct text *why)
{
    const struct weights_source *source = loader->source;
    XXH3_state_t hash;
    CHECK(XXH3_128bits_reset(&hash) == XXH_OK);
    uint64_t bytes_done = 0, bytes_total = 0;
    for (uint32_t i = 0; i < model_file_tensor_count(source->file); i++)
        bytes_total += model_file_tensor_at(source->file, i)->bytes;
    for (uint32_t i = 0; i < model_file_tensor_count(source->file); i++) {
        const struct model_file_tensor *tensor = model_file_tensor_at(source->file, i);
        const struct destination *destination = &loader->destinations[i];
        CHECK(XXH3_128bits_update(&hash, tensor->content, tensor->bytes) == XXH_OK);
        enum status status = STATUS_OK;
        if (destination->matrix != NULL)
            status = load_matrix(loader, tensor, destination, why);
        else if (destination->vector != NULL)
            status = load_vector(loader, tensor, destination->vector, why);
        if (status != STATUS_OK)
            return status;
        model_file_drop(source->file, tensor);
        bytes_done += tensor->bytes;
        if (source->progress != NULL)
            source->progress(source->progress_context, bytes_done, bytes_total);
    }
    XXH128_canonical_t canonical;
    XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(&hash));
    memcpy(loader->weights->tensor_hash.bytes, &canonical, sizeof canonical);
    return STATUS_OK;
}

/* Tells the backend which matrices share their input. */
static enum status join_matrices(struct weights *weights, const struct model_shape *shape,
                                 struct text *why)
{
    struct backend *backend = weights->backend;
    enum status status = STATUS_OK;
    for (uint32_t i = 0; status == STATUS_OK && i < weights->layers; i++) {
        struct step_layer *layer = &weights->layer[i];
        const struct {
            struct matrix *parts[3];
            uint32_t count;
            enum matrix_join_order order;
        } joins[] = {{{layer->q, layer->k, layer->v}, 3, MATRIX_JOIN_HEADS},
                     {{layer->attention_output}, 1, MATRIX_JOIN_PLAIN},
                     {{layer->gate, layer->up}, 2, MATRIX_JOIN_PAIRS},
                     {{layer->down}, 1, MATRIX_JOIN_PLAIN}};
        for (size_t j = 0; status == STATUS_OK && j < sizeof joins / sizeof joins[0]; j++)
            status = backend->operations->matrix_join(backend, joins[j].parts, joins[j].count,
                                                      joins[j].order, shape->head_dim);
    }
    if (status == STATUS_OK)
        status = backend->operations->matrix_join(backend, &weights->output, 1, MATRIX_JOIN_PLAIN,
                                                  shape->head_dim);
    if (status != STATUS_OK)
        text_set(why, "the %s backend cannot lay out matrices of width %u, ffn width %u: %s",
                 backend->name, shape->width, shape->ffn_width, status_text(status));
    return status;
}

enum status weights_load(const struct weights_source *source, struct backend *backend,
                         struct weights *out_weights, struct text *why)
{
    const struct model_shape *shape = source->shape;
    struct weights weights = {.backend = backend, .layers = shape->layers};
    uint64_t vector_floats = (2 * (uint64_t)shape->layers + 1) * shape->width;
    weights.vectors_bytes = vector_floats * sizeof(float);
    weights.layer = calloc(shape->layers, sizeof *weights.layer);
    struct loader loader = {
        .source = source,
        .backend = backend,
        .weights = &weights,
        .destinations = calloc(model_file_tensor_count(source->file), sizeof *loader.destinations),
        .row_order = calloc((size_t)shape->heads * shape->head_dim, sizeof *loader.row_order),
        .vectors = calloc((size_t)vector_floats, sizeof *loader.vectors),
    };
    enum status status = STATUS_OUT_OF_MEMORY;
    if (weights.layer != NULL && loader.destinations != NULL && loader.row_order != NULL &&
        loader.vectors != NULL) {
        void *memory = NULL;
        status = backend->operations->memory_reserve(backend, weights.vectors_bytes, &memory);
        weights.vectors = memory;
    }
    if (status == STATUS_OK) {
        weights.bytes = weights.vectors_bytes;
        plan_destinations(&loader);
        status = load_tensors(&loader, why);
    } else {
        text_set(why, "not enough memory for the weights");
    }
    if (status == STATUS_OK) {
        CHECK(loader.vectors_used == vector_floats);
        backend->operations->upload(backend, weights.vectors, loader.vectors,
                                    weights.vectors_bytes);
        if (shape->tied_output)
            weights.output = weights.embedding;
        status = join_matrices(&weights, shape, why);
    }
    if (status == STATUS_OK)
        *out_weights = weights;
    else
        weights_free(&weights);
    free(loader.destinations);
    free(loader.row_order);
    free(loader.vectors);
    return status;
}

void weights_free(struct weights *weights)
{
    struct backend *backend = weights->backend;
    if (backend == NULL)
        return;
    const struct backend_operations *operations = backend->operations;
    for (uint32_t i = 0; weights->layer != NULL && i < weights->layers; i++) {
        struct step_layer *layer = &weights->layer[i];
        struct matrix *matrices[] = {layer->q,    layer->k,  layer->v,   layer->attention_output,
                                     layer->gate, layer->up, layer->down};
        for (size_t j = 0; j < sizeof matrices / sizeof matrices[0]; j++)
            operations->matrix_free(backend, matrices[j]);
    }
    if (weights->output != weights->embedding)
        operations->matrix_free(backend, weights->output);
    operations->matrix_free(backend, weights->embedding);
    operations->memory_release(backend, weights->vectors, weights->vectors_bytes);
    free(weights->layer);
    *weights = (struct weights){0};
}
