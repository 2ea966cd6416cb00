/* Workers that come, go, lie and die: streams go on as if nothing had happened. */
#include "sim/engine.h"

#include "common/check.h"
#include "common/duration.h"
#include "common/random.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>

static struct engine engine;
static struct result result;
static struct worker_refused refused;

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

static void submit(const char *id, const char *prompt, uint32_t max_tokens)
{
    struct client_submit request = engine_prompt(id, prompt, max_tokens);
    uint64_t handle = engine_submit(&engine, &request);
    assert_int_equal(engine_answer(&engine, handle)->message.type, CLIENT_ANSWER_ACCEPTED);
}

static const struct client_finish *finish_of(const char *id)
{
    const struct engine_answer *answer = engine_answer(&engine, engine_poll(&engine, id, 0, 0));
    assert_int_equal(answer->message.type, CLIENT_ANSWER_OUTPUT);
    assert_true(answer->message.output.has_finish);
    return &answer->message.output.finish;
}

static void assert_undisturbed(const char *id, const char *prompt, uint32_t max_tokens)
{
    uint32_t expected[ENGINE_TOKENS];
    uint32_t count = engine_expect(&engine, prompt, 7, max_tokens, expected);
    const struct engine_answer *answer = engine_answer(&engine, engine_poll(&engine, id, 0, 0));
    assert_int_equal(answer->message.output.state, REQUEST_STATE_FINISHED);
    assert_int_equal(answer->message.output.finish.reason, FINISH_REASON_LENGTH);
    assert_int_equal(answer->message.output.tokens.count, count);
    assert_memory_equal(answer->tokens, expected, count * sizeof *expected);
}

static const struct client_stats_answer *stats(void)
{
    return &engine_answer(&engine, engine_stats(&engine))->message.stats;
}

/* The worker computes its oldest plan into `result` and does not send it yet. */
static void compute(void)
{
    assert_true(scripted_worker_step(&engine.worker, &engine.plans[0], &result, &refused));
    engine.plan_count--;
    engine.plans[0] = engine.plans[1];
}

static void deliver(void)
{
    core_worker_result(engine.core, &result, engine.now_ns);
    engine_collect(&engine);
}

static void nothing_is_planned_before_ready(void **state)
{
    (void)state;
    engine.holds_attach = true;
    engine_start(&engine);
    submit("a", "hello", 5);
    engine_attach(&engine);
    assert_int_equal(engine.plan_count, 0);
    core_worker_attached(engine.core, engine.epoch, &engine.segment, engine.now_ns);
    engine_collect(&engine);
    assert_int_equal(engine.plan_count, 0);
    engine_ready(&engine);
    assert_int_equal(engine.plan_count, 2);
    engine_ready(&engine); /* once more changes nothing */
    assert_int_equal(engine.plan_count, 2);
    engine_run(&engine);
    assert_undisturbed("a", "hello", 5);
}

/* kill -9 after every step of a run, before and after the result was sent. */
static void a_worker_lost_at_any_step_changes_no_stream(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    for (uint32_t death = 0; death < 40; death++) {
        char ids[2][16];
        for (int i = 0; i < 2; i++) {
            snprintf(ids[i], sizeof ids[i], "%u-%d", death, i);
            submit(ids[i], i == 0 ? "hello" : "a longer prompt than the other one", 15);
        }
        for (uint32_t step = 0; step < death / 2 && engine.plan_count > 0; step++)
            engine_step(&engine);
        if (death % 2 == 1 && engine.plan_count > 0)
            compute(); /* sampled, never sent */
        engine_kill(&engine);
        engine_attach(&engine);
        engine_run(&engine);
        assert_undisturbed(ids[0], "hello", 15);
        assert_undisturbed(ids[1], "a longer prompt than the other one", 15);
    }
    assert_int_equal(stats()->blocks_free, stats()->blocks_total);
    assert_int_equal(stats()->workers_lost, 40);
}

static void queued_requests_start_in_order_after_a_restart(void **state)
{
    (void)state;
    engine.config.extents.slots = 1;
    engine_start(&engine);
    engine_attach(&engine);
    submit("first", "hello", 5);
    submit("second", "world", 5);
    engine_step(&engine);
    engine_kill(&engine);
    const struct engine_answer *status = engine_answer(&engine, engine_status(&engine, "first"));
    assert_int_equal(status->message.status.state, REQUEST_STATE_QUEUED);
    assert_int_equal(status->message.status.queue_position, 0);
    engine_attach(&engine);
    while (stats()->requests_kept == 0)
        engine_step(&engine);
    assert_undisturbed("first", "hello", 5);
    engine_run(&engine);
    assert_undisturbed("second", "world", 5);
}

