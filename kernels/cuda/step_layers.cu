/* The sequence of kernels of one step. Few rows: own fused kernels; more: attention and one kernel
 * for all between two of them (layer_launch.cu), as long as the read of the weights bounds it; else
 * own products (wide.cu) and the library's, with kernels of one pass between them. Which of
 * them serves a row is a matter of time alone, its bits are the same. */
#include "kernels/cuda/step_state.h"
#include "kernels/cuda/wide.h"

#include "kernels/constants.h"

#include <math.h>

const struct product *step_product(const struct step *step, enum shape_kind kind, uint32_t layer)
{
    const struct step_layer *at = &step->options.model.layer[layer];
    const struct matrix *matrices[] = {at->q, at->attention_output, at->gate, at->down,
                                       step->options.model.output};
    return &((const struct cuda_matrix *)matrices[kind])->product->view;
}

enum status step_library(struct step *step, enum shape_kind kind, const struct product *product,
                         const __nv_bfloat16 *input, uint32_t rows, void *output)
{
    const float one = 1.0f, zero = 0.0f;
    const cudaDataType_t type = kind == SHAPE_LOGITS ? CUDA_R_32F : CUDA_R_16BF;
    cublasStatus_t result = CUBLAS_STATUS_EXECUTION_FAILED;
    if (!step->library_fails)
        result = step->cuda->library.gemm(step->cuda->products, CUBLAS_OP_T, CUBLAS_OP_N, (int)product->rows,
                              (int)rows, (int)product->columns, &one, product->values, CUDA_R_16BF,
                              (int)product->columns, input, CUDA_R_16BF, (int)product->columns,
                              &zero, output, type, (int)product->rows, CUBLAS_COMPUTE_32F,
                              CUBLAS_GEMM_DEFAULT);
    if (result == CUBLAS_STATUS_SUCCESS)
        return STATUS_OK;
    log_error("library_failed", "what=gemm rows=%u columns=%u status=%d", product->rows,
              product->columns, (int)result);
    return STATUS_DEVICE_LOST;
}

/* Own kernels for all rows: 32 at a time. */
static enum status multiply_own(struct step *step, enum shape_kind kind,
                                const struct product *product, const __nv_bfloat16 *input,
                                uint32_t rows, void *output)
{
    struct few_args args = {};
    args.product = *product;
    args.row_tiles = FEW_ROWS_MAX / 8;
    args.operand_rows = FEW_ROWS_MAX;
    args.count = step->at.full;
    args.operand = step->at.operand;
    args.output = kind == SHAPE_LOGITS ? FEW_TO_LOGITS : FEW_TO_ROWS;
    cudaError_t error = cudaSuccess;
    for (uint32_t row = 0; row < rows && error == cudaSuccess; row += FEW_ROWS_MAX) {
        struct operand_args order = {};
        order.rows = input + (uint64_t)row * product->columns;
        order.row_count = rows - row;
        order.columns = product->columns;
        order.out_rows = FEW_ROWS_MAX;
        order.output = step->at.operand;
        args.logits = (float *)output + (uint64_t)row * product->rows;
        args.rows_out = (__nv_bfloat16 *)output + (uint64_t)row * product->rows;
        error = operand_launch(&order, step->cuda->stream);
        if (error == cudaSuccess)
            error = few_launch(&args, step->cuda->multiprocessors, step->cuda->stream);
    }
    return cuda_status(error, "multiply");
}

enum status step_multiply_many(struct step *step, enum shape_kind kind,
                               const struct product *product, const __nv_bfloat16 *input,
                               uint32_t rows, void *output)
{
    const uint32_t padded = library_rows(rows);
    if (step->library_serves[kind])
        return step_library(step, kind, product, input, padded, output);
    return multiply_own(step, kind, product, input, padded, output);
}

struct kv_target step_target(const struct step *step, uint32_t layer, uint32_t exchange)
{
    struct kv_target target = {};
    target.geometry = step->options.geometry;
    target.pool = (uint8_t *)step->options.pool;
    target.table = step->at.table;
    target.logical_blocks = step->options.logical_blocks;
    target.layer = layer;
    target.heads = step->options.model.heads;
    target.positions = step->at.positions;
    target.slots = step->at.slots;
    target.rope = step->at.rope;
    target.queries = step->at.queries;
    target.row_errors = step->exchanges[exchange].answer.row_errors;
    return target;
}

float step_attention_scale(const struct step_model *model)
{
    return (float)(LOG2_E / sqrt((double)model->head_dim));
}

/* ---- Who serves ---- */

/* Whether products of this number of rows are those of wide.cu, as far as they serve a kind: their
 * weights lie in the order of the persistent step. */
