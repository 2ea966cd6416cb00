#include "worker/plan_check.h"

#include "support/segment_fixture.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <string.h>

enum { SLOTS = 4, CONTEXT = 128, TOKENS = 100, STEP_TOKENS = 40, LAYERS = 2, POOL_BLOCKS = 64 };
enum { SAMPLE = PLAN_ROW_SAMPLE, FROM_LAST = PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE };

static const struct segment_extents EXTENTS = {
    .geometry = {.layers = LAYERS,
                 .kv_heads = 1,
                 .head_dim = 8,
                 .block_tokens = KV_BLOCK_TOKENS_DEFAULT,
                 .type = KV_TYPE_F16,
                 .order = KV_ORDER_CPU},
    .slots = SLOTS,
    .context = CONTEXT,
    .logical_blocks = CONTEXT / KV_BLOCK_TOKENS_DEFAULT,
    .vocabulary = TOKENS,
    .step_tokens = STEP_TOKENS,
    .pool_blocks = POOL_BLOCKS,
};

struct desk {
    struct segment_fixture segment;
    struct plan_check *check;
    struct plan_verdict verdict;
    struct reason reason;
};

static struct plan *plan_of(struct desk *desk)
{
    return &desk->segment.plan;
}

static enum status judge(struct desk *desk)
{
    return plan_check_next(desk->check, plan_of(desk), &desk->verdict, reason_init(&desk->reason));
}

/* The plan must be accepted; the next one is begun. */
static void accept(struct desk *desk)
{
    segment_fixture_publish(&desk->segment);
    if (judge(desk) != STATUS_OK)
        fail_msg("refused: %d: %s", (int)desk->verdict.refusal, desk->reason.storage);
    segment_fixture_next(&desk->segment);
}

/* Slots 0 to 3 with 16, 17, 1 and 0 cached positions; slots 0 and 1 have a sample at the end. */
static int open_desk(void **state)
{
    static struct desk desk;
    uint32_t tokens[CONTEXT];
    memset(&desk, 0, sizeof desk);
    segment_fixture_open(&desk.segment, &EXTENTS, 0);
    assert_int_equal(plan_check_open(&desk.segment.reader, &desk.check), STATUS_OK);
    for (uint32_t i = 0; i < CONTEXT; i++)
        tokens[i] = i % TOKENS;
    for (uint32_t slot = 0; slot < SLOTS; slot++) {
        segment_fixture_tenant(&desk.segment, slot, NULL);
        segment_write_tokens(&desk.segment.writer, slot, 0, tokens, CONTEXT);
    }
    segment_fixture_row(&desk.segment, 0, 0, 16, SAMPLE);
    segment_fixture_row(&desk.segment, 1, 0, 17, SAMPLE);
    segment_fixture_row(&desk.segment, 2, 0, 1, 0);
    accept(&desk);
    plan_check_sampling(desk.check, 0, 16);
    plan_check_sampling(desk.check, 1, 17);
    plan_check_sampled(desk.check, 0, plan_check_slot(desk.check, 0)->generation, 16, 42);
    plan_check_sampled(desk.check, 1, plan_check_slot(desk.check, 1)->generation, 17, 43);
    plan_check_sampled(desk.check, 1, plan_check_slot(desk.check, 1)->generation, 16, 44);
    plan_check_sampled(desk.check, 1, plan_check_slot(desk.check, 1)->generation + 1, 17, 45);
    *state = &desk;
    return 0;
}

static int close_desk(void **state)
{
    struct desk *desk = *state;
    plan_check_close(desk->check);
    segment_fixture_close(&desk->segment);
    return 0;
}

/* The plan must be refused for `row` (or none, -1) and `refusal`, with `says` in the reason;
 * nothing may have moved: the good plan that follows is accepted. */
