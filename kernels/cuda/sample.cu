/* One token per row from its fp32 logits, by the rules of the CPU's sampler: integer keys, integer
 * weights, randomness from (seed, position, id). No result depends on the order in which threads
 * run.
 *
 * part_kernel, grid (chunk of 8,192 logits, sample): the largest logit, the sum of exp against it,
 * and the best candidate of rows without a filter. row_kernel, grid (sample): joins the chunks in
 * ascending order, finds the thresholds of rows with a filter (radix select over the
 * order-preserving key, 11 bits a pass) and draws among what is left; the last CTA tells the host.
 * Bytes moved: the logits once (rows with a filter: up to 8 times, from the L2). */
#include "common/random.h"
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.h"

namespace
{

enum {
    WARP = 32,
    PART_THREADS = 256,
    PER_THREAD = SAMPLE_CHUNK / PART_THREADS, /* logits, four neighbours at a time */
    ROW_THREADS = 1024,
    DIGIT_VALUES = 1 << 11,
};

#define WEIGHT_ONE    0x1p+40f
#define SHARPNESS_MAX 0x1p+100f

/* Increasing with the value; -0 and +0 are equal. */
__device__ __forceinline__ uint32_t key_of(float value)
{
    const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Larger is better; the lower id wins a tie. */
__device__ __forceinline__ uint64_t candidate(float score, uint32_t id)
{
    return (uint64_t)key_of(score) << 32 | (uint32_t)~id;
}

__device__ __forceinline__ float sharpness_of(float temperature)
{
    return fminf(__fdiv_rn(1.0f, temperature), SHARPNESS_MAX);
}

/* log(p / E) for the token's own exponential variate E = -log(u), u in (0, 1), from its word of
 * randomness. */
__device__ __forceinline__ float score_of(float logit, float sharpness, uint32_t word)
{
    const float u = __fmul_rn(__fadd_rn((float)(word >> 9), 0.5f), 0x1p-23f);
    return __fsub_rn(__fmul_rn(logit, sharpness), logf(-logf(u)));
}

/* The words of ids 4 i to 4 i + 3. */
__device__ __forceinline__ struct philox_block words_of(uint64_t seed, uint32_t position,
                                                        uint32_t id)
{
    return philox(seed, id / 4, position, 0, 0);
}

__device__ __forceinline__ bool has_filter(const struct sampling &s, uint32_t vocabulary)
{
    return s.temperature > 0.0f &&
           ((s.top_k > 0 && s.top_k < vocabulary) || s.top_p < 1.0f || s.min_p > 0.0f);
}

template <typename VALUE, typename JOIN>
__device__ VALUE reduce(VALUE value, VALUE *scratch, JOIN join)
{
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2)
        value = join(value, __shfl_xor_sync(~0u, value, distance));
    __syncthreads();
    if (threadIdx.x % WARP == 0)
        scratch[threadIdx.x / WARP] = value;
    __syncthreads();
    value = scratch[0];
    for (uint32_t i = 1; i < blockDim.x / WARP; i++)
        value = join(value, scratch[i]);
    return value;
}

__device__ __forceinline__ uint64_t larger_key(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Id of logit i of a thread. */
__device__ __forceinline__ uint32_t id_of(uint32_t first, uint32_t i)
{
    return first + (i / 4 * PART_THREADS + threadIdx.x) * 4 + i % 4;
}

/* This thread's logits of a chunk; the last one of the row in the place of those past it. */
__device__ __forceinline__ void load_chunk(const float *logits, uint32_t first, uint32_t last,
                                           bool aligned, float (&values)[PER_THREAD])
{
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i += 4) {
        const uint32_t id = id_of(first, i);
        if (aligned && id + 3 <= last) {
            const float4 v = __ldcg((const float4 *)(logits + id));
            values[i] = v.x;
            values[i + 1] = v.y;
            values[i + 2] = v.z;
            values[i + 3] = v.w;
            continue;
        }
#pragma unroll
        for (uint32_t j = 0; j < 4; j++)
            values[i + j] = __ldcg(logits + (id + j < last ? id + j : last));
    }
}

/* The best of this thread's candidates for a row that is drawn without a filter. */
__device__ uint64_t best_score(const struct draw_args &args, uint32_t sample, uint32_t first,
                               const float (&values)[PER_THREAD])
{
    const struct sampling sampling = args.sampling[sample];
    const float sharpness = sharpness_of(sampling.temperature);
    uint64_t best = 0;
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i += 4) {
        const struct philox_block words =
            words_of(sampling.seed, args.positions[sample], id_of(first, i));
#pragma unroll
        for (uint32_t j = 0; j < 4; j++) {
            const uint32_t id = id_of(first, i + j);
            if (id < args.vocabulary)
                best = larger_key(
                    best, candidate(score_of(values[i + j], sharpness, words.word[j]), id));
        }
    }
    return best;
}

