/* How results are compared. A NaN never passes. */
#ifndef TANDEM_TESTS_KERNELS_COMPARISON_H
#define TANDEM_TESTS_KERNELS_COMPARISON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The right value in double and how far fp32 may be from it. */
struct expectation {
    double value, bound;
};

#define FLOAT_EPSILON 0x1p-24 /* relative error of one rounding */

/* Fails the test with `what` and the index where !(|actual - value| <= bound). */
void assert_close(const char *what, const float *actual, const struct expectation *expected,
                  size_t count);

/* Fails where two results differ in a bit. */
void assert_same_bits(const char *what, const void *actual, const void *expected, size_t bytes);

#endif
