/* Instances of the persistent step, by rows; each file of instances is compiled on its own. */
#ifndef TANDEM_KERNELS_CUDA_STREAM_INSTANCES_H
#define TANDEM_KERNELS_CUDA_STREAM_INSTANCES_H

#include "kernels/cuda/stream.h"

using stream_kernel_type = void (*)(struct stream_args);

/* `vectors`: of 8 columns, of a row, for one of 256 threads. NULL where there is none. */
stream_kernel_type stream_kernel_of_1(uint32_t vectors, uint32_t head_dim);
stream_kernel_type stream_kernel_of_2(uint32_t vectors, uint32_t head_dim);
stream_kernel_type stream_kernel_of_4(uint32_t vectors, uint32_t head_dim);

#endif
