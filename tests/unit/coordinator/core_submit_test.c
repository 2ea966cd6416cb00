/* How a request comes to be: idempotency, refusals by name, bounds of the queue, short memory. */
#include "sim/engine.h"

#include "common/check.h"
#include "common/duration.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct engine engine;
static int allocations_left; /* -1 = enough */
static bool fails_once;      /* the next one */

static void *reallocate(void *memory, size_t bytes)
{
    bool fails = allocations_left == 0 || fails_once;
    fails_once = false;
    if (fails)
        return NULL;
    if (allocations_left > 0)
        allocations_left--;
    return realloc(memory, bytes);
}

static int set_up(void **state)
{
    (void)state;
    allocations_left = -1;
    fails_once = false;
    engine_init(&engine);
    engine.config.reallocate = reallocate;
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    engine_stop(&engine);
    return 0;
}

static uint64_t submit(const char *id, const char *prompt, uint32_t max_tokens)
{
    struct client_submit request = engine_prompt(id, prompt, max_tokens);
    return engine_submit(&engine, &request);
}

static const struct client_accepted *accepted(uint64_t handle)
{
    const struct engine_answer *answer = engine_answer(&engine, handle);
    assert_non_null(answer);
    assert_int_equal(answer->message.type, CLIENT_ANSWER_ACCEPTED);
    return &answer->message.accepted;
}

static const struct client_stats_answer *stats(void)
{
    return &engine_answer(&engine, engine_stats(&engine))->message.stats;
}

static void the_same_submit_runs_once_and_is_answered_alike(void **state)
{
    (void)state;
    engine_start(&engine);
    uint64_t first = accepted(submit("a", "hello", 5))->sequence;
    assert_int_equal(accepted(submit("a", "hello", 5))->sequence, first);
    engine_attach(&engine);
    assert_int_equal(accepted(submit("a", "hello", 5))->state, REQUEST_STATE_RUNNING);
    engine_run(&engine);
    assert_int_equal(accepted(submit("a", "hello", 5))->state, REQUEST_STATE_FINISHED);
    assert_int_equal(stats()->requests_submitted, 1);
    assert_int_equal(stats()->requests_repeated, 3);
    assert_int_equal(stats()->completion_tokens, 5);
}

static void a_repeated_submit_waits_for_the_same_ids(void **state)
{
    (void)state;
    engine.holds_orders = true;
    engine_start(&engine);
    uint64_t first = submit("a", "hello", 5), second = submit("a", "hello", 5);
    assert_null(engine_answer(&engine, first));
    assert_null(engine_answer(&engine, second));
    assert_int_equal(engine.order_count, 1);
    engine_tokenize(&engine, 0, STATUS_OK);
    assert_int_equal(accepted(first)->sequence, accepted(second)->sequence);
}

static void another_body_under_the_same_id_is_a_conflict(void **state)
{
    (void)state;
    engine.holds_orders = true;
    engine_start(&engine);
    uint64_t first = submit("a", "hello", 5);
    uint64_t conflict = submit("a", "hello", 6);
    assert_int_equal(engine_error(&engine, conflict), ERROR_CODE_IDEMPOTENCY_CONFLICT);
    engine_tokenize(&engine, 0, STATUS_OK);
    accepted(first);
    conflict = submit("a", "hallo", 5);
    assert_int_equal(engine_error(&engine, conflict), ERROR_CODE_IDEMPOTENCY_CONFLICT);
    engine_cancel(&engine, "a");
    conflict = submit("a", "hallo", 5);
    assert_int_equal(engine_error(&engine, conflict), ERROR_CODE_IDEMPOTENCY_CONFLICT);
}

static void the_sequence_is_the_order_of_submission_not_of_tokenizing(void **state)
{
    (void)state;
    engine.holds_orders = true;
    engine_start(&engine);
    uint64_t first = submit("first", "hello", 5), second = submit("second", "world", 5);
    engine_tokenize(&engine, 1, STATUS_OK);
    engine_tokenize(&engine, 0, STATUS_OK);
    assert_int_equal(accepted(first)->queue_position, 0);
    assert_true(accepted(first)->sequence < accepted(second)->sequence);
    const struct engine_answer *status = engine_answer(&engine, engine_status(&engine, "second"));
    assert_int_equal(status->message.status.queue_position, 1);
}

