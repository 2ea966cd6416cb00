/* Faults of a device, planted for tests (backend.h: struct backend_fault). */
#include "kernels/backend.h"
#include "kernels/cuda/launch.h"

namespace
{

enum { THREADS = 256, NAP_NS = 1000 };

__global__ void trap_kernel()
{
    __trap();
}

/* Never returns; `always` is not 0, which the compiler does not know. */
__global__ void hang_kernel(uint32_t always)
{
    while (always != 0)
        __nanosleep(NAP_NS);
}

/* The first row of the residual stream after the gather. */
__global__ void __launch_bounds__(THREADS) spoil_kernel(uint16_t *row, uint32_t width, uint16_t bits)
{
    for (uint32_t i = threadIdx.x; i < width; i += THREADS)
        row[i] = bits;
}

} // namespace

cudaError_t fault_launch(const struct fault_args *args, cudaStream_t stream)
{
    switch (args->kind) {
    case BACKEND_FAULT_TRAP:
        trap_kernel<<<1, 1, 0, stream>>>();
        break;
    case BACKEND_FAULT_HANG:
        hang_kernel<<<1, 1, 0, stream>>>(args->width);
        break;
    case BACKEND_FAULT_NAN:
    case BACKEND_FAULT_NEGATIVE_NAN:
        spoil_kernel<<<1, THREADS, 0, stream>>>(
            (uint16_t *)args->residual, args->width,
            args->kind == BACKEND_FAULT_NAN ? (uint16_t)0x7fc0u : (uint16_t)0xffffu);
        break;
    default:
        break;
    }
    return cudaGetLastError();
}