static void a_late_result_of_a_fenced_epoch_is_dropped(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("a", "hello", 5);
    compute();
    engine_kill(&engine);
    engine_attach(&engine);
    deliver();
    assert_int_equal(stats()->messages_stale, 1);
    result.epoch = engine.epoch;
    result.instance.bytes[7]++;
    deliver(); /* another instance */
    assert_int_equal(stats()->messages_stale, 2);
    assert_true(engine.attached);
    engine_run(&engine);
    assert_undisturbed("a", "hello", 5);
}

/* Whatever comes from an epoch that is over, or was never there, changes nothing. */
static void events_of_another_epoch_change_nothing(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("a", "hello", 5);
    for (uint64_t epoch = engine.epoch - 1; epoch <= engine.epoch + 1; epoch += 2) {
        const struct core_observation silent = {0};
        const struct worker_ready ready = {.instance = engine.config.instance, .epoch = epoch};
        const struct worker_fatal fatal = {
            .instance = engine.config.instance, .epoch = epoch, .reason = WORKER_FATAL_DEVICE};
        const struct worker_refused refusal = {.instance = engine.config.instance, .epoch = epoch};
        core_worker_attached(engine.core, epoch, &engine.segment, engine.now_ns);
        engine_collect(&engine);
        core_worker_ready(engine.core, &ready, engine.now_ns);
        engine_collect(&engine);
        core_worker_observed(engine.core, epoch, &silent, engine.now_ns + 60 * NS_PER_S);
        engine_collect(&engine);
        core_worker_nonsense(engine.core, epoch, "no map", engine.now_ns);
        engine_collect(&engine);
        core_worker_fatal(engine.core, &fatal, engine.now_ns);
        engine_collect(&engine);
        core_worker_refused(engine.core, &refusal, engine.now_ns);
        engine_collect(&engine);
        core_epoch_gone(engine.core, epoch, engine.now_ns);
        engine_collect(&engine);
    }
    core_worker_attached(engine.core, engine.epoch, &engine.segment, engine.now_ns); /* again */
    engine_collect(&engine);
    assert_true(engine.attached);
    assert_int_equal(stats()->messages_stale, 6);
    engine_run(&engine);
    assert_undisturbed("a", "hello", 5);
}

/* A refusal that blames a row which the plan does not have, or another plan, blames nobody. */
static void a_refusal_of_nothing_blames_nobody(void **state)
{
    (void)state;
    engine_start(&engine);
    submit("a", "hello", 5);
    for (uint32_t i = 0; i < 12; i++) {
        engine_attach(&engine);
        assert_true(engine.plan_count > 0);
        const struct worker_refused refusal = {.instance = engine.config.instance,
                                               .epoch = engine.epoch,
                                               .step = i % 3 == 0 ? 2 : 1,
                                               .has_row = i % 3 != 1,
                                               .row = i % 3 == 2 ? 7 : 0,
                                               .reason = PLAN_REFUSAL_TOKEN};
        core_worker_refused(engine.core, &refusal, engine.now_ns);
        engine_collect(&engine);
        assert_false(engine.attached);
        engine_pass(&engine, NS_PER_S);
    }
    engine_attach(&engine);
    engine_run(&engine);
    assert_undisturbed("a", "hello", 5);
}

static void lie(int kind)
{
    struct result_row *row = &result.rows[0];
    switch (kind) {
    case 0:
        result.step++;
        break;
    case 1:
        result.step--;
        break;
    case 2:
        result.row_count = 0;
        break;
    case 3:
        row->slot++;
        break;
    case 4:
        row->generation++;
        break;
    case 5:
        row->position++;
        break;
    case 6:
        row->position--;
        break;
    default:
        row->token = LETTERS_TOKENS;
    }
}