static bool goes_wide(const struct step *step, uint32_t rows)
{
    return step->stream.weights != NULL && rows > STREAM_ROWS_SERVED && wide_rows(rows) != 0;
}

/* The instance of the layer kernel that serves steps of so many rows; NULL: separate kernels do. */
static const struct layer_args *layer_of(const struct step *step, uint32_t rows)
{
    if (!goes_wide(step, rows) || !step->stream.layers || rows > LAYER_ROWS_MAX)
        return NULL;
    uint32_t instance = 0;
    while (layer_rows(instance) < rows)
        instance++;
    return &step->stream.layer[instance];
}

/* Rows of the blocks in which wide.cu takes the activations of a product; 0: another way is faster
 * (measured). */
static uint32_t wide_blocks(const struct step *step, enum shape_kind kind, uint32_t rows)
{
    static const uint32_t most[SHAPE_COUNT] = {64, 64, WIDE_ROWS_MAX, 32, 128};
    return goes_wide(step, rows) && rows <= most[kind] ? wide_rows(rows) : 0;
}

static bool is_few(const struct step *step, uint32_t rows)
{
    return rows <= FEW_ROWS_SERVED && !goes_wide(step, rows);
}

/* Rows of an operand of few rows: as they are in one tile, whole tiles from there on. */
static uint32_t operand_rows(uint32_t rows)
{
    return rows <= 8 ? rows : rows <= 16 ? 16 : FEW_ROWS_MAX;
}

/* ---- Attention ---- */

/* CTAs over the segments of a row: enough to fill the device, never more than there are. */
static uint32_t splits_for(const struct step *step, uint32_t rows)
{
    const uint32_t items = rows * step->options.model.kv_heads;
    if (items >= step->split_items_max)
        return 1;
    const uint32_t wanted = (2 * step->cuda->multiprocessors + items - 1) / items;
    return wanted < step->segments_max ? wanted : step->segments_max;
}

/* Whether attention takes the products as they are: those of many rows, where all decode. */
static bool attends_to_products(const struct step *step, const struct step_plan *plan)
{
    return !is_few(step, plan->rows) && plan->decoding == plan->rows;
}

static enum status attend(struct step *step, const struct step_plan *plan, uint32_t layer)
{
    const struct layer_args *whole = layer_of(step, plan->rows);
    const uint32_t blocks =
        whole != NULL ? whole->rows : wide_blocks(step, SHAPE_OUTPUT, plan->rows);
    const struct step_model *model = &step->options.model;
    struct attention_launch launch = {};
    launch.kv = step_target(step, layer, plan->exchange);
    launch.kv_heads = model->kv_heads;
    launch.scale = step_attention_scale(model);
    launch.products = attends_to_products(step, plan) ? step->at.products : NULL;
    launch.count = step->at.decoding;
    launch.spans = step->at.spans;
    launch.span_count = plan->span_count;
    launch.span_tiles = plan->span_tiles;
    launch.rows = plan->decoding;
    launch.splits = plan->decoding > 0 ? splits_for(step, plan->decoding) : 1;
    launch.multiprocessors = step->cuda->multiprocessors;
    launch.partials = step->at.partials;
    launch.arrivals = step->at.arrivals;
    launch.segments_max = step->segments_max;
    launch.out_rows = is_few(step, plan->rows) ? operand_rows(plan->rows) : blocks;
    launch.out_blocks = blocks != 0;
    launch.output = step->at.attended;
    cudaError_t error = cudaSuccess;
    if (plan->decoding > 0)
        error = attention_decode(&launch, step->cuda->stream);
    if (error == cudaSuccess && plan->span_count > 0)
        error = attention_prefill(&launch, step->cuda->stream);
    return cuda_status(error, "attention");
}

/* ---- Few rows ---- */

/* What all products of a layer share. */
static struct few_args few_of(const struct step *step, enum shape_kind kind, uint32_t layer,
                              uint32_t rows)
{
    struct few_args args = {};
    args.product = *step_product(step, kind, layer);
    args.row_tiles = rows <= 8 ? 1 : rows <= 16 ? 2 : 4;
    args.operand_rows = operand_rows(rows);
    args.count = &step->at.counts->rows;
    args.norm_epsilon = step->options.model.norm_epsilon;
    args.progress_value = layer;
    /* only the first product of a step follows the kernel that writes counts and places */
    args.settled = kind != SHAPE_HEADS || layer > 0 || args.row_tiles > 1;
    return args;
}

