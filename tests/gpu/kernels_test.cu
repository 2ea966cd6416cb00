/* Kernels of the CUDA backend on a device: products against a plain chain of matrix steps bit for
 * bit, attention and sampling against double precision, prefill against decoding bit for bit. Needs
 * an H200 (or another device of compute capability 9.0); prints one line per case and a verdict. */
#include "kernels/cuda/elementwise.cuh"
#include "kernels/cuda/instructions.cuh"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/wide.h"

#include "common/random.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <vector>

static int failures;

static void expect(bool good, const char *what, const char *detail)
{
    printf("%s %s %s\n", good ? "ok  " : "FAIL", what, detail);
    failures += good ? 0 : 1;
}

static void must(cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return;
    printf("FAIL %s: %s\n", what, cudaGetErrorString(error));
    exit(1);
}

template <typename ITEM> struct device_array {
    ITEM *at = NULL;
    uint64_t count;
    explicit device_array(uint64_t items) : count(items)
    {
        void *memory = NULL;
        must(cudaMalloc(&memory, items * sizeof(ITEM)), "malloc");
        must(cudaMemset(memory, 0, items * sizeof(ITEM)), "memset");
        at = (ITEM *)memory;
    }
    ~device_array()
    {
        (void)cudaFree(at);
    }
    void put(const std::vector<ITEM> &host)
    {
        must(cudaMemcpy(at, host.data(), host.size() * sizeof(ITEM), cudaMemcpyHostToDevice),
             "upload");
    }
    std::vector<ITEM> get() const
    {
        std::vector<ITEM> host(count);
        must(cudaDeviceSynchronize(), "kernel");
        must(cudaMemcpy(host.data(), at, count * sizeof(ITEM), cudaMemcpyDeviceToHost), "download");
        return host;
    }
};

using bf16 = __nv_bfloat16;

static float normal(struct random *random)
{
    float sum = 0;
    for (int i = 0; i < 12; i++)
        sum += (float)(random_next(random) >> 40) * 0x1p-24f;
    return sum - 6.0f;
}

static std::vector<bf16> random_halves(uint64_t count, float scale, uint64_t seed)
{
    struct random random = {seed};
    std::vector<bf16> values(count);
    for (bf16 &value : values)
        value = __float2bfloat16(normal(&random) * scale);
    return values;
}

/* ---- Products ---- */

/* The plainest chain: one warp, 16 weight rows and 8 rows of activations, no shared memory. */
__global__ void chain_kernel(const bf16 *weights, const bf16 *input, uint32_t rows,
                             uint32_t columns, uint32_t inputs, float *output)
{
    const uint32_t lane = threadIdx.x, group = lane / 4, pair = lane % 4;
    const uint32_t first = blockIdx.x * 16, at = blockIdx.y * 8;
    float c[4] = {};
    auto word = [&](const bf16 *from, uint32_t row, uint32_t most, uint32_t k) {
        return row < most ? *(const uint32_t *)(from + (uint64_t)row * columns + k) : 0u;
    };
    for (uint32_t k = 0; k < columns; k += 16) {
        const uint4 a = {word(weights, first + group, rows, k + 2 * pair),
                         word(weights, first + group + 8, rows, k + 2 * pair),
                         word(weights, first + group, rows, k + 2 * pair + 8),
                         word(weights, first + group + 8, rows, k + 2 * pair + 8)};
        mma_step(c, a, word(input, at + group, inputs, k + 2 * pair),
                 word(input, at + group, inputs, k + 2 * pair + 8));
    }
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t row = first + group + i / 2 * 8, column = at + pair * 2 + i % 2;
        if (row < rows && column < inputs)
            output[(uint64_t)column * rows + row] = c[i];
    }
}

struct shape {
    uint32_t rows, columns, order, head_dim;
};

