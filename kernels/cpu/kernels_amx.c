#include "kernels/cpu/amx.h"
#include "kernels/cpu/kernels_avx512.h"

enum {
    ROWS_WORTH = 32, /* two tiles of 16 rows for each thread: the second finds weights unpacked */
    ROW_TILES_FROM = 13, /* fewer rows are done sooner without tiles */
};

#define AMX_KERNELS(type)                                                                          \
    {                                                                                              \
        matmul_##type##_avx512, matmul_##type##_amx, NULL, matmul_##type##_pair_amx, ROWS_WORTH    \
    }

/* Processors with AMX make no quick vdpbf16ps (device.c), and the order in which a tile of bf16
 * adds is not that of the arithmetic: BF16 weights are chains of fp32. */
const struct cpu_kernels cpu_kernels_amx = {
    .name = "cpu-amx",
    AVX512_KERNELS,
    .split_row = split_row_amx,
    .row_tiles_from = ROW_TILES_FROM,
    .round_bf16_row = round_bf16_row_avx2,
    .bf16_bytes = sizeof(float),
    .matmul[WEIGHT_TYPE_BF16] = AVX512_FLOAT_KERNELS(bf16),
    .matmul[WEIGHT_TYPE_Q8_0] = AMX_KERNELS(q8_0),
    .matmul[WEIGHT_TYPE_Q4_0] = AMX_KERNELS(q4_0),
    .matmul[WEIGHT_TYPE_Q4_1] = AMX_KERNELS(q4_1),
};
