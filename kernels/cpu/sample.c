/* Sampling of one row is a function of its logits, its parameters and the position alone.
 *
 * - x = (logit - largest) * sharpness, sharpness = min(1 / temperature, 2^100); p = exp(x) in fp32.
 * - weight = round(p * 2^40), an integer: sums of weights are exact in any order.
 * - top_k keeps the keys (order-preserving integers of the logits) not below the k-th largest.
 * - top_p keeps, of those, the keys not below the largest key at which the weights from the top
 *   reach top_p of their sum.
 * - min_p keeps, of those, the tokens with weight >= round(min_p * 2^40).
 * - The draw takes, of those, the largest p / E, where E is the token's own exponential variate
 *   from Philox keyed by (seed, position, id): the Gumbel-max trick without its second logarithm.
 *   Ties go to the lowest id.
 *
 * Thresholds are found by three passes over a histogram of 11 bits of the key; probabilities are
 * computed again in each pass, which costs less than storing them. */
#include "kernels/cpu/device.h"
#include "kernels/cpu/logarithm.h"
#include "kernels/cpu/weight.h"

#include "common/check.h"
#include "common/float16.h"

#include <string.h>

enum {
    CHUNK = 256,     /* logits per call of a kernel; a multiple of 4 */
    SHARE_BITS = 32, /* top_p as a fraction of 2^32 */
    DIGITS_MAX = 1 << 11,
};

/* The bits of a key that each pass tells apart. */
static const struct digit {
    uint32_t shift, bits;
} digits[] = {{21, 11}, {10, 11}, {0, 10}};

#define SHARPNESS_MAX 0x1p+100f

struct row {
    const struct cpu_kernels *kernels;
    const float *logits;
    uint32_t vocabulary;
    float largest;
    float sharpness;
};

