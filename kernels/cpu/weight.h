/* Probabilities as integers, so that sums of them are exact and order-free. */
#ifndef TANDEM_KERNELS_CPU_WEIGHT_H
#define TANDEM_KERNELS_CPU_WEIGHT_H

#include <stdint.h>

#define SAMPLE_WEIGHT_ONE 0x1p+40 /* a vocabulary of 2^23 tokens cannot overflow a sum */
#define INTEGER_SHIFT     0x1p+52 /* adding it rounds a smaller double to an integer */

static inline uint64_t sample_weight(float probability)
{
    return (uint64_t)(((double)probability * SAMPLE_WEIGHT_ONE + INTEGER_SHIFT) - INTEGER_SHIFT);
}

#endif
