/* A request's way through the core from accept to end, time, and the drain. */
#include "sim/engine.h"

#include "common/check.h"
#include "common/duration.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static struct engine engine;

static int set_up(void **state)
{
    (void)state;
    engine_init(&engine);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_stop(&engine);
    return 0;
}

static void start(void)
{
    engine_start(&engine);
    engine_attach(&engine);
}

static void submit(const char *id, const char *prompt, uint32_t max_tokens)
{
    struct client_submit request = engine_prompt(id, prompt, max_tokens);
    uint64_t handle = engine_submit(&engine, &request);
    assert_int_equal(engine_answer(&engine, handle)->message.type, CLIENT_ANSWER_ACCEPTED);
}

static const struct engine_answer *poll_all(const char *id)
{
    const struct engine_answer *answer = engine_answer(&engine, engine_poll(&engine, id, 0, 0));
    assert_non_null(answer);
    assert_int_equal(answer->message.type, CLIENT_ANSWER_OUTPUT);
    return answer;
}

/* The whole answer of a request must be that of an undisturbed run. */
static void assert_completed(const char *id, const char *prompt, uint32_t max_tokens,
                             enum finish_reason reason)
{
    uint32_t expected[ENGINE_TOKENS];
    uint32_t count = engine_expect(&engine, prompt, 7, max_tokens, expected);
    const struct engine_answer *answer = poll_all(id);
    const struct client_output *output = &answer->message.output;
    assert_int_equal(output->state, REQUEST_STATE_FINISHED);
    assert_true(output->has_finish);
    assert_int_equal(output->finish.reason, reason);
    assert_int_equal(output->tokens.count, count);
    assert_memory_equal(answer->tokens, expected, count * sizeof *expected);
    assert_int_equal(output->finish.usage.prompt_tokens, strlen(prompt));
    assert_int_equal(output->finish.usage.completion_tokens, count);
    for (uint32_t i = 0; i < output->text.length; i++)
        assert_int_equal((uint8_t)answer->text[i], expected[i]);
}

static void one_request_from_submit_to_the_end(void **state)
{
    (void)state;
    start();
    submit("a", "hello", 10);
    engine_run(&engine);
    assert_completed("a", "hello", 10, FINISH_REASON_LENGTH);
}

static void prompts_around_every_border_of_block_and_chunk(void **state)
{
    (void)state;
    static const uint32_t lengths[] = {1, 15, 16, 17, 31, 32, 33, 63, 64, 65, 100, 127};
    start();
    char prompt[128], id[16];
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        memset(prompt, 'A' + (int)i, lengths[i]);
        prompt[lengths[i]] = '\0';
        snprintf(id, sizeof id, "%zu", i);
        uint32_t room = 128 - lengths[i], max_tokens = room < 20 ? room : 20;
        submit(id, prompt, max_tokens);
        engine_run(&engine);
        assert_completed(id, prompt, max_tokens, FINISH_REASON_LENGTH);
    }
}

static void more_requests_than_slots_all_get_their_own_answers(void **state)
{
    (void)state;
    start();
    char prompts[20][16], ids[20][16];
    for (int i = 0; i < 20; i++) {
        snprintf(prompts[i], sizeof prompts[i], "p%d", i);
        snprintf(ids[i], sizeof ids[i], "r%d", i);
        submit(ids[i], prompts[i], 5 + (uint32_t)i);
    }
    engine_run(&engine);
    for (int i = 0; i < 20; i++)
        assert_completed(ids[i], prompts[i], 5 + (uint32_t)i, FINISH_REASON_LENGTH);
}

static void without_max_tokens_the_context_is_the_limit(void **state)
{
    (void)state;
    start();
    submit("a", "hello", 0);
    engine_run(&engine);
    assert_completed("a", "hello", 123, FINISH_REASON_LENGTH);
}

/* A pool smaller than the context limits what is generated, not what is accepted. */
static void without_max_tokens_a_small_pool_is_the_limit(void **state)
{
    (void)state;
    engine.config.extents.pool_blocks = 4; /* two logical blocks: 32 positions */
    start();
    submit("a", "hello", 0);
    engine_run(&engine);
    assert_completed("a", "hello", 28, FINISH_REASON_LENGTH);
}

