#include "worker/executor.h"

#include "support/engine.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <math.h>
#include <string.h>

enum { PROMPT_MAX = 2112, ANSWERS = 12 };

static uint32_t prompt[PROMPT_MAX];

static struct engine_trace run(struct engine *engine, uint32_t slot, uint32_t prompt_tokens,
                               uint32_t answers, uint32_t chunk)
{
    struct engine_request request = {
        .slot = slot, .prompt = prompt, .answers = answers, .chunk = chunk};
    request.prompt_tokens = prompt_tokens;
    return engine_run(engine, &request);
}

/* The answers of a fresh engine with these options to one request alone. */
static struct engine_trace run_fresh(const struct engine_options *options, uint32_t slot,
                                     uint32_t prompt_tokens, uint32_t answers, uint32_t chunk)
{
    struct engine *engine = engine_open(options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    struct engine_trace trace = run(engine, slot, prompt_tokens, answers, chunk);
    engine_close(engine);
    return trace;
}

static void assert_same(const struct engine_trace *a, const struct engine_trace *b,
                        const char *what)
{
    for (uint32_t i = 0; i < a->count && i < b->count; i++)
        if (a->tokens[i] != b->tokens[i] || a->hashes[i] != b->hashes[i] ||
            a->logprobs[i] != b->logprobs[i])
            fail_msg("%s: answer %u is %u hash %016llx, the reference has %u hash %016llx", what, i,
                     b->tokens[i], (unsigned long long)b->hashes[i], a->tokens[i],
                     (unsigned long long)a->hashes[i]);
    assert_true(engine_same(a, b));
}

static void answers_vary(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine_trace trace = run_fresh(&options, 0, 20, 32, 0);
    uint32_t distinct = 0;
    for (uint32_t i = 0; i < trace.count; i++) {
        bool seen = false;
        for (uint32_t j = 0; j < i; j++)
            seen = seen || trace.tokens[j] == trace.tokens[i];
        distinct += !seen;
        assert_true(trace.logprobs[i] <= 0 && isfinite(trace.logprobs[i]));
    }
    assert_true(distinct >= 12); /* otherwise equality of answers would prove little */
}

/* Prefill of n + 1 tokens gives the bits of prefill of n and one decode. */
static void prefill_equals_decode(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 127, 128, 255};
    struct engine_options options = engine_defaults();
    options.context = 512;
    options.step_tokens = 300;
    options.isa = CPU_ISA_AUTO;
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        uint32_t n = lengths[i];
        struct engine_trace whole = run(engine, 0, n + 1, 4, 0);
        segment_fixture_tenant(&engine->segment, 1, NULL);
        segment_write_tokens(&engine->segment.writer, 1, 0, prompt, n + 1);
        segment_fixture_row(&engine->segment, 1, 0, n, 0);
        engine_step(engine);
        segment_fixture_row(&engine->segment, 1, n, 1, PLAN_ROW_SAMPLE);
        struct engine_trace split = {0};
        engine_note(&split, &engine_step(engine)->rows[0]);
        for (uint32_t position = n + 1; split.count < 4; position++) {
            segment_fixture_row(&engine->segment, 1, position, 1,
                                PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE);
            engine_note(&split, &engine_step(engine)->rows[0]);
        }
        assert_same(&whole, &split, "split");
    }
    engine_close(engine);
}

/* A regression list of the seed: its prompts of these lengths were wrong or not allowed. Also S6,
 * S24. */
static void s24_prompts_of_border_lengths(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 15, 16, 17, 31, 32, 511, 512, 513, 2047, 2048};
    struct engine_options options = engine_defaults();
    options.context = 2112;
    options.slots = 2;
    options.step_tokens = 2048;
    options.isa = CPU_ISA_AUTO;
    options.threads = 2;
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    for (size_t i = 0; i < sizeof lengths / sizeof lengths[0]; i++) {
        struct engine_trace whole = run(engine, 0, lengths[i], 3, 0);
        struct engine_trace chunks = run(engine, 1, lengths[i], 3, 100);
        assert_same(&whole, &chunks, "chunks of 100");
        assert_true(isfinite(whole.logprobs[0]));
    }
    engine_close(engine);
}

