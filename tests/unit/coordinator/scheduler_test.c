/* What a step computes: order, budget, blocks, preemption, two plans in flight, trials. */
#include "coordinator/scheduler.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>

enum { BLOCK = 4, SLOTS = 5 };

static struct arena arena;
static struct requests requests;
static struct slots slots;
static struct flights flights;
static struct scheduler scheduler;
static struct plan plan;

/* `pool` in logical blocks. */
static void open_engine(uint32_t pool, uint32_t step_tokens, uint32_t chunk)
{
    const struct slots_config config = {.geometry = {.layers = 2,
                                                     .kv_heads = 1,
                                                     .head_dim = 8,
                                                     .block_tokens = BLOCK,
                                                     .type = KV_TYPE_F16},
                                        .slots = SLOTS,
                                        .logical_blocks = 16,
                                        .pool_blocks = 2 * pool};
    const struct scheduler_config scheduling = {.requests = &requests,
                                                .slots = &slots,
                                                .flights = &flights,
                                                .step_tokens = step_tokens,
                                                .prefill_chunk = chunk};
    assert_int_equal(arena_init(&arena, 1 << 20), STATUS_OK);
    assert_int_equal(requests_init(&requests, &arena, 20, 1, realloc), STATUS_OK);
    assert_int_equal(slots_init(&slots, &arena, &config), STATUS_OK);
    assert_int_equal(flights_init(&flights, &arena, SLOTS), STATUS_OK);
    assert_int_equal(scheduler_init(&scheduler, &arena, &scheduling), STATUS_OK);
}

static int tear_down(void **state)
{
    (void)state;
    assert_true(slots_is_sound(&slots));
    assert_true(requests_is_sound(&requests));
    requests_free(&requests);
    arena_free(&arena);
    return 0;
}

static struct request *enqueue(uint32_t prompt_tokens, uint32_t max_tokens)
{
    char id[16];
    uint32_t ids[64] = {0};
    struct request *request;
    snprintf(id, sizeof id, "%u", (unsigned)requests.sequence);
    assert_int_equal(requests_add(&requests, wire_text_of(id), &request), STATUS_OK);
    assert_int_equal(requests_set_prompt(&requests, request, ids, prompt_tokens), STATUS_OK);
    request->max_tokens = max_tokens;
    requests_move(&requests, request, REQUEST_STATE_QUEUED);
    scheduler_enqueue(&scheduler, request);
    return request;
}

static uint32_t build(void)
{
    uint32_t rows = scheduler_build(&scheduler, &plan, 1);
    if (rows > 0)
        flights_sent(&flights);
    return rows;
}

/* The oldest plan is answered; every sampled token is accepted. */
static void answer(void)
{
    const struct flight *flight = flights_oldest(&flights);
    assert_non_null(flight);
    for (uint32_t i = 0; i < flight->row_count; i++) {
        struct request *request = requests_named(&requests, flight->rows[i].request);
        uint32_t position = flight->rows[i].first + flight->rows[i].count;
        if (request == NULL || request_is_finished(request))
            continue;
        suspicion_passed(&request->suspicion, position);
        if (flight->rows[i].samples && position == request_known(request))
            assert_int_equal(requests_append_token(&requests, request, 1), STATUS_OK);
    }
    slots_answered(&slots, flight->step);
    flights_answered(&flights);
    scheduler_step_answered(&scheduler);
}

static void finish(struct request *request)
{
    scheduler_withdraw(&scheduler, request);
    request->outcome.reason = FINISH_REASON_LENGTH;
    requests_move(&requests, request, REQUEST_STATE_FINISHED);
}

static void assert_row(uint32_t index, const struct request *request, uint32_t first,
                       uint32_t count, uint32_t flags)
{
    const struct plan_row *row = &plan.rows[index];
    assert_int_equal(row->slot, request->slot);
    assert_int_equal(row->generation, slots.rows[request->slot].generation);
    assert_int_equal(row->first_position, first);
    assert_int_equal(row->count, count);
    assert_int_equal(row->flags, flags);
}

