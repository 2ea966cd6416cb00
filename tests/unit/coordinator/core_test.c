/* One request's way through the core, with a scripted worker that reads back what it wrote. */
#include "sim/engine.h"

#include "common/check.h"

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

/* The whole answer of a request must be that of an undisturbed run. */
static void assert_completed(const char *id, const char *prompt, uint32_t max_tokens,
                             enum finish_reason reason)
{
    uint32_t expected[ENGINE_TOKENS];
    uint32_t count = engine_expect(&engine, prompt, 7, max_tokens, expected);
    uint64_t handle = engine_poll(&engine, id, 0, 0);
    const struct engine_answer *answer = engine_answer(&engine, handle);
    assert_non_null(answer);
    assert_int_equal(answer->message.type, CLIENT_ANSWER_OUTPUT);
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
    struct client_submit submit = engine_prompt("a", "hello", 10);
    const struct engine_answer *accepted = engine_answer(&engine, engine_submit(&engine, &submit));
    assert_int_equal(accepted->message.type, CLIENT_ANSWER_ACCEPTED);
    assert_int_equal(accepted->message.accepted.prompt_tokens, 5);
    assert_int_equal(accepted->message.accepted.seed, 7);
    engine_run(&engine);
    assert_completed("a", "hello", 10, FINISH_REASON_LENGTH);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(one_request_from_submit_to_the_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
