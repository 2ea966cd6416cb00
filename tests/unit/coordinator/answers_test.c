/* Answers out of a request: cursors, the end, errors. */
#include "coordinator/answers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static uint32_t tokens[] = {1, 2, 30, 31, 32, 33};
static char text[] = "abcd";

static struct request running(void)
{
    return (struct request){.sequence = 5,
                            .id = "r",
                            .id_length = 1,
                            .state = REQUEST_STATE_RUNNING,
                            .seed = 9,
                            .tokens = tokens,
                            .prompt_tokens = 2,
                            .accepted = 4,
                            .text = text,
                            .text_bytes = 3,
                            .detokenizer = {.released_tokens = 3}};
}

static struct client_output output_of(const struct request *request, uint64_t token, uint64_t byte)
{
    const struct answer_context context = {.worker_ready = true};
    return answer_output(request, &context, token, byte);
}

static void cursors_cut_what_was_seen(void **state)
{
    (void)state;
    struct request request = running();
    struct client_output output = output_of(&request, 1, 2);
    assert_int_equal(output.from_token, 1);
    assert_int_equal(output.from_byte, 2);
    assert_int_equal(output.tokens.count, 2);
    uint32_t copy[2];
    wire_tokens_copy(&output.tokens, copy, 2);
    assert_int_equal(copy[0], 31);
    assert_int_equal(output.text.length, 1);
    assert_memory_equal(output.text.bytes, "c", 1);
    assert_false(output.has_finish);
    assert_true(output.worker_ready);
}

static void cursors_beyond_what_is_there_give_nothing(void **state)
{
    (void)state;
    struct request request = running();
    struct client_output output = output_of(&request, 40, 50);
    assert_int_equal(output.from_token, 40);
    assert_int_equal(output.tokens.count, 0);
    assert_int_equal(output.text.length, 0);
}

static void the_end_comes_with_the_last_byte(void **state)
{
    (void)state;
    struct request request = running();
    request.state = REQUEST_STATE_FINISHED;
    request.tokens = tokens + 2;
    request.outcome.reason = FINISH_REASON_STOP;
    request.submitted_ns = 100;
    request.finished_ns = 350;
    request.logits_hash = 77;
    struct client_output output = output_of(&request, 0, 0);
    assert_int_equal(output.tokens.count, 4);
    assert_true(output.has_finish);
    assert_int_equal(output.finish.reason, FINISH_REASON_STOP);
    assert_int_equal(output.finish.usage.completion_tokens, 4);
    assert_int_equal(output.finish.timings.total_ns, 250);
    assert_true(output.finish.has_logits_hash);
    request.logits_hash_broken = true;
    assert_false(output_of(&request, 0, 0).finish.has_logits_hash);
}

static void a_long_text_takes_more_than_one_answer(void **state)
{
    (void)state;
    struct request request = running();
    request.state = REQUEST_STATE_FINISHED;
    request.outcome.reason = FINISH_REASON_LENGTH;
    request.text_bytes = ANSWER_TEXT_BYTES_MAX + 10;
    request.text = calloc(1, request.text_bytes);
    assert_non_null(request.text);
    struct client_output output = output_of(&request, 0, 0);
    assert_int_equal(output.text.length, ANSWER_TEXT_BYTES_MAX);
    assert_false(output.has_finish);
    output = output_of(&request, 4, output.text.length);
    assert_int_equal(output.text.length, 10);
    assert_true(output.has_finish);
    free(request.text);
}

static void an_error_outcome_says_which(void **state)
{
    (void)state;
    struct request request = running();
    request.state = REQUEST_STATE_FINISHED;
    request.outcome = (struct request_outcome){FINISH_REASON_ERROR, ERROR_CODE_POISONED, "why"};
    struct client_output output = output_of(&request, 0, 0);
    assert_true(output.finish.has_error);
    assert_int_equal(output.finish.error.code, ERROR_CODE_POISONED);
    assert_memory_equal(output.finish.error.message.bytes, "why", 3);
}

static void status_and_accepted_tell_where_it_stands(void **state)
{
    (void)state;
    struct request request = running();
    request.submitted_ns = 1000000;
    const struct answer_context context = {
        .instance = {{4}}, .now_ns = 8000000, .queue_position = 3};
    struct client_status_answer status = answer_status(&request, &context);
    assert_int_equal(status.sequence, 5);
    assert_int_equal(status.age_ms, 7);
    assert_int_equal(status.completion_tokens, 4);
    assert_int_equal(status.text_bytes, 3);
    assert_false(status.has_finish);
    struct client_accepted accepted = answer_accepted(&request, &context);
    assert_int_equal(accepted.queue_position, 3);
    assert_int_equal(accepted.seed, 9);
    assert_int_equal(accepted.durability, DURABILITY_NONE);
    assert_int_equal(accepted.instance.bytes[0], 4);
}

static void refusals_become_errors(void **state)
{
    (void)state;
    struct refusal refusal;
    assert_false(refusal_set(&refusal, ERROR_CODE_OVERLOADED, NULL, "%d too many", 3));
    refusal.retry_after_ms = 10;
    struct client_error error = answer_error(&refusal);
    assert_int_equal(error.code, ERROR_CODE_OVERLOADED);
    assert_false(error.has_field);
    assert_false(error.has_limit);
    assert_true(error.has_retry_after_ms);
    assert_memory_equal(error.message.bytes, "3 too many", 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cursors_cut_what_was_seen),
        cmocka_unit_test(cursors_beyond_what_is_there_give_nothing),
        cmocka_unit_test(the_end_comes_with_the_last_byte),
        cmocka_unit_test(a_long_text_takes_more_than_one_answer),
        cmocka_unit_test(an_error_outcome_says_which),
        cmocka_unit_test(status_and_accepted_tell_where_it_stands),
        cmocka_unit_test(refusals_become_errors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
