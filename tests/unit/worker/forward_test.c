#include "worker/forward.h"

#include "support/engine.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

enum { ROWS = 40, CONTEXT = 64 };
/* Of TINY_MODEL. */
enum { WIDTH = 64, FFN = 128, HEADS = 4, KEY_HEADS = 2, DIM = 16 };

/* The layers without a plan, over an engine's model and pool. */
struct bench {
    struct engine *engine;
    struct forward *forward;
    struct batch batch;
    uint32_t errors[ROWS];
};

static struct forward_options options_of(const struct engine *engine)
{
    return (struct forward_options){
        .model = &engine->model,
        .backend = engine->backend,
        .pool = (struct kv_pool *)(uintptr_t)&engine->pool,
        .slots = 2,
        .context = CONTEXT,
        .logical_blocks = kv_blocks_for(&engine->pool.geometry, CONTEXT),
        .rows = ROWS,
        .samples = ROWS,
        .hash_logits = true,
    };
}

static void open_bench(struct bench *bench, const struct engine_options *engine_options)
{
    memset(bench, 0, sizeof *bench);
    bench->engine = engine_open(engine_options);
    const struct forward_options options = options_of(bench->engine);
    assert_int_equal(forward_open(&options, &bench->forward, NULL), STATUS_OK);
    assert_int_equal(batch_init(&bench->batch, ROWS, ROWS), STATUS_OK);
    for (uint32_t slot = 0; slot < 2; slot++)
        for (uint32_t layer = 0; layer < 2; layer++) {
            int32_t blocks[4];
            for (int32_t i = 0; i < 4; i++)
                blocks[i] = (int32_t)(16 * slot + 2 * (uint32_t)i + layer);
            forward_map_blocks(
                bench->forward,
                &(struct block_run){.slot = slot, .layer = layer, .count = 4, .blocks = blocks});
        }
}

static void close_bench(struct bench *bench)
{
    batch_free(&bench->batch);
    forward_close(bench->forward);
    engine_close(bench->engine);
}

/* ---- The same model once more, in double and as plainly as it can be written ---- */

static const float *weight(const struct engine *engine, enum model_tensor role, uint32_t layer)
{
    const struct model_file_tensor *tensor = model_file_find(engine->model_file, role, layer);
    return (const float *)(const void *)tensor->content;
}

static void plain_norm(const double *input, const float *scale, double *output, uint32_t width)
{
    double squares = 0;
    for (uint32_t i = 0; i < width; i++)
        squares += input[i] * input[i];
    for (uint32_t i = 0; i < width; i++)
        output[i] = input[i] / sqrt(squares / width + 1e-5) * (double)scale[i];
}

static void plain_multiply(const float *matrix, uint32_t rows, uint32_t columns,
                           const double *input, double *output)
{
    for (uint32_t row = 0; row < rows; row++) {
        output[row] = 0;
        for (uint32_t i = 0; i < columns; i++)
            output[row] += (double)matrix[row * columns + i] * input[i];
    }
}

/* Rotates neighbours, as the rows of a llama file stand. `divisors` may be NULL. */
static void plain_rotate(double *values, uint32_t heads, uint32_t position, const float *divisors)
{
    const uint32_t head_dim = DIM;
    for (uint32_t head = 0; head < heads; head++)
        for (uint32_t pair = 0; pair < head_dim / 2; pair++) {
            double divisor = divisors == NULL ? 1 : (double)divisors[pair];
            double angle = position * pow(10000, -2.0 * pair / head_dim) / divisor;
            double *at = values + head * head_dim + 2 * pair, first = at[0];
            at[0] = first * cos(angle) - at[1] * sin(angle);
            at[1] = first * sin(angle) + at[1] * cos(angle);
        }
}

struct plain_cache {
    double keys[2][CONTEXT][KEY_HEADS * DIM];
    double values[2][CONTEXT][KEY_HEADS * DIM];
};

