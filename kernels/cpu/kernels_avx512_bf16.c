#include "kernels/cpu/avx512_bf16.h"
#include "kernels/cpu/kernels_avx512.h"

const struct cpu_kernels cpu_kernels_avx512_bf16 = {
    .name = "cpu-avx512-bf16",
    AVX512_KERNELS,
    .round_bf16_row = round_bf16_row_avx512_bf16,
    .bf16_bytes = sizeof(uint16_t),
    .matmul[WEIGHT_TYPE_BF16] = {matmul_bf16_avx512_bf16, matmul_bf16_avx512_bf16,
                                 matmul_bf16_pair_avx512_bf16, matmul_bf16_pair_avx512_bf16},
};