static void test_product(const struct shape &shape, uint32_t inputs)
{
    struct product product = {};
    product.rows = shape.rows;
    product.columns = shape.columns;
    product.tiles = (shape.rows + 15) / 16;
    product.order = shape.order;
    product.head_dim = shape.head_dim;
    device_array<bf16> weights((uint64_t)shape.rows * shape.columns);
    device_array<bf16> input((uint64_t)FEW_ROWS_MAX * shape.columns);
    device_array<bf16> operand((uint64_t)FEW_ROWS_MAX * shape.columns);
    device_array<uint4> packed((uint64_t)product.tiles * shape.columns / 16 * 32);
    device_array<float> expected((uint64_t)inputs * shape.rows), logits(expected.count);
    device_array<bf16> halves(expected.count);
    device_array<uint32_t> count(1);
    weights.put(random_halves(weights.count, 0.02f, 1));
    input.put(random_halves(input.count, 1.0f, 2));
    count.put({inputs});
    product.values = weights.at;
    product.packed = packed.at;
    must(pack_launch(&product, packed.at, 0), "pack");
    chain_kernel<<<dim3(product.tiles, (inputs + 7) / 8), 32>>>(weights.at, input.at, shape.rows,
                                                                shape.columns, inputs, expected.at);
    const std::vector<float> want = expected.get();
    for (uint32_t tiles = 1; tiles <= 4; tiles *= 2) {
        if (inputs > tiles * 8)
            continue;
        const uint32_t operand_rows = tiles == 1 ? inputs : tiles * 8;
        struct operand_args order = {input.at, inputs, shape.columns, operand_rows, operand.at};
        must(operand_launch(&order, 0), "operand");
        struct few_args args = {};
        args.product = product;
        args.row_tiles = tiles;
        args.operand_rows = operand_rows;
        args.count = count.at;
        args.operand = operand.at;
        args.logits = logits.at;
        args.rows_out = halves.at;
        args.output = FEW_TO_LOGITS;
        must(few_launch(&args, 132, 0), "few");
        args.output = FEW_TO_ROWS;
        must(few_launch(&args, 132, 0), "few");
        const std::vector<float> got = logits.get();
        const std::vector<bf16> rounded = halves.get();
        uint64_t bad = 0;
        for (uint64_t i = 0; i < want.size(); i++) {
            const bf16 half = __float2bfloat16(want[i]);
            bad += memcmp(&got[i], &want[i], 4) != 0 || memcmp(&half, &rounded[i], 2) != 0;
        }
        char detail[100];
        snprintf(detail, sizeof detail, "%ux%u rows %u tiles %u: %llu differ", shape.rows,
                 shape.columns, inputs, tiles, (unsigned long long)bad);
        expect(bad == 0, "product", detail);
    }
}

/* ---- Products of many rows ---- */

struct dealt {
    uint32_t kind, rows, columns, ctas;
};

/* One product of a model of one layer that has no other. */
static struct stream_shape shape_of(const struct dealt &dealt)
{
    struct stream_shape shape = {};
    const uint32_t unit = dealt.kind == STREAM_HEADS ? 1 : 2;
    const uint32_t units = (dealt.rows + unit * 8 - 1) / (unit * 8);
    shape.ctas = dealt.ctas;
    shape.product[dealt.kind] = {dealt.rows, dealt.columns, unit, units / dealt.ctas,
                                 units % dealt.ctas};
    shape.share = stream_bytes(stream_groups(&shape.product[dealt.kind], 0), dealt.columns);
    return shape;
}

/* Activations as the kernel reads them; what is not a row is NaN. */
static std::vector<bf16> blocks_of(const std::vector<bf16> &rows, uint32_t inputs, uint32_t columns,
                                   uint32_t padded)
{
    std::vector<bf16> blocks((uint64_t)padded * columns, __float2bfloat16(NAN));
    for (uint32_t row = 0; row < inputs; row++)
        for (uint32_t k = 0; k < columns; k++)
            blocks[((uint64_t)(k / 8) * padded + row) * 8 + k % 8] = rows[(uint64_t)row * columns + k];
    return blocks;
}