/* S6: the length of a sequence is a setting, 2,048 as in the original system here: every position
 * of it can be filled, the one behind it is refused. */
static void s06_a_sequence_fills_its_context(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    options.context = 2048;
    options.slots = 1;
    options.step_tokens = 2048;
    options.isa = CPU_ISA_AUTO;
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    struct engine_trace trace = run(engine, 0, 2047, 1, 0);
    assert_true(isfinite(trace.logprobs[0]));
    segment_fixture_row(&engine->segment, 0, 2047, 1, PLAN_ROW_FROM_LAST_SAMPLE);
    assert_int_equal(engine_step(engine)->row_count, 0);
    engine->segment.plan.rows[0] =
        (struct plan_row){.generation = 1, .first_position = 2048, .count = 1};
    engine->segment.plan.row_count = 1;
    segment_fixture_publish(&engine->segment);
    assert_int_equal(executor_run(engine->executor, &engine->segment.plan, &engine->result,
                                  &engine->verdict, NULL),
                     STATUS_BAD_MESSAGE);
    assert_int_equal(engine->verdict.refusal, PLAN_REFUSAL_CONTEXT);
    engine_close(engine);
}

static void every_chunk_thread_and_instruction_set_gives_the_same_bits(void **state)
{
    (void)state;
    static const uint32_t types[] = {GGUF_TENSOR_F32,  GGUF_TENSOR_F16,  GGUF_TENSOR_BF16,
                                     GGUF_TENSOR_Q8_0, GGUF_TENSOR_Q4_0, GGUF_TENSOR_Q4_1};
    struct engine_options options = engine_defaults();
    options.context = 320;
    options.step_tokens = 300;
    options.slots = 1;
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        options.model.type = types[i];
        /* Beyond the first segment of keys for one float and one quantized type. */
        uint32_t length = types[i] == GGUF_TENSOR_F32 || types[i] == GGUF_TENSOR_Q4_1 ? 270 : 70;
        options.isa = CPU_ISA_PLAIN;
        options.threads = 1;
        struct engine_trace reference = run_fresh(&options, 0, length, ANSWERS, 0);
        struct engine_trace other = run_fresh(&options, 0, length, ANSWERS, 16);
        assert_same(&reference, &other, "chunks of 16");
        options.threads = 2;
        other = run_fresh(&options, 0, length, ANSWERS, 64);
        assert_same(&reference, &other, "chunks of 64, 2 threads");
        options.isa = CPU_ISA_AUTO;
        options.threads = 1;
        other = run_fresh(&options, 0, length, ANSWERS, 0);
        assert_same(&reference, &other, "widest instruction set");
        options.threads = 2;
        other = run_fresh(&options, 0, length, ANSWERS, 17);
        assert_same(&reference, &other, "widest instruction set, chunks of 17, 2 threads");
    }
}

static void shapes_beyond_the_usual_one(void **state)
{
    (void)state;
    const struct tiny_model models[] = {
        {.layers = 1,
         .width = 256,
         .ffn_width = 96,
         .heads = 2,
         .kv_heads = 1,
         .head_dim = 128,
         .vocabulary = 300,
         .context = 512,
         .type = GGUF_TENSOR_Q8_0,
         .seed = 3},
        {.layers = 3,
         .width = 96,
         .ffn_width = 160,
         .heads = 9,
         .kv_heads = 3,
         .head_dim = 32,
         .vocabulary = 333,
         .context = 512,
         .type = GGUF_TENSOR_Q4_1,
         .untied = true,
         .seed = 4},
        {.layers = 2,
         .width = 64,
         .ffn_width = 128,
         .heads = 4,
         .kv_heads = 4,
         .head_dim = 24,
         .vocabulary = 257,
         .context = 512,
         .type = GGUF_TENSOR_F32,
         .rope_factors = true,
         .seed = 5},
        {.layers = 2,
         .width = 72,
         .ffn_width = 100,
         .heads = 3,
         .kv_heads = 1,
         .head_dim = 8,
         .vocabulary = 70,
         .tokens = 65,
         .context = 512,
         .type = GGUF_TENSOR_F16,
         .seed = 6},
    };
    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        struct engine_options options = engine_defaults();
        options.model = models[i];
        options.context = 512;
        struct engine_trace reference = run_fresh(&options, 0, 100, ANSWERS, 0);
        options.isa = CPU_ISA_AUTO;
        options.threads = 2;
        options.kv_type = KV_TYPE_F16;
        struct engine_trace other = run_fresh(&options, 3, 100, ANSWERS, 33);
        assert_same(&reference, &other, "widest instruction set, 2 threads, chunks of 33");
        for (uint32_t j = 0; models[i].tokens != 0 && j < other.count; j++)
            assert_true(other.tokens[j] < models[i].tokens);
        options.kv_type = KV_TYPE_F32;
        struct engine_trace full = run_fresh(&options, 0, 100, ANSWERS, 0);
        assert_int_not_equal(full.hashes[0], reference.hashes[0]);
    }
}

