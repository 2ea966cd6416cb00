#include "kernels/cpu/device.h"
#include "kernels/cpu/exponential.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/prepared.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/row_steps.h"

#include "common/check.h"
#include "common/float16.h"

#include <string.h>

/* Largest magnitude of a block; infinity where a value is not finite. */
static float block_magnitude(const float *input)
{
    float largest = 0.0f;
    for (uint32_t k = 0; k < QUANTIZED_BLOCK_WEIGHTS; k++) {
        float magnitude = fabsf(input[k]);
        if (!(magnitude <= FINITE_MAX))
            return INFINITY;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest;
}

static void prepare_block(const float *input, uint32_t block, const struct prepared_row *output)
{
    int16_t *q = output->q + (uint64_t)block * QUANTIZED_BLOCK_WEIGHTS;
    float largest = block_magnitude(input);
    struct block_scale scale = block_scale(largest);
    int32_t sum = 0;
    if (scale.inverse == 0.0f) {
        memset(q, 0, QUANTIZED_BLOCK_WEIGHTS * sizeof *q);
    } else {
        for (uint32_t k = 0; k < QUANTIZED_BLOCK_WEIGHTS; k++) {
            float rounded = (input[k] * scale.inverse + ROUNDING_SHIFT) - ROUNDING_SHIFT;
            q[k] = (int16_t)rounded;
            sum += q[k];
        }
    }
    output->scale[block] = scale.scale;
    output->zero_sum[block] = -Q4_0_ZERO * sum;
    output->scaled_sum[block] = scale.scale * (float)sum;
}

void prepare_row_plain(const float *input, uint32_t columns, const struct prepared_row *output)
{
    for (uint32_t block = 0; block < columns / QUANTIZED_BLOCK_WEIGHTS; block++)
        prepare_block(input + (uint64_t)block * QUANTIZED_BLOCK_WEIGHTS, block, output);
}

void round_bf16_row_plain(const float *input, uint32_t columns, void *output)
{
    float *rounded = output;
    for (uint32_t k = 0; k < columns; k++)
        rounded[k] = bf16_to_float(bf16_from_float(input[k]));
    if (columns % 2 != 0)
        rounded[columns] = 0.0f;
}

static void fetch_to_write(const uint8_t *memory, uint64_t bytes)
{
    for (uint64_t at = 0; at < bytes; at += ROW_LINE_FLOATS * sizeof(float))
        __builtin_prefetch(memory + at, 1);
}

void prepare_fetch(const struct cpu_kernels *kernels, const struct prepare_args *args, uint32_t row)
{
    uint64_t record_bytes = prepared_row_bytes(args->columns);
    uint64_t bf16_bytes = bf16_row_bytes(kernels, args->columns);
    if ((args->forms & ACTIVATION_FORM_INTEGERS) != 0)
        fetch_to_write((const uint8_t *)args->output + row * record_bytes, record_bytes);
    if ((args->forms & ACTIVATION_FORM_BF16) != 0)
        fetch_to_write(bf16_rows_at(args->output, args->columns, args->rows) + row * bf16_bytes,
                       bf16_bytes);
}

/* Rows that the last tile lacks are multiplied all the same: by nothing, since denormals that lay
 * there would take their time. */
static void put_into_tile(const struct cpu_kernels *kernels, const struct prepare_args *args,
                          uint32_t row, const struct prepared_row *prepared)
{
    struct row_tile_block *tile =
        row_tile_at(kernels, args->output, args->columns, args->rows, row);
    uint32_t place = row % ROW_TILE, lacking = ROW_TILE - 1 - place;
    kernels->split_row(prepared, args->columns, place, tile);
    if (row + 1 < args->rows)
        return;
    for (uint32_t block = 0; block < args->columns / QUANTIZED_BLOCK_WEIGHTS; block++) {
        memset(tile[block].scale + place + 1, 0, lacking * sizeof(float));
        memset(tile[block].scaled_sum + place + 1, 0, lacking * sizeof(float));
    }
}

void prepare_row(const struct cpu_kernels *kernels, const struct prepare_args *args, uint32_t row,
                 const float *input)
{
    if ((args->forms & ACTIVATION_FORM_INTEGERS) != 0) {
        struct prepared_row output = prepared_row_at(args->output, args->columns, row);
        kernels->prepare_row(input, args->columns, &output);
        if (has_row_tiles(kernels, args->columns, args->rows))
            put_into_tile(kernels, args, row, &output);
    }
    if ((args->forms & ACTIVATION_FORM_BF16) != 0)
        kernels->round_bf16_row(input, args->columns,
                                bf16_rows_at(args->output, args->columns, args->rows) +
                                    row * bf16_row_bytes(kernels, args->columns));
}

void prepare_check(const struct prepare_args *args)
{
    CHECK((args->forms & ACTIVATION_FORM_INTEGERS) == 0 || prepared_row_bytes(args->columns) != 0);
}

struct prepare_job {
    const struct prepare_args *args;
    const struct cpu_kernels *kernels;
};

static void prepare_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct prepare_job *job = context;
    for (uint32_t row = begin; row < end; row++) {
        const float *input = job->args->input + (uint64_t)row * job->args->columns;
        fetch_row(input, job->args->columns);
        prepare_fetch(job->kernels, job->args, row);
        prepare_row(job->kernels, job->args, row, input);
    }
}

uint64_t cpu_prepared_bytes(struct backend *backend, uint32_t rows, uint32_t columns)
{
    const struct cpu_kernels *kernels = cpu_backend_of(backend)->kernels;
    /* Rows that fill no blocks need less than narrower ones that do. */
    columns =
        (columns + QUANTIZED_BLOCK_WEIGHTS - 1) / QUANTIZED_BLOCK_WEIGHTS * QUANTIZED_BLOCK_WEIGHTS;
    uint64_t tiles = has_row_tiles(kernels, columns, rows) ? (rows + ROW_TILE - 1) / ROW_TILE : 0;
    return rows * prepared_row_bytes(columns) + bf16_rows_bytes(kernels, columns, rows) +
           tiles * row_tile_bytes(columns);
}

void cpu_prepare(struct backend *backend, const struct prepare_args *args)
{
    if (args->forms == ACTIVATION_FORM_FLOATS)
        return;
    prepare_check(args);
    struct cpu_backend *cpu = cpu_backend_of(backend);
    struct prepare_job job = {args, cpu->kernels};
    pool_run(cpu->pool, prepare_rows, &job, args->rows,
             pool_row_grain(cpu->pool, args->rows, args->columns));
}