__global__ void gate_sums(const float *sums, uint32_t rows, uint32_t width, bf16 *output)
{
    for (uint32_t i = blockIdx.x * blockDim.x + threadIdx.x; i < rows * width;
         i += gridDim.x * blockDim.x) {
        const float *from = sums + (uint64_t)(i / width) * 2 * width + i % width;
        output[i] = silu_mul_of(round_bf16(from[0]), round_bf16(from[width]));
    }
}

static void test_wide(const struct dealt &dealt, const std::vector<bf16> &weights_host,
                      uint32_t inputs)
{
    const uint32_t padded = wide_rows(inputs);
    const struct stream_shape shape = shape_of(dealt);
    struct product product = {};
    product.rows = dealt.rows;
    product.columns = dealt.columns;
    product.tiles = (dealt.rows + 15) / 16;
    product.order = dealt.kind == STREAM_PAIRS ? PACK_PAIRS : PACK_PLAIN;
    device_array<bf16> weights((uint64_t)dealt.rows * dealt.columns);
    device_array<bf16> input((uint64_t)padded * dealt.columns);
    device_array<bf16> activations(input.count);
    device_array<uint8_t> stream(shape.share * shape.ctas);
    device_array<float> sums((uint64_t)inputs * dealt.rows), logits(sums.count);
    device_array<bf16> rows(sums.count), gated((uint64_t)padded * dealt.rows), want_gated(sums.count);
    device_array<uint32_t> count(1);
    weights.put(weights_host);
    const std::vector<bf16> host = random_halves(input.count, 1.0f, 2);
    input.put(host);
    activations.put(blocks_of(host, inputs, dealt.columns, padded));
    count.put({inputs});
    product.values = weights.at;
    must(stream_pack(&shape, &product, dealt.kind == STREAM_LOGITS ? shape.layers : 0, dealt.kind,
                     stream.at, 0),
         "pack");
    chain_kernel<<<dim3(product.tiles, (inputs + 7) / 8), 32>>>(
        weights.at, input.at, dealt.rows, dealt.columns, inputs, sums.at);
    gate_sums<<<132, 256>>>(sums.at, inputs, dealt.rows / 2, want_gated.at);
    struct wide_args args = {};
    args.shape = shape;
    args.weights = stream.at;
    args.kind = dealt.kind;
    args.rows = padded;
    args.count = count.at;
    args.activations = activations.at;
    args.gated = gated.at;
    args.logits = logits.at;
    args.rows_out = rows.at;
    args.out_blocks = inputs % 2 == 0;
    must(wide_launch(&args, 0), "wide");
    const std::vector<float> want = sums.get(), got_logits = logits.get();
    const std::vector<bf16> got_rows = rows.get(), got_gated = gated.get(), gates = want_gated.get();
    uint64_t bad = 0;
    const uint32_t width = dealt.kind == STREAM_PAIRS ? dealt.rows / 2 : dealt.rows;
    for (uint64_t i = 0; i < (uint64_t)inputs * width; i++) {
        const bf16 half = __float2bfloat16(want[i]);
        const uint64_t row = i / width, k = i % width;
        const uint64_t at = args.out_blocks ? (k / 8 * padded + row) * 8 + k % 8 : i;
        const bool same = dealt.kind == STREAM_LOGITS  ? memcmp(&got_logits[i], &want[i], 4) == 0
                          : dealt.kind == STREAM_PAIRS ? memcmp(&got_gated[at], &gates[i], 2) == 0
                                                       : memcmp(&got_rows[i], &half, 2) == 0;
        bad += !same;
    }
    char detail[160];
    snprintf(detail, sizeof detail,
             "kind %u %ux%u ctas %u rows %u: %llu differ", dealt.kind,
             dealt.rows, dealt.columns, dealt.ctas, inputs, (unsigned long long)bad);
    expect(bad == 0, "wide", detail);
}

/* ---- Attention ---- */

struct scene {
    uint32_t heads, kv_heads, dim, length;
};