/* S33: where the blocks lie changes no bit. */
static void s33_any_permutation_of_the_blocks_gives_the_same_bits(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    options.context = 320;
    options.isa = CPU_ISA_AUTO;
    struct engine_trace reference = run_fresh(&options, 0, 130, 16, 0);
    for (uint64_t seed = 1; seed <= 12; seed++) {
        options.shuffle_seed = seed;
        struct engine_trace other = run_fresh(&options, (uint32_t)seed % 4, 130, 16, 50);
        assert_same(&reference, &other, "permutation");
    }
}

/* S22: rows are numbered by the batch, the table by the slot; slots 0 and 2 stay free. */
static void s22_a_hole_in_the_slots(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    struct engine_trace alone_a = run(engine, 0, 40, 6, 0);
    struct engine_trace alone_b = run(engine, 0, 23, 6, 0);
    struct engine_trace a = {0}, b = {0};
    segment_fixture_release(&engine->segment, 0);
    const uint32_t slots[] = {3, 1}, lengths[] = {40, 23};
    for (size_t i = 0; i < 2; i++) {
        segment_fixture_tenant(&engine->segment, slots[i], NULL);
        segment_write_tokens(&engine->segment.writer, slots[i], 0, prompt, lengths[i]);
        segment_fixture_row(&engine->segment, slots[i], 0, lengths[i], PLAN_ROW_SAMPLE);
    }
    for (uint32_t step = 0; step < 6; step++) {
        const struct result *result = engine_step(engine);
        assert_int_equal(result->row_count, 2);
        for (uint32_t i = 0; i < 2; i++) {
            assert_int_equal(result->rows[i].slot, slots[i]);
            assert_int_equal(result->rows[i].position, lengths[i] + step);
            engine_note(i == 0 ? &a : &b, &result->rows[i]);
            segment_fixture_row(&engine->segment, slots[i], lengths[i] + step, 1,
                                PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE);
        }
    }
    assert_same(&alone_a, &a, "slot 3");
    assert_same(&alone_b, &b, "slot 1");
    engine_close(engine);
}

/* S11: the same logical block of two layers is two physical blocks. Exchanging the layers' blocks
 * of a cached sequence must change its answer, and putting them back must restore it: the table is
 * read per layer. */
static void s11_each_layer_has_blocks_of_its_own(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    run(engine, 0, 32, 1, 0);
    const struct kv_geometry *geometry = &engine->pool.geometry;
    const uint64_t bytes = kv_block_bytes(geometry);
    uint8_t *pool = engine->pool.memory;
    /* Canaries: the blocks of the two layers hold different keys, and no block was written that is
     * not mapped. */
    for (uint32_t logical = 0; logical < 2; logical++) {
        uint32_t first = (uint32_t)segment_fixture_block(&engine->segment, 0, 0, logical);
        uint32_t second = (uint32_t)segment_fixture_block(&engine->segment, 0, 1, logical);
        assert_int_not_equal(first, second);
        assert_memory_not_equal(pool + kv_block_offset(geometry, first),
                                pool + kv_block_offset(geometry, second), bytes);
    }
    uint32_t written = 0;
    for (uint32_t block = 0; block < engine->pool.blocks; block++) {
        const uint8_t *start = pool + kv_block_offset(geometry, block);
        bool untouched = true;
        for (uint64_t i = 0; i < bytes; i++)
            untouched = untouched && start[i] == 0;
        written += !untouched;
    }
    assert_int_equal(written, 2 * geometry->layers);
    engine_close(engine);
}

