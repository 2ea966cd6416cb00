/* The kernels for AVX2 with FMA and F16C; only *_avx2.c files are compiled for it. Contracts in
 * kernels.h. */
#ifndef TANDEM_KERNELS_CPU_AVX2_H
#define TANDEM_KERNELS_CPU_AVX2_H

#include "kernels/cpu/kernels.h"

void rmsnorm_row_avx2(const float *input, const float *weight, uint32_t columns, float epsilon,
                      float *output);
void prepare_row_avx2(const float *input, uint32_t columns, const struct prepared_row *output);
void round_bf16_row_avx2(const float *input, uint32_t columns, void *output);
void silu_mul_row_avx2(const float *gate, const float *up, uint32_t columns, float *output);
void matmul_f32_pair_avx2(const void *panel, const struct matmul_share *share);
void matmul_f32_avx2(const void *panel, const struct matmul_share *share);
void matmul_f16_pair_avx2(const void *panel, const struct matmul_share *share);
void matmul_f16_avx2(const void *panel, const struct matmul_share *share);
void matmul_bf16_pair_avx2(const void *panel, const struct matmul_share *share);
void matmul_bf16_avx2(const void *panel, const struct matmul_share *share);
void matmul_q8_0_few_avx2(const void *panel, const struct matmul_share *share);
void matmul_q8_0_many_avx2(const void *panel, const struct matmul_share *share);
void matmul_q4_0_few_avx2(const void *panel, const struct matmul_share *share);
void matmul_q4_0_many_avx2(const void *panel, const struct matmul_share *share);
void matmul_q4_1_few_avx2(const void *panel, const struct matmul_share *share);
void matmul_q4_1_many_avx2(const void *panel, const struct matmul_share *share);
bool kv_write_row_avx2(const struct kv_row_share *share);
void attention_segment_avx2(const struct attention_share *share);
void attention_merge_avx2(const float *segment, uint32_t head_dim, float *state);
void attention_finish_avx2(const float *state, uint32_t head_dim, float *output);
bool sample_scan_avx2(const float *logits, uint32_t count, float *out_largest, uint32_t *out_index);
void sample_probabilities_avx2(const float *logits, uint32_t count, float largest, float sharpness,
                               float *output);
uint64_t sample_weight_sum_avx2(const float *probabilities, uint32_t count);
void sample_exponentials_avx2(uint64_t seed, uint32_t position, uint32_t first_id, uint32_t count,
                              double *output);

#endif
