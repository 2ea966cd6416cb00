/* Polls, cursors, and who waits for whom. */
#include "sim/engine.h"

#include "common/check.h"
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
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_stop(&engine);
    return 0;
}

static void start(const char *id, uint32_t max_tokens)
{
    struct client_submit request = engine_prompt(id, "hello", max_tokens);
    engine_start(&engine);
    engine_attach(&engine);
    engine_submit(&engine, &request);
}

static uint64_t wait_for(const char *id, uint64_t from, uint32_t hold_tokens)
{
    const struct client_next next = {.id = wire_text_of(id),
                                     .from_token = from,
                                     .from_byte = from,
                                     .hold_tokens = hold_tokens,
                                     .max_wait_ms = 20000};
    return engine_next(&engine, &next);
}

static const struct client_output *output_of(uint64_t handle)
{
    const struct engine_answer *answer = engine_answer(&engine, handle);
    assert_non_null(answer);
    assert_int_equal(answer->message.type, CLIENT_ANSWER_OUTPUT);
    return &answer->message.output;
}

static void a_poll_is_answered_when_a_token_is_there(void **state)
{
    (void)state;
    start("a", 10);
    uint64_t poll = wait_for("a", 0, 0);
    assert_null(engine_answer(&engine, poll));
    engine_step(&engine);
    assert_int_equal(output_of(poll)->tokens.count, 1);
    assert_int_equal(output_of(poll)->text.length, 1);
    assert_false(output_of(poll)->has_finish);
}

static void hold_waits_for_that_many_or_the_end(void **state)
{
    (void)state;
    start("a", 10);
    uint64_t poll = wait_for("a", 0, 4);
    for (int i = 0; i < 3; i++) {
        engine_step(&engine);
        assert_null(engine_answer(&engine, poll));
    }
    engine_step(&engine);
    assert_int_equal(output_of(poll)->tokens.count, 4);
    poll = wait_for("a", 4, 100);
    engine_run(&engine);
    assert_int_equal(output_of(poll)->tokens.count, 6);
    assert_true(output_of(poll)->has_finish);
}

static void a_wait_ends_without_news(void **state)
{
    (void)state;
    struct client_submit request = engine_prompt("a", "hello", 10);
    engine_start(&engine);
    engine_submit(&engine, &request);
    const struct client_next next = {.id = wire_text_of("a"), .max_wait_ms = 200};
    uint64_t poll = engine_next(&engine, &next);
    engine_pass(&engine, 199 * NS_PER_MS);
    assert_null(engine_answer(&engine, poll));
    engine_pass(&engine, 1 * NS_PER_MS);
    assert_int_equal(output_of(poll)->tokens.count, 0);
    assert_int_equal(output_of(poll)->state, REQUEST_STATE_QUEUED);
    assert_false(output_of(poll)->worker_ready);
}

/* A deadline and the end of a wait in the same tick: the answer shows the state after both. */
static void a_wait_that_ends_with_its_request_tells_the_end(void **state)
{
    (void)state;
    struct client_submit request = engine_prompt("a", "hello", 100);
    engine_start(&engine);
    engine_attach(&engine);
    request.has_deadline_ms = true;
    request.deadline_ms = 100;
    engine_submit(&engine, &request);
    for (int i = 0; i < 40; i++)
        engine_step(&engine);
    const struct client_next next = {.id = wire_text_of("a"), .hold_tokens = 90, .max_wait_ms = 90};
    uint64_t poll = engine_next(&engine, &next);
    engine.now_ns += NS_PER_S;
    core_tick(engine.core, engine.now_ns);
    engine_collect(&engine);
    assert_int_equal(output_of(poll)->tokens.count, 40);
    assert_int_equal(output_of(poll)->finish.error.code, ERROR_CODE_DEADLINE_EXCEEDED);
    engine_run(&engine);
}

static void cursors_resume_anywhere(void **state)
{
    (void)state;
    start("a", 20);
    engine_run(&engine);
    uint32_t expected[20];
    engine_expect(&engine, "hello", 7, 20, expected);
    for (uint32_t from = 0; from <= 20; from++) {
        uint64_t poll = engine_poll(&engine, "a", from, from);
        assert_int_equal(output_of(poll)->tokens.count, 20 - from);
        assert_memory_equal(engine_answer(&engine, poll)->tokens, expected + from,
                            (20 - from) * sizeof *expected);
        assert_int_equal(output_of(poll)->text.length, 20 - from);
        assert_true(output_of(poll)->has_finish);
    }
}

