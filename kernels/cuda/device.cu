/* Device, memory and matrices of the CUDA backend. Its operations come as whole steps (step.cu); of
 * the table of backend.h it fills memory and matrices. */
#include "kernels/cuda/device.h"
#include "kernels/cuda/open.h"
#include "kernels/cuda/wide.h"

extern "C" {
#include "common/clock.h"
#include "common/float16.h"
}

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PATIENCE_NS (15 * NS_PER_S)
#define NAP_NS      (100 * NS_PER_MS)

enum status cuda_status(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return STATUS_OK;
    log_error("cuda_failed", "what=%s error=%s detail=\"%s\"", what, cudaGetErrorName(error),
              cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? STATUS_OUT_OF_MEMORY : STATUS_DEVICE_LOST;
}

/* ---- Memory ---- */

/* Whether it is worth to try again; the first time it says so. */
static bool wait_for_memory(uint64_t until_ns, bool *said)
{
    const struct timespec nap = {0, (long)NAP_NS};
    (void)cudaGetLastError(); /* not sticky, but the next launch would find it */
    if (clock_now_ns() >= until_ns)
        return false;
    if (!*said)
        log_warn("device_memory_wait", "most_ms=%llu",
                 (unsigned long long)((until_ns - clock_now_ns()) / NS_PER_MS));
    *said = true;
    nanosleep(&nap, NULL);
    return true;
}

enum status cuda_take(struct cuda_backend *cuda, uint64_t bytes, bool wait, void **out_memory)
{
    bool said = false;
    cudaError_t error = cudaMalloc(out_memory, bytes);
    while (error == cudaErrorMemoryAllocation && wait &&
           wait_for_memory(cuda->patient_until_ns, &said))
        error = cudaMalloc(out_memory, bytes);
    if (error == cudaSuccess)
        return STATUS_OK;
    if (error != cudaErrorMemoryAllocation)
        return cuda_status(error, "malloc");
    (void)cudaGetLastError(); /* not sticky: the caller may ask for less */
    size_t left = 0, all = 0;
    (void)cudaMemGetInfo(&left, &all);
    if (wait)
        log_error("device_oom", "needed=%llu free=%zu all=%zu", (unsigned long long)bytes, left,
                  all);
    return STATUS_OUT_OF_MEMORY;
}

static enum status reserve(struct backend *backend, uint64_t bytes, void **out_memory)
{
    cudaStream_t stream = cuda_backend_of(backend)->stream;
    void *memory = NULL;
    enum status status = cuda_take(cuda_backend_of(backend), bytes, true, &memory);
    if (status != STATUS_OK)
        return status;
    status = cuda_status(cudaMemsetAsync(memory, 0, bytes, stream), "memset");
    if (status != STATUS_OK) {
        (void)cudaFree(memory);
        return status;
    }
    *out_memory = memory;
    return STATUS_OK;
}

static void release(struct backend *backend, void *memory, uint64_t bytes)
{
    (void)backend;
    (void)bytes;
    (void)cudaFree(memory);
}

static void discard(struct backend *backend, void *memory, uint64_t bytes)
{
    (void)cuda_status(cudaMemsetAsync(memory, 0, bytes, cuda_backend_of(backend)->stream),
                      "discard");
}

static void upload(struct backend *backend, void *memory, const void *host, uint64_t bytes)
{
    cudaStream_t stream = cuda_backend_of(backend)->stream;
    cudaError_t error = cudaMemcpyAsync(memory, host, bytes, cudaMemcpyHostToDevice, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    (void)cuda_status(error, "upload"); /* the next download says so */
}

static enum status download(struct backend *backend, void *host, const void *memory, uint64_t bytes)
{
    cudaStream_t stream = cuda_backend_of(backend)->stream;
    cudaError_t error = cudaMemcpyAsync(host, memory, bytes, cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    return cuda_status(error, "download");
}

/* ---- Matrices ---- */

static uint16_t half_at(const uint8_t *bytes)
{
    uint16_t half;
    memcpy(&half, bytes, sizeof half);
    return half;
}

/* One block of a quantized row: 32 weights. */
static void expand_block(uint32_t type, const uint8_t *block, uint16_t *output)
{
    const float d = fp16_to_float(half_at(block));
    const uint8_t *nibbles = block + (type == WEIGHT_TYPE_Q4_1 ? 4 : 2);
    for (uint32_t i = 0; i < QUANTIZED_BLOCK_WEIGHTS; i++) {
        float value;
        const uint32_t nibble = nibbles[i % 16] >> (i / 16 * 4) & 15u;
        if (type == WEIGHT_TYPE_Q8_0)
            value = d * (float)(int8_t)block[2 + i];
        else if (type == WEIGHT_TYPE_Q4_0)
            value = d * ((float)nibble - 8.0f);
        else
            value = d * (float)nibble + fp16_to_float(half_at(block + 2));
        output[i] = bf16_from_float(value);
    }
}

static void expand_row(uint32_t type, uint32_t columns, const uint8_t *row, uint16_t *output)
{
    for (uint32_t i = 0; i < columns; i++) {
        float value;
        switch (type) {
        case WEIGHT_TYPE_F32:
            memcpy(&value, row + 4 * i, sizeof value);
            output[i] = bf16_from_float(value);
            break;
        case WEIGHT_TYPE_F16:
            output[i] = bf16_from_float(fp16_to_float(half_at(row + 2 * i)));
            break;
        case WEIGHT_TYPE_BF16:
            output[i] = half_at(row + 2 * i);
            break;
        default:
            if (i % QUANTIZED_BLOCK_WEIGHTS == 0)
                expand_block(type,
                             row + i / QUANTIZED_BLOCK_WEIGHTS *
                                       weight_row_bytes(type, QUANTIZED_BLOCK_WEIGHTS),
                             output + i);
            break;
        }
    }
}

static enum status copy_values(struct backend *backend, __nv_bfloat16 *values, const void *host,
                               uint64_t bytes)
{
    cudaStream_t stream = cuda_backend_of(backend)->stream;
    cudaError_t error = cudaMemcpyAsync(values, host, bytes, cudaMemcpyHostToDevice, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    return cuda_status(error, "weights");
}

static enum status fill_values(struct backend *backend, const struct matrix_source *source,
                               __nv_bfloat16 *values)
{
    const uint64_t row_bytes = weight_row_bytes(source->type, source->columns);
    const uint64_t bytes = (uint64_t)source->rows * source->columns * sizeof *values;
    if (source->type == WEIGHT_TYPE_BF16 && source->row_order == NULL)
        return copy_values(backend, values, source->bytes, bytes);
    uint16_t *rows = (uint16_t *)malloc(bytes);
    if (rows == NULL)
        return STATUS_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < source->rows; i++) {
        const uint32_t from = source->row_order != NULL ? source->row_order[i] : i;
        expand_row(source->type, source->columns, (const uint8_t *)source->bytes + from * row_bytes,
                   rows + (uint64_t)i * source->columns);
    }
    enum status status = copy_values(backend, values, rows, bytes);
    free(rows);
    return status;
}

static void free_matrix(struct backend *backend, struct matrix *base)
{
    (void)backend;
    if (base == NULL)
        return;
    struct cuda_matrix *matrix = cuda_matrix_of(base);
    if (matrix->owns_values)
        (void)cudaFree(matrix->values);
    if (matrix->owns_product) {
        (void)cudaFree(matrix->product->values);
        (void)cudaFree(matrix->product->packed);
        free(matrix->product);
    }
    free(matrix);
}

static enum status load_matrix(struct backend *backend, const struct matrix_source *source,
                               struct matrix **out_matrix)
{
    if (weight_row_bytes(source->type, source->columns) == 0)
        return STATUS_UNSUPPORTED;
    struct cuda_matrix *matrix = (struct cuda_matrix *)calloc(1, sizeof *matrix);
    if (matrix == NULL)
        return STATUS_OUT_OF_MEMORY;
    const uint64_t bytes = (uint64_t)source->rows * source->columns * sizeof *matrix->values;
    matrix->base.type = WEIGHT_TYPE_BF16;
    matrix->base.rows = source->rows;
    matrix->base.columns = source->columns;
    matrix->base.bytes = 2 * bytes; /* packed as well */
    matrix->owns_values = true;
    void *memory = NULL;
    enum status status = cuda_take(cuda_backend_of(backend), bytes, true, &memory);
    if (status == STATUS_OK) {
        matrix->values = (__nv_bfloat16 *)memory;
        status = fill_values(backend, source, matrix->values);
    }
    if (status != STATUS_OK) {
        free_matrix(backend, &matrix->base);
        return status;
    }
    *out_matrix = &matrix->base;
    return STATUS_OK;
}

/* The shape that kernels/cuda/launch.h describes. */
static struct product describe(struct matrix *const *parts, uint32_t count,
                               enum matrix_join_order order, uint32_t head_dim)
{
    static const uint32_t orders[] = {PACK_PLAIN, PACK_HEADS, PACK_PAIRS};
    struct product product = {};
    product.columns = parts[0]->columns;
    for (uint32_t i = 0; i < count; i++)
        product.rows += parts[i]->rows;
    product.tiles = (product.rows + 15) / 16;
    product.order = orders[order];
    product.head_dim = head_dim;
    return product;
}

static enum status join_values(struct backend *backend, struct cuda_product *product,
                               struct matrix *const *parts, uint32_t count)
{
    cudaStream_t stream = cuda_backend_of(backend)->stream;
    uint64_t row = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct cuda_matrix *part = cuda_matrix_of(parts[i]);
        __nv_bfloat16 *to = product->values + row * product->view.columns;
        const uint64_t bytes =
            (uint64_t)part->base.rows * part->base.columns * sizeof *part->values;
        cudaError_t error =
            cudaMemcpyAsync(to, part->values, bytes, cudaMemcpyDeviceToDevice, stream);
        if (error == cudaSuccess)
            error = cudaStreamSynchronize(stream);
        if (error != cudaSuccess)
            return cuda_status(error, "join");
        (void)cudaFree(part->values);
        part->values = to;
        part->owns_values = false;
        part->product = product;
        row += part->base.rows;
    }
    return STATUS_OK;
}

static enum status join(struct backend *backend, struct matrix *const *parts, uint32_t count,
                        enum matrix_join_order order, uint32_t head_dim)
{
    struct cuda_product *product = (struct cuda_product *)calloc(1, sizeof *product);
    struct cuda_matrix *first = cuda_matrix_of(parts[0]);
    if (product == NULL)
        return STATUS_OUT_OF_MEMORY;
    first->product = product;
    first->owns_product = true;
    product->view = describe(parts, count, order, head_dim);
    const struct product *view = &product->view;
    if (view->columns % 64 != 0 || (order == MATRIX_JOIN_HEADS && head_dim % 16 != 0) ||
        (order == MATRIX_JOIN_PAIRS && view->rows % 32 != 0))
        return STATUS_UNSUPPORTED;
    void *values = NULL, *packed = NULL;
    const uint64_t bytes = (uint64_t)view->rows * view->columns * 2;
    const uint64_t packed_bytes = (uint64_t)view->tiles * view->columns * 32;
    enum status status = cuda_take(cuda_backend_of(backend), packed_bytes, true, &packed);
    if (status != STATUS_OK)
        return status;
    product->packed = (uint4 *)packed;
    if (count == 1) {
        product->values = first->values;
        first->owns_values = false;
    } else {
        status = cuda_take(cuda_backend_of(backend), bytes, true, &values);
        if (status != STATUS_OK)
            return status;
        product->values = (__nv_bfloat16 *)values;
        status = join_values(backend, product, parts, count);
        if (status != STATUS_OK)
            return status;
    }
    product->view.values = product->values;
    product->view.packed = product->packed;
    return cuda_status(
        pack_launch(&product->view, product->packed, cuda_backend_of(backend)->stream), "pack");
}

/* ---- Device ---- */

static void close_backend(struct backend *backend)
{
    struct cuda_backend *cuda = cuda_backend_of(backend);
    if (cuda->products != NULL)
        (void)cuda->library.destroy(cuda->products);
    if (cuda->stream != NULL)
        (void)cudaStreamDestroy(cuda->stream);
    (void)cudaFree(cuda->no_workspace);
    free(cuda);
}

static struct backend_operations operations()
{
    struct backend_operations table = {};
    table.memory_reserve = reserve;
    table.memory_release = release;
    table.memory_discard = discard;
    table.upload = upload;
    table.download = download;
    table.matrix_load = load_matrix;
    table.matrix_free = free_matrix;
    table.matrix_join = join;
    table.close = close_backend;
    return table;
}

static const struct backend_operations cuda_operations = operations();

/* The products of many rows: no workspace, so that no algorithm may split k; fp32 sums. A library
 * that has no room is worth another start. */
static enum status open_library(struct cuda_backend *cuda, struct text *why)
{
    void *place = NULL;
    const struct library *library = &cuda->library;
    enum status status = library_load(&cuda->library, why);
    if (status == STATUS_OK)
        status = cuda_take(cuda, 256, true, &place);
    cuda->no_workspace = (uint8_t *)place;
    if (status != STATUS_OK)
        return status;
    cublasStatus_t result = cuda->fault.kind == BACKEND_FAULT_OPEN
                                ? CUBLAS_STATUS_NOT_INITIALIZED
                                : library->create(&cuda->products);
    if (result == CUBLAS_STATUS_SUCCESS)
        result = library->set_stream(cuda->products, cuda->stream);
    if (result == CUBLAS_STATUS_SUCCESS)
        result = library->set_workspace(cuda->products, cuda->no_workspace, 0);
    if (result == CUBLAS_STATUS_SUCCESS)
        result = library->set_math_mode(cuda->products,
                                        CUBLAS_MATH_DISALLOW_REDUCED_PRECISION_REDUCTION);
    if (result == CUBLAS_STATUS_SUCCESS)
        return STATUS_OK;
    text_set(why, "cuBLAS cannot be opened: status %d; start again when the device has memory free",
             (int)result);
    return result == CUBLAS_STATUS_ALLOC_FAILED || result == CUBLAS_STATUS_NOT_INITIALIZED
               ? STATUS_OUT_OF_MEMORY
               : STATUS_SYSTEM;
}

/* Makes the context of the device, which needs memory of it. */
static enum status open_context(struct cuda_backend *cuda, struct text *why)
{
    bool said = false;
    cudaError_t error = cudaFree(NULL);
    while (error == cudaErrorMemoryAllocation && wait_for_memory(cuda->patient_until_ns, &said))
        error = cudaFree(NULL);
    if (error == cudaSuccess)
        error = cudaStreamCreateWithFlags(&cuda->stream, cudaStreamNonBlocking);
    cudaError_t (*const prepare[])() = {few_prepare, rows_prepare, attention_decode_prepare,
                                        attention_prefill_prepare, sample_prepare, wide_prepare};
    for (auto step : prepare)
        if (error == cudaSuccess)
            error = step();
    if (error == cudaSuccess)
        return STATUS_OK;
    text_set(why, "cannot open %s: %s", cuda->name, cudaGetErrorString(error));
    return error == cudaErrorMemoryAllocation ? STATUS_OUT_OF_MEMORY : STATUS_SYSTEM;
}

static enum status find_device(struct cudaDeviceProp *properties, struct text *why)
{
    int count = 0;
    cudaError_t error = cudaGetDeviceCount(&count);
    if (error != cudaSuccess || count == 0) {
        text_set(why, "no CUDA device: %s", cudaGetErrorString(error));
        return STATUS_NOT_FOUND;
    }
    error = cudaGetDeviceProperties(properties, 0);
    if (error != cudaSuccess) {
        text_set(why, "cannot read the CUDA device: %s", cudaGetErrorString(error));
        return STATUS_SYSTEM;
    }
    if (properties->major != 9 || properties->minor != 0) {
        text_set(why, "%s has compute capability %d.%d; the CUDA backend is built for 9.0",
                 properties->name, properties->major, properties->minor);
        return STATUS_NOT_FOUND;
    }
    return STATUS_OK;
}

enum status cuda_open(const struct backend_options *options, struct backend **out_backend,
                      struct text *why)
{
    struct cudaDeviceProp properties;
    enum status status = find_device(&properties, why);
    if (status != STATUS_OK)
        return status;
    struct cuda_backend *cuda = (struct cuda_backend *)calloc(1, sizeof *cuda);
    if (cuda == NULL)
        return STATUS_OUT_OF_MEMORY;
    cuda->base.operations = &cuda_operations;
    cuda->base.steps = &cuda_steps;
    cuda->base.kind = BACKEND_CUDA;
    cuda->base.kv_order = KV_ORDER_CUDA;
    cuda->base.name = cuda->name;
    cuda->multiprocessors = (uint32_t)properties.multiProcessorCount;
    snprintf(cuda->name, sizeof cuda->name, "cuda-%.40s", properties.name);
    snprintf(cuda->arithmetic, sizeof cuda->arithmetic, "cuda-1-bf16-sm%d%d", properties.major,
             properties.minor);
    for (char *c = cuda->name; *c != '\0'; c++)
        if (*c == ' ')
            *c = '-';
    cuda->fault = options->fault;
    cuda->patient_until_ns = clock_now_ns() + PATIENCE_NS;
    status = open_context(cuda, why);
    if (status == STATUS_OK)
        status = open_library(cuda, why);
    if (status != STATUS_OK) {
        close_backend(&cuda->base);
        return status;
    }
    *out_backend = &cuda->base;
    return STATUS_OK;
}

const char *cuda_arithmetic(const struct backend *backend)
{
    return ((const struct cuda_backend *)backend)->arithmetic;
}