static double score_of(const std::vector<bf16> &q, const std::vector<bf16> &k, uint64_t q_at,
                       uint64_t k_at, uint32_t dim)
{
    double sum = 0;
    for (uint32_t i = 0; i < dim; i++)
        sum += (double)__bfloat162float(q[q_at + i]) * (double)__bfloat162float(k[k_at + i]);
    return sum / sqrt((double)dim);
}

struct content {
    std::vector<bf16> queries, keys, values;
};

struct way {
    bool decode;
    uint32_t splits, chunk;
    uint32_t items; /* decoding: for each multiprocessor, which decides how tiles are fetched */
};

/* The pool with keys and values in scattered blocks, NaN where nothing was written. */
static std::vector<uint8_t> fill_pool(const struct scene &scene, const struct kv_geometry &g,
                                      const struct content &content, std::vector<int32_t> &table)
{
    const uint32_t block = g.block_tokens, blocks = (uint32_t)table.size();
    std::vector<uint8_t> pool(kv_block_bytes(&g) * (blocks + 3), 0xff);
    for (uint32_t i = 0; i < blocks; i++)
        table[i] = (int32_t)((i * 7 + 3) % blocks + 2);
    if (blocks % 7 == 0)
        for (uint32_t i = 0; i < blocks; i++)
            table[i] = (int32_t)(blocks + 1 - i);
    for (uint32_t p = 0; p < scene.length; p++)
        for (uint32_t h = 0; h < scene.kv_heads; h++) {
            const uint32_t at = (uint32_t)table[p / block];
            const uint64_t from = ((uint64_t)p * scene.kv_heads + h) * scene.dim;
            for (uint32_t d = 0; d < scene.dim; d++) {
                const uint32_t element = kv_v_element(&g, p % block, d);
                memcpy(&pool[kv_k_head_offset(&g, at, h) + element * 2], &content.keys[from + d],
                       2);
                memcpy(&pool[kv_v_head_offset(&g, at, h) + element * 2], &content.values[from + d],
                       2);
            }
        }
    return pool;
}

static std::vector<bf16> attend(const struct scene &scene, const struct content &content,
                                const struct way &way)
{
    const uint32_t block = 16, blocks = (scene.length + block - 1) / block;
    const struct kv_geometry g = {1, scene.kv_heads, scene.dim, block, KV_TYPE_BF16, KV_ORDER_CUDA};
    const std::vector<bf16> &queries = content.queries;
    std::vector<int32_t> table(blocks);
    const std::vector<uint8_t> pool = fill_pool(scene, g, content, table);
    device_array<uint8_t> device_pool(pool.size());
    device_array<int32_t> device_table(table.size());
    device_array<bf16> device_queries(queries.size()), output(queries.size());
    device_array<uint32_t> positions(scene.length), slots(scene.length), count(1);
    std::vector<uint32_t> ascending(scene.length);
    for (uint32_t i = 0; i < scene.length; i++)
        ascending[i] = i;
    const uint32_t segments = (scene.length + 255) / 256;
    device_array<float> partials((uint64_t)scene.length * scene.kv_heads * segments * 8 *
                                 (scene.dim + 2));
    device_array<uint32_t> arrivals((uint64_t)scene.length * scene.kv_heads);
    device_array<struct attention_span> spans(scene.length);
    device_pool.put(pool);
    device_table.put(table);
    device_queries.put(queries);
    positions.put(ascending);
    count.put({scene.length});
    struct attention_launch launch = {};
    launch.kv.geometry = g;
    launch.kv.pool = device_pool.at;
    launch.kv.table = device_table.at;
    launch.kv.logical_blocks = blocks;
    launch.kv.heads = scene.heads;
    launch.kv.positions = positions.at;
    launch.kv.slots = slots.at;
    launch.kv.queries = device_queries.at;
    launch.kv_heads = scene.kv_heads;
    launch.scale = (float)(1.4426950408889634 / sqrt((double)scene.dim));
    launch.count = count.at;
    launch.rows = scene.length;
    launch.splits = way.decode ? way.splits : 1;
    launch.multiprocessors = way.decode ? scene.length * scene.kv_heads / way.items : 1;
    launch.partials = partials.at;
    launch.arrivals = arrivals.at;
    launch.segments_max = segments;
    launch.output = output.at;
    if (way.decode) {
        must(attention_decode(&launch, 0), "decode");
        return output.get();
    }
    const uint32_t chunk = way.chunk;
    std::vector<struct attention_span> host;
    for (uint32_t first = 0; first < scene.length; first += chunk)
        host.push_back(
            {first, first, chunk < scene.length - first ? chunk : scene.length - first, 0});
    spans.put(host);
    launch.spans = spans.at;
    launch.span_count = (uint32_t)host.size();
    const uint32_t unit = attention_tile_positions(scene.dim, scene.heads / scene.kv_heads);
    launch.span_tiles = chunk / unit + 2;
    must(attention_prefill(&launch, 0), "prefill");
    return output.get();
}