static void end_of_sequence_as_first_token_ends_with_empty_text(void **state)
{
    (void)state;
    engine.script.end_chance = 1;
    start();
    submit("a", "hello", 10);
    engine_run(&engine);
    const struct client_output *output = &poll_all("a")->message.output;
    assert_int_equal(output->finish.reason, FINISH_REASON_STOP);
    assert_int_equal(output->tokens.count, 1);
    assert_int_equal(output->text.length, 0);
    const struct engine_answer *stats = engine_answer(&engine, engine_stats(&engine));
    assert_int_equal(stats->message.stats.rows_dropped, 1); /* seen one step late */
}

static void a_stop_string_cuts_the_text_before_it(void **state)
{
    (void)state;
    uint32_t expected[40];
    engine_expect(&engine, "hello", 7, 40, expected);
    char stop[3] = {(char)expected[10], (char)expected[11], '\0'};
    start();
    struct client_submit request = engine_prompt("a", "hello", 40);
    request.stop.items[0] = wire_text_of(stop);
    request.stop.count = 1;
    engine_submit(&engine, &request);
    engine_run(&engine);
    const struct client_output *output = &poll_all("a")->message.output;
    assert_int_equal(output->finish.reason, FINISH_REASON_STOP);
    assert_int_equal(output->tokens.count, 12);
    assert_int_equal(output->text.length, 10);
}

static void s15_a_cancel_in_every_state_gives_the_blocks_back(void **state)
{
    (void)state;
    engine.holds_orders = true;
    start();
    struct client_submit request = engine_prompt("tokenizing", "hello", 10);
    uint64_t waiting = engine_submit(&engine, &request);
    assert_null(engine_answer(&engine, waiting));
    engine_cancel(&engine, "tokenizing");
    assert_int_equal(engine_error(&engine, waiting), ERROR_CODE_CANCELLED);
    engine_tokenize(&engine, 0, STATUS_OK); /* nobody wants it any more */
    assert_int_equal(engine.plan_count, 0);
    engine.holds_orders = false;
    submit("running", "hello", 50);
    engine_step(&engine);
    const struct client_output *output =
        &engine_answer(&engine, engine_cancel(&engine, "running"))->message.output;
    assert_int_equal(output->state, REQUEST_STATE_FINISHED);
    assert_int_equal(output->finish.reason, FINISH_REASON_CANCELLED);
    engine_run(&engine);
    const struct client_stats_answer *stats =
        &engine_answer(&engine, engine_stats(&engine))->message.stats;
    assert_int_equal(stats->blocks_free, stats->blocks_total);
    assert_int_equal(stats->requests_cancelled, 2);
    output = &engine_answer(&engine, engine_cancel(&engine, "running"))->message.output;
    assert_int_equal(output->finish.reason, FINISH_REASON_CANCELLED); /* again: the same */
}

static void s15_a_deadline_ends_a_queued_and_a_running_request(void **state)
{
    (void)state;
    engine_start(&engine);
    struct client_submit request = engine_prompt("queued", "hello", 10);
    request.has_deadline_ms = true;
    request.deadline_ms = 50;
    engine_submit(&engine, &request);
    engine_attach(&engine);
    request = engine_prompt("running", "hello", 100);
    request.has_deadline_ms = true;
    request.deadline_ms = 100;
    engine_submit(&engine, &request);
    engine_step(&engine);
    engine_pass(&engine, 60 * NS_PER_MS);
    const struct client_finish *finish = &poll_all("queued")->message.output.finish;
    assert_int_equal(finish->reason, FINISH_REASON_ERROR);
    assert_int_equal(finish->error.code, ERROR_CODE_DEADLINE_EXCEEDED);
    engine_pass(&engine, 60 * NS_PER_MS);
    assert_int_equal(poll_all("running")->message.output.finish.error.code,
                     ERROR_CODE_DEADLINE_EXCEEDED);
    engine_run(&engine);
}

static void nobody_asking_for_thirty_seconds_cancels_unless_detached(void **state)
{
    (void)state;
    engine_start(&engine);
    struct client_submit request = engine_prompt("lonely", "hello", 10);
    engine_submit(&engine, &request);
    request = engine_prompt("detached", "hello", 10);
    request.detach = true;
    engine_submit(&engine, &request);
    request = engine_prompt("asked", "hello", 10);
    engine_submit(&engine, &request);
    for (int i = 0; i < 4; i++) {
        const struct client_next next = {.id = wire_text_of("asked"), .max_wait_ms = 10000};
        engine_next(&engine, &next);
        engine_pass(&engine, 10 * NS_PER_S);
    }
    assert_int_equal(poll_all("lonely")->message.output.finish.reason, FINISH_REASON_CANCELLED);
    assert_int_equal(poll_all("detached")->message.output.state, REQUEST_STATE_QUEUED);
    assert_int_equal(poll_all("asked")->message.output.state, REQUEST_STATE_QUEUED);
    const struct engine_answer *stats = engine_answer(&engine, engine_stats(&engine));
    assert_int_equal(stats->message.stats.requests_orphaned, 1);
}

