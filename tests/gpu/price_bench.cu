/* What the promise of equal bits costs, shapes of Llama-3.2-1B. Products: what serves (the library
 * without workspace: no split of k, one order of sums; or, from 5 to 128 rows, own products of many
 * rows, where they are faster, gating included) against the best of all that and of the library's
 * algorithms with 32 MB of workspace, each as it comes and with k split by 2 to 16 where it can;
 * the split that won is printed. Attention: our kernel with every number of CTAs to a row, which
 * changes no bit, since the pieces are segments of 256 keys whatever their number. Every call reads
 * other memory, as a step does. Prints us a call and ms a step of 16 layers. usage: price_bench
 * [ROWS...] */
#include "kernels/cuda/wide.h"
#include "stream_model.h"

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace
{

enum { LAYERS = 16, TURNS = 5, ALGORITHMS = 32 };

constexpr size_t WORKSPACE = 32 << 20;

struct shape {
    const char *name;
    enum stream_kind kind;
    uint32_t rows, columns;
    bool logits, split; /* fp32 out; worth to split k */
};

void must(bool good, const char *what)
{
    if (good)
        return;
    printf("FAIL %s\n", what);
    exit(1);
}

__global__ void fill(__nv_bfloat16 *values, uint64_t count)
{
    for (uint64_t i = (uint64_t)blockIdx.x * blockDim.x + threadIdx.x; i < count;
         i += (uint64_t)gridDim.x * blockDim.x) {
        uint32_t h = (uint32_t)i * 2654435761u ^ (uint32_t)(i >> 32);
        h ^= h >> 15;
        h *= 0x85ebca6bu;
        h ^= h >> 13;
        values[i] = __float2bfloat16_rn(((float)(h & 0xffff) - 32768.0f) * 1e-6f);
    }
}

/* A CTA reads 64 KB with plain loads, eight of a thread under way. */
__global__ void __launch_bounds__(512) read_kernel(const uint4 *from, uint32_t *out)
{
    uint4 got[8];
    uint32_t sum = 0;
    const uint4 *at = from + (uint64_t)blockIdx.x * 4096 + threadIdx.x;
#pragma unroll
    for (int i = 0; i < 8; i++)
        got[i] = __ldcs(at + i * 512);
#pragma unroll
    for (int i = 0; i < 8; i++)
        sum ^= got[i].x ^ got[i].y ^ got[i].z ^ got[i].w;
    if (sum == 0x9e3779b9u)
        *out = sum; /* so that the loads stay */
}

struct world {
    cublasHandle_t library;
    cublasLtHandle_t light;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    __nv_bfloat16 *weights, *input;
    void *output, *workspace;
    uint32_t multiprocessors;
};

/* us a call, all layers as one graph: the best of TURNS turns. */
template <typename CALL> double time_of(const struct world &world, uint32_t layers, CALL call)
{
    cudaGraph_t graph;
    cudaGraphExec_t ready;
    must(cudaStreamBeginCapture(world.stream, cudaStreamCaptureModeThreadLocal) == cudaSuccess,
         "capture");
    for (uint32_t layer = 0; layer < layers; layer++)
        call(layer);
    must(cudaStreamEndCapture(world.stream, &graph) == cudaSuccess &&
             cudaGraphInstantiate(&ready, graph, 0) == cudaSuccess,
         "capture");
    double best = 1e30;
    for (int turn = 0; turn <= TURNS; turn++) {
        must(cudaEventRecord(world.begin, world.stream) == cudaSuccess &&
                 cudaGraphLaunch(ready, world.stream) == cudaSuccess &&
                 cudaEventRecord(world.end, world.stream) == cudaSuccess,
             "launch");
        must(cudaEventSynchronize(world.end) == cudaSuccess, "products");
        float ms = 0;
        must(cudaEventElapsedTime(&ms, world.begin, world.end) == cudaSuccess, "time");
        if (turn > 0)
            best = std::min(best, (double)ms * 1e3 / layers);
    }
    (void)cudaGraphExecDestroy(ready);
    (void)cudaGraphDestroy(graph);
    return best;
}

double without_workspace(const struct world &world, const struct shape &shape, uint32_t rows)
{
    const float one = 1.0f, zero = 0.0f;
    const uint64_t size = (uint64_t)shape.rows * shape.columns;
    return time_of(world, shape.logits ? 4 : LAYERS, [&](uint32_t layer) {
        must(cublasGemmEx(world.library, CUBLAS_OP_T, CUBLAS_OP_N, (int)shape.rows, (int)rows,
                          (int)shape.columns, &one,
                          world.weights + (shape.logits ? 0 : layer * size), CUDA_R_16BF,
                          (int)shape.columns, world.input, CUDA_R_16BF, (int)shape.columns, &zero,
                          world.output, shape.logits ? CUDA_R_32F : CUDA_R_16BF, (int)shape.rows,
                          CUBLAS_COMPUTE_32F, CUBLAS_GEMM_DEFAULT) == CUBLAS_STATUS_SUCCESS,
             "gemm");
    });
}

/* The algorithm with k split; false: it cannot. */
bool split_k(const struct world &world, cublasLtMatmulDesc_t product,
             const cublasLtMatrixLayout_t *of, int32_t splits, cublasLtMatmulAlgo_t &algorithm)
{
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    cublasLtMatmulHeuristicResult_t result;
    return cublasLtMatmulAlgoConfigSetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM,
                                                &splits, sizeof splits) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoConfigSetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME,
                                                &scheme, sizeof scheme) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulAlgoCheck(world.light, product, of[0], of[1], of[2], of[2], &algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= WORKSPACE;
}

