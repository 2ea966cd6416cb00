#include "proto/segment.h"

#include "proto/fingerprint.h"

#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct segment_identity identity = {.epoch = 4, .creator_pid = 17};

static struct segment_extents small_extents(void)
{
    struct segment_extents extents = {
        .geometry = {3, 2, 64, 16, KV_TYPE_F16, KV_ORDER_CPU},
        .slots = 4,
        .context = 100,
        .logical_blocks = 7,
        .vocabulary = 1000,
        .step_tokens = 64,
        .pool_blocks = 300,
    };
    return extents;
}

static void *zeroed_pages(uint64_t bytes)
{
    void *memory = aligned_alloc(4096, (size_t)bytes);
    assert_non_null(memory);
    memset(memory, 0, (size_t)bytes);
    return memory;
}

struct pair {
    uint8_t *memory;
    uint64_t bytes;
    struct segment_writer writer;
    struct segment_reader reader;
};

static struct pair make_pair(void)
{
    struct segment_extents extents = small_extents();
    struct pair pair = {.bytes = coordinator_segment_bytes(&extents)};
    pair.memory = zeroed_pages(pair.bytes);
    segment_writer_format(&pair.writer, pair.memory, &extents, &identity);
    assert_int_equal(segment_reader_open(&pair.reader, pair.memory, pair.bytes, NULL), STATUS_OK);
    return pair;
}

static struct slot_row good_row(void)
{
    struct slot_row row = {.generation = 8, .prompt_tokens = 10, .token_limit = 50, .top_p = 1};
    return row;
}

/* ---- Both sides see the same ---- */

static void what_is_written_is_read(void **state)
{
    (void)state;
    struct pair pair = make_pair();
    struct slot_row row = good_row(), read_row;
    row.seed = UINT64_MAX;
    row.temperature = 0.7F;
    segment_write_slot_row(&pair.writer, 3, &row);
    segment_read_slot_row(&pair.reader, 3, &read_row);
    assert_memory_equal(&read_row, &row, sizeof row);
    segment_read_slot_row(&pair.reader, 2, &read_row);
    assert_int_equal(read_row.generation, 0);

    const uint32_t tokens[] = {11, 12, 13};
    uint32_t read_tokens[5];
    segment_write_tokens(&pair.writer, 3, 97, tokens, 3);
    segment_write_tokens(&pair.writer, 2, 0, tokens, 3);
    segment_read_tokens(&pair.reader, 3, 96, 4, read_tokens);
    assert_int_equal(read_tokens[0], 0);
    assert_memory_equal(read_tokens + 1, tokens, sizeof tokens);
    segment_read_tokens(&pair.reader, 2, 0, 5, read_tokens);
    assert_memory_equal(read_tokens, tokens, sizeof tokens);
    assert_int_equal(read_tokens[3], 0);
    segment_write_tokens(&pair.writer, 3, 100, tokens, 0);
    segment_read_tokens(&pair.reader, 3, 100, 0, read_tokens);

    assert_int_equal(pair.reader.header.identity.creator_pid, 17);
    assert_true(pair.reader.header.identity.epoch == 4);
    struct plan_bounds bounds = segment_plan_bounds(&pair.reader.header.extents);
    assert_int_equal(bounds.slots, 4);
    assert_int_equal(bounds.context, 100);
    assert_int_equal(bounds.step_tokens, 64);
    free(pair.memory);
}

/* s09: [slot][layer][logical] holds a physical block, -1 where there is none. s10: one accessor
 * knows the order. */