/* The normalised rows as operand: by the product itself for one tile of rows, else by a kernel. */
static cudaError_t normalise(struct step *step, struct few_args *args, const float *weight,
                             uint32_t rows)
{
    args->norm_weight = weight;
    args->residual = step->at.residual;
    if (args->row_tiles == 1)
        return cudaSuccess;
    struct norm_args norm = {};
    norm.residual = step->at.residual;
    norm.rows_taken = args->rows_taken;
    norm.count = args->count;
    norm.weight = weight;
    norm.epsilon = args->norm_epsilon;
    norm.rows = rows;
    norm.columns = args->product.columns;
    norm.out_rows = args->operand_rows;
    norm.output = step->at.normed;
    args->operand = step->at.normed;
    return norm_launch(&norm, step->cuda->stream);
}

static enum status few_layer(struct step *step, const struct step_plan *plan, uint32_t layer)
{
    const struct step_layer *weights = &step->options.model.layer[layer];
    const uint32_t rows = plan->rows, processors = step->cuda->multiprocessors;
    cudaStream_t stream = step->cuda->stream;
    struct few_args args = few_of(step, SHAPE_HEADS, layer, rows);
    args.output = FEW_TO_HEADS;
    args.kv = step_target(step, layer, plan->exchange);
    args.progress = step->progress;
    cudaError_t error = normalise(step, &args, weights->attention_norm, plan->rows);
    if (error == cudaSuccess)
        error = few_launch(&args, processors, stream);
    enum status status = cuda_status(error, "heads");
    if (status == STATUS_OK)
        status = attend(step, plan, layer);
    if (status != STATUS_OK)
        return status;
    args = few_of(step, SHAPE_OUTPUT, layer, rows);
    args.output = FEW_TO_RESIDUAL;
    args.operand = step->at.attended;
    args.residual_out = step->at.residual;
    error = few_launch(&args, processors, stream);
    args = few_of(step, SHAPE_PAIRS, layer, rows);
    args.output = FEW_TO_GATED;
    args.gated = step->at.gated;
    if (error == cudaSuccess)
        error = normalise(step, &args, weights->ffn_norm, plan->rows);
    if (error == cudaSuccess)
        error = few_launch(&args, processors, stream);
    args = few_of(step, SHAPE_DOWN, layer, rows);
    args.output = FEW_TO_RESIDUAL;
    args.operand = step->at.gated;
    args.residual_out = step->at.residual;
    if (error == cudaSuccess)
        error = few_launch(&args, processors, stream);
    return cuda_status(error, "layer");
}

/* ---- Many rows ---- */

/* By wide.cu, from activations in blocks. `output`: rows of heads, output and down; gate and up
 * become gated rows, and logits have a place of their own. */
static enum status multiply_wide(struct step *step, enum shape_kind kind, uint32_t layer,
                                 uint32_t rows, const __nv_bfloat16 *input, __nv_bfloat16 *output)
{
    struct wide_args args = {};
    args.shape = step->stream.shape;
    args.weights = (const uint8_t *)step->stream.weights;
    args.layer = layer;
    args.kind = (uint32_t)kind;
    args.rows = wide_rows(rows);
    args.count = kind == SHAPE_LOGITS ? &step->at.counts->samples : &step->at.counts->rows;
    args.activations = input;
    args.gated = step->at.gated;
    args.out_blocks = wide_blocks(step, SHAPE_DOWN, rows) != 0;
    args.logits = step->at.logits;
    args.rows_out = output;
    return cuda_status(wide_launch(&args, step->cuda->stream), "wide");
}

/* `wide`: rows of the blocks that own kernels of many rows read; 0: rows as they are. */
static cudaError_t add_and_norm(struct step *step, const struct step_plan *plan,
                                const __nv_bfloat16 *addend, const float *weight, uint32_t progress,
                                uint32_t wide)
{
    struct norm_args norm = {};
    norm.residual = step->at.residual;
    norm.addend = addend;
    norm.residual_out = step->at.residual;
    norm.count = &step->at.counts->rows;
    norm.weight = weight;
    norm.epsilon = step->options.model.norm_epsilon;
    norm.rows = plan->rows;
    norm.columns = step->options.model.width;
    norm.out_rows = wide;
    norm.out_blocks = norm.next_early = wide != 0;
    norm.output = step->at.normed;
    norm.progress = step->progress;
    norm.progress_value = progress;
    return norm_launch(&norm, step->cuda->stream);
}