int32_t splits_of(const cublasLtMatmulAlgo_t &algorithm)
{
    int32_t splits = 1;
    size_t written = 0;
    (void)cublasLtMatmulAlgoConfigGetAttribute(&algorithm, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, &splits,
                                               sizeof splits, &written);
    return splits > 1 ? splits : 1;
}

/* us a call, and into how many pieces the winner splits k. */
double best_of_all(const struct world &world, const struct shape &shape, uint32_t rows,
                   int32_t *out_splits)
{
    const float one = 1.0f, zero = 0.0f;
    const uint64_t size = (uint64_t)shape.rows * shape.columns;
    const cudaDataType_t type = shape.logits ? CUDA_R_32F : CUDA_R_16BF;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    cublasLtMatmulDesc_t product;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulPreference_t preference;
    must(cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
                 CUBLAS_STATUS_SUCCESS &&
             cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                            sizeof transposed) == CUBLAS_STATUS_SUCCESS &&
             cublasLtMatrixLayoutCreate(&a, CUDA_R_16BF, shape.columns, shape.rows,
                                        shape.columns) == CUBLAS_STATUS_SUCCESS &&
             cublasLtMatrixLayoutCreate(&b, CUDA_R_16BF, shape.columns, rows, shape.columns) ==
                 CUBLAS_STATUS_SUCCESS &&
             cublasLtMatrixLayoutCreate(&c, type, shape.rows, rows, shape.rows) ==
                 CUBLAS_STATUS_SUCCESS &&
             cublasLtMatmulPreferenceCreate(&preference) == CUBLAS_STATUS_SUCCESS &&
             cublasLtMatmulPreferenceSetAttribute(
                 preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE,
                 sizeof WORKSPACE) == CUBLAS_STATUS_SUCCESS,
         "describe");
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    int count = 0;
    must(cublasLtMatmulAlgoGetHeuristic(world.light, product, a, b, c, c, preference, ALGORITHMS,
                                        found, &count) == CUBLAS_STATUS_SUCCESS,
         "heuristic");
    const cublasLtMatrixLayout_t layouts[] = {a, b, c};
    double best = 1e30;
    for (int i = 0; i < count; i++) {
        if (found[i].state != CUBLAS_STATUS_SUCCESS)
            continue;
        for (int32_t splits = 1; splits <= (shape.split ? 16 : 1); splits *= 2) {
            cublasLtMatmulAlgo_t algorithm = found[i].algo;
            if (splits > 1 && !split_k(world, product, layouts, splits, algorithm))
                continue;
            auto call = [&](uint32_t layer) {
                return cublasLtMatmul(world.light, product, &one,
                                      world.weights + (shape.logits ? 0 : layer * size), a,
                                      world.input, b, &zero, world.output, c, world.output, c,
                                      &algorithm, world.workspace, WORKSPACE, world.stream);
            };
            if (call(0) != CUBLAS_STATUS_SUCCESS)
                continue;
            const double us = time_of(world, shape.logits ? 4 : LAYERS, [&](uint32_t layer) {
                must(call(layer) == CUBLAS_STATUS_SUCCESS, "matmul");
            });
            if (us < best)
                *out_splits = splits_of(algorithm);
            best = std::min(best, us);
        }
    }
    return best;
}

/* The weights as the persistent step has them. */
struct streams {
    struct stream_shape shape;
    uint8_t *weights;
    uint32_t *count;
};

struct streams open_streams()
{
    const struct stream_model llama = {"llama-1b", LAYERS, 2048, 8192, 3072, 2048, 128256, 128};
    struct streams streams = {stream_shape_of(llama), NULL, NULL};
    const uint64_t bytes = streams.shape.share * streams.shape.ctas;
    void *weights = NULL, *count = NULL;
    must(cudaMalloc(&weights, bytes) == cudaSuccess &&
             cudaMalloc(&count, sizeof(uint32_t)) == cudaSuccess && wide_prepare() == cudaSuccess,
         "streams");
    fill<<<1024, 256>>>((__nv_bfloat16 *)weights, bytes / 2);
    streams.weights = (uint8_t *)weights;
    streams.count = (uint32_t *)count;
    return streams;
}

