/* One row of an operation, for operations that join several. */
#ifndef TANDEM_KERNELS_CPU_ROW_STEPS_H
#define TANDEM_KERNELS_CPU_ROW_STEPS_H

#include "kernels/cpu/kernels.h"

/* rope.c */
void rope_row(const struct rope_args *args, uint32_t row);

/* prepare.c: one row into the forms asked for, and what must hold before. */
void prepare_row(const struct cpu_kernels *kernels, const struct prepare_args *args, uint32_t row);
void prepare_check(const struct prepare_args *args);

/* kv_write.c: the shape that the CPU writes; what a row will write fetched into the cache; one row
 * with its error. */
void kv_write_check(const struct kv_write_args *args);
void kv_write_fetch(const struct kv_write_args *args, uint32_t row);
void kv_write_row(const struct cpu_kernels *kernels, const struct kv_write_args *args,
                  uint32_t row);

#endif