static void a_cursor_beyond_the_end_is_a_mistake_before_it_a_wait(void **state)
{
    (void)state;
    start("a", 5);
    uint64_t early = wait_for("a", 4, 0);
    engine_run(&engine);
    assert_int_equal(output_of(early)->tokens.count, 1);
    uint64_t beyond = engine_poll(&engine, "a", 6, 0);
    assert_int_equal(engine_error(&engine, beyond), ERROR_CODE_INVALID_REQUEST);
    const struct client_error *error = &engine_answer(&engine, beyond)->message.error;
    assert_memory_equal(error->field.bytes, "from_token", 10);
    assert_true(error->limit == 5);
    beyond = engine_poll(&engine, "a", 0, 9);
    assert_int_equal(engine_error(&engine, beyond), ERROR_CODE_INVALID_REQUEST);
}

/* What may begin a stop string is not shown before it is certain. */
static void held_tokens_are_not_released(void **state)
{
    (void)state;
    uint32_t expected[10];
    engine_expect(&engine, "hello", 7, 10, expected);
    char stop[3] = {(char)expected[2], '#', '\0'};
    struct client_submit request = engine_prompt("a", "hello", 10);
    request.stop.items[0] = wire_text_of(stop);
    request.stop.count = 1;
    engine_start(&engine);
    engine_attach(&engine);
    engine_submit(&engine, &request);
    for (int i = 0; i < 3; i++)
        engine_step(&engine);
    assert_int_equal(output_of(engine_poll(&engine, "a", 0, 0))->tokens.count, 2);
    engine_step(&engine);
    assert_int_equal(output_of(engine_poll(&engine, "a", 0, 0))->tokens.count, 4);
    engine_run(&engine);
}

static void many_polls_of_one_request_are_all_answered(void **state)
{
    (void)state;
    start("a", 10);
    uint64_t polls[5];
    for (int i = 0; i < 5; i++)
        polls[i] = wait_for("a", 0, 0);
    engine_step(&engine);
    for (int i = 0; i < 5; i++)
        assert_int_equal(output_of(polls[i])->tokens.count, 1);
}

static void a_full_table_answers_the_oldest_poll(void **state)
{
    (void)state;
    engine.config.calls = 3;
    struct client_submit request = engine_prompt("a", "hello", 10);
    engine_start(&engine);
    engine_submit(&engine, &request);
    uint64_t polls[4];
    for (int i = 0; i < 4; i++)
        polls[i] = wait_for("a", 0, 0);
    assert_int_equal(output_of(polls[0])->tokens.count, 0);
    for (int i = 1; i < 4; i++)
        assert_null(engine_answer(&engine, polls[i]));
    core_answer_oldest_poll(engine.core, engine.now_ns); /* the port is short of contexts */
    engine_collect(&engine);
    assert_non_null(engine_answer(&engine, polls[1]));
    assert_null(engine_answer(&engine, polls[2]));
}

static void a_caller_that_went_away_is_not_answered(void **state)
{
    (void)state;
    start("a", 10);
    uint64_t poll = wait_for("a", 0, 0), other = wait_for("a", 0, 0);
    core_client_gone(engine.core, poll, engine.now_ns);
    engine_collect(&engine);
    core_client_gone(engine.core, 123456, engine.now_ns); /* unknown: ignored */
    engine_collect(&engine);
    engine_run(&engine);
    assert_null(engine_answer(&engine, poll));
    assert_non_null(engine_answer(&engine, other));
}

/* A submit whose client went away before it was answered is an orphan like any other. */
static void a_submit_whose_caller_went_away_ends_as_an_orphan(void **state)
{
    (void)state;
    engine.holds_orders = true;
    engine_start(&engine);
    struct client_submit request = engine_prompt("a", "hello", 10);
    uint64_t handle = engine_submit(&engine, &request);
    core_client_gone(engine.core, handle, engine.now_ns);
    engine_collect(&engine);
    engine_pass(&engine, 31 * NS_PER_S);
    engine_tokenize(&engine, 0, STATUS_OK);
    assert_null(engine_answer(&engine, handle));
    assert_int_equal(output_of(engine_poll(&engine, "a", 0, 0))->finish.reason,
                     FINISH_REASON_CANCELLED);
}

static void an_unknown_id_is_told_with_the_instance(void **state)
{
    (void)state;
    engine_start(&engine);
    uint64_t handles[] = {engine_poll(&engine, "x", 0, 0), engine_cancel(&engine, "x"),
                          engine_status(&engine, "x")};
    for (int i = 0; i < 3; i++) {
        assert_int_equal(engine_error(&engine, handles[i]), ERROR_CODE_NOT_FOUND);
        const struct client_error *error = &engine_answer(&engine, handles[i])->message.error;
        assert_true(error->has_instance);
        assert_true(id128_equal(&error->instance, &engine.config.instance));
    }
}

