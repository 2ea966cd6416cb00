#include "kernels/cpu/flushing.h"

#include <xmmintrin.h>

enum { MXCSR_FLUSHING = 0x8040 }; /* results (FTZ) and operands (DAZ) */

void multiply_flushing(matmul_panel multiply, const void *panel, const struct matmul_share *share)
{
    uint32_t before = _mm_getcsr();
    _mm_setcsr(before | MXCSR_FLUSHING);
    multiply(panel, share);
    _mm_setcsr(before);
}
