/* Weights as the CPU kernels read them: panels of 16 output rows, one after the other. A vector
 * lane is an output row, so no kernel ever sums across lanes, and all instruction sets read the
 * same bytes.
 *
 * - F32, F16: [panel][k][16 rows] in the file's type.
 * - BF16: [panel][pair of k][16 rows], a word of 32 bits for k (upper half) and k + 1 (lower half),
 *   k even: the order in which vdpbf16ps adds the two products. An odd number of columns gets a
 *   last one of zeros.
 * - quantized: [panel][block of 32 k], each block one of the structs below. A 32-bit word belongs
 *   to one row.
 * - 4 bit: word q[v][row] holds k = 8v..8v+7: k = 8v+2j in bits 4j.., k = 8v+2j+1 in bits 16+4j..,
 *   so that (word >> 4j) & 0x000F000F is the pair of 16-bit weights that a multiply-add of pairs
 *   takes.
 * - 8 bit: word q[v][row] holds k = 4v..4v+3 in the bytes 0, 2, 1, 3, so that the low and the high
 *   bytes of its 16-bit halves are such pairs.
 *
 * Missing rows of the last panel are zero.
 *
 * Panels lie one behind the other in pieces: one piece for each memory node whose threads multiply
 * with some of them. */
#ifndef TANDEM_KERNELS_CPU_MATRIX_H
#define TANDEM_KERNELS_CPU_MATRIX_H

#include "kernels/ops.h"

#include <assert.h>
#include <stdint.h>

enum {
    PANEL_ROWS = 16,
    UNIT_PANELS = 2, /* neighbouring panels that a product hands out together; all of one piece */
    Q4_WORDS = 4,
    Q8_WORDS = 8,
    Q4_0_ZERO = 8, /* the four bits that stand for 0 */
};

struct panel_block_q4_0 {
    uint16_t scale[PANEL_ROWS]; /* fp16 */
    uint32_t q[Q4_WORDS][PANEL_ROWS];
};

struct panel_block_q4_1 {
    uint16_t scale[PANEL_ROWS], minimum[PANEL_ROWS]; /* fp16 */
    uint32_t q[Q4_WORDS][PANEL_ROWS];
};

struct panel_block_q8_0 {
    uint16_t scale[PANEL_ROWS]; /* fp16 */
    uint32_t q[Q8_WORDS][PANEL_ROWS];
};

static_assert(sizeof(struct panel_block_q4_0) == 16 * 18, "packing adds no byte");
static_assert(sizeof(struct panel_block_q4_1) == 16 * 20, "packing adds no byte");
static_assert(sizeof(struct panel_block_q8_0) == 16 * 34, "packing adds no byte");

struct panel_piece {
    uint8_t *panels;     /* of the backend's weights of `place`, aligned to cache lines */
    uint32_t first, end; /* panels */
    uint32_t place;
};

struct cpu_matrix {
    struct matrix base; /* first */
    uint32_t pieces;    /* at least 1 */
    struct panel_piece piece[];
};

static inline const struct cpu_matrix *cpu_matrix_of(const struct matrix *matrix)
{
    return (const struct cpu_matrix *)matrix;
}

static inline uint32_t panel_count(const struct matrix *matrix)
{
    return matrix->rows / PANEL_ROWS + (matrix->rows % PANEL_ROWS != 0 ? 1u : 0u);
}

/* Columns of a BF16 matrix in memory, and of the rows that it is multiplied with: whole pairs. */
static inline uint32_t bf16_columns(uint32_t columns)
{
    return columns + columns % 2;
}

/* Place of (row r, column k) in a BF16 panel, in halves. */
static inline uint64_t bf16_place(uint32_t r, uint32_t k)
{
    return ((uint64_t)(k / 2) * PANEL_ROWS + r) * 2 + (1 - k % 2);
}

static inline uint64_t panel_bytes(const struct matrix *matrix)
{
    uint32_t columns =
        matrix->type == WEIGHT_TYPE_BF16 ? bf16_columns(matrix->columns) : matrix->columns;
    return weight_row_bytes(matrix->type, columns) * PANEL_ROWS;
}

static inline uint32_t unit_count(const struct matrix *matrix)
{
    return (panel_count(matrix) + UNIT_PANELS - 1) / UNIT_PANELS;
}

static inline const struct panel_piece *piece_at(const struct matrix *matrix, uint32_t panel)
{
    const struct panel_piece *piece = cpu_matrix_of(matrix)->piece;
    while (panel >= piece->end)
        piece++;
    return piece;
}

static inline uint8_t *panel_at(const struct matrix *matrix, uint32_t panel)
{
    const struct panel_piece *piece = piece_at(matrix, panel);
    return piece->panels + (panel - piece->first) * panel_bytes(matrix);
}

/* Row `row` as fp32, columns values. */
void panel_row_to_float(const struct matrix *matrix, uint32_t row, float *output);

#endif
