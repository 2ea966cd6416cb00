/* One row of an operation, for operations that join several. */
#ifndef TANDEM_KERNELS_CPU_ROW_STEPS_H
#define TANDEM_KERNELS_CPU_ROW_STEPS_H

#include "kernels/cpu/kernels.h"

enum { ROW_LINE_FLOATS = 16 }; /* of a cache line */

/* What other cores wrote last, asked for at once: a loop that computes meanwhile sees too few of
 * its loads ahead. */
static inline void fetch_row(const float *values, uint32_t columns)
{
    for (uint32_t k = 0; k < columns; k += ROW_LINE_FLOATS)
        __builtin_prefetch(values + k);
}

/* rope.c */
void rope_row(const struct rope_args *args, uint32_t row);

/* prepare.c: the lines that prepare_row() will write, which other cores read last; row `row`, whose
 * values lie at `input` and not at args->input, into the forms asked for, and what must hold
 * before. */
void prepare_fetch(const struct cpu_kernels *kernels, const struct prepare_args *args,
                   uint32_t row);
void prepare_row(const struct cpu_kernels *kernels, const struct prepare_args *args, uint32_t row,
                 const float *input);
void prepare_check(const struct prepare_args *args);

/* Where the values of a row go in a share that begins with row `begin`: where only their rounded
 * forms are read, all rows take the place of the first one, which stays in the first cache. */
static inline uint32_t values_row(uint32_t forms, uint32_t begin, uint32_t row)
{
    return (forms & ACTIVATION_FORM_FLOATS) != 0 ? row : begin;
}

/* kv_write.c: the shape that the CPU writes; what a row will write fetched into the cache; one row
 * with its error. */
void kv_write_check(const struct kv_write_args *args);
void kv_write_fetch(const struct kv_write_args *args, uint32_t row);
void kv_write_row(const struct cpu_kernels *kernels, const struct kv_write_args *args,
                  uint32_t row);

#endif
