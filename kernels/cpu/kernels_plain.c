#include "kernels/cpu/plain.h"
#include "kernels/cpu/fetch.h"

const struct cpu_kernels cpu_kernels_plain = {
    .name = "cpu-plain",
    .rmsnorm_row = rmsnorm_row_plain,
    .prepare_row = prepare_row_plain,
    .round_bf16_row = round_bf16_row_plain,
    .bf16_bytes = sizeof(float),
    .silu_mul_row = silu_mul_row_plain,
    .matmul =
        {
            [WEIGHT_TYPE_F32] = {matmul_f32_plain, matmul_f32_plain},
            [WEIGHT_TYPE_F16] = {matmul_f16_plain, matmul_f16_plain},
            [WEIGHT_TYPE_BF16] = {matmul_bf16_plain, matmul_bf16_plain},
            [WEIGHT_TYPE_Q8_0] = {matmul_q8_0_plain, matmul_q8_0_plain},
            [WEIGHT_TYPE_Q4_0] = {matmul_q4_0_plain, matmul_q4_0_plain},
            [WEIGHT_TYPE_Q4_1] = {matmul_q4_1_plain, matmul_q4_1_plain},
        },
    .fetch_bytes = FETCH_BYTES_SECOND,
    .kv_write_row = kv_write_row_plain,
    .attention_segment = attention_segment_plain,
    .attention_merge = attention_merge_plain,
    .attention_finish = attention_finish_plain,
    .sample_scan = sample_scan_plain,
    .sample_probabilities = sample_probabilities_plain,
    .sample_weight_sum = sample_weight_sum_plain,
    .sample_exponentials = sample_exponentials_plain,
};