static void finished_requests_are_kept_for_their_time(void **state)
{
    (void)state;
    start();
    submit("a", "hello", 3);
    engine_run(&engine);
    engine_pass(&engine, 119 * NS_PER_S);
    assert_completed("a", "hello", 3, FINISH_REASON_LENGTH);
    engine_pass(&engine, 2 * NS_PER_S);
    assert_int_equal(engine_error(&engine, engine_poll(&engine, "a", 0, 0)), ERROR_CODE_NOT_FOUND);
}

static void finished_requests_are_kept_by_number_read_ones_go_first(void **state)
{
    (void)state;
    engine.config.kept_requests = 2;
    start();
    submit("a", "one", 2);
    submit("b", "two", 2);
    engine_run(&engine);
    poll_all("b"); /* read */
    submit("c", "three", 2);
    engine_run(&engine);
    assert_int_equal(engine_error(&engine, engine_poll(&engine, "b", 0, 0)), ERROR_CODE_NOT_FOUND);
    assert_completed("a", "one", 2, FINISH_REASON_LENGTH);
    assert_completed("c", "three", 2, FINISH_REASON_LENGTH);
}

static void time_that_runs_backwards_stands_still(void **state)
{
    (void)state;
    start();
    submit("a", "hello", 3);
    engine.now_ns -= NS_PER_S / 2;
    engine_run(&engine);
    assert_completed("a", "hello", 3, FINISH_REASON_LENGTH);
}

static void a_drain_finishes_what_runs_and_refuses_the_rest(void **state)
{
    (void)state;
    engine.config.extents.slots = 1;
    start();
    submit("running", "hello", 10);
    submit("queued", "world", 10);
    const struct client_next next = {.id = wire_text_of("queued"), .max_wait_ms = 20000};
    uint64_t parked = engine_next(&engine, &next);
    core_drain(engine.core, engine.now_ns);
    engine_collect(&engine);
    const struct client_finish *finish = &engine_answer(&engine, parked)->message.output.finish;
    assert_int_equal(finish->error.code, ERROR_CODE_DRAINING);
    struct client_submit request = engine_prompt("late", "hello", 10);
    uint64_t refused = engine_submit(&engine, &request);
    assert_int_equal(engine_error(&engine, refused), ERROR_CODE_DRAINING);
    assert_true(engine_answer(&engine, refused)->message.error.retry_after_ms > 0);
    engine_run(&engine);
    assert_false(engine.drained);
    assert_completed("running", "hello", 10, FINISH_REASON_LENGTH); /* served in the last second */
    engine_pass(&engine, NS_PER_S);
    assert_true(engine.drained);
}

static void a_drain_ends_by_its_timeout(void **state)
{
    (void)state;
    start();
    struct client_submit request = engine_prompt("stuck", "hello", 10);
    request.detach = true;
    engine_submit(&engine, &request);
    engine_step(&engine);
    core_drain(engine.core, engine.now_ns);
    engine_collect(&engine);
    engine_pass(&engine, 29 * NS_PER_S);
    assert_false(engine.drained);
    engine_pass(&engine, NS_PER_S);
    assert_int_equal(poll_all("stuck")->message.output.finish.error.code, ERROR_CODE_DRAINING);
    engine_pass(&engine, NS_PER_S);
    assert_true(engine.drained);
}

static void a_second_drain_means_now(void **state)
{
    (void)state;
    start();
    submit("a", "hello", 10);
    core_drain(engine.core, engine.now_ns);
    engine_collect(&engine);
    core_drain(engine.core, engine.now_ns);
    engine_collect(&engine);
    assert_true(engine.drained);
    assert_int_equal(poll_all("a")->message.output.finish.error.code, ERROR_CODE_DRAINING);
    core_drain(engine.core, engine.now_ns);
    engine_collect(&engine);
    assert_int_equal(engine.counts[CORE_OUTPUT_DRAINED], 1);
}