static void the_second_plan_takes_the_token_that_is_still_in_flight(void **state)
{
    (void)state;
    open_engine(16, 32, 32);
    struct request *request = enqueue(5, 10);
    assert_int_equal(build(), 1);
    assert_row(0, request, 0, 5, PLAN_ROW_SAMPLE);
    assert_int_equal(build(), 1);
    assert_row(0, request, 5, 1, PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE);
    assert_true(flights_is_full(&flights));
    answer();
    assert_int_equal(build(), 1);
    assert_row(0, request, 6, 1, PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE);
    answer();
    answer();
    assert_int_equal(build(), 1);
    assert_row(0, request, 7, 1, PLAN_ROW_SAMPLE); /* the log has it by now */
}

static void no_row_is_planned_beyond_the_limit(void **state)
{
    (void)state;
    open_engine(16, 32, 32);
    struct request *request = enqueue(5, 3);
    uint32_t rows = 0;
    for (int i = 0; i < 10; i++) {
        rows += build();
        if (flights_is_full(&flights) || (i > 2 && flights_count(&flights) > 0))
            answer();
    }
    assert_int_equal(rows, 3);
    assert_int_equal(request->accepted, 3);
}

static void one_token_has_one_plan(void **state)
{
    (void)state;
    open_engine(16, 32, 32);
    enqueue(5, 1);
    assert_int_equal(build(), 1);
    assert_int_equal(build(), 0);
}

static void decode_rows_come_first_then_chunks_within_one_budget(void **state)
{
    (void)state;
    open_engine(64, 10, 6);
    struct request *decoding = enqueue(2, 20);
    assert_int_equal(build(), 1);
    answer();
    struct request *first = enqueue(20, 5), *second = enqueue(20, 5);
    assert_int_equal(build(), 3);
    assert_row(0, decoding, 2, 1, PLAN_ROW_SAMPLE);
    assert_row(1, first, 0, 6, 0);  /* the chunk bound */
    assert_row(2, second, 0, 3, 0); /* what is left of the budget */
    answer();
    assert_int_equal(build(), 3);
    assert_row(1, first, 6, 6, 0);
    assert_row(2, second, 3, 3, 0);
}

static void s22_a_hole_among_the_slots_moves_nobody(void **state)
{
    (void)state;
    open_engine(64, 32, 32);
    struct request *first = enqueue(3, 9), *second = enqueue(3, 9);
    assert_int_equal(build(), 2);
    answer();
    uint32_t slot = second->slot;
    assert_int_equal(first->slot, 0);
    finish(first);
    assert_int_equal(build(), 1);
    assert_row(0, second, 3, 1, PLAN_ROW_SAMPLE);
    assert_int_equal(plan.rows[0].slot, slot); /* compact row 0, real slot 1 */
    assert_int_equal(slot, 1);
}

static void nobody_overtakes_the_head_of_the_queue(void **state)
{
    (void)state;
    open_engine(6, 64, 64);
    enqueue(12, 5);
    assert_int_equal(build(), 1);
    struct request *large = enqueue(14, 2), *small = enqueue(1, 1);
    assert_int_equal(build(), 1); /* the first one's next row alone */
    assert_int_equal(large->state, REQUEST_STATE_QUEUED);
    assert_int_equal(small->state, REQUEST_STATE_QUEUED);
    assert_int_equal(scheduler_position(&scheduler, large), 0);
    assert_int_equal(scheduler_position(&scheduler, small), 1);
}

static void a_late_request_with_a_low_sequence_goes_first(void **state)
{
    (void)state;
    open_engine(64, 64, 64);
    struct request *early = enqueue(3, 2), *late = enqueue(3, 2);
    scheduler_withdraw(&scheduler, early); /* its text took longer to tokenize */
    assert_int_equal(scheduler_position(&scheduler, late), 0);
    scheduler_enqueue(&scheduler, early);
    assert_int_equal(scheduler_position(&scheduler, late), 1);
    assert_int_equal(build(), 2);
    assert_row(0, early, 0, 3, PLAN_ROW_SAMPLE);
}

static void newcomers_leave_a_block_for_each_that_grows(void **state)
{
    (void)state;
    open_engine(3, 64, 64);
    struct request *first = enqueue(4, 5);
    enqueue(8, 1);
    assert_int_equal(build(), 1); /* 2 blocks are free, 2 are needed, 1 is spoken for */
    finish(first);
    answer();
    assert_int_equal(build(), 1);
}

