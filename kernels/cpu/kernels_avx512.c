#include "kernels/cpu/kernels_avx512.h"

/* Only tiles of three times 8 rows and more share what one of them unpacks, which counts where
 * masks and shifts take the ports of products: such processors get this table (device.c). */
enum { ROWS_WORTH = 32 };

const struct cpu_kernels cpu_kernels_avx512 = {
    .name = "cpu-avx512",
    AVX512_KERNELS,
    AVX512_QUANTIZED(ROWS_WORTH),
    .round_bf16_row = round_bf16_row_avx2,
    .bf16_bytes = sizeof(float),
    .matmul[WEIGHT_TYPE_BF16] = AVX512_FLOAT_KERNELS(bf16),
};