static void detokenize_gives_bytes_or_names_the_id(void **state)
{
    (void)state;
    engine_start(&engine);
    uint32_t ids[] = {'h', 'i', LETTERS_AND, LETTERS_END, 0xE4};
    struct client_request request = {.type = CLIENT_DETOKENIZE,
                                     .detokenize = {.ids = wire_tokens_of(ids, 5)}};
    const struct engine_answer *answer = engine_answer(&engine, engine_call(&engine, &request));
    assert_int_equal(answer->message.type, CLIENT_ANSWER_TEXT);
    assert_int_equal(answer->message.text.text.length, 7);
    assert_memory_equal(answer->text, "hi and\xE4", 7);
    ids[4] = LETTERS_TOKENS;
    uint64_t handle = engine_call(&engine, &request);
    assert_int_equal(engine_error(&engine, handle), ERROR_CODE_INVALID_REQUEST);
}

/* Without a tokenizer: ids in, ids out, and each token is released as it comes. */
static void ids_alone_are_served_and_text_is_refused(void **state)
{
    (void)state;
    static const uint32_t end = LETTERS_END, ids[] = {'h', 'i'};
    vocabulary_free(&engine.vocabulary);
    assert_int_equal(vocabulary_init_ids(&engine.vocabulary, LETTERS_TOKENS, &end, 1, NULL),
                     STATUS_OK);
    engine.config.ids_only = true;
    engine.config.chat_template = false;
    engine_start(&engine);
    engine_attach(&engine);
    struct client_request models = {.type = CLIENT_MODELS};
    assert_int_equal(engine_answer(&engine, engine_call(&engine, &models))->message.type,
                     CLIENT_ANSWER_MODELS);
    const struct client_submit submit = {.id = wire_text_of("a"),
                                         .has_ids = true,
                                         .ids = wire_tokens_of(ids, 2),
                                         .has_max_tokens = true,
                                         .max_tokens = 3,
                                         .ignore_eos = true};
    engine_submit(&engine, &submit);
    for (uint32_t token = 0; token < 3; token++) {
        const struct client_next next = {
            .id = wire_text_of("a"), .from_token = token, .max_wait_ms = 20000};
        uint64_t poll = engine_next(&engine, &next);
        engine_step(&engine);
        assert_int_equal(output_of(poll)->tokens.count, 1);
        assert_int_equal(output_of(poll)->text.length, 0);
    }
    const struct client_submit text = engine_prompt("b", "hello", 3);
    const struct client_request questions[] = {
        {.type = CLIENT_SUBMIT, .submit = text},
        {.type = CLIENT_TOKENIZE,
         .tokenize = {.has_prompt = true, .prompt = wire_text_of("hello")}},
        {.type = CLIENT_DETOKENIZE, .detokenize = {.ids = wire_tokens_of(ids, 2)}},
    };
    for (size_t i = 0; i < sizeof questions / sizeof questions[0]; i++) {
        uint64_t handle = engine_call(&engine, &questions[i]);
        assert_int_equal(engine_error(&engine, handle), ERROR_CODE_UNSUPPORTED);
    }
    assert_int_equal(engine.order_count, 0);
}

static void the_client_s_style_is_kept(void **state)
{
    (void)state;
    engine_start(&engine);
    struct client_request request = {.type = CLIENT_HEALTH, .named = true};
    assert_true(engine_answer(&engine, engine_call(&engine, &request))->message.named);
    request.named = false;
    assert_false(engine_answer(&engine, engine_call(&engine, &request))->message.named);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(a_poll_is_answered_when_a_token_is_there),
        CASE(hold_waits_for_that_many_or_the_end),
        CASE(a_wait_ends_without_news),
        CASE(a_wait_that_ends_with_its_request_tells_the_end),
        CASE(cursors_resume_anywhere),
        CASE(a_cursor_beyond_the_end_is_a_mistake_before_it_a_wait),
        CASE(held_tokens_are_not_released),
        CASE(many_polls_of_one_request_are_all_answered),
        CASE(a_full_table_answers_the_oldest_poll),
        CASE(a_caller_that_went_away_is_not_answered),
        CASE(a_submit_whose_caller_went_away_ends_as_an_orphan),
        CASE(an_unknown_id_is_told_with_the_instance),
        CASE(detokenize_gives_bytes_or_names_the_id),
        CASE(ids_alone_are_served_and_text_is_refused),
        CASE(the_client_s_style_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
