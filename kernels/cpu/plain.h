/* The plain C kernels: reference of every instruction set. Contracts in kernels.h. */
#ifndef TANDEM_KERNELS_CPU_PLAIN_H
#define TANDEM_KERNELS_CPU_PLAIN_H

#include "kernels/cpu/kernels.h"

void rmsnorm_row_plain(const float *input, const float *weight, uint32_t columns, float epsilon,
                       float *output);
void prepare_row_plain(const float *input, uint32_t columns, const struct prepared_row *output);
void round_bf16_row_plain(const float *input, uint32_t columns, void *output);
void silu_mul_row_plain(const float *gate, const float *up, uint32_t columns, float *output);
void matmul_f32_plain(const void *panel, const struct matmul_share *share);
void matmul_f16_plain(const void *panel, const struct matmul_share *share);
void matmul_bf16_plain(const void *panel, const struct matmul_share *share);
void matmul_q8_0_plain(const void *panel, const struct matmul_share *share);
void matmul_q4_0_plain(const void *panel, const struct matmul_share *share);
void matmul_q4_1_plain(const void *panel, const struct matmul_share *share);
bool kv_write_row_plain(const struct kv_row_share *share);
void attention_segment_plain(const struct attention_share *share);
void attention_merge_plain(const float *segment, uint32_t head_dim, float *state);
void attention_finish_plain(const float *state, uint32_t head_dim, float *output);
bool sample_scan_plain(const float *logits, uint32_t count, float *out_largest,
                       uint32_t *out_index);
void sample_probabilities_plain(const float *logits, uint32_t count, float largest, float sharpness,
                                float *output);
uint64_t sample_weight_sum_plain(const float *probabilities, uint32_t count);
void sample_exponentials_plain(uint64_t seed, uint32_t position, uint32_t first_id, uint32_t count,
                               double *output);

#endif
