/* The kernels for AVX-512 with BW, DQ, VL and VNNI; only *_avx512.c files are compiled for it. What
 * has no kernel here is taken from avx2.h. Contracts in kernels.h. */
#ifndef TANDEM_KERNELS_CPU_AVX512_H
#define TANDEM_KERNELS_CPU_AVX512_H

#include "kernels/cpu/avx2.h"

void rmsnorm_row_avx512(const float *input, const float *weight, uint32_t columns, float epsilon,
                        float *output);
void prepare_row_avx512(const float *input, uint32_t columns, const struct prepared_row *output);
void silu_mul_row_avx512(const float *gate, const float *up, uint32_t columns, float *output);
void matmul_f32_avx512(const void *panel, const struct matmul_share *share);
void matmul_f32_pair_avx512(const void *panel, const struct matmul_share *share);
void matmul_f16_avx512(const void *panel, const struct matmul_share *share);
void matmul_f16_pair_avx512(const void *panel, const struct matmul_share *share);
void matmul_bf16_avx512(const void *panel, const struct matmul_share *share);
void matmul_bf16_pair_avx512(const void *panel, const struct matmul_share *share);
void matmul_q8_0_avx512(const void *panel, const struct matmul_share *share);
void matmul_q8_0_pair_avx512(const void *panel, const struct matmul_share *share);
void matmul_q4_0_avx512(const void *panel, const struct matmul_share *share);
void matmul_q4_0_pair_avx512(const void *panel, const struct matmul_share *share);
void matmul_q4_1_avx512(const void *panel, const struct matmul_share *share);
void matmul_q4_1_pair_avx512(const void *panel, const struct matmul_share *share);
void attention_segment_avx512(const struct attention_share *share);
void attention_merge_avx512(const float *segment, uint32_t head_dim, float *state);
void attention_finish_avx512(const float *state, uint32_t head_dim, float *output);

bool sample_scan_avx512(const float *logits, uint32_t count, float *out_largest,
                        uint32_t *out_index);
void sample_probabilities_avx512(const float *logits, uint32_t count, float largest,
                                 float sharpness, float *output);
uint64_t sample_weight_sum_avx512(const float *probabilities, uint32_t count);
void sample_exponentials_avx512(uint64_t seed, uint32_t position, uint32_t first_id, uint32_t count,
                                double *output);

#endif