static void refuse_for(struct desk *desk, enum plan_refusal refusal, int row, const char *says)
{
    struct slot_state before[SLOTS];
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        before[slot] = *plan_check_slot(desk->check, slot);
    assert_int_equal(judge(desk), STATUS_BAD_MESSAGE);
    if (desk->verdict.refusal != refusal || strstr(desk->reason.storage, says) == NULL)
        fail_msg("refusal %d: %s", (int)desk->verdict.refusal, desk->reason.storage);
    assert_int_equal(desk->verdict.has_row, row >= 0);
    if (row >= 0)
        assert_int_equal(desk->verdict.row, row);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        assert_memory_equal(&before[slot], plan_check_slot(desk->check, slot), sizeof before[slot]);
}

static void publish_and_refuse(struct desk *desk, enum plan_refusal refusal, int row,
                               const char *says)
{
    segment_fixture_publish(&desk->segment);
    refuse_for(desk, refusal, row, says);
}

static void accepts_chunks_and_decode_rows_together(void **state)
{
    struct desk *desk = *state;
    segment_fixture_row(&desk->segment, 3, 0, 20, 0);
    segment_fixture_row(&desk->segment, 0, 16, 1, FROM_LAST);
    segment_fixture_row(&desk->segment, 2, 1, 3, SAMPLE);
    accept(desk);
    const uint32_t *tokens = plan_check_tokens(desk->check);
    for (uint32_t i = 0; i < 20; i++)
        assert_int_equal(tokens[i], i);
    assert_int_equal(tokens[20], 42);
    assert_int_equal(tokens[21], 1);
    assert_int_equal(tokens[23], 3);
    assert_int_equal(plan_check_slot(desk->check, 0)->cached_length, 17);
    assert_int_equal(plan_check_slot(desk->check, 1)->cached_length, 17);
    assert_int_equal(plan_check_slot(desk->check, 2)->cached_length, 4);
    assert_int_equal(plan_check_slot(desk->check, 3)->cached_length, 20);
    /* Two new blocks of slot 3, one of slot 0, none of slot 2, in each layer. */
    assert_int_equal(plan_check_run_count(desk->check), 2 * LAYERS);
    struct block_run run = plan_check_run(desk->check, 1);
    assert_int_equal(run.slot, 3);
    assert_int_equal(run.layer, 1);
    assert_int_equal(run.first_logical, 0);
    assert_int_equal(run.count, 2);
    assert_int_equal(run.blocks[1], segment_fixture_block(&desk->segment, 3, 1, 1));
    run = plan_check_run(desk->check, LAYERS);
    assert_int_equal(run.slot, 0);
    assert_int_equal(run.first_logical, 1);
    assert_int_equal(run.count, 1);
}

static void keeps_the_parameters_of_a_generation(void **state)
{
    struct desk *desk = *state;
    const struct slot_row row = {.seed = 5,
                                 .temperature = 0.5F,
                                 .top_k = 3,
                                 .top_p = 0.25F,
                                 .min_p = 0.125F,
                                 .token_limit = 99};
    segment_fixture_tenant(&desk->segment, 3, &row);
    segment_fixture_row(&desk->segment, 3, 0, 2, SAMPLE);
    accept(desk);
    const struct slot_state *slot = plan_check_slot(desk->check, 3);
    assert_int_equal(slot->generation, 2);
    assert_int_equal(slot->token_limit, 99);
    assert_int_equal(slot->sampling.seed, 5);
    assert_int_equal(slot->sampling.top_k, 3);
    assert_true(slot->sampling.temperature == 0.5F && slot->sampling.top_p == 0.25F &&
                slot->sampling.min_p == 0.125F);
    /* Written once per generation: a later change is not looked at. */
    segment_fixture_raw_slot(&desk->segment, 3)->seed = 6;
    segment_fixture_row(&desk->segment, 3, 2, 1, SAMPLE);
    accept(desk);
    assert_int_equal(plan_check_slot(desk->check, 3)->sampling.seed, 5);
}

