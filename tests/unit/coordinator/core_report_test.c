/* Figures, health and limits as clients see them. */
#include "sim/engine.h"

#include "common/duration.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

static struct engine engine;

static int set_up(void **state)
{
    (void)state;
    engine_init(&engine);
    engine_start(&engine);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_stop(&engine);
    return 0;
}

static const struct client_health_answer *health(void)
{
    const struct client_request request = {.type = CLIENT_HEALTH};
    return &engine_answer(&engine, engine_call(&engine, &request))->message.health;
}

static void assert_reason(const char *reason)
{
    const struct client_health_answer *answer = health();
    assert_true(answer->live);
    assert_false(answer->ready);
    for (uint32_t i = 0; i < answer->reasons.count; i++) {
        const struct wire_text *text = &answer->reasons.items[i];
        if (text->length == strlen(reason) && memcmp(text->bytes, reason, text->length) == 0)
            return;
    }
    fail_msg("no reason %s", reason);
}

static void ready_means_that_work_would_be_done_now(void **state)
{
    (void)state;
    engine.holds_attach = true;
    assert_reason("no_worker");
    engine_attach(&engine);
    assert_reason("worker_starting");
    engine_finish_attach(&engine);
    assert_true(health()->ready);
    assert_int_equal(health()->reasons.count, 0);
    assert_int_equal(health()->epoch, 1);
    engine_kill(&engine);
    assert_reason("no_worker");
    core_drain(engine.core, engine.now_ns);
    engine_collect(&engine);
    assert_reason("draining");
}

static void figures_follow_one_request(void **state)
{
    (void)state;
    engine_attach(&engine);
    struct client_submit submit = engine_prompt("a", "hello", 4);
    engine_submit(&engine, &submit);
    struct client_stats_answer stats = engine_answer(&engine, engine_stats(&engine))->message.stats;
    assert_int_equal(stats.requests_running, 1);
    assert_int_equal(stats.plans_in_flight, 2);
    assert_int_equal(stats.slots_held, 1);
    assert_int_equal(stats.blocks_held, 2);
    assert_int_equal(stats.prompt_tokens, 5);
    assert_true(stats.queue_bytes > 0);
    engine_run(&engine);
    engine_pass(&engine, NS_PER_S);
    stats = engine_answer(&engine, engine_stats(&engine))->message.stats;
    assert_int_equal(stats.requests_running, 0);
    assert_int_equal(stats.requests_length, 1);
    assert_int_equal(stats.requests_kept, 1);
    assert_int_equal(stats.completion_tokens, 4);
    assert_int_equal(stats.steps_planned, 4);
    assert_int_equal(stats.steps_done, 4);
    assert_int_equal(stats.step_ns_last, 600000);
    assert_int_equal(stats.blocks_free, stats.blocks_total);
    assert_int_equal(stats.queue_bytes, 0);
    assert_int_equal(stats.uptime_ms, 1000);
    assert_int_equal(stats.worker_attached, 1);
    core_client_bad_frame(engine.core);
    assert_int_equal(engine_answer(&engine, engine_stats(&engine))->message.stats.messages_bad, 1);
}

static void models_tell_name_limits_and_bits(void **state)
{
    (void)state;
    const struct client_request request = {.type = CLIENT_MODELS};
    engine_attach(&engine);
    const struct client_models_answer *models =
        &engine_answer(&engine, engine_call(&engine, &request))->message.models;
    assert_int_equal(models->slots, 4);
    assert_int_equal(models->pool_tokens, 32 * 16);
    assert_int_equal(models->kept_ms, 120000);
    assert_int_equal(models->models.count, 1);
    const struct client_model *model = models->models.items;
    assert_memory_equal(model->name.bytes, "letters", model->name.length);
    assert_memory_equal(model->arithmetic.bytes, "script-1", model->arithmetic.length);
    assert_int_equal(model->context, 128);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(ready_means_that_work_would_be_done_now),
        CASE(figures_follow_one_request),
        CASE(models_tell_name_limits_and_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