static void s09_s10_every_table_entry_has_its_own_place(void **state)
{
    (void)state;
    struct pair pair = make_pair();
    struct slot_row row = good_row();
    row.token_limit = 100;
    for (uint32_t slot = 0; slot < 4; slot++)
        segment_write_slot_row(&pair.writer, slot, &row);
    int32_t blocks[7], block = 0;
    for (uint32_t slot = 0; slot < 4; slot++) {
        for (uint32_t layer = 0; layer < 3; layer++) {
            segment_read_blocks(&pair.reader, slot, layer, 0, 7, blocks);
            for (uint32_t logical = 0; logical < 7; logical++) {
                assert_int_equal(blocks[logical], KV_BLOCK_UNMAPPED);
                segment_write_block(&pair.writer, slot, layer, logical, block++);
            }
        }
    }
    block = 0;
    for (uint32_t slot = 0; slot < 4; slot++) {
        for (uint32_t layer = 0; layer < 3; layer++) {
            segment_read_blocks(&pair.reader, slot, layer, 0, 7, blocks);
            for (uint32_t logical = 0; logical < 7; logical++)
                assert_int_equal(blocks[logical], block++);
        }
    }
    segment_read_blocks(&pair.reader, 1, 2, 3, 2, blocks);
    assert_int_equal(blocks[0], (1 * 3 + 2) * 7 + 3);
    assert_int_equal(blocks[1], (1 * 3 + 2) * 7 + 4);
    free(pair.memory);
}

/* s11: the layers of one logical block are blocks of their own. */
static void s11_a_new_generation_unmaps_all_layers(void **state)
{
    (void)state;
    struct pair pair = make_pair();
    struct slot_row row = good_row();
    row.token_limit = 33; /* three blocks */
    segment_write_slot_row(&pair.writer, 1, &row);
    for (uint32_t layer = 0; layer < 3; layer++)
        for (uint32_t logical = 0; logical < 7; logical++)
            segment_write_block(&pair.writer, 1, layer, logical, (int32_t)(layer * 7 + logical));
    row.generation++;
    segment_write_slot_row(&pair.writer, 1, &row);
    for (uint32_t layer = 0; layer < 3; layer++) {
        int32_t blocks[7];
        segment_read_blocks(&pair.reader, 1, layer, 0, 7, blocks);
        for (int32_t logical = 0; logical < 7; logical++)
            assert_int_equal(blocks[logical],
                             logical < 3 ? KV_BLOCK_UNMAPPED : (int32_t)layer * 7 + logical);
    }
    free(pair.memory);
}

static void steps_are_published_and_fenced(void **state)
{
    (void)state;
    struct pair pair = make_pair();
    assert_true(segment_published_step(&pair.reader) == 0);
    assert_int_equal(segment_reader_state(&pair.reader), SEGMENT_STATE_READY);
    segment_publish_step(&pair.writer, 1);
    segment_publish_step(&pair.writer, 7);
    assert_true(segment_published_step(&pair.reader) == 7);
    segment_fence(&pair.writer);
    assert_int_equal(segment_reader_state(&pair.reader), SEGMENT_STATE_FENCED);
    struct reason reason;
    assert_int_equal(
        segment_reader_open(&pair.reader, pair.memory, pair.bytes, reason_init(&reason)),
        STATUS_STALE);
    assert_non_null(strstr(reason.storage, "fenced"));
    free(pair.memory);
}

/* ---- Judgement of a header ---- */