static void refuses_a_step_that_is_not_the_next(void **state)
{
    struct desk *desk = *state;
    segment_fixture_row(&desk->segment, 3, 0, 1, 0);
    segment_fixture_publish(&desk->segment);
    plan_of(desk)->step = 3;
    refuse_for(desk, PLAN_REFUSAL_STEP, -1, "step 3, expected 2");
    plan_of(desk)->step = 1;
    refuse_for(desk, PLAN_REFUSAL_STEP, -1, "step 1, expected 2");
    plan_of(desk)->step = 2;
    assert_int_equal(judge(desk), STATUS_OK);
    assert_int_equal(judge(desk), STATUS_BAD_MESSAGE);
}

static void refuses_what_is_not_published(void **state)
{
    struct desk *desk = *state;
    segment_fixture_row(&desk->segment, 3, 0, 1, 0);
    refuse_for(desk, PLAN_REFUSAL_UNPUBLISHED, -1, "step 2, published is 1");
    accept(desk);
}

static void refuses_everything_once_fenced(void **state)
{
    struct desk *desk = *state;
    segment_fixture_row(&desk->segment, 3, 0, 1, 0);
    segment_fixture_publish(&desk->segment);
    segment_fence(&desk->segment.writer);
    refuse_for(desk, PLAN_REFUSAL_FENCED, -1, "fenced");
}

static void refuses_rows_that_the_plan_alone_shows_wrong(void **state)
{
    struct desk *desk = *state;
    const struct {
        struct plan_row row;
        enum plan_refusal refusal;
    } cases[] = {
        {{SLOTS, 1, 0, 1, 0}, PLAN_REFUSAL_SLOT_RANGE},
        {{UINT32_MAX, 1, 0, 1, 0}, PLAN_REFUSAL_SLOT_RANGE},
        {{0, 1, 16, 1, 0}, PLAN_REFUSAL_SLOT_REPEATED},
        {{3, 0, 0, 1, 0}, PLAN_REFUSAL_GENERATION},
        {{3, 1, 0, 0, 0}, PLAN_REFUSAL_COUNT},
        {{3, 1, 0, CONTEXT + 1, 0}, PLAN_REFUSAL_CONTEXT},
        {{3, 1, UINT32_MAX, 2, 0}, PLAN_REFUSAL_CONTEXT},
        {{3, 1, 0, 1, 4}, PLAN_REFUSAL_FLAGS},
        {{3, 1, 1, 2, FROM_LAST}, PLAN_REFUSAL_LAST_SAMPLE},
        {{3, 1, 0, STEP_TOKENS, 0}, PLAN_REFUSAL_BUDGET},
    };
    segment_fixture_row(&desk->segment, 0, 16, 1, FROM_LAST);
    segment_fixture_publish(&desk->segment);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        plan_of(desk)->rows[1] = cases[i].row;
        plan_of(desk)->row_count = 2;
        refuse_for(desk, cases[i].refusal, 1, "row 1 of 2");
    }
    plan_of(desk)->row_count = 0;
    refuse_for(desk, PLAN_REFUSAL_NO_ROWS, -1, "");
}

static void refuses_another_generation(void **state)
{
    struct desk *desk = *state;
    segment_fixture_row(&desk->segment, 3, 0, 1, 0);
    segment_fixture_row(&desk->segment, 0, 16, 1, 0);
    segment_fixture_publish(&desk->segment);
    plan_of(desk)->rows[1].generation = 2; /* the slot row says 1 */
    refuse_for(desk, PLAN_REFUSAL_GENERATION, 1,
               "slot 0 generation 2: the slot row has generation 1");
    plan_of(desk)->rows[1].generation = 1;
    segment_fixture_raw_slot(&desk->segment, 0)->generation = 2; /* reused under a plan in flight */
    refuse_for(desk, PLAN_REFUSAL_GENERATION, 1,
               "slot 0 generation 1: the slot row has generation 2");
}

