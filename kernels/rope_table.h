/* cos and sin of every position, once per model, on the host, for all backends. In double with
 * polynomials of our own, rounded once to fp32, so that the table has the same bits on every
 * machine. */
#ifndef TANDEM_KERNELS_ROPE_TABLE_H
#define TANDEM_KERNELS_ROPE_TABLE_H

#include <stddef.h>
#include <stdint.h>

struct rope_parameters {
    double theta;         /* base of the frequencies: theta^(-2 j / rotary_dims) */
    uint32_t rotary_dims; /* even */
    uint32_t positions;   /* rows of the table */
    /* host, or NULL: frequency j is divided by frequency_factors[j]; rotary_dims / 2 of them.
     * Carries llama3 scaling (the file's rope_freqs) and linear scaling (the same factor
     * everywhere). */
    const float *frequency_factors;
};

/* Elements of the table: positions x rotary_dims. */
size_t rope_table_elements(const struct rope_parameters *parameters);

/* Fills [position][cos, sin][rotary_dims / 2] in host memory of rope_table_elements() floats. */
void rope_table_fill(const struct rope_parameters *parameters, float *out_table);

#endif