static void a_result_that_does_not_fit_its_plan_ends_the_epoch(void **state)
{
    (void)state;
    engine_start(&engine);
    for (int kind = 0; kind < 8; kind++) {
        char id[16];
        engine_attach(&engine);
        snprintf(id, sizeof id, "%d", kind);
        submit(id, "hello", 5);
        compute();
        lie(kind);
        uint64_t epoch = engine.epoch;
        deliver();
        assert_false(engine.attached);
        assert_int_equal(engine.last_fence.reason, CORE_FENCE_MISMATCH);
        core_epoch_gone(engine.core, epoch, engine.now_ns);
        engine_collect(&engine);
        engine_attach(&engine);
        engine_run(&engine);
        assert_undisturbed(id, "hello", 5);
        engine_kill(&engine);
    }
}

static void a_result_sent_twice_ends_the_epoch(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("a", "hello", 5);
    compute();
    deliver();
    deliver();
    assert_int_equal(engine.last_fence.reason, CORE_FENCE_MISMATCH);
    engine_attach(&engine);
    engine_run(&engine);
    assert_undisturbed("a", "hello", 5);
}

static void a_frame_that_is_none_ends_the_epoch(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    core_worker_nonsense(engine.core, engine.epoch + 1, "of another epoch", engine.now_ns);
    engine_collect(&engine);
    assert_true(engine.attached);
    core_worker_nonsense(engine.core, engine.epoch, "not a map", engine.now_ns);
    engine_collect(&engine);
    assert_int_equal(engine.last_fence.reason, CORE_FENCE_MISMATCH);
}

static void refuse_plan(bool has_row)
{
    refused = (struct worker_refused){.instance = engine.config.instance,
                                      .epoch = engine.epoch,
                                      .step = engine.plans[0].step,
                                      .has_row = has_row,
                                      .reason = PLAN_REFUSAL_BLOCK};
    core_worker_refused(engine.core, &refused, engine.now_ns);
    engine_collect(&engine);
    assert_int_equal(engine.last_fence.reason, CORE_FENCE_REFUSED);
    core_epoch_gone(engine.core, engine.last_fence.epoch, engine.now_ns);
    engine_collect(&engine);
}

static void three_refusals_in_a_row_fail_the_request_and_no_other(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("blamed", "hello", 5);
    submit("other", "world", 5);
    for (int i = 0; i < 3; i++) {
        refuse_plan(true); /* row 0 */
        engine_attach(&engine);
    }
    engine_run(&engine);
    assert_int_equal(finish_of("blamed")->error.code, ERROR_CODE_INTERNAL);
    assert_undisturbed("other", "world", 5);
    assert_int_equal(stats()->plans_refused, 3);
}

static void refusals_with_progress_between_or_without_blame_fail_nobody(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("a", "hello", 20);
    for (int i = 0; i < 5; i++) {
        refuse_plan(true);
        engine_attach(&engine);
        engine_step(&engine);
    }
    for (int i = 0; i < 5; i++) {
        refuse_plan(false);
        engine_attach(&engine);
    }
    engine_run(&engine);
    assert_undisturbed("a", "hello", 20);
}

/* A worker that refuses the second chunk computes the first one each time: no progress. */
static void three_refusals_of_a_later_chunk_fail_the_request_too(void **state)
{
    (void)state;
    engine.config.prefill_chunk = 4;
    engine_start(&engine);
    engine_attach(&engine);
    submit("blamed", "hello world", 5);
    for (int i = 0; i < 3; i++) {
        engine_step(&engine);
        refuse_plan(true);
        engine_attach(&engine);
    }
    assert_int_equal(finish_of("blamed")->error.code, ERROR_CODE_INTERNAL);
}

static void a_numeric_error_ends_that_request_alone(void **state)
{
    (void)state;
    uint32_t expected[20];
    engine_start(&engine);
    engine_attach(&engine);
    engine_expect(&engine, "hello", 7, 20, expected);
    submit("sick", "hello", 20);
    submit("well", "world", 3);
    engine_step(&engine);
    engine_step(&engine);
    engine_step(&engine);
    engine.worker.numeric_error_token = expected[10];
    engine_run(&engine);
    assert_int_equal(finish_of("sick")->error.code, ERROR_CODE_NUMERIC_ERROR);
    assert_in_range(finish_of("sick")->usage.completion_tokens, 3, 10);
    assert_undisturbed("well", "world", 3);
}

static void fatal_ends_the_epoch(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    const struct worker_fatal fatal = {
        .instance = engine.config.instance, .epoch = engine.epoch, .reason = WORKER_FATAL_DEVICE};
    core_worker_fatal(engine.core, &fatal, engine.now_ns);
    engine_collect(&engine);
    assert_int_equal(engine.last_fence.reason, CORE_FENCE_FATAL);
}