static void test_attention(const struct scene &scene)
{
    const uint64_t width = (uint64_t)scene.heads * scene.dim;
    const uint64_t kv_width = (uint64_t)scene.kv_heads * scene.dim;
    const struct content content = {random_halves(scene.length * width, 1.5f, 3),
                                    random_halves(scene.length * kv_width, 1.5f, 4),
                                    random_halves(scene.length * kv_width, 1.0f, 5)};
    const std::vector<bf16> &queries = content.queries, &keys = content.keys;
    const std::vector<bf16> &values = content.values;
    const std::vector<bf16> whole = attend(scene, content, {false, 1, scene.length, 0});
    double worst = 0, error = 0, norm = 0;
    for (uint32_t p = 0; p < scene.length; p += p < 70 ? 1 : 37)
        for (uint32_t h = 0; h < scene.heads; h++) {
            const uint32_t kv = h / (scene.heads / scene.kv_heads);
            std::vector<double> weights(p + 1), output(scene.dim);
            double most = -1e300, sum = 0;
            for (uint32_t k = 0; k <= p; k++) {
                weights[k] = score_of(queries, keys, (p * scene.heads + h) * (uint64_t)scene.dim,
                                      (k * scene.kv_heads + kv) * (uint64_t)scene.dim, scene.dim);
                most = weights[k] > most ? weights[k] : most;
            }
            for (double &weight : weights)
                sum += weight = exp(weight - most);
            for (uint32_t k = 0; k <= p; k++)
                for (uint32_t d = 0; d < scene.dim; d++)
                    output[d] += weights[k] / sum *
                                 (double)__bfloat162float(
                                     values[(k * scene.kv_heads + kv) * (uint64_t)scene.dim + d]);
            for (uint32_t d = 0; d < scene.dim; d++) {
                const double got = (double)__bfloat162float(
                    whole[(p * scene.heads + h) * (uint64_t)scene.dim + d]);
                const double difference = fabs(got - output[d]);
                worst = !(difference <= worst) ? difference : worst;
                error += difference * difference;
                norm += output[d] * output[d];
            }
        }
    char detail[200];
    const double relative = sqrt(error / norm);
    snprintf(detail, sizeof detail, "heads %u:%u dim %u length %u: worst %.2g, relative %.2g",
             scene.heads, scene.kv_heads, scene.dim, scene.length, worst, relative);
    expect(worst < 0.03 && relative < 4e-3, "attention", detail);
    const struct way ways[] = {{true, 1, 0, 1},     {true, 2, 0, 1},   {true, 5, 0, 1},
                               {true, 1, 0, 3},     {true, 2, 0, 3},   {true, 5, 0, 3},
                               {true, 1, 0, 5},     {true, 2, 0, 5},   {true, 5, 0, 5},
                               {false, 1, 1, 0},    {false, 1, 17, 0}, {false, 1, 100, 0},
                               {false, 1, 256, 0}};
    for (const auto &way : ways) {
        const std::vector<bf16> other = attend(scene, content, way);
        uint64_t bad = 0;
        for (uint64_t i = 0; i < whole.size(); i++)
            bad += memcmp(&whole[i], &other[i], sizeof(bf16)) != 0;
        snprintf(detail, sizeof detail, "heads %u:%u dim %u length %u %s %u, items %u: %llu differ",
                 scene.heads, scene.kv_heads, scene.dim, scene.length,
                 way.decode ? "decode, splits" : "prefill, chunks of",
                 way.decode ? way.splits : way.chunk, way.items, (unsigned long long)bad);
        expect(bad == 0, "attention bits", detail);
    }
}