/* Runs both to a border where the pool is used up. */
static void fill_pool(struct request **out_older, struct request **out_newer)
{
    open_engine(4, 64, 64);
    *out_older = enqueue(3, 12);
    *out_newer = enqueue(4, 12);
    assert_int_equal(build(), 2);
    while ((*out_older)->planned < 8 || (*out_newer)->planned < 8) {
        answer();
        assert_true(build() > 0);
        if (blocks_free_logical(&slots.blocks) == 0 && (*out_older)->planned == 8)
            break;
    }
    assert_int_equal(blocks_free_logical(&slots.blocks), 0);
}

static void the_newest_gives_its_blocks_to_the_oldest(void **state)
{
    (void)state;
    struct request *older, *newer;
    fill_pool(&older, &newer);
    answer();
    build();
    answer();
    for (int i = 0; i < 4 && newer->state == REQUEST_STATE_RUNNING; i++) {
        build();
        if (flights_count(&flights) > 0)
            answer();
    }
    assert_int_equal(newer->state, REQUEST_STATE_PREEMPTED);
    assert_int_equal(older->state, REQUEST_STATE_RUNNING);
    assert_int_equal(newer->preemptions, 1);
    assert_int_equal(newer->planned, 0);
    assert_int_equal(scheduler_position(&scheduler, newer), 0);
    while (older->accepted < 12) { /* the oldest always gets on */
        build();
        answer();
    }
    finish(older);
    while (flights_count(&flights) > 0)
        answer();
    uint32_t known = request_known(newer);
    assert_int_equal(build(), 1);
    assert_row(0, newer, 0, known, PLAN_ROW_SAMPLE); /* prompt and accepted tokens, again */
    assert_true(newer->recomputed > 0);
}

/* Somebody else's: the free list becomes empty. */
static void hoard_free_blocks(void)
{
    uint32_t slot, count = blocks_free_logical(&slots.blocks);
    assert_int_equal(slots_take(&slots, 0, &slot), STATUS_OK);
    assert_int_equal(slots_cover(&slots, slot, count * BLOCK), STATUS_OK);
}

static void blocks_that_come_back_are_waited_for(void **state)
{
    (void)state;
    open_engine(8, 64, 64);
    struct request *older = enqueue(3, 9), *middle = enqueue(4, 9), *newest = enqueue(1, 9);
    assert_int_equal(build(), 3);
    assert_int_equal(build(), 3);
    hoard_free_blocks();
    answer();
    finish(middle); /* its blocks retire until the second plan is answered */
    assert_int_equal(slots.blocks.retiring_count, 2 * 2);
    assert_int_equal(build(), 1); /* the older one lacks a block and waits for them */
    assert_row(0, newest, 2, 1, PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE);
    assert_int_equal(newest->preemptions, 0);
    answer();
    assert_int_equal(build(), 2);
    assert_row(0, older, 4, 1, PLAN_ROW_SAMPLE);
}

enum { FAR = 500 }; /* more tokens than anybody waits for */

struct shortage {
    struct request *oldest, *wanting, *newest;
};

/* After the first plan no block is free; the next token of `wanting` requests needs one. */
static struct shortage open_shortage(uint32_t max_tokens_of_oldest, uint32_t wanting)
{
    open_engine(8, 64, 64);
    struct shortage shortage = {.oldest = enqueue(2, max_tokens_of_oldest)};
    for (uint32_t i = 0; i < wanting; i++)
        shortage.wanting = enqueue(BLOCK, FAR);
    shortage.newest = enqueue(1, FAR);
    assert_int_equal(build(), 2 + wanting);
    hoard_free_blocks();
    return shortage;
}

static void a_row_waits_for_blocks_of_one_that_ends_soon(void **state)
{
    (void)state;
    const uint32_t flags = PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE;
    struct shortage shortage = open_shortage(SCHEDULER_WAIT_TOKENS + 1, 1);
    assert_int_equal(build(), 2);
    assert_row(0, shortage.oldest, 2, 1, flags);
    assert_row(1, shortage.newest, 1, 1, flags);
}