/* Increasing with the value; -0 and +0 are equal. */
static uint32_t key_of(float logit)
{
    uint32_t bits = float_bits(logit + 0.0f);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

static uint32_t chunk_length(const struct row *row, uint32_t first)
{
    uint32_t left = row->vocabulary - first;
    return left < CHUNK ? left : CHUNK;
}

static void chunk_probabilities(const struct row *row, uint32_t first, float *output)
{
    row->kernels->sample_probabilities(row->logits + first, chunk_length(row, first), row->largest,
                                       row->sharpness, output);
}

/* No key of the chunk reaches `lowest`: most chunks, once a threshold is known. */
static bool chunk_is_below(const struct row *row, uint32_t first, uint32_t lowest)
{
    float largest;
    uint32_t index;
    return lowest > 0 &&
           row->kernels->sample_scan(row->logits + first, chunk_length(row, first), &largest,
                                     &index) &&
           key_of(largest) < lowest;
}

struct histogram {
    uint64_t sums[DIGITS_MAX];
};

enum measure { MEASURE_COUNT, MEASURE_WEIGHT };

/* Sums, per value of the digit, over the keys >= `lowest` that agree with `prefix` above it. */
static void fill_histogram(const struct row *row, enum measure measure, uint32_t lowest,
                           uint32_t prefix, const struct digit *digit, struct histogram *histogram)
{
    uint32_t mask = (UINT32_C(1) << digit->bits) - 1;
    memset(histogram, 0, sizeof *histogram);
    for (uint32_t first = 0; first < row->vocabulary; first += CHUNK) {
        float probabilities[CHUNK];
        if (chunk_is_below(row, first, lowest > prefix ? lowest : prefix))
            continue;
        if (measure == MEASURE_WEIGHT)
            chunk_probabilities(row, first, probabilities);
        for (uint32_t i = 0; i < chunk_length(row, first); i++) {
            uint32_t key = key_of(row->logits[first + i]);
            if (key < lowest || ((key ^ prefix) >> digit->shift & ~mask) != 0)
                continue;
            histogram->sums[key >> digit->shift & mask] +=
                measure == MEASURE_WEIGHT ? sample_weight(probabilities[i]) : 1;
        }
    }
}

/* The largest key at which the sum from the top reaches `target`, which is >= 1 and at most the sum
 * of all. Only keys >= `lowest` count. */
static uint32_t select_key(const struct row *row, enum measure measure, uint32_t lowest,
                           uint64_t target)
{
    struct histogram histogram;
    uint32_t prefix = 0;
    uint64_t above = 0;
    for (uint32_t pass = 0; pass < sizeof digits / sizeof *digits; pass++) {
        const struct digit *digit = &digits[pass];
        fill_histogram(row, measure, lowest, prefix, digit, &histogram);
        uint32_t value = (UINT32_C(1) << digit->bits) - 1;
        while (above + histogram.sums[value] < target) {
            CHECK(value > 0);
            above += histogram.sums[value--];
        }
        prefix |= value << digit->shift;
    }
    return prefix;
}

/* Sum of all weights of keys >= lowest. */
static uint64_t weight_from(const struct row *row, uint32_t lowest)
{
    uint64_t sum = 0;
    for (uint32_t first = 0; first < row->vocabulary; first += CHUNK) {
        float probabilities[CHUNK];
        uint32_t count = chunk_length(row, first);
        if (chunk_is_below(row, first, lowest))
            continue;
        chunk_probabilities(row, first, probabilities);
        for (uint32_t i = 0; lowest > 0 && i < count; i++) {
            if (key_of(row->logits[first + i]) < lowest)
                probabilities[i] = 0.0f;
        }
        sum += row->kernels->sample_weight_sum(probabilities, count);
    }
    return sum;
}

/* total * share / 2^32 without overflow; at least 1. */
static uint64_t share_of(uint64_t total, float share)
{
    uint64_t fraction = (uint64_t)((double)share * 0x1p+32);
    uint64_t low_mask = (UINT64_C(1) << SHARE_BITS) - 1;
    uint64_t part =
        (total >> SHARE_BITS) * fraction + ((total & low_mask) * fraction >> SHARE_BITS);
    return part > 0 ? part : 1;
}

static uint32_t lowest_key(const struct row *row, const struct sampling *sampling)
{
    uint32_t lowest = 0;
    if (sampling->top_k > 0 && sampling->top_k < row->vocabulary)
        lowest = select_key(row, MEASURE_COUNT, lowest, sampling->top_k);
    if (sampling->top_p < 1.0f)
        lowest = select_key(row, MEASURE_WEIGHT, lowest,
                            share_of(weight_from(row, lowest), sampling->top_p));
    return lowest;
}

/* What the draw knows so far. */
struct winner {
    double score;
    uint32_t id;
};

/* Division is dear and few candidates come near the best: the product with some slack rules out the
 * rest. */
#define SCORE_SLACK (1.0 - 0x1p-40)

static void compare_chunk(const float *probabilities, const double *exponentials, uint32_t first,
                          uint32_t count, struct winner *best)
{
    for (uint32_t i = 0; i < count; i++) {
        double p = (double)probabilities[i];
        if (p <= 0.0 || p < best->score * exponentials[i] * SCORE_SLACK)
            continue;
        double score = p / exponentials[i];
        if (score > best->score)
            *best = (struct winner){score, first + i};
    }
}

/* Zeroes the probabilities of a chunk that are not in the set; false when none is left. */
static bool keep_chunk(const struct row *row, uint32_t first, uint32_t lowest,
                       uint64_t least_weight, float *probabilities)
{
    bool any = false;
    for (uint32_t i = 0; i < chunk_length(row, first); i++) {
        bool kept = key_of(row->logits[first + i]) >= lowest &&
                    sample_weight(probabilities[i]) >= least_weight && probabilities[i] > 0.0f;
        probabilities[i] = kept ? probabilities[i] : 0.0f;
        any = any || kept;
    }
    return any;
}

static uint32_t draw(const struct row *row, const struct sampling *sampling, uint32_t position)
{
    uint32_t lowest = lowest_key(row, sampling);
    uint64_t least_weight = sample_weight(sampling->min_p);
    struct winner best = {-1.0, 0};
    for (uint32_t first = 0; first < row->vocabulary; first += CHUNK) {
        float probabilities[CHUNK];
        double exponentials[CHUNK];
        uint32_t count = chunk_length(row, first);
        if (chunk_is_below(row, first, lowest))
            continue;
        chunk_probabilities(row, first, probabilities);
        if ((lowest > 0 || least_weight > 0) &&
            !keep_chunk(row, first, lowest, least_weight, probabilities))
            continue;
        row->kernels->sample_exponentials(sampling->seed, position, first, count, exponentials);
        compare_chunk(probabilities, exponentials, first, count, &best);
    }
    return best.id;
}

/* log-softmax of the raw logits at `token`. */
static float log_probability(const struct row *row, uint32_t token)
{
    struct row raw = *row;
    raw.sharpness = 1.0f;
    double sum = (double)weight_from(&raw, 0) / SAMPLE_WEIGHT_ONE;
    return (float)((double)row->logits[token] - (double)row->largest - log_plain(sum));
}

static void sample_row(const struct sample_args *args, const struct cpu_kernels *kernels,
                       uint32_t index)
{
    const struct sampling *sampling = &args->sampling[index];
    struct row row = {
        .kernels = kernels,
        .logits = args->logits + (uint64_t)index * args->columns,
        .vocabulary = args->vocabulary,
    };
    uint32_t token;
    args->tokens[index] = 0;
    args->logprobs[index] = 0.0f;
    if (!kernels->sample_scan(row.logits, row.vocabulary, &row.largest, &token)) {
        args->row_errors[index] |= ROW_ERROR_LOGITS;
        return;
    }
    if (sampling->temperature > 0.0f) {
        float sharpness = 1.0f / sampling->temperature;
        row.sharpness = sharpness < SHARPNESS_MAX ? sharpness : SHARPNESS_MAX;
        token = draw(&row, sampling, args->positions[index]);
    }
    args->tokens[index] = token;
    args->logprobs[index] = log_probability(&row, token);
}

struct sample_job {
    const struct sample_args *args;
    const struct cpu_kernels *kernels;
};

static void sample_rows(const void *context, uint32_t begin, uint32_t end)
{
    const struct sample_job *job = context;
    for (uint32_t index = begin; index < end; index++)
        sample_row(job->args, job->kernels, index);
}

void cpu_sample(struct backend *backend, const struct sample_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    struct sample_job job = {args, cpu->kernels};
    CHECK(args->vocabulary >= 1 && args->vocabulary <= args->columns);
    pool_run(cpu->pool, sample_rows, &job, args->rows, 1);
}