/* ---- Sampling ---- */

/* Whether the token is in the set that its parameters leave, with the log-probability it has. */
static bool is_allowed(const float *row, uint32_t vocabulary, const struct sampling &sampling,
                       uint32_t token, float logprob)
{
    const double temperature = (double)(sampling.temperature > 0 ? sampling.temperature : 1);
    uint32_t best = 0, above = 0;
    double sum = 0, mass = 0, total = 0;
    for (uint32_t id = 0; id < vocabulary; id++) {
        best = row[id] > row[best] ? id : best;
        above += row[id] > row[token] ? 1 : 0;
        sum += exp((double)row[id]);
    }
    for (uint32_t id = 0; id < vocabulary; id++) {
        const double p = exp((double)(row[id] - row[best]) / temperature);
        total += p;
        mass += row[id] > row[token] ? p : 0;
    }
    const double own = exp((double)(row[token] - row[best]) / temperature);
    return fabs((double)row[token] - log(sum) - (double)logprob) < 1e-4 && logprob <= 0 &&
           (sampling.temperature > 0 || token == best) &&
           (sampling.top_k == 0 || above < sampling.top_k) &&
           (sampling.top_p >= 1 || mass / total < (double)sampling.top_p + 1e-6) &&
           own >= (double)sampling.min_p - 1e-6;
}

static void test_sampling()
{
    const uint32_t vocabulary = 50001, columns = 50016, samples = 64, chunks = 7;
    struct random random = {9};
    std::vector<float> logits((uint64_t)samples * columns);
    for (float &logit : logits)
        logit = normal(&random) * 3;
    std::vector<struct sampling> sampling(samples);
    for (uint32_t i = 0; i < samples; i++) {
        sampling[i] = {i, i % 4 == 0 ? 0.0f : 0.8f, i % 4 == 2 ? 0.9f : 1.0f,
                       i % 8 == 7 ? 0.05f : 0.0f, i % 4 == 3 ? 40u : 0u};
        logits[(uint64_t)i * columns + vocabulary] = 1e9f; /* never drawn */
    }
    logits[4 * (uint64_t)columns + 776] = 61.7f; /* all but certain */
    logits[5 * (uint64_t)columns + 777] = NAN;
    logits[6 * (uint64_t)columns + 778] = -INFINITY;
    device_array<float> device_logits(logits.size());
    device_array<struct sampling> device_sampling(samples);
    device_array<uint32_t> positions(samples), slots(samples), slot_tokens(samples), finished(1);
    device_array<struct step_counts> counts(1);
    device_array<struct sample_partial> partials((uint64_t)samples * chunks);
    device_array<uint64_t> span(2);
    device_array<uint32_t> tokens(samples), errors(samples);
    device_array<float> logprobs(samples);
    std::vector<uint32_t> ascending(samples);
    for (uint32_t i = 0; i < samples; i++)
        ascending[i] = i;
    device_logits.put(logits);
    device_sampling.put(sampling);
    positions.put(ascending);
    slots.put(ascending);
    counts.put({{samples, samples}});
    struct draw_args args = {};
    args.logits = device_logits.at;
    args.counts = counts.at;
    args.sampling = device_sampling.at;
    args.positions = positions.at;
    args.slots = slots.at;
    args.samples = samples;
    args.columns = columns;
    args.vocabulary = vocabulary;
    args.partials = partials.at;
    args.slot_tokens = slot_tokens.at;
    args.finished = finished.at;
    args.answer = {tokens.at, logprobs.at, errors.at, NULL, span.at};
    must(sample_launch(&args, 0), "sample");
    const std::vector<uint32_t> got = tokens.get(), bad = errors.get(), kept = slot_tokens.get();
    const std::vector<float> logprob = logprobs.get();
    uint32_t wrong = 0;
    for (uint32_t i = 0; i < samples; i++) {
        const float *row = &logits[(uint64_t)i * columns];
        if (i == 5 || i == 6)
            wrong += bad[i] != ROW_ERROR_LOGITS || got[i] != 0;
        else
            wrong += bad[i] != 0 || kept[i] != got[i] || got[i] >= vocabulary ||
                     !is_allowed(row, vocabulary, sampling[i], got[i], logprob[i]);
    }
    char detail[60];
    snprintf(detail, sizeof detail, "64 rows, %u wrong", wrong);
    expect(wrong == 0 && span.get()[1] > 0 && finished.get()[0] == 0, "sampling", detail);
}