static void a_damaged_header_is_refused(void **state)
{
    (void)state;
    struct pair pair = make_pair();
    uint64_t ready = SEGMENT_STATE_READY, init = SEGMENT_STATE_INIT, strange = 99;
    for (size_t byte = 0; byte < sizeof(struct segment_header_fixed); byte++) {
        bool identity_byte = byte >= 32 && byte < 72; /* judged by who attaches, not here */
        bool vocabulary_byte = byte == 108 || byte == 109 || byte == 112 || byte == 113;
        bool geometry_byte =
            byte >= 72 && byte < 96; /* may stay consistent: judged against hello */
        if (identity_byte || vocabulary_byte || geometry_byte || (byte >= 120 && byte < 122))
            continue;
        uint8_t saved = pair.memory[byte];
        pair.memory[byte] ^= 0xc1;
        struct reason reason;
        struct segment_reader reader = {.base = NULL};
        enum status status =
            segment_reader_open(&reader, pair.memory, pair.bytes, reason_init(&reason));
        if (status != STATUS_MISMATCH && status != STATUS_BAD_MESSAGE)
            fail_msg("byte %zu changed: accepted", byte);
        assert_true(reason.text.length > 0);
        assert_null(reader.base); /* untouched on failure */
        assert_int_not_equal(segment_reader_open(&reader, pair.memory, pair.bytes, NULL),
                             STATUS_OK);
        pair.memory[byte] = saved;
    }
    memcpy(pair.memory + SEGMENT_OFFSET_STATE, &init, 8);
    assert_int_equal(segment_reader_open(&pair.reader, pair.memory, pair.bytes, NULL),
                     STATUS_BAD_MESSAGE);
    memcpy(pair.memory + SEGMENT_OFFSET_STATE, &strange, 8);
    assert_int_equal(segment_reader_open(&pair.reader, pair.memory, pair.bytes, NULL),
                     STATUS_BAD_MESSAGE);
    memcpy(pair.memory + SEGMENT_OFFSET_STATE, &ready, 8);
    assert_int_equal(segment_reader_open(&pair.reader, pair.memory, pair.bytes, NULL), STATUS_OK);
    assert_int_equal(segment_reader_open(&pair.reader, pair.memory, pair.bytes - 4096, NULL),
                     STATUS_BAD_MESSAGE);
    assert_int_equal(segment_reader_open(&pair.reader, pair.memory, pair.bytes + 4096, NULL),
                     STATUS_BAD_MESSAGE);
    assert_int_equal(segment_reader_open(&pair.reader, pair.memory, 4095, NULL),
                     STATUS_BAD_MESSAGE);
    free(pair.memory);
}

static void extents_have_bounds(void **state)
{
    (void)state;
    struct segment_extents good = small_extents();
    assert_int_equal(segment_extents_judge(&good, NULL), STATUS_OK);
    struct segment_extents cases[20];
    size_t count = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cases[i] = good;
    cases[count++].geometry.layers = 0;
    cases[count++].geometry.layers = LIMIT_LAYERS + 1;
    cases[count++].geometry.kv_heads = 0;
    cases[count++].geometry.head_dim = UINT32_MAX;
    cases[count++].geometry.block_tokens = 0;
    cases[count++].geometry.type = 0;
    cases[count++].geometry.type = 4;
    cases[count++].geometry.order = 3;
    cases[count++].slots = 0;
    cases[count++].slots = LIMIT_SLOTS + 1;
    cases[count++].context = 1;
    cases[count++].context = LIMIT_CONTEXT_TOKENS + 1;
    cases[count++].logical_blocks = 6;
    cases[count++].logical_blocks = 8;
    cases[count++].vocabulary = 0;
    cases[count++].step_tokens = 0;
    cases[count++].pool_blocks = 301; /* no multiple of the layers */
    cases[count++].pool_blocks = 0;
    cases[count++].padding = 1;
    cases[count] = (struct segment_extents){
        .geometry = {LIMIT_LAYERS, 1, 64, 1, KV_TYPE_F16, KV_ORDER_CPU},
        .slots = LIMIT_SLOTS,
        .context = LIMIT_CONTEXT_TOKENS,
        .logical_blocks = LIMIT_CONTEXT_TOKENS,
        .vocabulary = 10,
        .step_tokens = 10,
        .pool_blocks = LIMIT_LAYERS,
    };
    count++;
    assert_int_equal(count, sizeof cases / sizeof cases[0]);
    for (size_t i = 0; i < count; i++) {
        struct reason reason;
        if (segment_extents_judge(&cases[i], reason_init(&reason)) != STATUS_INVALID)
            fail_msg("case %zu accepted", i);
        assert_true(reason.text.length > 0);
    }
}

