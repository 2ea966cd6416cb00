#include "kernels/cpu/exponential.h"
#include "kernels/cpu/logarithm.h"
#include "kernels/cpu/plain.h"
#include "kernels/cpu/rounding.h"
#include "kernels/cpu/weight.h"

#include "common/random.h"

bool sample_scan_plain(const float *logits, uint32_t count, float *out_largest, uint32_t *out_index)
{
    float largest = -INFINITY;
    uint32_t index = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!(fabsf(logits[i]) <= FINITE_MAX))
            return false;
        if (logits[i] > largest) {
            largest = logits[i];
            index = i;
        }
    }
    *out_largest = largest;
    *out_index = index;
    return true;
}

void sample_probabilities_plain(const float *logits, uint32_t count, float largest, float sharpness,
                                float *output)
{
    for (uint32_t i = 0; i < count; i++)
        output[i] = exp_plain((logits[i] - largest) * sharpness);
}

uint64_t sample_weight_sum_plain(const float *probabilities, uint32_t count)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < count; i++)
        sum += sample_weight(probabilities[i]);
    return sum;
}

/* Of a 32-bit word w: u = (2 w + 1) / 2^33, never 0 or 1; E = -log(u). */
void sample_exponentials_plain(uint64_t seed, uint32_t position, uint32_t first_id, uint32_t count,
                               double *output)
{
    for (uint32_t i = 0; i < count; i += 4) {
        struct philox_block block = philox(seed, (first_id + i) / 4, position, 0, 0);
        for (uint32_t j = 0; j < 4 && i + j < count; j++)
            output[i + j] = -log_plain(((double)block.word[j] + 0.5) * 0x1p-32);
    }
}