static void a_row_waits_for_blocks_of_one_whose_end_is_in_flight(void **state)
{
    (void)state;
    struct shortage shortage = open_shortage(1, 1);
    assert_int_equal(build(), 1);
    assert_row(0, shortage.newest, 1, 1, PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE);
    answer();
    finish(shortage.oldest);
    assert_int_equal(build(), 2);
    assert_row(0, shortage.wanting, BLOCK, 1, PLAN_ROW_SAMPLE);
}

static void nobody_waits_for_one_that_ends_late(void **state)
{
    (void)state;
    struct shortage shortage = open_shortage(SCHEDULER_WAIT_TOKENS + 2, 1);
    build();
    assert_int_equal(shortage.newest->state, REQUEST_STATE_PREEMPTED);
    assert_int_equal(shortage.wanting->state, REQUEST_STATE_RUNNING);
}

static void no_two_wait_for_the_same_block(void **state)
{
    (void)state;
    struct shortage shortage = open_shortage(SCHEDULER_WAIT_TOKENS + 1, 2);
    build();
    assert_int_equal(shortage.newest->state, REQUEST_STATE_PREEMPTED);
    assert_int_equal(shortage.wanting->state, REQUEST_STATE_RUNNING);
}

static void an_ended_epoch_queues_everybody_in_their_order(void **state)
{
    (void)state;
    open_engine(64, 64, 64);
    struct request *first = enqueue(3, 5), *second = enqueue(3, 5), *third = enqueue(3, 5);
    assert_int_equal(build(), 3);
    answer();
    assert_int_equal(build(), 3);
    scheduler_end_epoch(&scheduler);
    flights_clear(&flights);
    assert_int_equal(slots.blocks.free_count, slots.blocks.total);
    assert_int_equal(first->state, REQUEST_STATE_QUEUED);
    assert_int_equal(first->workers_lost, 1);
    assert_int_equal(build(), 3);
    assert_row(0, first, 0, 4, PLAN_ROW_SAMPLE);
    assert_row(1, second, 0, 4, PLAN_ROW_SAMPLE);
    assert_row(2, third, 0, 4, PLAN_ROW_SAMPLE);
}

static void a_suspect_is_tried_alone_after_other_work(void **state)
{
    (void)state;
    open_engine(64, 64, 64);
    struct request *other = enqueue(3, 30), *suspect = enqueue(6, 9);
    suspicion_crashed(&suspect->suspicion, 4, 6);
    suspicion_crashed(&suspect->suspicion, 4, 6);
    assert_int_equal(build(), 2);
    assert_row(0, other, 0, 3, PLAN_ROW_SAMPLE);
    assert_row(1, suspect, 0, 4, 0); /* up to the suspected range with everybody */
    for (int i = 0; i < SCHEDULER_TRIAL_INTERVAL_STEPS - 1; i++) {
        answer();
        assert_int_equal(build(), 1);
        assert_int_equal(plan.rows[0].slot, other->slot);
    }
    assert_int_equal(build(), 1);
    answer();
    assert_int_equal(build(), 0); /* due: what is in flight comes home first */
    answer();
    assert_int_equal(build(), 1);
    assert_row(0, suspect, 4, 2, PLAN_ROW_SAMPLE);
    assert_true(flights_oldest(&flights)->is_trial);
    assert_int_equal(build(), 0); /* nothing beside it */
    answer();
    assert_int_equal(build(), 2); /* cleared */
}

static void without_other_work_a_trial_starts_at_once(void **state)
{
    (void)state;
    open_engine(64, 64, 64);
    struct request *suspect = enqueue(6, 9);
    suspicion_crashed(&suspect->suspicion, 0, 6);
    suspicion_crashed(&suspect->suspicion, 0, 6);
    assert_int_equal(build(), 1);
    assert_row(0, suspect, 0, 6, PLAN_ROW_SAMPLE);
    assert_true(flights_oldest(&flights)->is_trial);
}

static void crash_alone(struct request *request, uint32_t first, uint32_t end)
{
    assert_false(suspicion_crashed_alone(&request->suspicion, first, end, SUSPICION_WORKER_WORKED));
}