static void a_missing_seed_is_drawn_and_returned(void **state)
{
    (void)state;
    engine_start(&engine);
    engine.chance = 4711;
    struct client_submit request = engine_prompt("a", "hello", 5);
    request.has_seed = false;
    assert_int_equal(accepted(engine_submit(&engine, &request))->seed, 4711);
    assert_int_equal(accepted(engine_submit(&engine, &request))->seed, 4711); /* not drawn again */
}

static void what_can_never_fit_is_refused_with_field_and_bound(void **state)
{
    (void)state;
    engine.config.extents.pool_blocks = 6; /* three logical blocks: 48 positions */
    engine_start(&engine);
    char text[140];
    memset(text, 'x', sizeof text);
    text[139] = '\0';
    const struct {
        const char *prompt;
        uint32_t max_tokens;
        enum error_code code;
        const char *field;
        double limit;
    } cases[] = {
        {text + 11, 1, ERROR_CODE_PROMPT_TOO_LONG, "prompt", 127}, /* 128 tokens */
        {text + 90, 1, ERROR_CODE_TOO_LARGE, "prompt", 48},        /* 49 */
        {"hello", 124, ERROR_CODE_INVALID_REQUEST, "max_tokens", 123},
        {"hello", 45, ERROR_CODE_TOO_LARGE, "max_tokens", 44},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t handle = submit("a", cases[i].prompt, cases[i].max_tokens);
        assert_int_equal(engine_error(&engine, handle), cases[i].code);
        const struct client_error *error = &engine_answer(&engine, handle)->message.error;
        assert_memory_equal(error->field.bytes, cases[i].field, error->field.length);
        assert_true(error->has_limit && error->limit == cases[i].limit);
    }
    accepted(submit("a", "hello", 44)); /* the id is free: none of them became a request */
    assert_int_equal(stats()->requests_refused, 4);
}

static void ids_come_in_without_the_tokenizer(void **state)
{
    (void)state;
    engine_start(&engine);
    uint32_t ids[] = {'h', 'i', LETTERS_TOKENS};
    struct client_submit request = {
        .id = wire_text_of("a"), .has_ids = true, .ids = wire_tokens_of(ids, 3)};
    uint64_t handle = engine_submit(&engine, &request);
    assert_int_equal(engine_error(&engine, handle), ERROR_CODE_INVALID_REQUEST);
    request.ids = wire_tokens_of(ids, 2);
    assert_int_equal(accepted(engine_submit(&engine, &request))->prompt_tokens, 2);
    assert_int_equal(engine.counts[CORE_OUTPUT_TOKENIZE], 0);
    uint32_t stop[] = {LETTERS_TOKENS};
    request.id = wire_text_of("b");
    request.stop_token_ids = wire_tokens_of(stop, 1);
    handle = engine_submit(&engine, &request);
    assert_int_equal(engine_error(&engine, handle), ERROR_CODE_INVALID_REQUEST);
}

static void the_tokenizer_may_refuse(void **state)
{
    (void)state;
    static const struct {
        enum status status;
        enum error_code code;
    } cases[] = {
        {STATUS_INVALID, ERROR_CODE_INVALID_REQUEST},
        {STATUS_UNSUPPORTED, ERROR_CODE_UNSUPPORTED},
        {STATUS_OUT_OF_MEMORY, ERROR_CODE_OVERLOADED},
        {STATUS_TOO_LARGE, ERROR_CODE_PROMPT_TOO_LONG},
        {STATUS_SYSTEM, ERROR_CODE_INTERNAL},
    };
    engine.holds_orders = true;
    engine_start(&engine);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint64_t handle = submit("a", "hello", 5);
        const struct client_next next = {.id = wire_text_of("a"), .max_wait_ms = 1000};
        uint64_t poll = engine_next(&engine, &next);
        engine_tokenize(&engine, 0, cases[i].status);
        assert_int_equal(engine_error(&engine, handle), cases[i].code);
        assert_int_equal(engine_error(&engine, poll), cases[i].code);
    }
    assert_int_equal(stats()->requests_tokenizing, 0);
}