static void slot_rows_have_bounds(void **state)
{
    (void)state;
    struct segment_extents extents = small_extents();
    struct slot_row row = good_row();
    assert_true(slot_row_is_valid(&row, &extents));
    struct slot_row cases[14];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        cases[i] = row;
    cases[0].generation = 0;
    cases[1].prompt_tokens = 0;
    cases[2].prompt_tokens = 50;
    cases[3].token_limit = 101;
    cases[4].top_k = LIMIT_VOCABULARY + 1;
    cases[5].temperature = NAN;
    cases[6].temperature = -1;
    cases[7].temperature = INFINITY;
    cases[8].top_p = 0;
    cases[9].top_p = NAN;
    cases[10].top_p = 1.01F;
    cases[11].min_p = NAN;
    cases[12].min_p = -0.1F;
    cases[13].min_p = 1.1F;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        if (slot_row_is_valid(&cases[i], &extents))
            fail_msg("case %zu accepted", i);
}

/* ---- Worker segment ---- */

static void the_worker_segment_is_read(void **state)
{
    (void)state;
    struct worker_segment_writer writer;
    struct worker_segment_reader reader;
    void *memory = zeroed_pages(worker_segment_bytes());
    worker_segment_format(&writer, memory, &identity);
    assert_int_equal(worker_segment_open(&reader, memory, worker_segment_bytes(), NULL), STATUS_OK);
    assert_true(worker_segment_alive_ns(&reader) == 0);
    worker_segment_beat(&writer, 123456789);
    assert_true(worker_segment_alive_ns(&reader) == 123456789);
    struct worker_progress progress = {WORKER_PHASE_STEP, 5, 6, 7, 8, 9}, read_progress;
    worker_segment_write_progress(&writer, &progress);
    assert_int_equal(worker_segment_read_progress(&reader, &read_progress), STATUS_OK);
    assert_memory_equal(&read_progress, &progress, sizeof progress);
    struct worker_memory figures = {1, 2, 3, 4}, read_figures;
    worker_segment_write_memory(&writer, &figures);
    assert_int_equal(worker_segment_read_memory(&reader, &read_figures), STATUS_OK);
    assert_memory_equal(&read_figures, &figures, sizeof figures);
    assert_int_equal(worker_segment_read_progress(&reader, &read_progress), STATUS_OK);
    assert_memory_equal(&read_progress, &progress, sizeof progress);
    char error[SEGMENT_ERROR_BYTES];
    worker_segment_read_error(&reader, error);
    assert_string_equal(error, "");
    worker_segment_write_error(&writer, "device\nlost \xff");
    worker_segment_write_error(&writer, "a second one");
    worker_segment_read_error(&reader, error);
    assert_string_equal(error, "device?lost ?");
    struct segment_reader wrong;
    assert_int_equal(segment_reader_open(&wrong, memory, worker_segment_bytes(), NULL),
                     STATUS_MISMATCH);
    assert_string_equal(worker_phase_name(WORKER_PHASE_STEP), "step");
    assert_string_equal(worker_phase_name(WORKER_PHASE_COUNT), "unknown");
    free(memory);
}

static void a_long_error_is_cut(void **state)
{
    (void)state;
    struct worker_segment_writer writer;
    struct worker_segment_reader reader;
    void *memory = zeroed_pages(worker_segment_bytes());
    worker_segment_format(&writer, memory, &identity);
    assert_int_equal(worker_segment_open(&reader, memory, worker_segment_bytes(), NULL), STATUS_OK);
    char message[2 * SEGMENT_ERROR_BYTES], error[SEGMENT_ERROR_BYTES];
    memset(message, 'e', sizeof message - 1);
    message[sizeof message - 1] = '\0';
    worker_segment_write_error(&writer, message);
    worker_segment_read_error(&reader, error);
    assert_int_equal(strlen(error), SEGMENT_ERROR_BYTES - 1);
    free(memory);
}

/* A writer that died in the middle leaves an odd sequence: the reader says so instead of waiting.
 */