enum { NO_DEVICE = 77 }; /* tells ctest that there is nothing to test on */

int main()
{
    int devices = 0;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) {
        printf("no device\n");
        return NO_DEVICE;
    }
    must(few_prepare(), "prepare");
    must(rows_prepare(), "prepare");
    must(attention_decode_prepare(), "prepare");
    must(attention_prefill_prepare(), "prepare");
    must(sample_prepare(), "prepare");
    const struct shape shapes[] = {
        {3072, 2048, PACK_HEADS, 64},  {2048, 2048, PACK_PLAIN, 0},   {16384, 2048, PACK_PAIRS, 0},
        {2048, 8192, PACK_PLAIN, 0},   {128256, 2048, PACK_PLAIN, 0}, {960, 576, PACK_HEADS, 64},
        {3072, 576, PACK_PAIRS, 0},    {576, 1536, PACK_PLAIN, 0},    {49152, 576, PACK_PLAIN, 0},
        {6144, 4096, PACK_HEADS, 128}, {1001, 192, PACK_PLAIN, 0}};
    for (const struct shape &shape : shapes)
        for (uint32_t inputs : {1u, 5u, 8u, 13u, 32u})
            if (shape.rows < 100000 || inputs == 1 || inputs == 13)
                test_product(shape, inputs);
    must(wide_prepare(), "prepare");
    const struct dealt dealts[] = {{STREAM_HEADS, 3072, 2048, 128},  {STREAM_OUTPUT, 2048, 2048, 128},
                                   {STREAM_PAIRS, 4096, 2048, 32}, {STREAM_DOWN, 576, 8192, 36},
                                   {STREAM_LOGITS, 8000 + 40, 2048, 30}, {STREAM_PAIRS, 3072, 576, 96},
                                   {STREAM_HEADS, 960, 576, 60}, {STREAM_DOWN, 576, 1536, 60},
                                   {STREAM_OUTPUT, 4096, 1024, 131}};
    for (const struct dealt &dealt : dealts) {
        const std::vector<bf16> weights =
            random_halves((uint64_t)dealt.rows * dealt.columns, 0.02f, 1);
        for (uint32_t inputs : {9u, 32u, 43u, 64u, 75u, 100u, 150u, 192u})
            test_wide(dealt, weights, inputs);
    }
    const struct scene scenes[] = {
        {32, 8, 64, 1100}, {9, 3, 64, 300}, {8, 8, 64, 130}, {16, 2, 128, 530}, {32, 8, 128, 300}};
    for (const struct scene &scene : scenes)
        test_attention(scene);
    test_sampling();
    printf("kernels: %s (%d failures)\n", failures == 0 ? "all good" : "FAILED", failures);
    return failures == 0 ? 0 : 1;
}
