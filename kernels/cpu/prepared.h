/* Where prepared rows lie: first the records of integers, one per row, so that a kernel needs one
 * pointer and one stride; behind all of them the rows of bf16; behind these, whether there are any
 * or not, the row tiles. */
#ifndef TANDEM_KERNELS_CPU_PREPARED_H
#define TANDEM_KERNELS_CPU_PREPARED_H

#include "kernels/cpu/kernels.h"
#include "kernels/cpu/matrix.h"

#include <stdbool.h>

enum { PREPARED_ALIGNMENT = 64 };

/* Rows whose columns do not fill blocks go to no quantized weights and need no record. */
static inline uint64_t prepared_row_bytes(uint32_t columns)
{
    if (columns % QUANTIZED_BLOCK_WEIGHTS != 0)
        return 0;
    uint64_t blocks = columns / QUANTIZED_BLOCK_WEIGHTS;
    uint64_t bytes = columns * sizeof(int16_t) + blocks * (2 * sizeof(float) + sizeof(int32_t));
    return (bytes + PREPARED_ALIGNMENT - 1) / PREPARED_ALIGNMENT * PREPARED_ALIGNMENT;
}

/* Row `row` of the records at `prepared`. The pointers are writable for prepare alone. */
static inline struct prepared_row prepared_row_at(const void *prepared, uint32_t columns,
                                                  uint64_t row)
{
    uint32_t blocks = columns / QUANTIZED_BLOCK_WEIGHTS;
    uint8_t *record = (uint8_t *)(uintptr_t)prepared + row * prepared_row_bytes(columns);
    struct prepared_row parts;
    parts.q = (int16_t *)record;
    parts.scale = (float *)(record + columns * sizeof(int16_t));
    parts.scaled_sum = parts.scale + blocks;
    parts.zero_sum = (int32_t *)(parts.scaled_sum + blocks);
    return parts;
}

static inline uint64_t bf16_row_bytes(const struct cpu_kernels *kernels, uint32_t columns)
{
    return (uint64_t)bf16_columns(columns) * kernels->bf16_bytes;
}

/* The first of the `rows` rows of bf16 at `prepared`; writable for prepare alone. */
static inline uint8_t *bf16_rows_at(const void *prepared, uint32_t columns, uint32_t rows)
{
    return (uint8_t *)(uintptr_t)prepared + rows * prepared_row_bytes(columns);
}

static inline bool has_row_tiles(const struct cpu_kernels *kernels, uint32_t columns, uint32_t rows)
{
    return kernels->row_tiles_from != 0 && rows >= kernels->row_tiles_from &&
           columns % QUANTIZED_BLOCK_WEIGHTS == 0;
}

static inline uint64_t row_tile_bytes(uint32_t columns)
{
    return columns / QUANTIZED_BLOCK_WEIGHTS * sizeof(struct row_tile_block);
}

static inline uint64_t bf16_rows_bytes(const struct cpu_kernels *kernels, uint32_t columns,
                                       uint32_t rows)
{
    uint64_t bytes = rows * bf16_row_bytes(kernels, columns);
    return (bytes + PREPARED_ALIGNMENT - 1) / PREPARED_ALIGNMENT * PREPARED_ALIGNMENT;
}

/* The row tile of row `row` of the `rows` at `prepared`; writable for prepare alone. */
static inline struct row_tile_block *row_tile_at(const struct cpu_kernels *kernels,
                                                 const void *prepared, uint32_t columns,
                                                 uint32_t rows, uint32_t row)
{
    uint8_t *tiles =
        bf16_rows_at(prepared, columns, rows) + bf16_rows_bytes(kernels, columns, rows);
    return (struct row_tile_block *)(void *)(tiles + row / ROW_TILE * row_tile_bytes(columns));
}

#endif
