#include "kernels/cpu/kernels_avx512.h"

const struct cpu_kernels cpu_kernels_avx512 = {
    .name = "cpu-avx512",
    AVX512_KERNELS,
    .round_bf16_row = round_bf16_row_avx2,
    .bf16_bytes = sizeof(float),
    .matmul[WEIGHT_TYPE_BF16] = AVX512_FLOAT_KERNELS(bf16),
};
