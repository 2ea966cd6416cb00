/* Operations that only move or add: embed, gather, add, hash. */
#define XXH_INLINE_ALL
#include "kernels/cpu/device.h"
#include "kernels/cpu/matrix.h"

#include "common/check.h"

#include <string.h>
#include <xxhash.h>

static void embed_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct embed_args *args = context;
    for (uint32_t row = begin; row < end; row++) {
        CHECK(args->tokens[row] < args->table->rows);
        panel_row_to_float(args->table, args->tokens[row],
                           args->output + (uint64_t)row * args->table->columns);
    }
}

void cpu_embed(struct backend *backend, const struct embed_args *args)
{
    pool_run(cpu_backend_of(backend)->pool, embed_rows, args, args->rows,
             pool_row_grain(cpu_backend_of(backend)->pool, args->rows, args->table->columns));
}

void cpu_gather(struct backend *backend, const struct gather_args *args)
{
    (void)backend;
    for (uint32_t row = 0; row < args->rows; row++) {
        memcpy(args->output + (uint64_t)row * args->columns,
               args->input + (uint64_t)args->rows_taken[row] * args->columns,
               args->columns * sizeof(float));
    }
}

static void add_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct add_args *args = context;
    uint64_t last = (uint64_t)end * args->columns;
    for (uint64_t i = (uint64_t)begin * args->columns; i < last; i++)
        args->accumulator[i] += args->addend[i];
}

void cpu_add(struct backend *backend, const struct add_args *args)
{
    pool_run(cpu_backend_of(backend)->pool, add_rows, args, args->rows,
             pool_row_grain(cpu_backend_of(backend)->pool, args->rows, args->columns));
}

static void hash_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct hash_args *args = context;
    for (uint32_t row = begin; row < end; row++) {
        args->hashes[row] = XXH3_64bits(args->values + (uint64_t)row * args->columns,
                                        args->columns * sizeof(float));
    }
}

void cpu_hash(struct backend *backend, const struct hash_args *args)
{
    pool_run(cpu_backend_of(backend)->pool, hash_rows, args, args->rows,
             pool_row_grain(cpu_backend_of(backend)->pool, args->rows, args->columns));
}