/* What the warps of a chunk found. */
struct chunk_scratch {
    float largest[PART_THREADS / WARP];
    float sum[PART_THREADS / WARP];
    uint64_t best[PART_THREADS / WARP];
};

/* Of values from here to the whole chunk: the largest for all threads, the best for the first. */
__device__ __forceinline__ void find_largest(struct chunk_scratch *scratch, float *largest,
                                             uint64_t *best)
{
    float value = *largest;
    uint64_t key = *best;
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        value = fmaxf(value, __shfl_xor_sync(~0u, value, distance));
        key = larger_key(key, __shfl_xor_sync(~0u, key, distance));
    }
    if (threadIdx.x % WARP == 0) {
        scratch->largest[threadIdx.x / WARP] = value;
        scratch->best[threadIdx.x / WARP] = key;
    }
    __syncthreads();
    value = scratch->largest[0];
#pragma unroll
    for (uint32_t i = 1; i < PART_THREADS / WARP; i++)
        value = fmaxf(value, scratch->largest[i]);
    if (threadIdx.x == 0)
        for (uint32_t i = 0; i < PART_THREADS / WARP; i++)
            key = larger_key(key, scratch->best[i]);
    *largest = value;
    *best = key;
}

/* Before the wait only what the first kernel of the step wrote is read: it is complete. */
__global__ void __launch_bounds__(PART_THREADS) part_kernel(const __grid_constant__ draw_args args)
{
    __shared__ struct chunk_scratch scratch;
    const uint32_t sample = blockIdx.y, first = blockIdx.x * SAMPLE_CHUNK;
    const bool there = sample < args.counts->samples;
    const struct sampling sampling = there ? args.sampling[sample] : (struct sampling){};
    wait_for_inputs();
    let_next_start();
    if (!there)
        return;
    const float *logits = args.logits + (uint64_t)sample * args.columns;
    const bool greedy = sampling.temperature <= 0.0f;
    const bool scored = !greedy && !has_filter(sampling, args.vocabulary);
    const uint32_t last = args.vocabulary - 1;
    float values[PER_THREAD], largest = __int_as_float((int)0xff800000u), widest = 0.0f;
    uint32_t largest_id = id_of(first, 0);
    load_chunk(logits, first, last, args.columns % 4 == 0, values);
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++) {
        const uint32_t id = id_of(first, i);
        widest = fmaxf(widest, fabsf(values[i]));
        values[i] = id <= last ? values[i] : __int_as_float((int)0xff800000u);
        if (values[i] > largest) {
            largest = values[i];
            largest_id = id;
        }
    }
    uint64_t best = candidate(largest, largest_id);
    if (scored)
        best = best_score(args, sample, first, values);
    find_largest(&scratch, &largest, &best);
    /* the largest itself counts exactly 1, so no log-probability is above 0 */
    float sum = 0.0f;
#pragma unroll
    for (uint32_t i = 0; i < PER_THREAD; i++)
        sum = __fadd_rn(sum, exp2_of(__fmul_rn(__fsub_rn(values[i], largest), (float)LOG2_E)));
    sum = add_lanes(sum);
    if (threadIdx.x % WARP == 0)
        scratch.sum[threadIdx.x / WARP] = sum;
    /* a NaN is in the sum, an infinity in the widest */
    const bool infinite = __syncthreads_or(isinf(widest)) != 0;
    if (threadIdx.x != 0)
        return;
    sum = scratch.sum[0];
    for (uint32_t i = 1; i < PART_THREADS / WARP; i++)
        sum = __fadd_rn(sum, scratch.sum[i]);
    const uint32_t bad = infinite || isnan(sum) || isinf(largest);
    args.partials[(uint64_t)sample * gridDim.x + blockIdx.x] = {largest, sum, bad, 0, best};
}

/* A row with a filter, for one CTA. */
struct row_view {
    const float *logits;
    uint32_t vocabulary;
    float largest, sharpness;
    uint64_t *histogram; /* shared [DIGIT_VALUES] */
    uint64_t *scratch;   /* shared [warps] */
};