/* S1, S18, S26: after a step the keys and values stand where the geometry says, and nowhere else in
 * their block. */
static void s26_positions_beyond_the_cached_length_stay_unwritten(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    options.kv_type = KV_TYPE_F32;
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    run(engine, 0, 19, 1, 0);
    const struct kv_geometry *geometry = &engine->pool.geometry;
    uint8_t *pool = engine->pool.memory;
    for (uint32_t layer = 0; layer < geometry->layers; layer++)
        for (uint32_t position = 0; position < 32; position++) {
            uint32_t block =
                (uint32_t)segment_fixture_block(&engine->segment, 0, layer, position / 16);
            for (uint32_t head = 0; head < geometry->kv_heads; head++)
                for (uint32_t dim = 0; dim < geometry->head_dim; dim++) {
                    float key, value;
                    uint64_t at = kv_k_head_offset(geometry, block, head) +
                                  sizeof key * kv_k_element(geometry, position % 16, dim);
                    memcpy(&key, pool + at, sizeof key);
                    at = kv_v_head_offset(geometry, block, head) +
                         sizeof value * kv_v_element(geometry, position % 16, dim);
                    memcpy(&value, pool + at, sizeof value);
                    /* Unwritten ones still hold the poison. */
                    assert_int_equal(isfinite(key) != 0, position < 19);
                    assert_int_equal(isfinite(value) != 0, position < 19);
                }
        }
    engine_close(engine);
}

/* One among 31 others, all of other lengths and parameters. */
static void neighbours_change_no_bit(void **state)
{
    (void)state;
    enum { SLOTS = 32, STEPS = 10 };
    struct engine_options options = engine_defaults();
    options.slots = SLOTS;
    options.step_tokens = 1200;
    options.isa = CPU_ISA_AUTO;
    options.threads = 2;
    options.model.type = GGUF_TENSOR_Q4_1;
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    static struct engine_trace together[SLOTS];
    memset(together, 0, sizeof together);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        const struct slot_row parameters = {.seed = slot,
                                            .temperature = (float)(slot % 3) * 0.5F,
                                            .top_k = slot % 5 * 10,
                                            .top_p = 0.9F,
                                            .min_p = 0};
        segment_fixture_tenant(&engine->segment, slot, &parameters);
        segment_write_tokens(&engine->segment.writer, slot, 0, prompt + slot, 3 + 2 * slot);
        segment_fixture_row(&engine->segment, slot, 0, 3 + 2 * slot, PLAN_ROW_SAMPLE);
    }
    for (uint32_t step = 0; step < STEPS; step++) {
        const struct result *result = engine_step(engine);
        for (uint32_t slot = 0; slot < SLOTS; slot++) {
            engine_note(&together[slot], &result->rows[slot]);
            segment_fixture_row(&engine->segment, slot, 3 + 2 * slot + step, 1,
                                PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE);
        }
    }
    engine_detach(engine);
    engine_attach(engine);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        const struct slot_row parameters = {.seed = slot,
                                            .temperature = (float)(slot % 3) * 0.5F,
                                            .top_k = slot % 5 * 10,
                                            .top_p = 0.9F,
                                            .min_p = 0};
        struct engine_trace alone = engine_run(engine, &(struct engine_request){
                                                           .slot = (slot + 5) % SLOTS,
                                                           .prompt = prompt + slot,
                                                           .prompt_tokens = 3 + 2 * slot,
                                                           .answers = STEPS,
                                                           .parameters = &parameters,
                                                       });
        assert_same(&alone, &together[slot], "among 31 others");
    }
    engine_close(engine);
}

/* A preempted request is computed again from prompt and accepted tokens, and goes on as if nothing
 * had happened. */