static void nobody_gets_a_first_token_before_a_suspect_that_has_none(void **state)
{
    (void)state;
    open_engine(64, 64, 64);
    struct request *old = enqueue(2, 60);
    assert_int_equal(build(), 1);
    answer();
    struct request *suspect = enqueue(6, 9), *young = enqueue(3, 9), *one_token = enqueue(1, 9);
    suspicion_crashed(&suspect->suspicion, 4, 6);
    suspicion_crashed(&suspect->suspicion, 4, 6);
    assert_int_equal(build(), 2);
    assert_row(0, old, 2, 1, PLAN_ROW_SAMPLE); /* who has a token goes on */
    assert_row(1, suspect, 0, 4, 0);
    while (flights_oldest(&flights) != NULL && !flights_oldest(&flights)->is_trial) {
        answer();
        assert_int_equal(young->planned + one_token->planned, 0);
        assert_int_equal(build(), 1);
    }
    assert_row(0, suspect, 4, 2, PLAN_ROW_SAMPLE);
    answer();
    assert_int_equal(build(), 4); /* all together again */
}

/* They run without a row because they waited for a trial; then the budget is too small for both. */
static void a_prompt_of_one_token_does_not_pass_a_longer_one_before_it(void **state)
{
    (void)state;
    open_engine(64, 6, 64);
    struct request *suspect = enqueue(2, 9), *longer = enqueue(8, 9), *one_token = enqueue(1, 9);
    suspicion_crashed(&suspect->suspicion, 1, 2);
    suspicion_crashed(&suspect->suspicion, 1, 2);
    assert_int_equal(build(), 1);
    assert_row(0, suspect, 0, 1, 0);
    answer();
    assert_int_equal(build(), 1);
    assert_row(0, suspect, 1, 1, PLAN_ROW_SAMPLE);
    answer();
    assert_int_equal(build(), 2);
    assert_row(0, suspect, 2, 1, PLAN_ROW_SAMPLE);
    assert_row(1, longer, 0, 5, 0);
    assert_int_equal(one_token->planned, 0);
    assert_int_equal(build(), 3);
    assert_row(1, longer, 5, 3, PLAN_ROW_SAMPLE);
    assert_row(2, one_token, 0, 1, PLAN_ROW_SAMPLE);
}

static void a_suspect_for_which_others_wait_is_tried_first(void **state)
{
    (void)state;
    open_engine(64, 64, 64);
    struct request *has_tokens = enqueue(2, 60);
    assert_int_equal(build(), 1);
    answer();
    struct request *first = enqueue(2, 9), *second = enqueue(2, 9);
    struct request *const suspects[] = {has_tokens, first, second};
    for (size_t i = 0; i < 3; i++) {
        suspicion_crashed(&suspects[i]->suspicion, suspects[i]->planned, 3);
        suspicion_crashed(&suspects[i]->suspicion, suspects[i]->planned, 3);
    }
    crash_alone(first, 0, 3); /* the others have nothing against them */
    assert_int_equal(build(), 1);
    assert_row(0, first, 0, 2, PLAN_ROW_SAMPLE);
    assert_true(flights_oldest(&flights)->is_trial);
}

static void three_deaths_alone_let_the_others_pass(void **state)
{
    (void)state;
    open_engine(64, 64, 64);
    struct request *suspect = enqueue(6, 9), *young = enqueue(3, 9);
    suspicion_crashed(&suspect->suspicion, 0, 6);
    suspicion_crashed(&suspect->suspicion, 0, 6);
    for (int deaths = 0; deaths < 3; deaths++) {
        assert_int_equal(build(), 1);
        assert_row(0, suspect, 0, 6, PLAN_ROW_SAMPLE);
        scheduler_end_epoch(&scheduler);
        flights_clear(&flights);
        crash_alone(suspect, 0, 6);
    }
    assert_int_equal(build(), 1);
    assert_row(0, young, 0, 3, PLAN_ROW_SAMPLE);
}

static void a_trial_is_short(void **state)
{
    (void)state;
    open_engine(64, 200, 200);
    struct request *suspect = enqueue(SCHEDULER_TRIAL_TOKENS + 4, 9);
    suspicion_crashed(&suspect->suspicion, 0, SCHEDULER_TRIAL_TOKENS + 4);
    suspicion_crashed(&suspect->suspicion, 0, SCHEDULER_TRIAL_TOKENS + 4);
    assert_int_equal(build(), 1);
    assert_row(0, suspect, 0, SCHEDULER_TRIAL_TOKENS, 0);
    answer();
    assert_int_equal(build(), 1);
    assert_row(0, suspect, SCHEDULER_TRIAL_TOKENS, 4, PLAN_ROW_SAMPLE);
}