__device__ __forceinline__ uint64_t weight_of(const struct row_view &row, float logit)
{
    const float x = __fmul_rn(__fsub_rn(logit, row.largest), row.sharpness);
    return __float2ull_rn(__fmul_rn(exp2_of(__fmul_rn(x, (float)LOG2_E)), WEIGHT_ONE));
}

/* The largest key at which the sum from the top reaches `target`; counts or weights are summed.
 * Only keys >= `lowest` count. */
__device__ uint32_t select_key(const struct row_view &row, bool weights, uint32_t lowest,
                               uint64_t target)
{
    __shared__ uint32_t chosen;
    __shared__ uint64_t above_chosen;
    uint32_t prefix = 0;
    uint64_t above = 0;
    const uint32_t shifts[] = {21, 10, 0}, bits[] = {11, 11, 10};
    for (int pass = 0; pass < 3; pass++) {
        const uint32_t mask = (1u << bits[pass]) - 1;
        for (uint32_t i = threadIdx.x; i < DIGIT_VALUES; i += ROW_THREADS)
            row.histogram[i] = 0;
        __syncthreads();
        for (uint32_t id = threadIdx.x; id < row.vocabulary; id += ROW_THREADS) {
            const float logit = __ldcg(row.logits + id);
            const uint32_t key = key_of(logit);
            if (key < lowest || ((key ^ prefix) >> shifts[pass] & ~mask) != 0)
                continue;
            atomicAdd((unsigned long long *)&row.histogram[key >> shifts[pass] & mask],
                      weights ? (unsigned long long)weight_of(row, logit) : 1ull);
        }
        __syncthreads();
        if (threadIdx.x == 0) {
            uint32_t value = mask;
            while (value > 0 && above + row.histogram[value] < target)
                above += row.histogram[value--];
            chosen = value;
            above_chosen = above;
        }
        __syncthreads();
        prefix |= chosen << shifts[pass];
        above = above_chosen;
        __syncthreads();
    }
    return prefix;
}

__device__ uint64_t weight_from(const struct row_view &row, uint32_t lowest)
{
    uint64_t sum = 0;
    for (uint32_t id = threadIdx.x; id < row.vocabulary; id += ROW_THREADS) {
        const float logit = __ldcg(row.logits + id);
        if (key_of(logit) >= lowest)
            sum += weight_of(row, logit);
    }
    return reduce(sum, row.scratch, [](uint64_t a, uint64_t b) { return a + b; });
}

/* total * share / 2^32 without overflow; at least 1. */
__device__ uint64_t share_of(uint64_t total, float share)
{
    const uint64_t fraction = (uint64_t)((double)share * 0x1p+32);
    const uint64_t part = (total >> 32) * fraction + ((total & 0xffffffffu) * fraction >> 32);
    return part > 0 ? part : 1;
}

__device__ uint64_t draw_filtered(const struct row_view &row, const struct sampling &sampling,
                                  uint32_t position)
{
    uint32_t lowest = 0;
    if (sampling.top_k > 0 && sampling.top_k < row.vocabulary)
        lowest = select_key(row, false, lowest, sampling.top_k);
    if (sampling.top_p < 1.0f)
        lowest = select_key(row, true, lowest, share_of(weight_from(row, lowest), sampling.top_p));
    const uint64_t least = __float2ull_rn(__fmul_rn(sampling.min_p, WEIGHT_ONE));
    uint64_t best = 0;
    for (uint32_t id = threadIdx.x; id < row.vocabulary; id += ROW_THREADS) {
        const float logit = __ldcg(row.logits + id);
        if (key_of(logit) >= lowest && weight_of(row, logit) >= least)
            best = larger_key(
                best, candidate(score_of(logit, row.sharpness,
                                         words_of(sampling.seed, position, id).word[id % 4]),
                                id));
    }
    return reduce(best, row.scratch, larger_key);
}

/* The end of the step on the device's clock is what the host looks for: one word, so nothing has to
 * be on the host before it but the answers, whose CTAs have waited for that. */
__device__ void tell_host(const struct draw_args &args)
{
    __threadfence_system();
    if (atomicAdd(args.finished, 1u) + 1 != gridDim.x)
        return;
    __threadfence_system();
    args.answer.span[1] = device_clock_ns();
    *args.finished = 0;
}

/* All chunks of a row, by every warp: lane l takes chunks l, l + 32, ... and the lanes meet at
 * distance 16, 8, 4, 2, 1. */
