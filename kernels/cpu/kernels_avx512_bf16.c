#include "kernels/cpu/avx512_bf16.h"
#include "kernels/cpu/kernels_avx512.h"

/* Two tiles of 8 rows for each thread: masks and shifts have ports of their own here. */
enum { ROWS_WORTH = 16 };

const struct cpu_kernels cpu_kernels_avx512_bf16 = {
    .name = "cpu-avx512-bf16",
    AVX512_KERNELS,
    AVX512_QUANTIZED(ROWS_WORTH),
    .round_bf16_row = round_bf16_row_avx512_bf16,
    .bf16_bytes = sizeof(uint16_t),
    .matmul[WEIGHT_TYPE_BF16] = {matmul_bf16_avx512_bf16, matmul_bf16_avx512_bf16,
                                 matmul_bf16_pair_avx512_bf16, matmul_bf16_pair_avx512_bf16},
};