/* The same by the library and a kernel of its own. */
static enum status multiply_and_gate(struct step *step, const struct step_plan *plan,
                                     uint32_t layer)
{
    const struct step_buffers *at = &step->at;
    enum status status =
        step_multiply_many(step, SHAPE_PAIRS, step_product(step, SHAPE_PAIRS, layer), at->normed,
                           plan->rows, at->products);
    if (status != STATUS_OK)
        return status;
    struct gate_args gate = {};
    gate.products = at->products;
    gate.count = &at->counts->rows;
    gate.rows = plan->rows;
    gate.width = step->options.model.ffn_width;
    gate.output = at->gated;
    return cuda_status(gate_launch(&gate, step->cuda->stream), "gate");
}

static enum status many_layer(struct step *step, const struct step_plan *plan, uint32_t layer)
{
    const struct step_layer *weights = &step->options.model.layer[layer];
    const struct step_buffers *at = &step->at;
    cudaStream_t stream = step->cuda->stream;
    const uint32_t rows = plan->rows;
    auto multiply = [&](enum shape_kind kind, const __nv_bfloat16 *input, __nv_bfloat16 *output) {
        if (wide_blocks(step, kind, rows) != 0)
            return multiply_wide(step, kind, layer, rows, input, output);
        return step_multiply_many(step, kind, step_product(step, kind, layer), input, rows, output);
    };
    enum status status =
        cuda_status(add_and_norm(step, plan, layer > 0 ? at->added : NULL, weights->attention_norm,
                                 layer, wide_blocks(step, SHAPE_HEADS, rows)),
                    "norm");
    if (status == STATUS_OK)
        status = multiply(SHAPE_HEADS, at->normed, at->products);
    if (status != STATUS_OK)
        return status;
    const struct kv_target target = step_target(step, layer, plan->exchange);
    if (!attends_to_products(step, plan))
        status = cuda_status(
            heads_launch(&target, at->products, &at->counts->rows, rows, stream), "heads");
    if (status == STATUS_OK)
        status = attend(step, plan, layer);
    if (status == STATUS_OK)
        status = multiply(SHAPE_OUTPUT, at->attended, at->added);
    const uint32_t wide = wide_blocks(step, SHAPE_PAIRS, rows);
    if (status == STATUS_OK)
        status = cuda_status(
            add_and_norm(step, plan, at->added, weights->ffn_norm, layer, wide), "norm");
    if (status == STATUS_OK)
        status = wide != 0 ? multiply(SHAPE_PAIRS, at->normed, NULL)
                           : multiply_and_gate(step, plan, layer);
    return status == STATUS_OK ? multiply(SHAPE_DOWN, at->gated, at->added) : status;
}

/* From attention to attention by one kernel. */
static enum status whole_layers(struct step *step, const struct step_plan *plan,
                                const struct layer_args *instance)
{
    const struct step_buffers *at = &step->at;
    cudaStream_t stream = step->cuda->stream;
    const uint32_t rows = plan->rows;
    enum status status = cuda_status(
        add_and_norm(step, plan, NULL, step->options.model.layer[0].attention_norm, 0,
                     wide_rows(rows)),
        "norm");
    if (status == STATUS_OK)
        status = multiply_wide(step, SHAPE_HEADS, 0, rows, at->normed, at->products);
    struct layer_args args = *instance;
    for (; status == STATUS_OK && args.layer < step->options.model.layers; args.layer++) {
        const struct kv_target target = step_target(step, args.layer, plan->exchange);
        if (!attends_to_products(step, plan))
            status = cuda_status(
                heads_launch(&target, at->products, &at->counts->rows, rows, stream), "heads");
        if (status == STATUS_OK)
            status = attend(step, plan, args.layer);
        if (status == STATUS_OK)
            status = cuda_status(layer_launch(&args, stream), "layer");
    }
    return status;
}

/* ---- Logits and samples ---- */

