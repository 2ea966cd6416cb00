/* Instances of the persistent step for 1 row. */
#include "kernels/cuda/stream_instances.h"
#include "kernels/cuda/stream_step.cuh"

stream_kernel_type stream_kernel_of_1(uint32_t vectors, uint32_t head_dim)
{
    if (vectors == 2)
        return head_dim == 64 ? stream_kernel<1, 2, 64> : stream_kernel<1, 2, 128>;
    if (vectors == 1)
        return head_dim == 64 ? stream_kernel<1, 1, 64> : stream_kernel<1, 1, 128>;
    return NULL;
}
