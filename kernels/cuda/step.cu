/* Steps of the CUDA backend: memory, graphs, and what goes between host and device.
 *
 * The host writes an order into pinned memory and launches; the first kernel of the step reads it,
 * the last one writes the answer and, when that has arrived, the time of the step's end into pinned
 * memory, where the host looks for it. A step whose rows are all sampled decodes is one launch of a
 * graph that was captured at start for its number of rows, rounded up; up to 4 rows it holds the
 * persistent step. Two orders alternate, so the second step can begin while the first runs. */
#include "kernels/cuda/step_state.h"

extern "C" {
#include "common/clock.h"
}

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdlib.h>
#include <string.h>

enum { BUFFER_ALIGNMENT = 256, LOOK_AT_DEVICE_EVERY = 4096 };

/* ---- Memory ---- */

/* Hands out a reservation piece by piece; with base NULL it only measures. */
struct region {
    uint8_t *base;
    uint64_t used;
};

template <typename ITEM> static ITEM *take(struct region *region, uint64_t count)
{
    ITEM *piece = region->base == NULL ? NULL : (ITEM *)(region->base + region->used);
    region->used +=
        (count * sizeof(ITEM) + BUFFER_ALIGNMENT - 1) / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
    return piece;
}

static uint64_t largest(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

static void place_buffers(struct step *step, struct region *region)
{
    const struct step_options *options = &step->options;
    const struct step_model *model = &options->model;
    struct step_buffers *at = &step->at;
    const uint64_t rows = library_rows((uint32_t)largest(options->rows, options->samples));
    const uint64_t samples = library_rows(options->samples);
    const uint64_t query = (uint64_t)model->heads * model->head_dim;
    const uint64_t keys = kv_dim(&options->geometry);
    const uint64_t products = largest(query + 2 * keys, 2 * (uint64_t)model->ffn_width);
    const uint64_t widest = largest(model->width, largest(query, model->ffn_width));
    const uint64_t chunks = (model->tokens + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
    at->counts = take<struct step_counts>(region, 1);
    at->decoding = take<uint32_t>(region, 1);
    at->finished = take<uint32_t>(region, 1);
    at->full = take<uint32_t>(region, 1);
    at->positions = take<uint32_t>(region, rows);
    at->slots = take<uint32_t>(region, rows);
    at->sample_rows = take<uint32_t>(region, samples);
    at->sample_positions = take<uint32_t>(region, samples);
    at->sample_slots = take<uint32_t>(region, samples);
    at->sampling = take<struct sampling>(region, samples);
    at->spans = take<struct attention_span>(region, rows);
    at->table = take<int32_t>(
        region, kv_table_entries(&options->geometry, options->logical_blocks, options->slots));
    at->rope = take<float>(region, (uint64_t)options->context * model->head_dim);
    at->slot_tokens = take<uint32_t>(region, options->slots);
    at->residual = take<__nv_bfloat16>(region, rows * model->width);
    at->normed = take<__nv_bfloat16>(region, rows * model->width);
    at->products = take<__nv_bfloat16>(region, rows * products);
    at->queries = take<__nv_bfloat16>(region, rows * query);
    at->attended = take<__nv_bfloat16>(region, rows * query);
    at->gated = take<__nv_bfloat16>(region, rows * model->ffn_width);
    at->added = take<__nv_bfloat16>(region, rows * model->width);
    at->operand = take<__nv_bfloat16>(region, FEW_ROWS_MAX * widest);
    at->logits = take<float>(region, samples * model->vocabulary);
    at->partials = take<float>(region, (uint64_t)step->split_items_max * step->segments_max * 8 *
                                           (model->head_dim + 2));
    at->arrivals = take<uint32_t>(region, step->split_items_max);
    at->sample_partials = take<struct sample_partial>(region, samples * chunks);
}

static void place_pinned(struct step *step, struct region *region)
{
    const struct step_options *options = &step->options;
    step->progress = take<uint32_t>(region, 1);
    for (struct exchange &exchange : step->exchanges) {
        struct step_order filled = {};
        filled.header = take<struct step_header>(region, 1);
        filled.tokens = take<uint32_t>(region, options->rows);
        filled.positions = take<uint32_t>(region, options->rows);
        filled.slots = take<uint32_t>(region, options->rows);
        filled.sample_rows = take<uint32_t>(region, options->samples);
        filled.sample_positions = take<uint32_t>(region, options->samples);
        filled.sample_slots = take<uint32_t>(region, options->samples);
        filled.sampling = take<struct sampling>(region, options->samples);
        filled.spans = take<struct attention_span>(region, options->rows);
        filled.entries = take<struct table_entry>(region, step->entries_max);
        exchange.order = filled;
        exchange.answer.tokens = take<uint32_t>(region, options->samples);
        exchange.answer.logprobs = take<float>(region, options->samples);
        exchange.answer.errors = take<uint32_t>(region, options->samples);
        exchange.answer.row_errors = take<uint32_t>(region, options->rows);
        exchange.answer.span = take<uint64_t>(region, 2);
        exchange.row_of = take<uint32_t>(region, options->rows);
        exchange.hashes = take<uint64_t>(region, options->samples);
    }
}

static enum status reserve_memory(struct step *step, struct text *why)
{
    struct region measure = {}, pinned = {};
    place_buffers(step, &measure);
    place_pinned(step, &pinned);
    struct backend *backend = &step->cuda->base;
    step->memory_bytes = measure.used;
    enum status status = backend->operations->memory_reserve(backend, measure.used, &step->memory);
    if (status == STATUS_OK &&
        cudaHostAlloc(&step->pinned, pinned.used, cudaHostAllocMapped) != cudaSuccess)
        status = STATUS_OUT_OF_MEMORY;
    if (status != STATUS_OK) {
        text_set(why, "cannot reserve %llu bytes on the device and %llu pinned for a step",
                 (unsigned long long)measure.used, (unsigned long long)pinned.used);
        return status;
    }
    memset(step->pinned, 0, pinned.used);
    struct region device = {(uint8_t *)step->memory, 0}, host = {(uint8_t *)step->pinned, 0};
    place_buffers(step, &device);
    place_pinned(step, &host);
    const uint32_t full = FEW_ROWS_MAX;
    const struct step_model *model = &step->options.model;
    backend->operations->upload(backend, step->at.full, &full, sizeof full);
    backend->operations->upload(backend, step->at.rope, model->rope_table,
                                (uint64_t)step->options.context * model->head_dim * sizeof(float));
    return STATUS_OK;
}

/* ---- Graphs ---- */

/* Rows of the graphs: fine where a step is short. */
static void choose_buckets(struct step *step)
{
    uint32_t most =
        step->options.rows < step->options.samples ? step->options.rows : step->options.samples;
    for (uint32_t rows = 1; step->bucket_count < BUCKETS_MAX;) {
        step->buckets[step->bucket_count++] = rows < most ? rows : most;
        if (rows >= most)
            break;
        if (rows < 8)
            rows *= 2;
        else if (rows < FEW_ROWS_MAX)
            rows += 8;
        else if (rows < 2 * FEW_ROWS_MAX)
            rows += 16;
        else
            rows += rows < LIBRARY_ROWS_FINE ? LIBRARY_ROWS_UNIT / 2 : LIBRARY_ROWS_UNIT;
    }
}

/* A step whose rows are all sampled decodes. */
static enum status capture(struct step *step, const struct step_plan *plan, cudaGraphExec_t *graph)
{
    cudaStream_t stream = step->cuda->stream;
    cudaGraph_t captured = NULL;
    cudaError_t error = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (error != cudaSuccess)
        return cuda_status(error, "capture");
    enum status status = step_enqueue(step, plan);
    error = cudaStreamEndCapture(stream, &captured);
    if (status == STATUS_OK)
        status = cuda_status(error, "capture");
    if (status == STATUS_OK)
        status = cuda_status(cudaGraphInstantiate(graph, captured, 0), "instantiate");
    if (status == STATUS_OK)
        status = cuda_status(cudaGraphUpload(*graph, stream), "upload");
    if (captured != NULL)
        (void)cudaGraphDestroy(captured);
    return status;
}

static enum status capture_all(struct step *step)
{
    enum status status = STATUS_OK;
    for (uint32_t exchange = 0; exchange < STEPS_IN_FLIGHT; exchange++) {
        struct step_plan plan = {};
        plan.samples_in_order = true;
        plan.exchange = exchange;
        for (uint32_t i = 0; status == STATUS_OK && i < step->bucket_count; i++) {
            plan.rows = plan.decoding = plan.samples = step->buckets[i];
            status = capture(step, &plan, &step->graphs[i][exchange]);
        }
        plan.persistent = true;
        for (uint32_t i = 0; status == STATUS_OK && i < step->stream.instances; i++) {
            plan.rows = plan.decoding = plan.samples = step_stream_rows(step, i);
            status = capture(step, &plan, &step->stream.graphs[i][exchange]);
        }
    }
    return status;
}

/* ---- Open and close ---- */

static enum status check_model(const struct step_options *options, struct text *why)
{
    const struct step_model *model = &options->model;
    const uint32_t group = model->heads / model->kv_heads;
    if (options->geometry.type != KV_TYPE_BF16) {
        text_set(why, "the CUDA backend keeps keys and values in bf16: give --kv-type bf16");
        return STATUS_UNSUPPORTED;
    }
    const uint32_t block_tokens = options->geometry.block_tokens;
    if ((block_tokens & (block_tokens - 1)) != 0) {
        text_set(why, "--block-tokens %u: the CUDA backend needs a power of two", block_tokens);
        return STATUS_UNSUPPORTED;
    }
    if (model->head_dim != 64 && model->head_dim != 128) {
        text_set(why, "head_dim %u: the CUDA backend has attention for 64 and 128",
                 model->head_dim);
        return STATUS_UNSUPPORTED;
    }
    if (group > 8) {
        text_set(why, "%u query heads for one kv head: the CUDA backend serves at most 8", group);
        return STATUS_UNSUPPORTED;
    }
    if (model->width % 64 != 0 || model->ffn_width % 64 != 0 || model->width > 8192) {
        text_set(why,
                 "width %u, ffn_width %u: the CUDA backend needs multiples of 64, width to 8192",
                 model->width, model->ffn_width);
        return STATUS_UNSUPPORTED;
    }
    return STATUS_OK;
}

static void destroy_graphs(cudaGraphExec_t (*graphs)[STEPS_IN_FLIGHT], uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        for (cudaGraphExec_t graph : graphs[i])
            if (graph != NULL)
                (void)cudaGraphExecDestroy(graph);
}

static void close_step(struct step *step)
{
    if (step == NULL)
        return;
    (void)cudaStreamSynchronize(step->cuda->stream);
    destroy_graphs(step->graphs, BUCKETS_MAX);
    destroy_graphs(step->stream.graphs, STREAM_INSTANCES);
    step_stream_close(step);
    struct backend *backend = &step->cuda->base;
    backend->operations->memory_release(backend, step->memory, step->memory_bytes);
    (void)cudaFreeHost(step->pinned);
    free(step->pending);
    free(step);
}

static enum status prepare(struct step *step, struct text *why)
{
    const struct step_options *options = &step->options;
    const struct kv_geometry *geometry = &options->geometry;
    step->segments_max = (options->context + ATTENTION_SEGMENT_KEYS - 1) / ATTENTION_SEGMENT_KEYS;
    step->split_items_max = 2 * step->cuda->multiprocessors;
    step->entries_max =
        (kv_blocks_for(geometry, options->rows) + options->slots) * geometry->layers;
    step->pending_capacity = 2 * step->entries_max + PENDING_ENTRIES_MIN;
    step->pending = (struct table_entry *)calloc(step->pending_capacity, sizeof *step->pending);
    enum status status = step->pending != NULL ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    if (status == STATUS_OK)
        status = reserve_memory(step, why);
    if (status == STATUS_OK)
        status = step_check(step);
    choose_buckets(step);
    if (status == STATUS_OK)
        status = step_stream_open(step);
    if (status == STATUS_OK)
        status = capture_all(step);
    if (status == STATUS_OK)
        status = cuda_status(cudaStreamSynchronize(step->cuda->stream), "prepare");
    return status;
}

static enum status open_step(struct backend *backend, const struct step_options *options,
                             struct step **out_step, struct text *why)
{
    enum status status = check_model(options, why);
    if (status != STATUS_OK)
        return status;
    struct step *step = (struct step *)calloc(1, sizeof *step);
    if (step == NULL)
        return STATUS_OUT_OF_MEMORY;
    step->cuda = cuda_backend_of(backend);
    step->options = *options;
    const uint64_t start_ns = clock_now_ns();
    status = prepare(step, why);
    if (status != STATUS_OK) {
        close_step(step);
        return status;
    }
    log_info("steps_prepared", "graphs=%u bytes=%llu ms=%llu", step->bucket_count * STEPS_IN_FLIGHT,
             (unsigned long long)step->memory_bytes,
             (unsigned long long)((clock_now_ns() - start_ns) / NS_PER_MS));
    *out_step = step;
    return STATUS_OK;
}

/* ---- One step ---- */

/* Entries that no plan uses yet go ahead with a copy of their own. */
static void flush_entries(struct step *step)
{
    struct backend *backend = &step->cuda->base;
    for (uint32_t i = 0; i < step->pending_count; i++)
        backend->operations->upload(backend, step->at.table + step->pending[i].index,
                                    &step->pending[i].block, sizeof step->pending[i].block);
    step->pending_count = 0;
}

static void map_blocks(struct step *step, uint32_t first_entry, const int32_t *blocks,
                       uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (step->pending_count == step->pending_capacity)
            flush_entries(step);
        step->pending[step->pending_count++] = {first_entry + i, blocks[i]};
    }
}

static uint32_t span_length(const struct step_batch *batch, uint32_t first)
{
    uint32_t end = first + 1;
    while (end < batch->row_count && batch->slots[end] == batch->slots[first] &&
           batch->positions[end] == batch->positions[end - 1] + 1)
        end++;
    return end - first;
}

static void put_row(struct exchange *exchange, const struct step_batch *batch, uint32_t row,
                    uint32_t to)
{
    struct step_order *order = &exchange->order;
    order->tokens[to] = batch->tokens[row];
    order->positions[to] = batch->positions[row];
    order->slots[to] = batch->slots[row];
    exchange->row_of[to] = row;
    exchange->answer.row_errors[to] = 0;
}

/* Rows on the device: first those alone in their span, then the spans. */
static void put_rows(struct step *step, const struct step_batch *batch, struct step_plan *plan)
{
    struct exchange *exchange = &step->exchanges[plan->exchange];
    struct step_order *order = &exchange->order;
    const uint32_t unit = attention_tile_positions(
        step->options.model.head_dim, step->options.model.heads / step->options.model.kv_heads);
    uint32_t to = 0;
    for (uint32_t row = 0, length; row < batch->row_count; row += length) {
        length = span_length(batch, row);
        if (length == 1)
            put_row(exchange, batch, row, to++);
    }
    plan->decoding = to;
    for (uint32_t row = 0, length; row < batch->row_count; row += length) {
        length = span_length(batch, row);
        if (length == 1)
            continue;
        const uint32_t first = batch->positions[row];
        order->spans[plan->span_count++] = {to, first, length, batch->slots[row]};
        const uint32_t tiles = (first + length - 1) / unit - first / unit + 1;
        plan->span_tiles = tiles > plan->span_tiles ? tiles : plan->span_tiles;
        for (uint32_t i = 0; i < length; i++)
            put_row(exchange, batch, row + i, to++);
    }
}

static void put_samples(struct step *step, const struct step_batch *batch, struct step_plan *plan)
{
    struct exchange *exchange = &step->exchanges[plan->exchange];
    struct step_order *order = &exchange->order;
    plan->samples_in_order = batch->sample_count == batch->row_count;
    for (uint32_t i = 0; i < batch->sample_count; i++) {
        uint32_t row = batch->sample_rows[i];
        if (plan->span_count > 0) /* rows moved */
            for (row = 0; exchange->row_of[row] != batch->sample_rows[i]; row++)
                continue;
        order->sample_rows[i] = row;
        order->sample_positions[i] = batch->sample_positions[i];
        order->sample_slots[i] = batch->slots[batch->sample_rows[i]];
        order->sampling[i] = batch->sampling[i];
        plan->samples_in_order = plan->samples_in_order && row == i;
    }
}

static enum status launch(struct step *step, const struct step_plan *plan)
{
    cudaStream_t stream = step->cuda->stream;
    const uint32_t *positions = step->exchanges[plan->exchange].order.positions;
    uint32_t instance;
    if (plan->span_count > 0 || !plan->samples_in_order || plan->samples != plan->rows ||
        plan->fault != BACKEND_FAULT_NONE)
        return step_enqueue(step, plan);
    if (step_stream_serves(step, plan, positions, &instance))
        return cuda_status(
            cudaGraphLaunch(step->stream.graphs[instance][plan->exchange], stream), "launch");
    for (uint32_t i = 0; i < step->bucket_count; i++)
        if (plan->rows <= step->buckets[i])
            return cuda_status(cudaGraphLaunch(step->graphs[i][plan->exchange], stream), "launch");
    return step_enqueue(step, plan);
}

/* Debugging: the step runs to its end here, so that its logits are still there. */
static enum status hash_samples(struct step *step, const struct exchange *exchange)
{
    const uint64_t columns = step->options.model.vocabulary;
    float *row = (float *)malloc(columns * sizeof *row);
    enum status status = row != NULL ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    struct backend *backend = &step->cuda->base;
    for (uint32_t i = 0; status == STATUS_OK && i < exchange->samples; i++) {
        status = backend->operations->download(backend, row, step->at.logits + i * columns,
                                               columns * sizeof *row);
        exchange->hashes[i] = XXH3_64bits(row, columns * sizeof *row);
    }
    free(row);
    return status;
}

static enum status begin_step(struct step *step, const struct step_batch *batch)
{
    CHECK(step->begun - step->collected < STEPS_IN_FLIGHT);
    CHECK(batch->row_count > 0 && batch->row_count <= step->options.rows &&
          batch->sample_count <= step->options.samples);
    if (step->pending_count > step->entries_max)
        flush_entries(step);
    struct step_plan plan = {};
    plan.rows = batch->row_count;
    plan.samples = batch->sample_count;
    plan.exchange = (uint32_t)(step->begun % STEPS_IN_FLIGHT);
    struct exchange *exchange = &step->exchanges[plan.exchange];
    struct step_header *header = exchange->order.header;
    put_rows(step, batch, &plan);
    put_samples(step, batch, &plan);
    memcpy(exchange->order.entries, step->pending, step->pending_count * sizeof *step->pending);
    *header = {{plan.rows, plan.samples}, plan.decoding, step->pending_count, plan.span_count};
    step->pending_count = 0;
    exchange->rows = plan.rows;
    exchange->samples = plan.samples;
    exchange->answer.span[1] = 0;
    step->begun++;
    const struct backend_fault *fault = &step->cuda->fault;
    if (fault->kind == BACKEND_FAULT_LIBRARY)
        step->library_fails = step->begun >= fault->step;
    else if (step->begun == fault->step)
        plan.fault = fault->kind;
    enum status status = launch(step, &plan);
    if (status == STATUS_OK && step->options.hash_logits)
        status = hash_samples(step, exchange);
    return status;
}

static void show_progress(struct step *step)
{
    const uint32_t progress = *step->progress;
    if (step->options.progress == NULL || progress == step->progress_shown)
        return;
    step->progress_shown = progress;
    step->options.progress(step->options.progress_context, progress);
}

static bool is_done(const struct step *step)
{
    return step->exchanges[step->collected % STEPS_IN_FLIGHT].answer.span[1] != 0;
}

static bool step_ready(struct step *step)
{
    show_progress(step);
    return is_done(step) || cudaStreamQuery(step->cuda->stream) != cudaErrorNotReady;
}

static enum status collect(struct step *step, struct step_sample *out_samples, uint32_t *out_errors)
{
    CHECK(step->begun > step->collected);
    for (uint32_t turn = 1; !is_done(step); turn++) {
        show_progress(step);
        if (turn % LOOK_AT_DEVICE_EVERY != 0)
            continue;
        cudaError_t error = cudaStreamQuery(step->cuda->stream);
        if (error == cudaSuccess && !is_done(step))
            error = cudaErrorUnknown; /* all has run, and the step did not end */
        if (error != cudaSuccess && error != cudaErrorNotReady)
            return cuda_status(error, "step");
    }
    __sync_synchronize(); /* the answer was written before its end */
    const struct exchange *exchange = &step->exchanges[step->collected % STEPS_IN_FLIGHT];
    for (uint32_t i = 0; i < exchange->samples; i++)
        out_samples[i] = {exchange->answer.tokens[i], exchange->answer.logprobs[i],
                          exchange->answer.errors[i], exchange->hashes[i]};
    for (uint32_t i = 0; i < exchange->rows; i++)
        out_errors[exchange->row_of[i]] = exchange->answer.row_errors[i];
    step->span = {exchange->answer.span[0], exchange->answer.span[1]};
    step->collected++;
    return STATUS_OK;
}

static void read_span(const struct step *step, struct step_span *out_span)
{
    *out_span = step->span;
}

static enum status read_logits(struct step *step, uint32_t first, uint32_t count, float *out_logits)
{
    const uint64_t columns = step->options.model.vocabulary;
    struct backend *backend = &step->cuda->base;
    return backend->operations->download(backend, out_logits, step->at.logits + first * columns,
                                         count * columns * sizeof *out_logits);
}

static const struct step_operations make_operations()
{
    struct step_operations table = {};
    table.open = open_step;
    table.close = close_step;
    table.map_blocks = map_blocks;
    table.begin = begin_step;
    table.ready = step_ready;
    table.collect = collect;
    table.span = read_span;
    table.logits = read_logits;
    return table;
}

extern "C" const struct step_operations cuda_steps = make_operations();
