/* The kernels for AVX-512 with BF16 beside what avx512.h asks for; only *_avx512_bf16.c files are
 * compiled for it. What has no kernel here is taken from avx512.h. Contracts in kernels.h. */
#ifndef TANDEM_KERNELS_CPU_AVX512_BF16_H
#define TANDEM_KERNELS_CPU_AVX512_BF16_H

#include "kernels/cpu/avx512.h"

void round_bf16_row_avx512_bf16(const float *input, uint32_t columns, void *output);
void matmul_bf16_avx512_bf16(const void *panel, const struct matmul_share *share);
void matmul_bf16_pair_avx512_bf16(const void *panel, const struct matmul_share *share);

#endif
