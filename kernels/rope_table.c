#include "kernels/rope_table.h"

#include "common/check.h"
#include "kernels/constants.h"

#include <math.h>
#include <string.h>

/* Taylor series in double, long enough for the reduced ranges; exact operations and fma() only, so
 * that every machine gets the same doubles. They are accurate to a few units of the last of 53
 * bits, and 24 are kept. */

#define TWO_OVER_PI  0x1.45f306dc9c883p-1
#define HALF_PI_HIGH 0x1.921fb54442d18p+0
#define HALF_PI_LOW  0x1.1a62633145c07p-54

/* 1/k!, even and odd ones alternate */
static const double inverse_factorials[] = {
    0x1.0000000000000p+0,  0x1.0000000000000p+0,  0x1.0000000000000p-1,  0x1.5555555555555p-3,
    0x1.5555555555555p-5,  0x1.1111111111111p-7,  0x1.6c16c16c16c17p-10, 0x1.a01a01a01a01ap-13,
    0x1.a01a01a01a01ap-16, 0x1.71de3a556c734p-19, 0x1.27e4fb7789f5cp-22, 0x1.ae64567f544e4p-26,
    0x1.1eed8eff8d898p-29, 0x1.6124613a86d09p-33, 0x1.93974a8c07c9dp-37, 0x1.ae7f3e733b81fp-41,
    0x1.ae7f3e733b81fp-45,
};

enum { TERMS = sizeof inverse_factorials / sizeof inverse_factorials[0] };

static double double_from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* log2 of a positive normal number: 2 atanh((m - 1) / (m + 1)) for the mantissa m in [sqrt(1/2),
 * sqrt(2)). */
static double log2_of(double x)
{
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    uint64_t shifted = bits + (ONE_BITS - SQRT_HALF_BITS);
    double exponent = (double)((int64_t)(shifted >> MANTISSA_BITS) - EXPONENT_BIAS);
    double m = double_from_bits((shifted & MANTISSA_MASK) + SQRT_HALF_BITS);
    double s = (m - 1.0) / (m + 1.0);
    double square = s * s, sum = 0.0;
    for (int k = 21; k >= 1; k -= 2)
        sum = fma(sum, square, 2.0 / (double)k);
    return fma(s * sum, LOG2_E, exponent);
}

/* 2^x for |x| < 1000. */
static double exp2_of(double x)
{
    double n = nearbyint(x);
    double r = (x - n) * LN2, sum = 0.0;
    for (int k = TERMS - 1; k >= 0; k--)
        sum = fma(sum, r, inverse_factorials[k]);
    uint64_t power = (uint64_t)((int64_t)n + EXPONENT_BIAS) << MANTISSA_BITS;
    return sum * double_from_bits(power);
}

static double sine_reduced(double r)
{
    double square = -r * r, sum = 0.0;
    for (int k = TERMS - 2; k >= 1; k -= 2)
        sum = fma(sum, square, inverse_factorials[k]);
    return sum * r;
}

static double cosine_reduced(double r)
{
    double square = -r * r, sum = 0.0;
    for (int k = TERMS - 1; k >= 0; k -= 2)
        sum = fma(sum, square, inverse_factorials[k]);
    return sum;
}

/* Angles up to 2^31: the quotient by pi/2 is exact in a double, and two fma() keep the remainder.
 */
static void cosine_and_sine(double angle, float *out_cosine, float *out_sine)
{
    double n = nearbyint(angle * TWO_OVER_PI);
    double r = fma(-n, HALF_PI_LOW, fma(-n, HALF_PI_HIGH, angle));
    double sine = sine_reduced(r), cosine = cosine_reduced(r);
    switch ((int64_t)n & 3) {
    case 0:
        *out_cosine = (float)cosine;
        *out_sine = (float)sine;
        break;
    case 1:
        *out_cosine = (float)-sine;
        *out_sine = (float)cosine;
        break;
    case 2:
        *out_cosine = (float)-cosine;
        *out_sine = (float)-sine;
        break;
    default:
        *out_cosine = (float)sine;
        *out_sine = (float)-cosine;
        break;
    }
}

size_t rope_table_elements(const struct rope_parameters *parameters)
{
    return (size_t)parameters->positions * parameters->rotary_dims;
}

void rope_table_fill(const struct rope_parameters *parameters, float *out_table)
{
    CHECK(parameters->rotary_dims % 2 == 0);
    CHECK(parameters->theta >= 1.0);
    uint32_t half = parameters->rotary_dims / 2;
    double log2_theta = log2_of(parameters->theta);
    for (uint32_t j = 0; j < half; j++) {
        double frequency = exp2_of(-2.0 * j / parameters->rotary_dims * log2_theta);
        if (parameters->frequency_factors != NULL)
            frequency /= (double)parameters->frequency_factors[j];
        for (uint32_t position = 0; position < parameters->positions; position++) {
            float *row = out_table + (size_t)position * parameters->rotary_dims;
            cosine_and_sine(position * frequency, &row[j], &row[half + j]);
        }
    }
}