/* `addend` is what the last layer of many rows left to be added. */
static enum status output_logits(struct step *step, const struct step_plan *plan,
                                 const __nv_bfloat16 *addend)
{
    const struct step_buffers *at = &step->at;
    const float *weight = step->options.model.output_norm;
    const uint32_t *taken = plan->samples_in_order ? NULL : at->sample_rows;
    if (is_few(step, plan->samples) && addend == NULL) {
        struct few_args args = few_of(step, SHAPE_LOGITS, 0, plan->samples);
        args.output = FEW_TO_LOGITS;
        args.count = &at->counts->samples;
        args.rows_taken = taken;
        args.logits = at->logits;
        args.progress = step->progress;
        args.progress_value = step->options.model.layers;
        cudaError_t error = normalise(step, &args, weight, plan->samples);
        if (error == cudaSuccess)
            error = few_launch(&args, step->cuda->multiprocessors, step->cuda->stream);
        return cuda_status(error, "logits");
    }
    const bool few = is_few(step, plan->samples);
    const uint32_t wide = wide_blocks(step, SHAPE_LOGITS, plan->samples);
    struct norm_args norm = {};
    norm.residual = at->residual;
    norm.addend = addend;
    norm.residual_out = at->residual;
    norm.rows_taken = taken;
    norm.count = &at->counts->samples;
    norm.weight = weight;
    norm.epsilon = step->options.model.norm_epsilon;
    norm.rows = plan->samples;
    norm.columns = step->options.model.width;
    norm.out_rows = few ? operand_rows(plan->samples) : wide;
    norm.out_blocks = norm.next_early = wide != 0;
    norm.output = at->normed;
    norm.progress = step->progress;
    norm.progress_value = step->options.model.layers;
    enum status status = cuda_status(norm_launch(&norm, step->cuda->stream), "norm");
    if (status == STATUS_OK && wide != 0)
        return multiply_wide(step, SHAPE_LOGITS, step->options.model.layers, plan->samples,
                             at->normed, NULL);
    if (status != STATUS_OK || !few)
        return status != STATUS_OK
                   ? status
                   : step_multiply_many(step, SHAPE_LOGITS, step_product(step, SHAPE_LOGITS, 0),
                                        at->normed, plan->samples, at->logits);
    struct few_args args = few_of(step, SHAPE_LOGITS, 0, plan->samples);
    args.output = FEW_TO_LOGITS;
    args.count = &at->counts->samples;
    args.operand = at->normed;
    args.logits = at->logits;
    return cuda_status(few_launch(&args, step->cuda->multiprocessors, step->cuda->stream),
                       "logits");
}

static enum status draw(struct step *step, const struct step_plan *plan)
{
    const struct step_buffers *at = &step->at;
    struct draw_args args = {};
    args.logits = at->logits;
    args.counts = at->counts;
    args.sampling = at->sampling;
    args.positions = at->sample_positions;
    args.slots = at->sample_slots;
    args.samples = plan->samples;
    args.columns = step->options.model.vocabulary;
    args.vocabulary = step->options.model.tokens;
    args.partials = at->sample_partials;
    args.slot_tokens = at->slot_tokens;
    args.finished = at->finished;
    args.answer = step->exchanges[plan->exchange].answer;
    return cuda_status(sample_launch(&args, step->cuda->stream), "sample");
}

static enum status begin(struct step *step, const struct step_plan *plan)
{
    const struct step_buffers *at = &step->at;
    struct begin_args args = {};
    args.order = step->exchanges[plan->exchange].order;
    args.rows = plan->rows;
    args.samples = plan->samples;
    args.entries_max = step->entries_max;
    args.counts = at->counts;
    args.decoding = at->decoding;
    args.positions = at->positions;
    args.slots = at->slots;
    args.sample_rows = at->sample_rows;
    args.sample_positions = at->sample_positions;
    args.sample_slots = at->sample_slots;
    args.sampling = at->sampling;
    args.spans = at->spans;
    args.table = at->table;
    args.slot_tokens = at->slot_tokens;
    args.embedding = ((const struct cuda_matrix *)step->options.model.embedding)->values;
    args.width = step->options.model.width;
    args.residual = at->residual;
    args.begun_ns = &step->exchanges[plan->exchange].answer.span[0];
    return cuda_status(begin_launch(&args, step->cuda->stream), "begin");
}

enum status step_enqueue(struct step *step, const struct step_plan *plan)
{
    const bool few = is_few(step, plan->rows);
    enum status status = begin(step, plan);
    if (status == STATUS_OK && plan->fault != BACKEND_FAULT_NONE) {
        const struct fault_args fault = {plan->fault, step->options.model.width,
                                         step->at.residual};
        status = cuda_status(fault_launch(&fault, step->cuda->stream), "fault");
    }
    if (status == STATUS_OK && plan->persistent) {
        status = step_stream_enqueue(step, plan);
        return status == STATUS_OK ? draw(step, plan) : status;
    }
    const struct layer_args *whole = layer_of(step, plan->rows);
    const uint32_t separate = whole == NULL ? step->options.model.layers : 0;
    if (status == STATUS_OK && whole != NULL)
        status = whole_layers(step, plan, whole);
    for (uint32_t layer = 0; status == STATUS_OK && layer < separate; layer++)
        status = few ? few_layer(step, plan, layer) : many_layer(step, plan, layer);
    if (status == STATUS_OK && plan->samples > 0)
        status = output_logits(step, plan, few || whole != NULL ? NULL : step->at.added);
    return status == STATUS_OK ? draw(step, plan) : status;
}
