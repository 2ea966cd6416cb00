/* The CUDA backend: what its host code shares. */
#ifndef TANDEM_KERNELS_CUDA_DEVICE_H
#define TANDEM_KERNELS_CUDA_DEVICE_H

extern "C" {
#include "common/check.h"
#include "common/log.h"
#include "kernels/backend.h"
#include "kernels/step.h"
}
#include "kernels/cuda/launch.h"
#include "kernels/cuda/library.h"

/* Matrices that share their input, as one product. Owned by its first matrix. */
struct cuda_product {
    struct product view;
    __nv_bfloat16 *values; /* owned */
    uint4 *packed;         /* owned */
};

struct cuda_matrix {
    struct matrix base;           /* first: a struct matrix * is one of these */
    __nv_bfloat16 *values;        /* [rows][columns]; inside the product's once joined */
    struct cuda_product *product; /* or NULL before the join */
    bool owns_values, owns_product;
};

struct cuda_backend {
    struct backend base; /* first */
    cudaStream_t stream;
    struct library library;
    cublasHandle_t products; /* the library's handle; NULL while it is not open */
    uint8_t *no_workspace;   /* an address to give to the library with size 0 */
    uint32_t multiprocessors;
    struct backend_fault fault;
    uint64_t patient_until_ns; /* how long a start waits for memory */
    char name[64];
    char arithmetic[64];
};

static inline struct cuda_backend *cuda_backend_of(struct backend *backend)
{
    return (struct cuda_backend *)backend;
}

static inline struct cuda_matrix *cuda_matrix_of(struct matrix *matrix)
{
    return (struct cuda_matrix *)matrix;
}

/* Memory of the device. What a killed process held comes back when the driver has taken it apart,
 * so a start waits for it, up to cuda->patient_until_ns; later, or with `wait` false, it does not.
 * STATUS_OUT_OF_MEMORY, STATUS_DEVICE_LOST. Free with cudaFree. */
enum status cuda_take(struct cuda_backend *cuda, uint64_t bytes, bool wait, void **out_memory);

/* Logs the first failure of a device and gives STATUS_DEVICE_LOST (or STATUS_OUT_OF_MEMORY). */
enum status cuda_status(cudaError_t error, const char *what);

extern "C" const struct step_operations cuda_steps;

#endif
