/* What a plan refers to is in the segment before its step is published, and nothing is written
 * twice. */
#include "coordinator/plan_writer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static const struct segment_extents extents = {
    .geometry = {.layers = 2,
                 .kv_heads = 1,
                 .head_dim = 8,
                 .block_tokens = 16,
                 .type = KV_TYPE_F16,
                 .order = KV_ORDER_CPU},
    .slots = 2,
    .context = 64,
    .logical_blocks = 4,
    .vocabulary = 100,
    .step_tokens = 32,
    .pool_blocks = 20,
};

static struct arena arena;
static struct slots slots;
static struct plan_writer writer;
static void *memory;
static struct segment_writer segment;
static struct segment_reader reader;
static uint32_t tokens[40];
static struct request request;

static int set_up(void **state)
{
    (void)state;
    const struct slots_config config = {.geometry = extents.geometry,
                                        .slots = extents.slots,
                                        .logical_blocks = extents.logical_blocks,
                                        .pool_blocks = (uint32_t)extents.pool_blocks};
    const struct segment_identity identity = {.instance = {{1}}, .epoch = 1};
    uint64_t bytes = coordinator_segment_bytes(&extents);
    assert_int_equal(arena_init(&arena, 1 << 16), STATUS_OK);
    assert_int_equal(slots_init(&slots, &arena, &config), STATUS_OK);
    assert_int_equal(plan_writer_init(&writer, &arena, extents.slots), STATUS_OK);
    memory = aligned_alloc(4096, bytes);
    assert_non_null(memory);
    memset(memory, 0, bytes);
    segment_writer_format(&segment, memory, &extents, &identity);
    assert_int_equal(segment_reader_open(&reader, memory, bytes, NULL), STATUS_OK);
    plan_writer_attach(&writer, &segment);
    for (uint32_t i = 0; i < 40; i++)
        tokens[i] = i + 1;
    request = (struct request){.tokens = tokens,
                               .prompt_tokens = 20,
                               .max_tokens = 10,
                               .seed = 77,
                               .temperature = 0.5F,
                               .top_p = 0.75F,
                               .top_k = 3};
    assert_int_equal(slots_take(&slots, 0, &request.slot), STATUS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(memory);
    arena_free(&arena);
    return 0;
}

static struct plan_row row_of(uint32_t first, uint32_t count)
{
    return (struct plan_row){.slot = request.slot,
                             .generation = slots.rows[request.slot].generation,
                             .first_position = first,
                             .count = count};
}

static void write_row(uint32_t first, uint32_t count)
{
    const struct plan_row row = row_of(first, count);
    assert_int_equal(slots_cover(&slots, request.slot, first + count), STATUS_OK);
    plan_writer_row(&writer, &slots, &request, &row);
}

/* S19: the article's kernel took pool, table, lengths and active slots together; here a plan names
 * slots and positions, and the segment has the table and the tokens that they mean. */
static void s19_a_new_generation_writes_parameters_tokens_and_blocks(void **state)
{
    (void)state;
    write_row(0, 20);
    struct slot_row parameters;
    segment_read_slot_row(&reader, request.slot, &parameters);
    assert_int_equal(parameters.generation, 1);
    assert_int_equal(parameters.prompt_tokens, 20);
    assert_int_equal(parameters.token_limit, 30);
    assert_int_equal(parameters.seed, 77);
    assert_int_equal(parameters.top_k, 3);
    assert_true(parameters.temperature == 0.5F && parameters.top_p == 0.75F);
    uint32_t written[20];
    segment_read_tokens(&reader, request.slot, 0, 20, written);
    assert_memory_equal(written, tokens, sizeof written);
    for (uint32_t layer = 0; layer < 2; layer++) {
        int32_t blocks[2];
        segment_read_blocks(&reader, request.slot, layer, 0, 2, blocks);
        for (uint32_t logical = 0; logical < 2; logical++)
            assert_int_equal(blocks[logical],
                             block_table_get(&slots.table, request.slot, layer, logical));
    }
}

/* S17: what stands in the segment is not copied again; only the delta of a step is. */
static void s17_a_step_writes_only_what_is_new(void **state)
{
    (void)state;
    write_row(0, 20);
    const uint32_t marked = 99;
    segment_write_tokens(&segment, request.slot, 3, &marked, 1);
    segment_write_block(&segment, request.slot, 0, 0, 19);
    request.accepted = 1;
    write_row(20, 1);
    uint32_t read;
    int32_t block;
    segment_read_tokens(&reader, request.slot, 3, 1, &read);
    assert_int_equal(read, marked);
    segment_read_tokens(&reader, request.slot, 20, 1, &read);
    assert_int_equal(read, tokens[20]);
    segment_read_blocks(&reader, request.slot, 0, 0, 1, &block);
    assert_int_equal(block, 19);
}

static void another_generation_or_epoch_writes_everything_again(void **state)
{
    (void)state;
    write_row(0, 20);
    slots_release(&slots, request.slot);
    assert_int_equal(slots_take(&slots, 0, &request.slot), STATUS_OK);
    tokens[0] = 55;
    write_row(0, 20);
    uint32_t read;
    segment_read_tokens(&reader, request.slot, 0, 1, &read);
    assert_int_equal(read, 55);
    struct slot_row parameters;
    segment_read_slot_row(&reader, request.slot, &parameters);
    assert_int_equal(parameters.generation, 2);
    tokens[0] = 56;
    plan_writer_attach(&writer, &segment);
    write_row(0, 20);
    segment_read_tokens(&reader, request.slot, 0, 1, &read);
    assert_int_equal(read, 56);
}

static void the_step_is_published_last(void **state)
{
    (void)state;
    static struct plan plan = {.epoch = 1, .step = 1, .row_count = 1};
    write_row(0, 20);
    plan.rows[0] = row_of(0, 20);
    assert_int_equal(segment_published_step(&reader), 0);
    plan_writer_publish(&writer, &plan);
    assert_int_equal(segment_published_step(&reader), 1);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(s19_a_new_generation_writes_parameters_tokens_and_blocks),
        CASE(s17_a_step_writes_only_what_is_new),
        CASE(another_generation_or_epoch_writes_everything_again),
        CASE(the_step_is_published_last),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
