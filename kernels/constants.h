/* Constants of the arithmetic that several files use, in double. */
#ifndef TANDEM_KERNELS_CONSTANTS_H
#define TANDEM_KERNELS_CONSTANTS_H

#include <stdint.h>

#define LN2    0x1.62e42fefa39efp-1
#define LOG2_E 0x1.71547652b82fep+0

/* To split a double into 2^e m with m in [sqrt(1/2), sqrt(2)): adding the difference to the bits of
 * x carries into the exponent exactly when the mantissa is at least sqrt(2). */
#define SQRT_HALF_BITS UINT64_C(0x3fe6a09e667f3bcd)
#define ONE_BITS       UINT64_C(0x3ff0000000000000)
#define MANTISSA_MASK  UINT64_C(0x000fffffffffffff)

enum { EXPONENT_BIAS = 1023, MANTISSA_BITS = 52 };

#endif