static void refuses_an_older_generation(void **state)
{
    struct desk *desk = *state;
    segment_fixture_tenant(&desk->segment, 0, NULL);
    segment_fixture_row(&desk->segment, 0, 0, 1, 0);
    accept(desk);
    segment_fixture_raw_slot(&desk->segment, 0)->generation = 1;
    segment_fixture_row(&desk->segment, 0, 1, 1, 0);
    plan_of(desk)->rows[0].generation = 1;
    publish_and_refuse(desk, PLAN_REFUSAL_GENERATION, 0, "the slot had generation 2 before");
}

static void refuses_a_position_that_is_not_the_cached_length(void **state)
{
    struct desk *desk = *state;
    segment_fixture_row(&desk->segment, 0, 17, 1, 0);
    publish_and_refuse(desk, PLAN_REFUSAL_POSITION, 0,
                       "first position 17, the cached length is 16");
    plan_of(desk)->rows[0].first_position = 15;
    refuse_for(desk, PLAN_REFUSAL_POSITION, 0, "first position 15, the cached length is 16");
    plan_of(desk)->rows[0].first_position = 0;
    refuse_for(desk, PLAN_REFUSAL_POSITION, 0, "first position 0, the cached length is 16");
    plan_of(desk)->rows[0].first_position = 16;
    assert_int_equal(judge(desk), STATUS_OK);
}

static void a_new_generation_begins_at_0(void **state)
{
    struct desk *desk = *state;
    segment_fixture_tenant(&desk->segment, 0, NULL);
    segment_fixture_row(&desk->segment, 0, 16, 1, 0);
    publish_and_refuse(desk, PLAN_REFUSAL_POSITION, 0, "first position 16, the cached length is 0");
}

static void a_new_generation_forgets_the_last_sample(void **state)
{
    struct desk *desk = *state;
    segment_fixture_tenant(&desk->segment, 0, NULL);
    segment_fixture_row(&desk->segment, 0, 0, 16, 0);
    accept(desk);
    segment_fixture_row(&desk->segment, 0, 16, 1, FROM_LAST);
    publish_and_refuse(desk, PLAN_REFUSAL_LAST_SAMPLE, 0,
                       "from the last sample, but there is none");
}

static void refuses_a_last_sample_of_another_position(void **state)
{
    struct desk *desk = *state;
    /* Position 16 goes in from the log, so the sample for 16 is not the input at 17. */
    segment_fixture_row(&desk->segment, 0, 16, 1, 0);
    accept(desk);
    segment_fixture_row(&desk->segment, 0, 17, 1, FROM_LAST);
    publish_and_refuse(desk, PLAN_REFUSAL_LAST_SAMPLE, 0,
                       "position 17 from the last sample, which is of position 16");
}

static void refuses_positions_beyond_the_limit_of_the_request(void **state)
{
    struct desk *desk = *state;
    const struct slot_row row = {.top_p = 1, .token_limit = 20};
    segment_fixture_tenant(&desk->segment, 3, &row);
    segment_fixture_row(&desk->segment, 3, 0, 21, 0);
    publish_and_refuse(desk, PLAN_REFUSAL_CONTEXT, 0,
                       "21 tokens from position 0, the limit of the request is 20");
    plan_of(desk)->rows[0].count = 20;
    assert_int_equal(judge(desk), STATUS_OK);
}

static void refuses_parameters_out_of_their_bounds(void **state)
{
    struct desk *desk = *state;
    const float nan = strtof("nan", NULL);
    const struct slot_row good = {.top_p = 1};
    for (uint32_t i = 0; i < 8; i++) {
        segment_fixture_tenant(&desk->segment, 3, &good);
        struct slot_row *raw = segment_fixture_raw_slot(&desk->segment, 3);
        raw->temperature = i == 0 ? -1 : i == 1 ? nan : i == 2 ? LIMIT_TEMPERATURE + 1 : 0;
        raw->top_p = i == 3 ? 0 : i == 4 ? 1.5F : 1;
        raw->min_p = i == 5 ? -0.5F : i == 6 ? 2 : 0;
        raw->token_limit = i == 7 ? CONTEXT + 1 : CONTEXT;
        plan_of(desk)->row_count = 0;
        segment_fixture_row(&desk->segment, 3, 0, 1, 0);
        if (i == 0)
            segment_fixture_publish(&desk->segment);
        refuse_for(desk, PLAN_REFUSAL_PARAMETERS, 0, "temperature");
    }
}

