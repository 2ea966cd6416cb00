/* Marks functions that the CUDA backend compiles for the device as well. Headers that use it stay
 * in the intersection of C11 and C++17. */
#ifndef TANDEM_COMMON_HOST_DEVICE_H
#define TANDEM_COMMON_HOST_DEVICE_H

#ifdef __CUDACC__
#define ON_HOST_AND_DEVICE __host__ __device__
#else
#define ON_HOST_AND_DEVICE
#endif

#endif
