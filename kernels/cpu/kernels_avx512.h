/* What the tables for AVX-512 share: all but their names, the products of BF16 and quantized
 * weights. Operations without an AVX-512 source of their own run as on AVX2: the bits are
 * the same. */
#ifndef TANDEM_KERNELS_CPU_KERNELS_AVX512_H
#define TANDEM_KERNELS_CPU_KERNELS_AVX512_H

#include "kernels/cpu/avx512.h"
#include "kernels/cpu/fetch.h"

#include <stddef.h>

/* clang-format off */
#define AVX512_FLOAT_KERNELS(type) \
    {matmul_##type##_avx512, matmul_##type##_avx512, \
     matmul_##type##_pair_avx512, matmul_##type##_pair_avx512}

#define AVX512_QUANTIZED_KERNELS(type, rows_worth) \
    {matmul_##type##_avx512, matmul_##type##_avx512, \
     NULL, matmul_##type##_pair_avx512, rows_worth}

#define AVX512_QUANTIZED(rows_worth) \
    .matmul[WEIGHT_TYPE_Q8_0] = AVX512_QUANTIZED_KERNELS(q8_0, rows_worth), \
    .matmul[WEIGHT_TYPE_Q4_0] = AVX512_QUANTIZED_KERNELS(q4_0, rows_worth), \
    .matmul[WEIGHT_TYPE_Q4_1] = AVX512_QUANTIZED_KERNELS(q4_1, rows_worth)

#define AVX512_KERNELS \
    .rmsnorm_row = rmsnorm_row_avx512, \
    .prepare_row = prepare_row_avx512, \
    .silu_mul_row = silu_mul_row_avx512, \
    .matmul[WEIGHT_TYPE_F32] = AVX512_FLOAT_KERNELS(f32), \
    .matmul[WEIGHT_TYPE_F16] = AVX512_FLOAT_KERNELS(f16), \
    .fetch_bytes = FETCH_BYTES_THIRD, \
    .kv_write_row = kv_write_row_avx2, \
    .attention_segment = attention_segment_avx512, \
    .attention_merge = attention_merge_avx512, \
    .attention_finish = attention_finish_avx512, \
    .sample_scan = sample_scan_avx512, \
    .sample_probabilities = sample_probabilities_avx512, \
    .sample_weight_sum = sample_weight_sum_avx512, \
    .sample_exponentials = sample_exponentials_avx512
/* clang-format on */

#endif