/* us a call of own products of many rows; no time at all where they serve none. */
double own_product(const struct world &world, const struct streams &streams,
                   const struct shape &shape, uint32_t rows)
{
    if (rows <= STREAM_ROWS_MAX || wide_rows(rows) == 0)
        return INFINITY;
    must(cudaMemcpy(streams.count, &rows, sizeof rows, cudaMemcpyHostToDevice) == cudaSuccess,
         "count");
    struct wide_args args = {};
    args.shape = streams.shape;
    args.weights = streams.weights;
    args.kind = shape.kind;
    args.rows = wide_rows(rows);
    args.count = streams.count;
    args.activations = world.input;
    args.gated = args.rows_out = (__nv_bfloat16 *)world.output;
    args.logits = (float *)world.output;
    args.layer = shape.logits ? (uint32_t)LAYERS : 0;
    if (wide_launch(&args, world.stream) != cudaSuccess) {
        (void)cudaGetLastError(); /* no room for so many rows of this kind */
        return INFINITY;
    }
    return time_of(world, shape.logits ? 4 : LAYERS, [&](uint32_t layer) {
        args.layer = shape.logits ? (uint32_t)LAYERS : layer;
        must(wide_launch(&args, world.stream) == cudaSuccess, "wide");
    });
}

/* ---- Attention ---- */

enum { HEADS = 32, KV_HEADS = 8, HEAD_DIM = 64, BLOCK = 16, SEGMENT_KEYS = 256 };

/* Memory that lives as long as the program. */
template <typename ITEM> ITEM *take(const std::vector<ITEM> &host)
{
    void *memory = NULL;
    must(cudaMalloc(&memory, host.size() * sizeof(ITEM)) == cudaSuccess &&
             cudaMemcpy(memory, host.data(), host.size() * sizeof(ITEM), cudaMemcpyHostToDevice) ==
                 cudaSuccess,
         "memory");
    return (ITEM *)memory;
}

void print_attention(const struct world &world, uint32_t rows, uint32_t context)
{
    struct attention_launch launch = {};
    launch.kv.geometry = {LAYERS, KV_HEADS, HEAD_DIM, BLOCK, KV_TYPE_BF16, KV_ORDER_CUDA};
    const struct kv_geometry &g = launch.kv.geometry;
    const uint32_t logical = kv_blocks_for(&g, context);
    const uint64_t blocks = (uint64_t)logical * rows * LAYERS;
    std::vector<int32_t> table(blocks);
    for (uint64_t i = 0; i < blocks; i++)
        table[i] = (int32_t)(i * 7919 % blocks); /* a prime: scattered, each once */
    std::vector<uint32_t> slots(rows);
    for (uint32_t i = 0; i < rows; i++)
        slots[i] = i;
    void *pool = NULL;
    must(cudaMalloc(&pool, blocks * kv_block_bytes(&g)) == cudaSuccess, "pool");
    fill<<<1024, 256>>>((__nv_bfloat16 *)pool, blocks * kv_block_bytes(&g) / 2);
    const uint32_t segments = (context + SEGMENT_KEYS - 1) / SEGMENT_KEYS;
    launch.kv.pool = (uint8_t *)pool;
    launch.kv.table = take(table);
    launch.kv.logical_blocks = logical;
    launch.kv.heads = HEADS;
    launch.kv.positions = take(std::vector<uint32_t>(rows, context - 1));
    launch.kv.slots = take(slots);
    launch.kv.queries = world.input;
    launch.kv_heads = KV_HEADS;
    launch.scale = (float)(1.4426950408889634 / sqrt((double)HEAD_DIM));
    launch.count = take(std::vector<uint32_t>(1, rows));
    launch.rows = rows;
    launch.multiprocessors = world.multiprocessors;
    launch.partials =
        take(std::vector<float>((uint64_t)rows * KV_HEADS * segments * 8 * (HEAD_DIM + 2)));
    launch.arrivals = take(std::vector<uint32_t>((uint64_t)rows * KV_HEADS));
    launch.segments_max = segments;
    launch.output = (__nv_bfloat16 *)world.output;
    printf("attention rows %3u context %5u, us a layer by CTAs to a row:", rows, context);
    for (launch.splits = 1; launch.splits <= segments; launch.splits++)
        printf("  %u: %.1f", launch.splits, time_of(world, LAYERS, [&](uint32_t layer) {
                   launch.kv.layer = layer;
                   must(attention_decode(&launch, world.stream) == cudaSuccess, "attention");
               }));
    printf("; its keys and values at 4.55 TB/s %.1f\n",
           (double)rows * context * KV_HEADS * HEAD_DIM * 4 / 4.55e6);
    fflush(stdout);
    (void)cudaFree(pool);
}

