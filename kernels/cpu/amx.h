/* The kernels for AMX with tiles of bytes, beside what avx512.h asks for; only *_amx.c files are
 * compiled for it. What has no kernel here is taken from avx512.h. Contracts in kernels.h. */
#ifndef TANDEM_KERNELS_CPU_AMX_H
#define TANDEM_KERNELS_CPU_AMX_H

#include "kernels/cpu/avx512.h"

void split_row_amx(const struct prepared_row *row, uint32_t columns, uint32_t place,
                   struct row_tile_block *tile);
void matmul_q8_0_amx(const void *panel, const struct matmul_share *share);
void matmul_q8_0_pair_amx(const void *panel, const struct matmul_share *share);
void matmul_q4_0_amx(const void *panel, const struct matmul_share *share);
void matmul_q4_0_pair_amx(const void *panel, const struct matmul_share *share);
void matmul_q4_1_amx(const void *panel, const struct matmul_share *share);
void matmul_q4_1_pair_amx(const void *panel, const struct matmul_share *share);

#endif