static void a_trial_without_a_block_lets_the_oldest_be_tried(void **state)
{
    (void)state;
    open_engine(8, 64, 64);
    struct request *older = enqueue(2, 9), *newer = enqueue(BLOCK - 1, 9);
    for (int step = 0; step < 2; step++) {
        assert_int_equal(build(), 2);
        answer();
    }
    hoard_free_blocks();
    for (int death = 0; death < 2; death++) {
        suspicion_crashed(&older->suspicion, 3, 4);
        suspicion_crashed(&newer->suspicion, BLOCK, BLOCK + 1);
    }
    crash_alone(older, 3, 4); /* so that it is the newer one's turn, which lacks a block */
    assert_int_equal(build(), 1);
    assert_row(0, older, 3, 1, PLAN_ROW_SAMPLE);
    assert_true(flights_oldest(&flights)->is_trial);
}

/* The token that comes home after a preemption is one more than the blocks of the second start
 * cover. */
static void tokens_accepted_after_readmission_get_their_block(void **state)
{
    (void)state;
    open_engine(16, 64, 64);
    struct request *request = enqueue(4, 9);
    assert_int_equal(build(), 1);
    assert_int_equal(build(), 1); /* positions 4 and 5 are on their way */
    slots_release(&slots, request->slot);
    scheduler.running_count = 0;
    request->slot = SLOT_NONE;
    request->planned = 0;
    requests_move(&requests, request, REQUEST_STATE_PREEMPTED);
    scheduler_enqueue(&scheduler, request);
    answer();
    answer();
    assert_int_equal(request->accepted, 2);
    assert_int_equal(build(), 1);
    assert_row(0, request, 0, 6, PLAN_ROW_SAMPLE);
    assert_int_equal(slots.rows[request->slot].logical_blocks, 2);
    assert_int_equal(requests_append_token(&requests, request, 1), STATUS_OK);
    assert_int_equal(requests_append_token(&requests, request, 1), STATUS_OK);
    assert_int_equal(requests_append_token(&requests, request, 1), STATUS_OK);
    assert_int_equal(build(), 1);
    assert_row(0, request, 6, 2, 0); /* to the end of what its blocks cover */
    answer();
    assert_int_equal(build(), 1);
    assert_row(0, request, 8, 1, PLAN_ROW_SAMPLE);
    assert_int_equal(slots.rows[request->slot].logical_blocks, 3);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_teardown(name, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(the_second_plan_takes_the_token_that_is_still_in_flight),
        CASE(no_row_is_planned_beyond_the_limit),
        CASE(one_token_has_one_plan),
        CASE(decode_rows_come_first_then_chunks_within_one_budget),
        CASE(s22_a_hole_among_the_slots_moves_nobody),
        CASE(nobody_overtakes_the_head_of_the_queue),
        CASE(a_late_request_with_a_low_sequence_goes_first),
        CASE(newcomers_leave_a_block_for_each_that_grows),
        CASE(the_newest_gives_its_blocks_to_the_oldest),
        CASE(blocks_that_come_back_are_waited_for),
        CASE(a_row_waits_for_blocks_of_one_that_ends_soon),
        CASE(a_row_waits_for_blocks_of_one_whose_end_is_in_flight),
        CASE(nobody_waits_for_one_that_ends_late),
        CASE(no_two_wait_for_the_same_block),
        CASE(an_ended_epoch_queues_everybody_in_their_order),
        CASE(a_suspect_is_tried_alone_after_other_work),
        CASE(without_other_work_a_trial_starts_at_once),
        CASE(nobody_gets_a_first_token_before_a_suspect_that_has_none),
        CASE(a_prompt_of_one_token_does_not_pass_a_longer_one_before_it),
        CASE(a_suspect_for_which_others_wait_is_tried_first),
        CASE(three_deaths_alone_let_the_others_pass),
        CASE(a_trial_is_short),
        CASE(a_trial_without_a_block_lets_the_oldest_be_tried),
        CASE(tokens_accepted_after_readmission_get_their_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