static void a_standby_takes_over_at_once(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("a", "hello", 20);
    engine_step(&engine);
    const struct attach_hello hello = engine_good_hello(&engine);
    uint64_t standby = engine_hello(&engine, &hello);
    assert_int_equal(engine.last_standby.connection, standby);
    uint64_t first = engine.epoch;
    core_worker_lost(engine.core, engine.active_connection, engine.now_ns);
    engine_collect(&engine); /* fence and attach in one event */
    assert_int_equal(engine.active_connection, standby);
    assert_int_equal(engine.epoch, first + 1);
    engine_run(&engine);
    assert_undisturbed("a", "hello", 20);
}

static void a_user_that_may_not_attach_is_refused(void **state)
{
    (void)state;
    engine_start(&engine);
    const struct attach_hello hello = engine_good_hello(&engine);
    core_worker_hello(engine.core, 1, false, &hello, engine.now_ns);
    engine_collect(&engine);
    assert_int_equal(engine.last_refuse.reason, ATTACH_REFUSAL_UID);
    assert_int_equal(stats()->workers_refused, 1);
}

static void silence_is_death_and_counts_in_its_own_time(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    const struct core_observation observation = {.alive_ns = 1};
    for (int i = 0; i < 10 && engine.attached; i++) {
        engine.now_ns += 500 * NS_PER_MS;
        core_worker_observed(engine.core, engine.epoch, &observation, engine.now_ns);
        engine_collect(&engine);
    }
    assert_int_equal(engine.last_fence.reason, CORE_FENCE_SILENT);
}

static void who_never_says_ready_is_fenced(void **state)
{
    (void)state;
    engine.holds_attach = true;
    engine_start(&engine);
    engine_attach(&engine);
    core_worker_attached(engine.core, engine.epoch, &engine.segment, engine.now_ns);
    engine_collect(&engine);
    engine_pass(&engine, 29 * NS_PER_S);
    assert_true(engine.attached);
    engine_pass(&engine, 2 * NS_PER_S);
    assert_int_equal(engine.last_fence.reason, CORE_FENCE_NEVER_READY);
}

/* The worker dies whenever it computes token '!' of the prompt. Returns the workers lost. */
static uint32_t run_with_poison(void)
{
    uint32_t deaths = 0;
    while (engine.plan_count > 0) {
        bool dies = false;
        const struct plan *plan = &engine.plans[0];
        for (uint32_t i = 0; i < plan->row_count; i++) {
            for (uint32_t j = 0; j < plan->rows[i].count; j++) {
                uint32_t token;
                segment_read_tokens(&engine.worker.segment, plan->rows[i].slot,
                                    plan->rows[i].first_position + j, 1, &token);
                dies = dies || token == '!';
            }
        }
        if (!dies) {
            engine_step(&engine);
            continue;
        }
        deaths++;
        assert_true(deaths < 50);
        engine_kill(&engine);
        engine_attach(&engine);
    }
    return deaths;
}

static void a_poisoned_request_ends_and_its_neighbours_do_not_notice(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("one", "hello", 40);
    submit("poison", "do it!", 40);
    submit("two", "world", 40);
    assert_int_equal(run_with_poison(), 7);
    assert_int_equal(finish_of("poison")->error.code, ERROR_CODE_POISONED);
    assert_undisturbed("one", "hello", 40);
    assert_undisturbed("two", "world", 40);
}

static void two_poisoned_requests_both_end(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("p1", "one!", 40);
    submit("p2", "and a second one!", 40);
    submit("well", "hello", 40);
    run_with_poison();
    assert_int_equal(finish_of("p1")->error.code, ERROR_CODE_POISONED);
    assert_int_equal(finish_of("p2")->error.code, ERROR_CODE_POISONED);
    assert_undisturbed("well", "hello", 40);
}

static void a_poisoned_request_with_nobody_beside_it_ends_too(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("poison", "!", 40);
    run_with_poison();
    assert_int_equal(finish_of("poison")->error.code, ERROR_CODE_POISONED);
}

/* Nothing tells a bad request from a machine on which no worker can work, as long as no step of
 * anybody is ever answered. */