static void recompute_continues_the_stream(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    const struct slot_row parameters = {.seed = 11, .temperature = 1, .top_p = 0.95F};
    struct engine_request request = {
        .prompt = prompt, .prompt_tokens = 30, .answers = 20, .parameters = &parameters};
    struct engine_trace whole = engine_run(engine, &request);
    uint32_t extended[50];
    memcpy(extended, prompt, 30 * sizeof *prompt);
    memcpy(extended + 30, whole.tokens, 9 * sizeof *prompt);
    request.slot = 2;
    request.prompt = extended;
    request.prompt_tokens = 39;
    request.answers = 11;
    request.chunk = 16;
    request.from_log = true;
    struct engine_trace rest = engine_run(engine, &request);
    for (uint32_t i = 0; i < rest.count; i++) {
        assert_int_equal(rest.tokens[i], whole.tokens[9 + i]);
        assert_int_equal(rest.hashes[i], whole.hashes[9 + i]);
    }
    engine_close(engine);
}

/* Several turns through lm_head (more samples than one turn holds) give the bits of one. */
static void more_samples_than_one_turn(void **state)
{
    (void)state;
    enum { SLOTS = 130 };
    struct engine_options options = engine_defaults();
    options.slots = SLOTS;
    options.context = 32;
    options.step_tokens = 4 * SLOTS;
    options.isa = CPU_ISA_AUTO;
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    struct engine_trace alone = run(engine, 0, 4, 1, 0);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        segment_fixture_tenant(&engine->segment, slot, NULL);
        segment_write_tokens(&engine->segment.writer, slot, 0, prompt, 4);
        segment_fixture_row(&engine->segment, slot, 0, 4, PLAN_ROW_SAMPLE);
    }
    const struct result *result = engine_step(engine);
    assert_int_equal(result->row_count, SLOTS);
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        assert_int_equal(result->rows[slot].slot, slot);
        assert_int_equal(result->rows[slot].token, alone.tokens[0]);
        assert_int_equal(result->rows[slot].logits_hash, alone.hashes[0]);
    }
    engine_close(engine);
}

static void a_result_answers_the_rows_that_sample(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    engine->segment.plan.instance.bytes[3] = 9;
    for (uint32_t slot = 0; slot < 3; slot++) {
        segment_fixture_tenant(&engine->segment, slot, NULL);
        segment_write_tokens(&engine->segment.writer, slot, 0, prompt, 20);
        segment_fixture_row(&engine->segment, slot, 0, 5 + slot, slot == 1 ? 0 : PLAN_ROW_SAMPLE);
    }
    const struct result *result = engine_step(engine);
    const struct result_bounds bounds = {.slots = 4, .context = 256, .vocabulary = 320};
    assert_int_equal(result_judge(result, &bounds, NULL), STATUS_OK);
    assert_int_equal(result->instance.bytes[3], 9);
    assert_int_equal(result->epoch, 7);
    assert_int_equal(result->step, 1);
    assert_true(result->has_logits_hash);
    assert_int_equal(result->row_count, 2);
    assert_int_equal(result->rows[0].slot, 0);
    assert_int_equal(result->rows[0].generation, 1);
    assert_int_equal(result->rows[0].position, 5);
    assert_int_equal(result->rows[1].slot, 2);
    assert_int_equal(result->rows[1].position, 7);
    assert_true(result->timings.compute_ns > 0);
    segment_fixture_row(&engine->segment, 1, 6, 1, 0);
    assert_int_equal(engine_step(engine)->row_count, 0);
    engine_close(engine);
}

/* A row of its own suffers; its neighbours do not. The mark stays until the slot has another
 * tenant. */
static void a_value_that_is_not_finite_marks_its_request(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    struct engine_trace clean = run(engine, 1, 20, 2, 0);
    run(engine, 0, 20, 1, 0);
    /* An infinity among the cached values of slot 0 makes its next logits NaN. */
    const struct kv_geometry *geometry = &engine->pool.geometry;
    uint32_t block = (uint32_t)segment_fixture_block(&engine->segment, 0, 0, 0);
    uint16_t infinity = 0x7c00;
    memcpy((uint8_t *)engine->pool.memory + kv_v_head_offset(geometry, block, 0), &infinity,
           sizeof infinity);
    segment_fixture_tenant(&engine->segment, 1, NULL);
    segment_write_tokens(&engine->segment.writer, 1, 0, prompt, 20);
    segment_fixture_row(&engine->segment, 0, 20, 1, PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE);
    segment_fixture_row(&engine->segment, 1, 0, 20, PLAN_ROW_SAMPLE);
    const struct result *result = engine_step(engine);
    assert_int_equal(result->rows[0].flags, RESULT_ROW_NUMERIC_ERROR);
    assert_int_equal(result->rows[0].token, 0);
    assert_true(result->rows[0].logprob == 0);
    assert_int_equal(result->rows[1].flags, 0);
    assert_int_equal(result->rows[1].token, clean.tokens[0]);
    assert_int_equal(result->rows[1].logits_hash, clean.hashes[0]);
    engine_close(engine);
}

