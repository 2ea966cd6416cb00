/* What the promise of equal bits costs in matrix products: the library without workspace (no split of
 * k, one order of sums) against the best of its algorithms with 32 MB of workspace, split k and all,
 * for the shapes of Llama-3.2-1B. Every call reads other weights, as a step does. Prints us a call
 * and ms a step of 16 layers. usage: price_bench [ROWS...] */
#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda_bf16.h>

#include <algorithm>
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
    uint32_t rows, columns;
    bool logits;
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

struct world {
    cublasHandle_t library;
    cublasLtHandle_t light;
    cudaStream_t stream;
    cudaEvent_t begin, end;
    __nv_bfloat16 *weights, *input;
    void *output, *workspace;
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

double best_of_all(const struct world &world, const struct shape &shape, uint32_t rows)
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
             cublasLtMatmulPreferenceSetAttribute(preference,
                                                  CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                  &WORKSPACE,
                                                  sizeof WORKSPACE) == CUBLAS_STATUS_SUCCESS,
         "describe");
    cublasLtMatmulHeuristicResult_t found[ALGORITHMS];
    int count = 0;
    must(cublasLtMatmulAlgoGetHeuristic(world.light, product, a, b, c, c, preference, ALGORITHMS,
                                        found, &count) == CUBLAS_STATUS_SUCCESS,
         "heuristic");
    double best = 1e30;
    for (int i = 0; i < count; i++) {
        auto call = [&](uint32_t layer) {
            return cublasLtMatmul(world.light, product, &one,
                                  world.weights + (shape.logits ? 0 : layer * size), a,
                                  world.input, b, &zero, world.output, c, world.output, c,
                                  &found[i].algo, world.workspace, WORKSPACE, world.stream);
        };
        if (found[i].state == CUBLAS_STATUS_SUCCESS && call(0) == CUBLAS_STATUS_SUCCESS)
            best = std::min(best, time_of(world, shape.logits ? 4 : LAYERS, [&](uint32_t layer) {
                                must(call(layer) == CUBLAS_STATUS_SUCCESS, "matmul");
                            }));
    }
    return best;
}

void open_world(struct world &world)
{
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
    const struct shape shapes[] = {{"q, k, v", 3072, 2048, false},
                                   {"output", 2048, 2048, false},
                                   {"gate, up", 16384, 2048, false},
                                   {"down", 2048, 8192, false},
                                   {"logits", 128256, 2048, true}};
    struct world world;
    open_world(world);
    std::vector<uint32_t> rows = {1, 8, 64, 256};
    if (count > 1)
        rows.clear();
    for (int i = 1; i < count; i++)
        rows.push_back((uint32_t)strtoul(arguments[i], NULL, 10));
    for (uint32_t of : rows) {
        double exact = 0, free = 0;
        printf("rows %3u, us a call, one order of sums / any:", of);
        for (const struct shape &shape : shapes) {
            const double one = without_workspace(world, shape, of);
            const double any = std::min(one, best_of_all(world, shape, of));
            printf("  %s %.1f / %.1f", shape.name, one, any);
            exact += one * (shape.logits ? 1 : LAYERS);
            free += any * (shape.logits ? 1 : LAYERS);
        }
        printf("; a step %.3f / %.3f ms, +%.1f %%\n", exact / 1e3, free / 1e3,
               (exact / free - 1) * 100);
        fflush(stdout);
    }
    return 0;
}
