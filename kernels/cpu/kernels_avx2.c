#include "kernels/cpu/avx2.h"
#include "kernels/cpu/fetch.h"

#include <stddef.h>

const struct cpu_kernels cpu_kernels_avx2 = {
    .name = "cpu-avx2",
    .rmsnorm_row = rmsnorm_row_avx2,
    .prepare_row = prepare_row_avx2,
    .round_bf16_row = round_bf16_row_avx2,
    .bf16_bytes = sizeof(float),
    .silu_mul_row = silu_mul_row_avx2,
    .matmul =
        {
            [WEIGHT_TYPE_F32] = {matmul_f32_avx2, matmul_f32_avx2, matmul_f32_pair_avx2, NULL},
            [WEIGHT_TYPE_F16] = {matmul_f16_avx2, matmul_f16_avx2, matmul_f16_pair_avx2, NULL},
            [WEIGHT_TYPE_BF16] = {matmul_bf16_avx2, matmul_bf16_avx2, matmul_bf16_pair_avx2, NULL},
            [WEIGHT_TYPE_Q8_0] = {matmul_q8_0_few_avx2, matmul_q8_0_many_avx2},
            [WEIGHT_TYPE_Q4_0] = {matmul_q4_0_few_avx2, matmul_q4_0_many_avx2},
            [WEIGHT_TYPE_Q4_1] = {matmul_q4_1_few_avx2, matmul_q4_1_many_avx2},
        },
    .fetch_bytes = FETCH_BYTES_SECOND,
    .kv_write_row = kv_write_row_avx2,
    .attention_segment = attention_segment_avx2,
    .attention_merge = attention_merge_avx2,
    .attention_finish = attention_finish_avx2,
    .sample_scan = sample_scan_avx2,
    .sample_probabilities = sample_probabilities_avx2,
    .sample_weight_sum = sample_weight_sum_avx2,
    .sample_exponentials = sample_exponentials_avx2,
};
