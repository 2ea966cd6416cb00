/* As AVX-512, but for products of BF16 weights. */
#include "kernels/cpu/avx512_bf16.h"
#include "kernels/cpu/fetch.h"

#include <stddef.h>

enum { ROWS_WORTH = 16 }; /* the integer kernels unpack weights once per 6 rows in any case */

const struct cpu_kernels cpu_kernels_avx512_bf16 = {
    .name = "cpu-avx512-bf16",
    .rmsnorm_row = rmsnorm_row_avx512,
    .prepare_row = prepare_row_avx512,
    .round_bf16_row = round_bf16_row_avx512_bf16,
    .bf16_bytes = sizeof(uint16_t),
    .silu_mul_row = silu_mul_row_avx512,
    .matmul =
        {
            [WEIGHT_TYPE_F32] = {matmul_f32_avx512, matmul_f32_avx512, matmul_f32_pair_avx512,
                                 matmul_f32_pair_avx512},
            [WEIGHT_TYPE_F16] = {matmul_f16_avx512, matmul_f16_avx512, matmul_f16_pair_avx512,
                                 matmul_f16_pair_avx512},
            [WEIGHT_TYPE_BF16] = {matmul_bf16_avx512_bf16, matmul_bf16_avx512_bf16,
                                  matmul_bf16_pair_avx512_bf16, matmul_bf16_pair_avx512_bf16},
            [WEIGHT_TYPE_Q8_0] = {matmul_q8_0_avx512, matmul_q8_0_avx512, NULL,
                                  matmul_q8_0_pair_avx512, ROWS_WORTH},
            [WEIGHT_TYPE_Q4_0] = {matmul_q4_0_avx512, matmul_q4_0_avx512, NULL,
                                  matmul_q4_0_pair_avx512, ROWS_WORTH},
            [WEIGHT_TYPE_Q4_1] = {matmul_q4_1_avx512, matmul_q4_1_avx512, NULL,
                                  matmul_q4_1_pair_avx512, ROWS_WORTH},
        },
    .fetch_bytes = FETCH_BYTES_THIRD,
    .kv_write_row = kv_write_row_avx2,
    .attention_segment = attention_segment_avx512,
    .attention_merge = attention_merge_avx512,
    .attention_finish = attention_finish_avx512,
    .sample_scan = sample_scan_avx512,
    .sample_probabilities = sample_probabilities_avx512,
    .sample_weight_sum = sample_weight_sum_avx512,
    .sample_exponentials = sample_exponentials_avx512,
};
