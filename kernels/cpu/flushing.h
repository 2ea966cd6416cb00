/* The environment of BF16 products. vdpbf16ps takes operands below 2^-126 as zero and flushes such
 * results to zero, whatever MXCSR says, so the loops of other instructions do that too. */
#ifndef TANDEM_KERNELS_CPU_FLUSHING_H
#define TANDEM_KERNELS_CPU_FLUSHING_H

#include "kernels/cpu/kernels.h"

/* multiply(panel, share) with MXCSR's FTZ and DAZ set; MXCSR is as before when it returns. A call
 * through a pointer into another file, so that the compiler can move no arithmetic out of it. */
void multiply_flushing(matmul_panel multiply, const void *panel, const struct matmul_share *share);

#endif