static void the_queue_is_bounded_by_number(void **state)
{
    (void)state;
    engine.config.queue_requests = 3;
    engine_start(&engine);
    char id[16];
    for (int i = 0; i < 3; i++) {
        snprintf(id, sizeof id, "%d", i);
        accepted(submit(id, "hello", 5));
    }
    uint64_t handle = submit("more", "hello", 5);
    assert_int_equal(engine_error(&engine, handle), ERROR_CODE_OVERLOADED);
    assert_true(engine_answer(&engine, handle)->message.error.has_retry_after_ms);
    accepted(submit("1", "hello", 5)); /* known ones are answered */
    engine_cancel(&engine, "1");
    accepted(submit("more", "hello", 5));
}

static void the_queue_is_bounded_by_bytes(void **state)
{
    (void)state;
    engine.config.queue_bytes = 6000;
    engine_start(&engine);
    char text[100], id[16];
    memset(text, 'x', sizeof text);
    text[99] = '\0';
    int count = 0;
    for (;; count++) {
        snprintf(id, sizeof id, "%d", count);
        uint64_t handle = submit(id, text, 5);
        if (engine_answer(&engine, handle)->message.type == CLIENT_ANSWER_ERROR)
            break;
    }
    assert_in_range(count, 1, 5);
    assert_true(stats()->queue_bytes <= 6000);
}

/* F40: each allocation fails once; the submit is answered, nothing is left behind, the next works.
 */
static void without_memory_a_submit_is_overloaded_and_leaves_no_trace(void **state)
{
    (void)state;
    engine_start(&engine);
    struct client_submit request = engine_prompt("a", "hello", 5);
    request.stop.items[0] = wire_text_of("END");
    request.stop.count = 1;
    uint64_t before = stats()->queue_bytes;
    int failed = 0;
    for (int allowed = 0;; allowed++) {
        allocations_left = allowed;
        uint64_t handle = engine_submit(&engine, &request);
        allocations_left = -1;
        if (engine_answer(&engine, handle)->message.type == CLIENT_ANSWER_ACCEPTED)
            break;
        assert_int_equal(engine_error(&engine, handle), ERROR_CODE_OVERLOADED);
        assert_int_equal(stats()->queue_bytes, before);
        failed++;
    }
    assert_in_range(failed, 4, 6); /* request, stops, order, ids */
}

/* Both of the first letters may begin a stop. The second one releases the first, for which there is
 * no memory: what is held back must not be shown in its place. */
static void without_memory_for_text_nothing_later_is_shown(void **state)
{
    (void)state;
    uint32_t expected[2];
    char stops[2][3] = {"?!", "?!"};
    engine_start(&engine);
    engine_attach(&engine);
    engine_expect(&engine, "hello", 7, 2, expected);
    assert_int_not_equal(expected[0], expected[1]);
    struct client_submit request = engine_prompt("a", "hello", 5);
    for (int i = 0; i < 2; i++) {
        stops[i][0] = (char)expected[i];
        request.stop.items[request.stop.count++] = wire_text_of(stops[i]);
    }
    engine_submit(&engine, &request);
    engine_step(&engine);
    fails_once = true;
    engine_step(&engine);
    assert_false(fails_once);
    const struct engine_answer *answer = engine_answer(&engine, engine_poll(&engine, "a", 0, 0));
    assert_int_equal(answer->message.output.finish.error.code, ERROR_CODE_OVERLOADED);
    assert_int_equal(answer->message.output.text.length, 0);
}

static void without_memory_a_running_request_ends_and_its_neighbour_goes_on(void **state)
{
    (void)state;
    engine_start(&engine);
    engine_attach(&engine);
    accepted(submit("a", "hello", 100));
    accepted(submit("b", "world", 20));
    for (int i = 0; i < 30; i++)
        engine_step(&engine);
    allocations_left = 0;
    for (int i = 0; i < 30 && engine.plan_count > 0; i++)
        engine_step(&engine);
    allocations_left = -1;
    engine_run(&engine);
    const struct engine_answer *a = engine_answer(&engine, engine_poll(&engine, "a", 0, 0));
    assert_int_equal(a->message.output.finish.error.code, ERROR_CODE_OVERLOADED);
    const struct engine_answer *b = engine_answer(&engine, engine_poll(&engine, "b", 0, 0));
    assert_int_equal(b->message.output.finish.reason, FINISH_REASON_LENGTH);
}