static void refuses_tokens_beyond_the_vocabulary(void **state)
{
    struct desk *desk = *state;
    const uint32_t token = TOKENS;
    segment_write_tokens(&desk->segment.writer, 3, 5, &token, 1);
    segment_fixture_row(&desk->segment, 0, 16, 1, FROM_LAST);
    segment_fixture_row(&desk->segment, 3, 0, 6, 0);
    publish_and_refuse(desk, PLAN_REFUSAL_TOKEN, 1,
                       "token 100 at position 5, the vocabulary has 100");
    plan_of(desk)->rows[1].count = 5;
    assert_int_equal(judge(desk), STATUS_OK);
}

static void refuses_blocks_that_are_unmapped_or_out_of_range(void **state)
{
    struct desk *desk = *state;
    segment_fixture_row(&desk->segment, 3, 0, 17, 0);
    segment_fixture_publish(&desk->segment);
    int32_t *entry = segment_fixture_raw_block(&desk->segment, 3, 1, 1);
    const int32_t good = *entry;
    *entry = KV_BLOCK_UNMAPPED;
    refuse_for(desk, PLAN_REFUSAL_BLOCK, 0,
               "layer 1 logical block 1 is unmapped (-1), the pool has 64");
    *entry = POOL_BLOCKS;
    refuse_for(desk, PLAN_REFUSAL_BLOCK, 0, "layer 1 logical block 1 is out of range (64)");
    *entry = INT32_MIN;
    refuse_for(desk, PLAN_REFUSAL_BLOCK, 0, "is out of range");
    *entry = good;
    assert_int_equal(judge(desk), STATUS_OK);
}

static void refuses_a_block_in_two_places_of_a_plan(void **state)
{
    struct desk *desk = *state;
    segment_fixture_row(&desk->segment, 3, 0, 17, 0);
    segment_fixture_row(&desk->segment, 0, 16, 1, 0);
    segment_fixture_publish(&desk->segment);
    int32_t *entry = segment_fixture_raw_block(&desk->segment, 3, 1, 1);
    const int32_t good = *entry;
    *entry = segment_fixture_block(&desk->segment, 3, 0, 0); /* of the row itself, another layer */
    refuse_for(desk, PLAN_REFUSAL_BLOCK, 0, "which slot 3 holds already");
    *entry = segment_fixture_block(&desk->segment, 0, 1, 1); /* of a later row, which is to blame */
    refuse_for(desk, PLAN_REFUSAL_BLOCK, 1, "which slot 3 holds already");
    *entry =
        segment_fixture_block(&desk->segment, 0, 1, 0); /* filled by an earlier plan, still read */
    refuse_for(desk, PLAN_REFUSAL_BLOCK, 0, "which slot 0 holds already");
    *entry = segment_fixture_block(&desk->segment, 1, 1,
                                   0); /* of a tenant that this plan does not name */
    assert_int_equal(judge(desk), STATUS_OK);
    *entry = good;
}

static void refuses_a_block_that_the_sequence_holds_already(void **state)
{
    struct desk *desk = *state;
    segment_fixture_row(&desk->segment, 0, 16, 1, 0);
    *segment_fixture_raw_block(&desk->segment, 0, 1, 1) =
        segment_fixture_block(&desk->segment, 0, 1, 0);
    publish_and_refuse(desk, PLAN_REFUSAL_BLOCK, 0, "which slot 0 holds already");
}