static void plain_attend(const struct plain_cache *cache, uint32_t layer, uint32_t position,
                         const double *queries, double *output)
{
    for (uint32_t head = 0; head < HEADS; head++) {
        uint32_t key_at = head / (HEADS / KEY_HEADS) * DIM;
        double scores[CONTEXT], sum = 0;
        for (uint32_t key = 0; key <= position; key++) {
            scores[key] = 0;
            for (uint32_t i = 0; i < DIM; i++)
                scores[key] += queries[head * DIM + i] * cache->keys[layer][key][key_at + i];
            scores[key] = exp(scores[key] / 4); /* 1 / sqrt(16); small enough not to overflow */
            sum += scores[key];
        }
        for (uint32_t i = 0; i < DIM; i++) {
            output[head * DIM + i] = 0;
            for (uint32_t key = 0; key <= position; key++)
                output[head * DIM + i] += scores[key] / sum * cache->values[layer][key][key_at + i];
        }
    }
}

static void plain_layer(const struct engine *engine, struct plain_cache *cache, uint32_t layer,
                        uint32_t position, double *hidden)
{
    const bool scaled = model_file_find(engine->model_file, MODEL_TENSOR_ROPE_FACTORS, 0) != NULL;
    const float *divisors = scaled ? weight(engine, MODEL_TENSOR_ROPE_FACTORS, 0) : NULL;
    double normed[WIDTH], queries[WIDTH], attended[WIDTH], gate[FFN], up[FFN], added[WIDTH];
    plain_norm(hidden, weight(engine, MODEL_TENSOR_ATTENTION_NORM, layer), normed, WIDTH);
    plain_multiply(weight(engine, MODEL_TENSOR_ATTENTION_Q, layer), WIDTH, WIDTH, normed, queries);
    plain_multiply(weight(engine, MODEL_TENSOR_ATTENTION_K, layer), KEY_HEADS * DIM, WIDTH, normed,
                   cache->keys[layer][position]);
    plain_multiply(weight(engine, MODEL_TENSOR_ATTENTION_V, layer), KEY_HEADS * DIM, WIDTH, normed,
                   cache->values[layer][position]);
    plain_rotate(queries, HEADS, position, divisors);
    plain_rotate(cache->keys[layer][position], KEY_HEADS, position, divisors);
    plain_attend(cache, layer, position, queries, attended);
    plain_multiply(weight(engine, MODEL_TENSOR_ATTENTION_OUTPUT, layer), WIDTH, WIDTH, attended,
                   added);
    for (uint32_t i = 0; i < WIDTH; i++)
        hidden[i] += added[i];
    plain_norm(hidden, weight(engine, MODEL_TENSOR_FFN_NORM, layer), normed, WIDTH);
    plain_multiply(weight(engine, MODEL_TENSOR_FFN_GATE, layer), FFN, WIDTH, normed, gate);
    plain_multiply(weight(engine, MODEL_TENSOR_FFN_UP, layer), FFN, WIDTH, normed, up);
    for (uint32_t i = 0; i < FFN; i++)
        gate[i] = gate[i] / (1 + exp(-gate[i])) * up[i];
    plain_multiply(weight(engine, MODEL_TENSOR_FFN_DOWN, layer), WIDTH, FFN, gate, added);
    for (uint32_t i = 0; i < WIDTH; i++)
        hidden[i] += added[i];
}

static void plain_logits(const struct engine *engine, struct plain_cache *cache, uint32_t token,
                         uint32_t position, double *out_logits)
{
    double hidden[WIDTH];
    const float *embedding = weight(engine, MODEL_TENSOR_EMBEDDING, 0);
    for (uint32_t i = 0; i < WIDTH; i++)
        hidden[i] = (double)embedding[token * WIDTH + i];
    for (uint32_t layer = 0; layer < 2; layer++)
        plain_layer(engine, cache, layer, position, hidden);
    double normed[WIDTH];
    plain_norm(hidden, weight(engine, MODEL_TENSOR_OUTPUT_NORM, 0), normed, WIDTH);
    const bool untied = model_file_find(engine->model_file, MODEL_TENSOR_OUTPUT, 0) != NULL;
    plain_multiply(untied ? weight(engine, MODEL_TENSOR_OUTPUT, 0) : embedding,
                   TINY_MODEL.vocabulary, WIDTH, normed, out_logits);
}

/* ---- */

/* Every position of a prompt against the plain model: rotation, GQA, residuals, order of the
 * operations. The bound is fp32 rounding over two layers (logits are about 4 wide); a wrong
 * rotation or head misses it by a factor of 1,000. */