/* A key beyond the pool's type in a chunk that does not sample: the next sample says so, even if
 * its own logits are finite (here because the test repairs the pool). */
static void a_chunk_that_spoils_the_pool_is_reported_with_the_next_sample(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    struct backend *backend = engine->backend;
    float huge[64 * 16];
    for (size_t i = 0; i < sizeof huge / sizeof huge[0]; i++)
        huge[i] = 3e38F;
    const struct matrix_source source = {
        .type = WEIGHT_TYPE_F32, .rows = 32, .columns = 64, .bytes = calloc(32, 256)};
    assert_non_null(source.bytes);
    memcpy((void *)(uintptr_t)source.bytes, huge, sizeof huge);
    struct matrix *good = engine->model.weights.layer[1].k, *bad = NULL;
    assert_int_equal(backend->operations->matrix_load(backend, &source, &bad), STATUS_OK);
    engine->model.weights.layer[1].k = bad;
    segment_fixture_tenant(&engine->segment, 0, NULL);
    segment_write_tokens(&engine->segment.writer, 0, 0, prompt, 20);
    segment_fixture_row(&engine->segment, 0, 0, 10, 0);
    assert_int_equal(engine_step(engine)->row_count, 0);
    engine->model.weights.layer[1].k = good;
    const struct kv_geometry *geometry = &engine->pool.geometry;
    uint32_t block = (uint32_t)segment_fixture_block(&engine->segment, 0, 1, 0);
    memset((uint8_t *)engine->pool.memory + kv_block_offset(geometry, block), 0,
           kv_block_bytes(geometry));
    segment_fixture_row(&engine->segment, 0, 10, 10, PLAN_ROW_SAMPLE);
    const struct result_row *row = &engine_step(engine)->rows[0];
    assert_int_equal(row->flags, RESULT_ROW_NUMERIC_ERROR);
    assert_int_equal(row->token, 0);
    assert_true(row->logprob == 0);
    struct engine_trace next = run(engine, 0, 20, 1, 0);
    assert_true(next.logprobs[0] < 0);
    backend->operations->matrix_free(backend, bad);
    free((void *)(uintptr_t)source.bytes);
    engine_close(engine);
}

static void a_refused_plan_computes_nothing(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    segment_fixture_tenant(&engine->segment, 0, NULL);
    segment_write_tokens(&engine->segment.writer, 0, 0, prompt, 20);
    segment_fixture_row(&engine->segment, 0, 3, 5, PLAN_ROW_SAMPLE);
    segment_fixture_publish(&engine->segment);
    assert_int_equal(executor_run(engine->executor, &engine->segment.plan, &engine->result,
                                  &engine->verdict, reason_init(&engine->reason)),
                     STATUS_BAD_MESSAGE);
    assert_int_equal(engine->verdict.refusal, PLAN_REFUSAL_POSITION);
    assert_false(engine->pool.touched);
    engine_close(engine);
}

static void refuses_a_segment_that_does_not_fit(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine *engine = engine_open(&options);
    const struct segment_extents good = engine_extents(engine);
    for (uint32_t i = 0; i < 5; i++) {
        struct segment_extents extents = good;
        struct segment_fixture segment;
        extents.pool_blocks += i == 0 ? extents.geometry.layers : 0;
        extents.context = i == 1 ? engine->model.shape.context + 16 : extents.context;
        extents.vocabulary -= i == 2;
        extents.geometry.type = i == 3 ? KV_TYPE_F32 : extents.geometry.type;
        extents.geometry.block_tokens = i == 4 ? 32 : extents.geometry.block_tokens;
        extents.logical_blocks = kv_blocks_for(&extents.geometry, extents.context);
        segment_fixture_open(&segment, &extents, 0);
        const struct executor_options executor_options = {.model = &engine->model,
                                                          .backend = engine->backend,
                                                          .pool = &engine->pool,
                                                          .segment = &segment.reader};
        struct executor *executor = NULL;
        assert_int_equal(executor_open(&executor_options, &executor, reason_init(&engine->reason)),
                         STATUS_MISMATCH);
        assert_null(executor);
        assert_true(engine->reason.text.length > 0);
        segment_fixture_close(&segment);
    }
    engine_close(engine);
}

