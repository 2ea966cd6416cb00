#include "kernels/cpu/flushing.h"
#include "kernels/cpu/half.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/prepared.h"

#include <math.h>
#include <string.h>

/* Float weights: for every output one accumulator from +0, fused multiply-add, k ascending. */

typedef void (*load_weights)(const void *panel, uint32_t k, float *output);

static void load_f32(const void *panel, uint32_t k, float *output)
{
    memcpy(output, (const float *)panel + (uint64_t)k * PANEL_ROWS, PANEL_ROWS * sizeof *output);
}

static void load_f16(const void *panel, uint32_t k, float *output)
{
    const uint16_t *weights = (const uint16_t *)panel + (uint64_t)k * PANEL_ROWS;
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        output[r] = half_to_float(weights[r]);
}

static void load_bf16(const void *panel, uint32_t k, float *output)
{
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        output[r] = bf16_to_float(((const uint16_t *)panel)[bf16_place(r, k)]);
}

static void multiply_float(const void *panel, const struct matmul_share *share, load_weights load)
{
    memset(share->output, 0, share->rows * PANEL_ROWS * sizeof(float));
    for (uint32_t k = 0; k < share->columns; k++) {
        float weights[PANEL_ROWS];
        load(panel, k, weights);
        for (uint32_t row = 0; row < share->rows; row++) {
            float x = share->input[(uint64_t)row * share->columns + k];
            float *output = share->output + row * PANEL_ROWS;
            for (uint32_t r = 0; r < PANEL_ROWS; r++)
                output[r] = fmaf(x, weights[r], output[r]);
        }
    }
}

void matmul_f32_plain(const void *panel, const struct matmul_share *share)
{
    multiply_float(panel, share, load_f32);
}

void matmul_f16_plain(const void *panel, const struct matmul_share *share)
{
    multiply_float(panel, share, load_f16);
}

static void multiply_bf16(const void *panel, const struct matmul_share *share)
{
    multiply_float(panel, share, load_bf16);
}

void matmul_bf16_plain(const void *panel, const struct matmul_share *share)
{
    multiply_flushing(multiply_bf16, panel, share);
}

/* Quantized weights: exact integer sums per block of 32, then one chain over the blocks, ascending.
 */

struct unpacked_block {
    int16_t q[QUANTIZED_BLOCK_WEIGHTS][PANEL_ROWS];
    float scale[PANEL_ROWS], minimum[PANEL_ROWS];
};

static void scales_to_float(const uint16_t *halves, float *output)
{
    for (uint32_t r = 0; r < PANEL_ROWS; r++)
        output[r] = half_to_float(halves[r]);
}

static void unpack_nibbles(const uint32_t (*words)[PANEL_ROWS], int zero,
                           struct unpacked_block *block)
{
    for (uint32_t v = 0; v < Q4_WORDS; v++) {
        for (uint32_t i = 0; i < 8; i++) {
            uint32_t shift = 4 * (i / 2) + 16 * (i % 2);
            for (uint32_t r = 0; r < PANEL_ROWS; r++)
                block->q[8 * v + i][r] = (int16_t)((int)(words[v][r] >> shift & 15u) - zero);
        }
    }
}

static void unpack_bytes(const uint32_t (*words)[PANEL_ROWS], struct unpacked_block *block)
{
    static const uint8_t shifts[4] = {0, 16, 8, 24};
    for (uint32_t v = 0; v < Q8_WORDS; v++) {
        for (uint32_t i = 0; i < 4; i++) {
            for (uint32_t r = 0; r < PANEL_ROWS; r++)
                block->q[4 * v + i][r] = (int8_t)(uint8_t)(words[v][r] >> shifts[i]);
        }
    }
}

static void add_block(const struct unpacked_block *block, const struct prepared_row *row,
                      uint32_t index, bool with_minimum, float *output)
{
    const int16_t *q = row->q + (uint64_t)index * QUANTIZED_BLOCK_WEIGHTS;
    int32_t sums[PANEL_ROWS] = {0};
    for (uint32_t k = 0; k < QUANTIZED_BLOCK_WEIGHTS; k++) {
        for (uint32_t r = 0; r < PANEL_ROWS; r++)
            sums[r] += block->q[k][r] * q[k];
    }
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        output[r] = fmaf(block->scale[r] * row->scale[index], (float)sums[r], output[r]);
        if (with_minimum)
            output[r] = fmaf(block->minimum[r], row->scaled_sum[index], output[r]);
    }
}

static void unpack(const void *panel, uint32_t type, uint32_t index, struct unpacked_block *block)
{
    if (type == WEIGHT_TYPE_Q8_0) {
        const struct panel_block_q8_0 *packed = (const struct panel_block_q8_0 *)panel + index;
        unpack_bytes(packed->q, block);
        scales_to_float(packed->scale, block->scale);
    } else if (type == WEIGHT_TYPE_Q4_0) {
        const struct panel_block_q4_0 *packed = (const struct panel_block_q4_0 *)panel + index;
        unpack_nibbles(packed->q, 8, block);
        scales_to_float(packed->scale, block->scale);
    } else {
        const struct panel_block_q4_1 *packed = (const struct panel_block_q4_1 *)panel + index;
        unpack_nibbles(packed->q, 0, block);
        scales_to_float(packed->scale, block->scale);
        scales_to_float(packed->minimum, block->minimum);
    }
}

static void multiply_quantized(const void *panel, const struct matmul_share *share, uint32_t type)
{
    memset(share->output, 0, share->rows * PANEL_ROWS * sizeof(float));
    for (uint32_t index = 0; index < share->columns / QUANTIZED_BLOCK_WEIGHTS; index++) {
        struct unpacked_block block;
        unpack(panel, type, index, &block);
        for (uint32_t r = 0; r < share->rows; r++) {
            struct prepared_row row = prepared_row_at(share->prepared, share->columns, r);
            add_block(&block, &row, index, type == WEIGHT_TYPE_Q4_1,
                      share->output + r * PANEL_ROWS);
        }
    }
}

void matmul_q8_0_plain(const void *panel, const struct matmul_share *share)
{
    multiply_quantized(panel, share, WEIGHT_TYPE_Q8_0);
}

void matmul_q4_0_plain(const void *panel, const struct matmul_share *share)
{
    multiply_quantized(panel, share, WEIGHT_TYPE_Q4_0);
}

void matmul_q4_1_plain(const void *panel, const struct matmul_share *share)
{
    multiply_quantized(panel, share, WEIGHT_TYPE_Q4_1);
}