static void compare_with_plain_model(const struct engine_options *options)
{
    struct bench bench;
    const struct sampling greedy = {.top_p = 1};
    uint32_t tokens[ROWS];
    open_bench(&bench, options);
    engine_prompt(bench.engine, 5, ROWS, tokens);
    for (uint32_t i = 0; i < ROWS; i++) {
        batch_add_rows(&bench.batch, 1, i, tokens + i, 1);
        batch_add_sample(&bench.batch, &greedy);
    }
    static float logits[ROWS][320];
    static double expected[320];
    static struct plain_cache cache;
    static struct step_sample samples[ROWS];
    assert_int_equal(forward_begin(bench.forward, &bench.batch), STATUS_OK);
    assert_true(forward_ready(bench.forward));
    assert_int_equal(forward_collect(bench.forward, samples, bench.errors), STATUS_OK);
    assert_int_equal(forward_logits(bench.forward, &bench.batch, 0, ROWS, logits[0]), STATUS_OK);
    double worst = 0, largest = 0;
    for (uint32_t position = 0; position < ROWS; position++) {
        plain_logits(bench.engine, &cache, tokens[position], position, expected);
        for (uint32_t i = 0; i < 320; i++) {
            double difference = fabs((double)logits[position][i] - expected[i]);
            worst = difference > worst || isnan(difference) ? difference : worst;
            largest = fabs(expected[i]) > largest ? fabs(expected[i]) : largest;
        }
    }
    if (!(worst <= 2e-3))
        fail_msg("the largest difference is %g", worst);
    assert_true(largest > 4);
    close_bench(&bench);
}

static void logits_equal_those_of_a_plain_model(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    options.kv_type = KV_TYPE_F32;
    compare_with_plain_model(&options);
    options.model.rope_factors = true;
    options.model.untied = true;
    compare_with_plain_model(&options);
}

static void samples_are_those_of_the_logits(void **state)
{
    (void)state;
    struct bench bench;
    struct engine_options options = engine_defaults();
    const struct sampling greedy = {.top_p = 1};
    uint32_t tokens[ROWS];
    open_bench(&bench, &options);
    engine_prompt(bench.engine, 5, ROWS, tokens);
    batch_add_rows(&bench.batch, 0, 0, tokens, 20);
    batch_add_sample(&bench.batch, &greedy);
    batch_add_rows(&bench.batch, 1, 0, tokens, 9);
    batch_add_rows(&bench.batch, 1, 9, tokens + 9, 1);
    batch_add_sample(&bench.batch, &greedy);
    struct step_sample samples[2];
    float logits[2][320];
    assert_int_equal(forward_begin(bench.forward, &bench.batch), STATUS_OK);
    assert_int_equal(forward_collect(bench.forward, samples, bench.errors), STATUS_OK);
    assert_int_equal(forward_logits(bench.forward, &bench.batch, 0, 2, logits[0]), STATUS_OK);
    for (uint32_t i = 0; i < 2; i++) {
        double sum = 0;
        for (uint32_t j = 0; j < 320; j++) {
            assert_true(logits[i][j] <= logits[i][samples[i].token]);
            sum += exp((double)logits[i][j]);
        }
        double expected = (double)logits[i][samples[i].token] - log(sum);
        assert_true(fabs((double)samples[i].logprob - expected) < 1e-4);
        assert_int_equal(samples[i].errors, 0);
    }
    assert_true(samples[0].logits_hash != samples[1].logits_hash);
    close_bench(&bench);
}

static void refuses_options_that_do_not_fit(void **state)
{
    (void)state;
    struct engine_options engine_options = engine_defaults();
    struct engine *engine = engine_open(&engine_options);
    struct kv_pool other = engine->pool;
    other.geometry.kv_heads++;
    for (uint32_t i = 0; i < 6; i++) {
        struct forward_options options = options_of(engine);
        struct forward *forward = NULL;
        struct reason reason;
        options.pool = i == 0 ? &other : options.pool;
        options.context = i == 1 ? 0 : i == 2 ? engine->model.shape.context + 1 : options.context;
        options.logical_blocks -= i == 3;
        options.rows = i == 4 ? 0 : options.rows;
        options.slots = i == 5 ? 0 : options.slots;
        assert_int_equal(forward_open(&options, &forward, reason_init(&reason)), STATUS_INVALID);
        assert_null(forward);
        assert_true(reason.text.length > 0);
    }
    engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits_equal_those_of_a_plain_model),
        cmocka_unit_test(samples_are_those_of_the_logits),
        cmocka_unit_test(refuses_options_that_do_not_fit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