static void tokenize_is_answered_or_refused(void **state)
{
    (void)state;
    engine.holds_orders = true;
    engine_start(&engine);
    struct client_request request = {
        .type = CLIENT_TOKENIZE, .tokenize = {.has_prompt = true, .prompt = wire_text_of("abc")}};
    uint64_t first = engine_call(&engine, &request), second = engine_call(&engine, &request);
    uint64_t gone = engine_call(&engine, &request);
    core_client_gone(engine.core, gone, engine.now_ns);
    engine_collect(&engine);
    for (int i = 0; i < 2; i++)
        engine_tokenize(&engine, engine.order_count - 1, i == 0 ? STATUS_OK : STATUS_INVALID);
    engine_tokenize(&engine, 0, STATUS_OK);
    assert_null(engine_answer(&engine, gone));
    assert_int_equal(engine_error(&engine, second), ERROR_CODE_INVALID_REQUEST);
    const struct engine_answer *answer = engine_answer(&engine, first);
    assert_int_equal(answer->message.type, CLIENT_ANSWER_TOKENS);
    assert_int_equal(answer->message.tokens.ids.count, 3);
    assert_int_equal(answer->tokens[2], 'c');
}

/* The tokenizer is trusted with its work, not with its bounds. */
static void ids_of_the_tokenizer_are_judged_too(void **state)
{
    (void)state;
    engine.holds_orders = true;
    engine_start(&engine);
    uint64_t handle = submit("a", "hello", 5);
    const uint32_t ids[] = {1, LETTERS_TOKENS};
    const struct core_tokenized answer = {
        .ticket = engine.orders[0], .status = STATUS_OK, .ids = ids, .id_count = 2};
    core_tokenized(engine.core, &answer, engine.now_ns);
    engine.order_count = 0;
    engine_collect(&engine);
    assert_int_equal(engine_error(&engine, handle), ERROR_CODE_INVALID_REQUEST);
}

static void special_text_is_parsed_unless_told_otherwise(void **state)
{
    (void)state;
    engine.holds_orders = true;
    engine_start(&engine);
    for (uint32_t given = 0; given < 3; given++) { /* absent, false, true */
        const char *const names[] = {"absent", "no", "yes"};
        struct client_submit submit = engine_prompt(names[given], "hello", 5);
        submit.has_parse_special = given != 0;
        submit.parse_special = given == 2;
        submit.has_top_p = given == 2;
        submit.top_p = 0.5F;
        engine_submit(&engine, &submit);
        struct client_request request = {.type = CLIENT_TOKENIZE,
                                         .tokenize = {.has_prompt = true,
                                                      .prompt = wire_text_of("abc"),
                                                      .has_parse_special = given != 0,
                                                      .parse_special = given == 2}};
        engine_call(&engine, &request);
        for (uint32_t i = 0; i < 2; i++)
            assert_true(engine.order_contents[2 * given + i].parse_special == (given != 1));
    }
    while (engine.order_count > 0)
        engine_tokenize(&engine, 0, STATUS_OK);
}

static uint64_t tokenize(const char *text, uint32_t length)
{
    struct client_request request = {.type = CLIENT_TOKENIZE,
                                     .tokenize = {.has_prompt = true, .prompt = {text, length}}};
    return engine_call(&engine, &request);
}

static void tokenize_takes_nothing_and_chats(void **state)
{
    (void)state;
    engine_start(&engine);
    uint64_t handle = tokenize("", 0);
    assert_int_equal(engine_answer(&engine, handle)->message.tokens.ids.count, 0);
    handle = tokenize(NULL, 0); /* as a frame has it */
    assert_int_equal(engine_answer(&engine, handle)->message.type, CLIENT_ANSWER_TOKENS);
    static const uint8_t message[] = {0x82, 0x01, 0xa4, 'u', 's', 'e', 'r', 0x02, 0xa2, 'h', 'i'};
    struct client_request chat = {
        .type = CLIENT_TOKENIZE,
        .tokenize = {
            .has_messages = true,
            .messages = {.count = 1, .encoded = message, .encoded_bytes = sizeof message}}};
    handle = engine_call(&engine, &chat);
    assert_int_equal(engine_answer(&engine, handle)->message.tokens.ids.count, sizeof message);
}

