/* Scale of a block of activations that is rounded to 16-bit integers. */
#ifndef TANDEM_KERNELS_CPU_ROUNDING_H
#define TANDEM_KERNELS_CPU_ROUNDING_H

#include <math.h>

#define FINITE_MAX  0x1.fffffep+127f
#define ROUNDED_MAX 32767.0f
#define NEGLIGIBLE  0x1p-100f /* blocks below become zero: their inverse scale would overflow */

struct block_scale {
    float scale;   /* NaN where a value of the block is not finite: it must reach the logits */
    float inverse; /* 0: all q are 0 */
};

static inline struct block_scale block_scale(float largest)
{
    struct block_scale result = {0.0f, 0.0f};
    if (largest > FINITE_MAX) {
        result.scale = NAN;
    } else if (largest >= NEGLIGIBLE) {
        result.scale = largest / ROUNDED_MAX;
        result.inverse = ROUNDED_MAX / largest;
    }
    return result;
}

#endif