__device__ struct sample_partial join_parts(const struct sample_partial *parts, uint32_t chunks)
{
    const uint32_t lane = threadIdx.x % WARP;
    const float lowest = __int_as_float((int)0xff800000u);
    struct sample_partial mine = {lowest, 0.0f, 0, 0, 0};
    for (uint32_t i = lane; i < chunks; i += WARP) {
        const struct sample_partial part = parts[i];
        const float largest = fmaxf(mine.largest, part.largest);
        mine.sum = __fmaf_rn(
            mine.sum, exp2_of(__fmul_rn(mine.largest - largest, (float)LOG2_E)),
            __fmul_rn(part.sum, exp2_of(__fmul_rn(part.largest - largest, (float)LOG2_E))));
        mine.largest = largest;
        mine.best = larger_key(mine.best, part.best);
        mine.bad |= part.bad;
    }
    float largest = mine.largest;
#pragma unroll
    for (int distance = WARP / 2; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, distance));
        mine.best = larger_key(mine.best, __shfl_xor_sync(~0u, mine.best, distance));
        mine.bad |= __shfl_xor_sync(~0u, mine.bad, distance);
    }
    if (lane < chunks)
        mine.sum = __fmul_rn(mine.sum, exp2_of(__fmul_rn(mine.largest - largest, (float)LOG2_E)));
    mine.sum = add_lanes(mine.sum);
    mine.largest = largest;
    return mine;
}

/* Before the wait as part_kernel. */
__global__ void __launch_bounds__(ROW_THREADS) row_kernel(const __grid_constant__ draw_args args)
{
    extern __shared__ uint64_t histogram[];
    __shared__ uint64_t scratch[ROW_THREADS / WARP];
    const uint32_t sample = blockIdx.x;
    const uint32_t chunks = (args.vocabulary + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
    const bool there = sample < args.counts->samples;
    const uint32_t slot = there ? args.slots[sample] : 0;
    const struct sampling sampling = there ? args.sampling[sample] : (struct sampling){};
    wait_for_inputs();
    let_next_start();
    if (there) {
        const struct sample_partial *parts = args.partials + (uint64_t)sample * chunks;
        const float *logits = args.logits + (uint64_t)sample * args.columns;
        const struct sample_partial whole = join_parts(parts, chunks);
        uint64_t best = whole.best;
        const float largest = whole.largest;
        const uint32_t bad = whole.bad;
        if (bad == 0 && has_filter(sampling, args.vocabulary)) {
            const struct row_view row = {logits,    args.vocabulary,
                                         largest,   sharpness_of(sampling.temperature),
                                         histogram, scratch};
            best = draw_filtered(row, sampling, args.positions[sample]);
        }
        if (threadIdx.x == 0) {
            const uint32_t token = bad != 0 ? 0 : ~(uint32_t)best;
            /* a greedy row takes the largest: no way to the logits and back */
            const float logit = sampling.temperature <= 0.0f ? largest : logits[token];
            args.slot_tokens[slot] = token;
            args.answer.tokens[sample] = token;
            args.answer.errors[sample] = bad != 0 ? ROW_ERROR_LOGITS : 0;
            args.answer.logprobs[sample] =
                bad != 0 ? 0.0f : __fsub_rn(__fsub_rn(logit, largest), logf(whole.sum));
        }
    }
    if (threadIdx.x == 0)
        tell_host(args);
}

} // namespace

cudaError_t sample_prepare()
{
    struct cudaFuncAttributes attributes;
    const cudaError_t error = cudaFuncGetAttributes(&attributes, part_kernel);
    if (error != cudaSuccess)
        return error;
    return cudaFuncSetAttribute(row_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                DIGIT_VALUES * (int)sizeof(uint64_t));
}

cudaError_t sample_launch(const struct draw_args *args, cudaStream_t stream)
{
    const uint32_t chunks = (args->vocabulary + SAMPLE_CHUNK - 1) / SAMPLE_CHUNK;
    cudaError_t result = cudaSuccess;
    if (args->samples > 0)
        result = launch_overlapped(part_kernel, dim3(chunks, args->samples), PART_THREADS, 0,
                                   stream, *args);
    if (result == cudaSuccess)
        result = launch_overlapped(row_kernel, dim3(args->samples > 0 ? args->samples : 1),
                                   ROW_THREADS, DIGIT_VALUES * sizeof(uint64_t), stream, *args);
    return result;
}