static void a_group_left_half_written_is_not_believed(void **state)
{
    (void)state;
    struct worker_segment_writer writer;
    struct worker_segment_reader reader;
    uint8_t *memory = zeroed_pages(worker_segment_bytes());
    worker_segment_format(&writer, memory, &identity);
    assert_int_equal(worker_segment_open(&reader, memory, worker_segment_bytes(), NULL), STATUS_OK);
    memory[SEGMENT_OFFSET_PROGRESS] |= 1;
    struct worker_progress progress = {.step = 77};
    assert_int_equal(worker_segment_read_progress(&reader, &progress), STATUS_AGAIN);
    assert_true(progress.step == 77);
    free(memory);
}

/* ---- Two threads: words of one write never mix with those of another ---- */

struct race {
    struct worker_segment_writer writer;
    struct worker_segment_reader reader;
    _Atomic bool stop;
};

static void *write_for_ever(void *context)
{
    struct race *race = context;
    for (uint64_t i = 1; !atomic_load(&race->stop); i++) {
        struct worker_progress progress = {i, i, i, i, i, i};
        worker_segment_write_progress(&race->writer, &progress);
    }
    return NULL;
}

static void a_group_is_read_whole(void **state)
{
    (void)state;
    static struct race race;
    void *memory = zeroed_pages(worker_segment_bytes());
    worker_segment_format(&race.writer, memory, &identity);
    assert_int_equal(worker_segment_open(&race.reader, memory, worker_segment_bytes(), NULL),
                     STATUS_OK);
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, write_for_ever, &race), 0);
    uint32_t whole = 0;
    uint64_t last = 0;
    for (uint32_t i = 0; i < 2000000 && whole < 20000; i++) {
        struct worker_progress seen;
        if (worker_segment_read_progress(&race.reader, &seen) != STATUS_OK)
            continue;
        whole++;
        assert_true(seen.phase == seen.step && seen.step == seen.layer &&
                    seen.layer == seen.since_ns && seen.since_ns == seen.done &&
                    seen.done == seen.total);
        assert_true(seen.step >= last);
        last = seen.step;
    }
    atomic_store(&race.stop, true);
    assert_int_equal(pthread_join(thread, NULL), 0);
    assert_true(whole > 100);
    free(memory);
}

struct publication {
    struct pair pair;
};

static void *publish_steps(void *context)
{
    struct publication *publication = context;
    for (uint32_t step = 1; step <= 90; step++) {
        uint32_t token = step * 3;
        segment_write_tokens(&publication->pair.writer, 2, step - 1, &token, 1);
        segment_write_block(&publication->pair.writer, 2, step % 3, step % 7, (int32_t)step);
        segment_publish_step(&publication->pair.writer, step);
    }
    return NULL;
}

/* Whoever sees a step as published sees all that was written before. */
static void a_published_step_shows_its_tokens(void **state)
{
    (void)state;
    static struct publication publication;
    publication.pair = make_pair();
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, publish_steps, &publication), 0);
    uint64_t step = 0;
    while (step < 90) {
        step = segment_published_step(&publication.pair.reader);
        uint32_t tokens[100];
        segment_read_tokens(&publication.pair.reader, 2, 0, (uint32_t)step, tokens);
        for (uint32_t i = 0; i < step; i++)
            assert_int_equal(tokens[i], 3 * (i + 1));
    }
    assert_int_equal(pthread_join(thread, NULL), 0);
    free(publication.pair.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_is_written_is_read),
        cmocka_unit_test(s09_s10_every_table_entry_has_its_own_place),
        cmocka_unit_test(s11_a_new_generation_unmaps_all_layers),
        cmocka_unit_test(steps_are_published_and_fenced),
        cmocka_unit_test(a_damaged_header_is_refused),
        cmocka_unit_test(extents_have_bounds),
        cmocka_unit_test(slot_rows_have_bounds),
        cmocka_unit_test(the_worker_segment_is_read),
        cmocka_unit_test(a_long_error_is_cut),
        cmocka_unit_test(a_group_left_half_written_is_not_believed),
        cmocka_unit_test(a_group_is_read_whole),
        cmocka_unit_test(a_published_step_shows_its_tokens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