struct seen_layers {
    uint32_t calls;
};

static void see_layer(void *context, uint32_t layers_done)
{
    struct seen_layers *seen = context;
    assert_int_equal(layers_done, seen->calls % 3); /* checked, first layer, second layer */
    seen->calls++;
}

static void progress_is_told_after_each_layer(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    struct seen_layers seen = {0};
    const struct executor_options executor_options = {.model = &engine->model,
                                                      .backend = engine->backend,
                                                      .pool = &engine->pool,
                                                      .segment = &engine->segment.reader,
                                                      .progress = see_layer,
                                                      .progress_context = &seen};
    executor_close(engine->executor);
    assert_int_equal(executor_open(&executor_options, &engine->executor, NULL), STATUS_OK);
    struct engine_trace trace = run(engine, 0, 5, 3, 0);
    assert_int_equal(seen.calls, 3 * 3);
    assert_true(engine->pool.touched);    /* by the step: nothing was poisoned */
    assert_int_equal(trace.hashes[0], 0); /* not asked for */
    assert_false(engine->result.has_logits_hash);
    engine_close(engine);
}

static void discarding_gives_the_pool_back_and_forgets(void **state)
{
    (void)state;
    struct engine_options options = engine_defaults();
    struct engine *engine = engine_open(&options);
    engine_prompt(engine, 7, PROMPT_MAX, prompt);
    struct engine_trace first = run(engine, 0, 40, 4, 0);
    assert_true(engine->pool.touched);
    executor_discard(engine->executor);
    assert_false(engine->pool.touched);
    segment_fixture_row(&engine->segment, 0, 43, 1, 0);
    segment_fixture_publish(&engine->segment);
    assert_int_equal(executor_run(engine->executor, &engine->segment.plan, &engine->result,
                                  &engine->verdict, NULL),
                     STATUS_BAD_MESSAGE);
    assert_int_equal(engine->verdict.refusal, PLAN_REFUSAL_POSITION);
    engine_detach(engine);
    engine_attach(engine);
    struct engine_trace again = run(engine, 0, 40, 4, 0);
    assert_same(&first, &again, "after a discard");
    engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_vary),
        cmocka_unit_test(prefill_equals_decode),
        cmocka_unit_test(s24_prompts_of_border_lengths),
        cmocka_unit_test(s06_a_sequence_fills_its_context),
        cmocka_unit_test(every_chunk_thread_and_instruction_set_gives_the_same_bits),
        cmocka_unit_test(shapes_beyond_the_usual_one),
        cmocka_unit_test(s33_any_permutation_of_the_blocks_gives_the_same_bits),
        cmocka_unit_test(s22_a_hole_in_the_slots),
        cmocka_unit_test(s11_each_layer_has_blocks_of_its_own),
        cmocka_unit_test(s26_positions_beyond_the_cached_length_stay_unwritten),
        cmocka_unit_test(neighbours_change_no_bit),
        cmocka_unit_test(recompute_continues_the_stream),
        cmocka_unit_test(more_samples_than_one_turn),
        cmocka_unit_test(a_result_answers_the_rows_that_sample),
        cmocka_unit_test(a_value_that_is_not_finite_marks_its_request),
        cmocka_unit_test(a_chunk_that_spoils_the_pool_is_reported_with_the_next_sample),
        cmocka_unit_test(a_refused_plan_computes_nothing),
        cmocka_unit_test(refuses_a_segment_that_does_not_fit),
        cmocka_unit_test(progress_is_told_after_each_layer),
        cmocka_unit_test(discarding_gives_the_pool_back_and_forgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