/* S16: a released block may serve another slot, or the same one again. */
static void s16_a_released_block_serves_another_tenant(void **state)
{
    struct desk *desk = *state;
    const int32_t block = segment_fixture_block(&desk->segment, 1, 0, 0);
    segment_fixture_tenant(&desk->segment, 1,
                           NULL); /* the old tenant is gone, its blocks are free */
    segment_fixture_row(&desk->segment, 1, 0, 1, 0);
    segment_fixture_row(&desk->segment, 3, 0, 33, 0);
    bool reused = false;
    for (uint32_t layer = 0; layer < LAYERS; layer++)
        for (uint32_t logical = 0; logical < 3; logical++)
            reused = reused || segment_fixture_block(&desk->segment, 3, layer, logical) == block;
    assert_true(reused || segment_fixture_block(&desk->segment, 1, 0, 0) == block);
    accept(desk);
}

/* The judge looks at a copy: what changes behind it changes nothing. */
static void copies_before_it_judges(void **state)
{
    struct desk *desk = *state;
    segment_fixture_row(&desk->segment, 3, 0, 17, 0);
    segment_fixture_publish(&desk->segment);
    const int32_t good = segment_fixture_block(&desk->segment, 3, 0, 1);
    assert_int_equal(judge(desk), STATUS_OK);
    const uint32_t token = UINT32_MAX;
    segment_write_tokens(&desk->segment.writer, 3, 0, &token, 1);
    *segment_fixture_raw_block(&desk->segment, 3, 0, 1) = INT32_MAX;
    assert_int_equal(plan_check_tokens(desk->check)[0], 0);
    assert_int_equal(plan_check_run(desk->check, 0).blocks[1], good);
}

static void forgetting_refuses_what_goes_on(void **state)
{
    struct desk *desk = *state;
    plan_check_forget(desk->check);
    segment_fixture_row(&desk->segment, 0, 16, 1, FROM_LAST);
    publish_and_refuse(desk, PLAN_REFUSAL_POSITION, 0, "first position 16, the cached length is 0");
    plan_of(desk)->row_count = 0;
    segment_fixture_tenant(&desk->segment, 0, NULL);
    segment_fixture_row(&desk->segment, 0, 0, 16, SAMPLE);
    assert_int_equal(judge(desk), STATUS_OK);
}

int main(void)
{
#define DESK_TEST(name) cmocka_unit_test_setup_teardown(name, open_desk, close_desk)
    const struct CMUnitTest tests[] = {
        DESK_TEST(accepts_chunks_and_decode_rows_together),
        DESK_TEST(keeps_the_parameters_of_a_generation),
        DESK_TEST(refuses_a_step_that_is_not_the_next),
        DESK_TEST(refuses_what_is_not_published),
        DESK_TEST(refuses_everything_once_fenced),
        DESK_TEST(refuses_rows_that_the_plan_alone_shows_wrong),
        DESK_TEST(refuses_another_generation),
        DESK_TEST(refuses_an_older_generation),
        DESK_TEST(refuses_a_position_that_is_not_the_cached_length),
        DESK_TEST(a_new_generation_begins_at_0),
        DESK_TEST(a_new_generation_forgets_the_last_sample),
        DESK_TEST(refuses_a_last_sample_of_another_position),
        DESK_TEST(refuses_positions_beyond_the_limit_of_the_request),
        DESK_TEST(refuses_parameters_out_of_their_bounds),
        DESK_TEST(refuses_tokens_beyond_the_vocabulary),
        DESK_TEST(refuses_blocks_that_are_unmapped_or_out_of_range),
        DESK_TEST(refuses_a_block_in_two_places_of_a_plan),
        DESK_TEST(refuses_a_block_that_the_sequence_holds_already),
        DESK_TEST(s16_a_released_block_serves_another_tenant),
        DESK_TEST(copies_before_it_judges),
        DESK_TEST(forgetting_refuses_what_goes_on),
    };
#undef DESK_TEST
    return cmocka_run_group_tests(tests, NULL, NULL);
}