/* What the device reads at most: TB/s of the best of ten passes over 16 GB. */
void print_read_limit(const struct world &world)
{
    const uint64_t bytes = (uint64_t)16 << 30;
    void *memory = NULL;
    must(cudaMalloc(&memory, bytes) == cudaSuccess, "memory");
    fill<<<1024, 256>>>((__nv_bfloat16 *)memory, bytes / 2);
    double best = 1e30;
    for (int i = 0; i < 2; i++)
        best = std::min(best, time_of(world, 1, [&](uint32_t) {
                            read_kernel<<<(uint32_t)(bytes >> 16), 512, 0, world.stream>>>(
                                (const uint4 *)memory, (uint32_t *)world.output);
                        }));
    printf("read limit, plain loads: %.2f TB/s\n", (double)bytes / best / 1e6);
    fflush(stdout);
    (void)cudaFree(memory);
}

void open_world(struct world &world)
{
    int multiprocessors = 0;
    must(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0) == cudaSuccess,
         "attribute");
    world.multiprocessors = (uint32_t)multiprocessors;
    const uint64_t most = (uint64_t)LAYERS * 16384 * 2048; /* and more than the logits' */
    void *pieces[4];
    const size_t sizes[] = {most * 2, 256 * 8192 * 2, (size_t)256 * 128256 * 4, WORKSPACE};
    for (int i = 0; i < 4; i++)
        must(cudaMalloc(&pieces[i], sizes[i]) == cudaSuccess, "memory");
    world.weights = (__nv_bfloat16 *)pieces[0];
    world.input = (__nv_bfloat16 *)pieces[1];
    world.output = pieces[2];
    world.workspace = pieces[3];
    fill<<<1024, 256>>>(world.weights, most);
    fill<<<64, 256>>>(world.input, 256 * 8192);
    must(cudaDeviceSynchronize() == cudaSuccess, "fill");
    must(cudaStreamCreate(&world.stream) == cudaSuccess &&
             cudaEventCreate(&world.begin) == cudaSuccess &&
             cudaEventCreate(&world.end) == cudaSuccess &&
             cublasCreate(&world.library) == CUBLAS_STATUS_SUCCESS &&
             cublasSetStream(world.library, world.stream) == CUBLAS_STATUS_SUCCESS &&
             cublasSetWorkspace(world.library, world.workspace, 0) == CUBLAS_STATUS_SUCCESS &&
             cublasLtCreate(&world.light) == CUBLAS_STATUS_SUCCESS,
         "open");
}

} // namespace

int main(int count, char **arguments)
{
    const struct shape shapes[] = {{"q, k, v", STREAM_HEADS, 3072, 2048, false, true},
                                   {"output", STREAM_OUTPUT, 2048, 2048, false, true},
                                   {"gate, up", STREAM_PAIRS, 16384, 2048, false, false},
                                   {"down", STREAM_DOWN, 2048, 8192, false, true},
                                   {"logits", STREAM_LOGITS, 128256, 2048, true, false}};
    struct world world;
    open_world(world);
    print_read_limit(world);
    const struct streams streams = open_streams();
    std::vector<uint32_t> rows = {1, 8, 32, 64, 128, 256};
    if (count > 1)
        rows.clear();
    for (int i = 1; i < count; i++)
        rows.push_back((uint32_t)strtoul(arguments[i], NULL, 10));
    for (uint32_t of : rows) {
        double exact = 0, free = 0;
        printf("rows %3u, us a call, one order of sums / any:", of);
        for (const struct shape &shape : shapes) {
            const double own = own_product(world, streams, shape, of);
            const double one = std::min(own, without_workspace(world, shape, of));
            int32_t splits = 1;
            const double any = std::min(one, best_of_all(world, shape, of, &splits));
            printf("  %s %.1f%s / %.1f", shape.name, one, one == own ? " own" : "", any);
            if (splits > 1 && any < one)
                printf(" (k in %d)", splits);
            exact += one * (shape.logits ? 1 : LAYERS);
            free += any * (shape.logits ? 1 : LAYERS);
        }
        printf("; a step %.3f / %.3f ms, +%.1f %%\n", exact / 1e3, free / 1e3,
               (exact / free - 1) * 100);
        fflush(stdout);
    }
    must(attention_decode_prepare() == cudaSuccess, "prepare");
    const uint32_t cases[][2] = {{1, 128}, {1, 1024}, {8, 1024}, {64, 1024}, {256, 256}};
    for (const auto &one : cases)
        print_attention(world, one[0], one[1]);
    return 0;
}
