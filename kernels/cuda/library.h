/* cuBLAS, loaded when a device is opened: a process that has none maps nothing of it. */
#ifndef TANDEM_KERNELS_CUDA_LIBRARY_H
#define TANDEM_KERNELS_CUDA_LIBRARY_H

extern "C" {
#include "common/status.h"
#include "common/text.h"
}

#include <cublas_v2.h>

/* Of the version that we were compiled against. */
#define LIBRARY_TEXT(number)    #number
#define LIBRARY_NAME_OF(number) "libcublas.so." LIBRARY_TEXT(number)
#define LIBRARY_NAME            LIBRARY_NAME_OF(CUBLAS_VER_MAJOR)

/* Every entry point that we use. */
struct library {
    decltype(&cublasCreate_v2) create;
    decltype(&cublasDestroy_v2) destroy;
    decltype(&cublasSetStream_v2) set_stream;
    decltype(&cublasSetWorkspace_v2) set_workspace;
    decltype(&cublasSetMathMode) set_math_mode;
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                           const void *, const void *, cudaDataType, int, const void *,
                           cudaDataType, int, const void *, void *, cudaDataType, int,
                           cublasComputeType_t, cublasGemmAlgo_t);
    decltype(&cublasGetCudartVersion) version;
};

static_assert(sizeof static_cast<decltype(library::gemm)>(&cublasGemmEx) == sizeof(void *),
              "the header has an entry point of this shape");

/* By LIBRARY_NAME, then by the plain name. It stays loaded
 * until the process ends. STATUS_NOT_FOUND with what the loader says, or the entry point that is
 * missing, in `why`. */
MUST_USE enum status library_load(struct library *out_library, struct text *why);

/* The same, from the first of `names` that can be loaded; they end with NULL. */
MUST_USE enum status library_load_named(const char *const *names, struct library *out_library,
                                        struct text *why);

#endif
