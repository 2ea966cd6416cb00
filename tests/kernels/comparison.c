#include "kernels/comparison.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

void assert_close(const char *what, const float *actual, const struct expectation *expected,
                  size_t count)
{
    for (size_t i = 0; i < count; i++) {
        double difference = fabs((double)actual[i] - expected[i].value);
        if (!(difference <= expected[i].bound))
            fail_msg("%s: element %zu is %a (%g), expected %g within %g", what, i,
                     (double)actual[i], (double)actual[i], expected[i].value, expected[i].bound);
    }
}

void assert_same_bits(const char *what, const void *actual, const void *expected, size_t bytes)
{
    const uint8_t *a = actual, *b = expected;
    for (size_t i = 0; i < bytes; i++) {
        if (a[i] != b[i])
            fail_msg("%s: differs in byte %zu (element %zu of 4 bytes)", what, i, i / 4);
    }
}
