/* Instances of the persistent step for 4 rows. */
#include "kernels/cuda/stream_instances.h"
#include "kernels/cuda/stream_step.cuh"

stream_kernel_type stream_kernel_of_4(uint32_t vectors, uint32_t head_dim)
{
    if (vectors == 2)
        return head_dim == 64 ? stream_kernel<4, 2, 64> : stream_kernel<4, 2, 128>;
    if (vectors == 1)
        return head_dim == 64 ? stream_kernel<4, 1, 64> : stream_kernel<4, 1, 128>;
    return NULL;
}
