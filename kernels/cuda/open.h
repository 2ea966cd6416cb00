/* Entry of the CUDA backend, for backend.c. */
#ifndef TANDEM_KERNELS_CUDA_OPEN_H
#define TANDEM_KERNELS_CUDA_OPEN_H

#include "kernels/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* STATUS_NOT_FOUND: no device that it can run on, or no cuBLAS. STATUS_OUT_OF_MEMORY,
 * STATUS_SYSTEM. The reason is in `why`. */
MUST_USE enum status cuda_open(const struct backend_options *options, struct backend **out_backend,
                               struct text *why);

/* Identity of the arithmetic on this device; static as long as the backend is open. */
const char *cuda_arithmetic(const struct backend *backend);

#ifdef __cplusplus
}
#endif

#endif