static void an_idle_core_wants_no_wake_up(void **state)
{
    (void)state;
    engine_start(&engine);
    assert_true(core_next_deadline_ns(engine.core) == CORE_NO_DEADLINE);
    core_tick(engine.core, engine.now_ns);
    engine_collect(&engine);
    assert_true(core_next_deadline_ns(engine.core) == CORE_NO_DEADLINE);
}

/* s33: where the blocks lie changes no answer. */
static void s33_a_shuffled_pool_gives_the_same_answers(void **state)
{
    (void)state;
    engine.config.shuffle_blocks = true;
    engine.config.shuffle_seed = 42;
    start();
    submit("a", "hello there", 60);
    submit("b", "and again", 60);
    engine_run(&engine);
    assert_completed("a", "hello there", 60, FINISH_REASON_LENGTH);
    assert_completed("b", "and again", 60, FINISH_REASON_LENGTH);
}

/* Small pools: everybody ends, the ledger balances, preempted ones give the answer all the same. */
static void s14_pools_from_one_block_up_serve_everybody(void **state)
{
    (void)state;
    for (uint64_t blocks = 1; blocks <= 12; blocks++) {
        engine.config.extents.pool_blocks = 2 * blocks;
        start();
        uint32_t most = (uint32_t)blocks * 16 + 1 - 3;
        uint32_t max_tokens = most < 60 ? most : 60;
        static const char *const ids[] = {"a", "b", "c", "d", "e"};
        for (int i = 0; i < 5; i++)
            submit(ids[i], ids[i], max_tokens);
        engine_run(&engine);
        for (int i = 0; i < 5; i++)
            assert_completed(ids[i], ids[i], max_tokens, FINISH_REASON_LENGTH);
        const struct client_stats_answer *stats =
            &engine_answer(&engine, engine_stats(&engine))->message.stats;
        assert_int_equal(stats->blocks_free, stats->blocks_total);
        engine_stop(&engine);
        engine_init(&engine);
    }
    engine_start(&engine);
}

static void a_bound_of_zero_is_refused_at_creation(void **state)
{
    (void)state;
    engine_start(&engine);
    struct core_config config = engine.config;
    struct core *core = NULL;
    struct reason why;
    for (int bound = 0; bound < 4; bound++) {
        config = engine.config;
        uint32_t *const bounds[] = {&config.calls, &config.queue_requests, &config.kept_requests,
                                    &config.extents.step_tokens};
        *bounds[bound] = 0;
        assert_int_equal(core_create(&config, &core, reason_init(&why)), STATUS_INVALID);
    }
    config = engine.config;
    config.kept_ns = 0;
    assert_int_equal(core_create(&config, &core, reason_init(&why)), STATUS_INVALID);
    config = engine.config;
    config.extents.pool_blocks = 1;
    assert_int_equal(core_create(&config, &core, reason_init(&why)), STATUS_INVALID);
    config = engine.config;
    config.extents.vocabulary++;
    assert_int_equal(core_create(&config, &core, reason_init(&why)), STATUS_INVALID);
    assert_null(core);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(one_request_from_submit_to_the_end),
        CASE(prompts_around_every_border_of_block_and_chunk),
        CASE(more_requests_than_slots_all_get_their_own_answers),
        CASE(without_max_tokens_the_context_is_the_limit),
        CASE(without_max_tokens_a_small_pool_is_the_limit),
        CASE(end_of_sequence_as_first_token_ends_with_empty_text),
        CASE(a_stop_string_cuts_the_text_before_it),
        CASE(s15_a_cancel_in_every_state_gives_the_blocks_back),
        CASE(s15_a_deadline_ends_a_queued_and_a_running_request),
        CASE(nobody_asking_for_thirty_seconds_cancels_unless_detached),
        CASE(finished_requests_are_kept_for_their_time),
        CASE(finished_requests_are_kept_by_number_read_ones_go_first),
        CASE(time_that_runs_backwards_stands_still),
        CASE(a_drain_finishes_what_runs_and_refuses_the_rest),
        CASE(a_drain_ends_by_its_timeout),
        CASE(a_second_drain_means_now),
        CASE(an_idle_core_wants_no_wake_up),
        CASE(s33_a_shuffled_pool_gives_the_same_answers),
        CASE(s14_pools_from_one_block_up_serve_everybody),
        CASE(a_bound_of_zero_is_refused_at_creation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
