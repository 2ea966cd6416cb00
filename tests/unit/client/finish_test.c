#include "client/finish.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static void an_outcome_is_copied_whole(void **state)
{
    (void)state;
    struct client_finish message = {.reason = FINISH_REASON_LENGTH};
    message.usage = (struct client_usage){.prompt_tokens = 1,
                                          .completion_tokens = 2,
                                          .recomputed_tokens = 3,
                                          .preemptions = 4,
                                          .workers_lost = 5};
    message.timings = (struct client_timings){
        .tokenize_ns = 6, .queue_ns = 7, .first_token_ns = 8, .total_ns = 9};
    message.has_logits_hash = true;
    message.logits_hash = UINT64_MAX;
    struct tandem_finish finish;
    finish_from_message(&finish, &message);
    assert_string_equal(finish.reason, "length");
    assert_false(finish.failed);
    assert_string_equal(finish.message, "");
    assert_int_equal(finish.prompt_tokens, 1);
    assert_int_equal(finish.completion_tokens, 2);
    assert_int_equal(finish.recomputed_tokens, 3);
    assert_int_equal(finish.preemptions, 4);
    assert_int_equal(finish.workers_lost, 5);
    assert_int_equal(finish.tokenize_ns, 6);
    assert_int_equal(finish.queue_ns, 7);
    assert_int_equal(finish.first_token_ns, 8);
    assert_int_equal(finish.total_ns, 9);
    assert_true(finish.has_logits_hash && finish.logits_hash == UINT64_MAX);
}

static void an_error_takes_the_place_of_the_reason(void **state)
{
    (void)state;
    struct client_finish message = {.reason = FINISH_REASON_ERROR};
    message.has_error = true;
    message.error.code = ERROR_CODE_NUMERIC_ERROR;
    message.error.message = wire_text_of("not finite");
    struct tandem_finish finish;
    finish_from_message(&finish, &message);
    assert_true(finish.failed);
    assert_string_equal(finish.reason, "numeric_error");
    assert_string_equal(finish.message, "not finite");
}

static void an_error_without_words_is_still_one(void **state)
{
    (void)state;
    const struct client_finish message = {.reason = FINISH_REASON_ERROR};
    struct tandem_finish finish;
    finish_from_message(&finish, &message);
    assert_true(finish.failed);
    assert_string_equal(finish.reason, "error");
}

static void states_have_their_names(void **state)
{
    (void)state;
    for (uint32_t i = 0; i < request_state_enum.count; i++) {
        const struct wire_enum_value *value = &request_state_enum.values[i];
        enum tandem_state ours = state_from_message((enum request_state)value->number);
        assert_int_not_equal(ours, TANDEM_STATE_UNKNOWN);
        assert_string_equal(tandem_state_name(ours), value->name);
    }
    assert_int_equal(state_from_message((enum request_state)99), TANDEM_STATE_UNKNOWN);
    assert_string_equal(tandem_state_name((enum tandem_state)99), "unknown");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_outcome_is_copied_whole),
        cmocka_unit_test(an_error_takes_the_place_of_the_reason),
        cmocka_unit_test(an_error_without_words_is_still_one),
        cmocka_unit_test(states_have_their_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