static void tokenize_is_bounded_like_a_submit(void **state)
{
    (void)state;
    static char text[8192];
    memset(text, 'x', sizeof text);
    engine.config.queue_bytes = 6000;
    engine.config.prompt_bytes = 7000;
    engine_start(&engine);
    assert_int_equal(engine_error(&engine, tokenize(text, 7001)), ERROR_CODE_TOO_LARGE);
    assert_int_equal(engine_error(&engine, tokenize(text, 6500)), ERROR_CODE_OVERLOADED);
    engine.holds_orders = true;
    uint64_t first = 0;
    for (uint32_t i = 0; i < engine.config.calls; i++)
        first = first == 0 ? tokenize(text, 1) : (tokenize(text, 1), first);
    assert_int_equal(engine_error(&engine, tokenize(text, 1)), ERROR_CODE_OVERLOADED);
    while (engine.order_count > 0)
        engine_tokenize(&engine, 0, STATUS_OK);
    assert_int_equal(engine_answer(&engine, first)->message.type, CLIENT_ANSWER_TOKENS);
}

static void detokenize_has_a_largest_answer(void **state)
{
    (void)state;
    enum { COUNT = (8 << 20) / 4 + 1 }; /* of four bytes each */
    engine_start(&engine);
    uint32_t *ids = calloc(COUNT, sizeof *ids);
    assert_non_null(ids);
    for (size_t i = 0; i < COUNT; i++)
        ids[i] = LETTERS_AND;
    struct client_request request = {.type = CLIENT_DETOKENIZE,
                                     .detokenize = {.ids = wire_tokens_of(ids, COUNT)}};
    assert_int_equal(engine_error(&engine, engine_call(&engine, &request)), ERROR_CODE_TOO_LARGE);
    free(ids);
}

/* Ten thousand queued requests cost a step nothing: the same number of rows, whatever waits. */
static void a_long_queue_is_served_in_order(void **state)
{
    (void)state;
    engine.config.queue_requests = 2000;
    engine.config.queue_bytes = 64 << 20;
    engine_start(&engine);
    char id[16];
    for (int i = 0; i < 2000; i++) {
        snprintf(id, sizeof id, "%d", i);
        assert_int_equal(accepted(submit(id, "hello", 2))->queue_position, i);
    }
    engine_attach(&engine);
    engine_step(&engine);
    engine_step(&engine);
    assert_int_equal(engine_answer(&engine, engine_status(&engine, "0"))->message.status.state,
                     REQUEST_STATE_FINISHED);
    assert_int_equal(engine_answer(&engine, engine_status(&engine, "1999"))->message.status.state,
                     REQUEST_STATE_QUEUED);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(the_same_submit_runs_once_and_is_answered_alike),
        CASE(a_repeated_submit_waits_for_the_same_ids),
        CASE(another_body_under_the_same_id_is_a_conflict),
        CASE(the_sequence_is_the_order_of_submission_not_of_tokenizing),
        CASE(a_missing_seed_is_drawn_and_returned),
        CASE(what_can_never_fit_is_refused_with_field_and_bound),
        CASE(ids_come_in_without_the_tokenizer),
        CASE(the_tokenizer_may_refuse),
        CASE(the_queue_is_bounded_by_number),
        CASE(the_queue_is_bounded_by_bytes),
        CASE(without_memory_a_submit_is_overloaded_and_leaves_no_trace),
        CASE(without_memory_for_text_nothing_later_is_shown),
        CASE(without_memory_a_running_request_ends_and_its_neighbour_goes_on),
        CASE(tokenize_is_answered_or_refused),
        CASE(ids_of_the_tokenizer_are_judged_too),
        CASE(special_text_is_parsed_unless_told_otherwise),
        CASE(tokenize_takes_nothing_and_chats),
        CASE(tokenize_is_bounded_like_a_submit),
        CASE(detokenize_has_a_largest_answer),
        CASE(a_long_queue_is_served_in_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
