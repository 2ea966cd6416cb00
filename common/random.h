/* Randomness is an argument. Two generators, both integer-only so that host and device agree:
 * a sequential one for ids and tests, and the counter-based Philox4x32-10 of the sampler
 * (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011). */
#ifndef TANDEM_COMMON_RANDOM_H
#define TANDEM_COMMON_RANDOM_H

#include "common/host_device.h"

#include <stdint.h>

/* SplitMix64: any seed is good, one addition and three multiplications per draw. */
struct random {
    uint64_t state;
};

ON_HOST_AND_DEVICE static inline uint64_t random_next(struct random *random)
{
    uint64_t z = (random->state += UINT64_C(0x9e3779b97f4a7c15));
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return z ^ (z >> 31);
}

/* Uniform in [0, bound), 1 <= bound <= 2^32; bias below bound / 2^32. */
ON_HOST_AND_DEVICE static inline uint32_t random_below(struct random *random, uint64_t bound)
{
    return (uint32_t)(((random_next(random) >> 32) * bound) >> 32);
}

/* Constants of Philox4x32-10, for implementations that compute several blocks at once. */
#define PHILOX_ROUNDS       10
#define PHILOX_MULTIPLIER_0 0xD2511F53u
#define PHILOX_MULTIPLIER_1 0xCD9E8D57u
#define PHILOX_STEP_0       0x9E3779B9u
#define PHILOX_STEP_1       0xBB67AE85u

struct philox_block {
    uint32_t word[4];
};

/* Four words of Philox4x32-10 for a 64-bit key and a 128-bit counter. */
ON_HOST_AND_DEVICE static inline struct philox_block philox(uint64_t key, uint32_t c0, uint32_t c1,
                                                            uint32_t c2, uint32_t c3)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t p0 = (uint64_t)PHILOX_MULTIPLIER_0 * c0, p1 = (uint64_t)PHILOX_MULTIPLIER_1 * c2;
        uint32_t n0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0, n2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c1 = (uint32_t)p1;
        c3 = (uint32_t)p0;
        c0 = n0;
        c2 = n2;
        k0 += PHILOX_STEP_0;
        k1 += PHILOX_STEP_1;
    }
    struct philox_block block = {{c0, c1, c2, c3}};
    return block;
}

#endif