static void workers_that_never_work_accuse_nobody(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("a", "hello", 20);
    submit("b", "world", 20);
    for (int i = 0; i < 40; i++) {
        assert_true(engine.plan_count > 0);
        engine_kill(&engine);
        engine_attach(&engine);
    }
    engine_run(&engine);
    assert_undisturbed("a", "hello", 20);
    assert_undisturbed("b", "world", 20);
}

/* Upgrades one after the other: who leaves in order takes nobody's good name with it. */
static void workers_that_leave_in_order_accuse_nobody(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    submit("a", "hello", 20);
    for (int i = 0; i < 30; i++) {
        assert_true(engine.plan_count > 0);
        core_worker_left(engine.core, engine.active_connection, engine.now_ns);
        engine_collect(&engine);
        engine_attach(&engine);
    }
    engine_run(&engine);
    assert_undisturbed("a", "hello", 20);
}

/* An operator who kills the worker 300 times, after every few steps, under many streams. */
static void a_worker_killed_three_hundred_times_poisons_nobody(void **state)
{
    (void)state;
    engine.config.extents.slots = 32;
    engine.config.extents.pool_blocks = 2 * 32 * 8;
    engine.config.extents.step_tokens = 64;
    engine_start(&engine);
    engine_attach(&engine);
    char id[16], prompt[16];
    for (int i = 0; i < 32; i++) {
        snprintf(id, sizeof id, "%d", i);
        snprintf(prompt, sizeof prompt, "prompt %d", i);
        submit(id, prompt, 100);
    }
    struct random random = {.state = 5};
    for (int deaths = 0; deaths < 300; deaths++) {
        uint32_t steps = random_below(&random, 20);
        for (uint32_t i = 0; i < steps && engine.plan_count > 0; i++)
            engine_step(&engine);
        engine_kill(&engine);
        engine_attach(&engine);
    }
    engine_run(&engine);
    for (int i = 0; i < 32; i++) {
        snprintf(id, sizeof id, "%d", i);
        snprintf(prompt, sizeof prompt, "prompt %d", i);
        assert_undisturbed(id, prompt, 100);
    }
}

static void crashes_of_an_idle_worker_blame_nobody(void **state)
{
    (void)state;
    engine_start(&engine);
    for (int i = 0; i < 30; i++) {
        engine_attach(&engine);
        engine_kill(&engine);
    }
    submit("a", "hello", 5);
    engine_attach(&engine);
    engine_run(&engine);
    assert_undisturbed("a", "hello", 5);
}

static void every_fence_reason_has_a_name(void **state)
{
    (void)state;
    for (uint32_t reason = 1; reason < CORE_FENCE_REASON_COUNT; reason++)
        assert_true(strlen(core_fence_reason_name(reason)) > 3);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(nothing_is_planned_before_ready),
        CASE(a_worker_lost_at_any_step_changes_no_stream),
        CASE(queued_requests_start_in_order_after_a_restart),
        CASE(a_late_result_of_a_fenced_epoch_is_dropped),
        CASE(events_of_another_epoch_change_nothing),
        CASE(a_refusal_of_nothing_blames_nobody),
        CASE(a_result_that_does_not_fit_its_plan_ends_the_epoch),
        CASE(a_result_sent_twice_ends_the_epoch),
        CASE(a_frame_that_is_none_ends_the_epoch),
        CASE(three_refusals_in_a_row_fail_the_request_and_no_other),
        CASE(refusals_with_progress_between_or_without_blame_fail_nobody),
        CASE(three_refusals_of_a_later_chunk_fail_the_request_too),
        CASE(a_numeric_error_ends_that_request_alone),
        CASE(fatal_ends_the_epoch),
        CASE(a_standby_takes_over_at_once),
        CASE(a_user_that_may_not_attach_is_refused),
        CASE(silence_is_death_and_counts_in_its_own_time),
        CASE(who_never_says_ready_is_fenced),
        CASE(a_poisoned_request_ends_and_its_neighbours_do_not_notice),
        CASE(two_poisoned_requests_both_end),
        CASE(a_poisoned_request_with_nobody_beside_it_ends_too),
        CASE(workers_that_never_work_accuse_nobody),
        CASE(workers_that_leave_in_order_accuse_nobody),
        CASE(a_worker_killed_three_hundred_times_poisons_nobody),
        CASE(crashes_of_an_idle_worker_blame_nobody),
        CASE(every_fence_reason_has_a_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
