/* Each field of the public request arrives in its field of the message; defaults are left out. */
#include "client/submission.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static bool same(struct wire_text text, const char *expected)
{
    return text.length == strlen(expected) && memcmp(text.bytes, expected, text.length) == 0;
}

static void every_field_arrives(void **state)
{
    (void)state;
    static const char *const stops[] = {"one", "two"};
    static const uint32_t stop_ids[] = {5, 6, 7};
    const struct tandem_request request = {.id = "mine",
                                           .prompt = "once upon",
                                           .prompt_bytes = 4,
                                           .temperature = 0.5F,
                                           .top_k = 40,
                                           .top_p = 0.9F,
                                           .min_p = 0.1F,
                                           .has_seed = true,
                                           .seed = UINT64_MAX,
                                           .max_tokens = 17,
                                           .stops = stops,
                                           .stop_count = 2,
                                           .stop_ids = stop_ids,
                                           .stop_id_count = 3,
                                           .deadline_ms = 9000,
                                           .ignore_eos = true,
                                           .plain_text = true,
                                           .detach = true};
    struct submission submission;
    assert_int_equal(submission_init(&submission, &request, NULL), TANDEM_OK);
    const struct client_submit *submit = &submission.request.submit;
    assert_true(same(submit->id, "mine"));
    assert_true(submit->has_prompt && same(submit->prompt, "once"));
    assert_false(submit->has_ids || submit->has_messages);
    assert_true(submit->temperature == 0.5F);
    assert_int_equal(submit->top_k, 40);
    assert_true(submit->has_top_p && submit->top_p == 0.9F);
    assert_true(submit->min_p == 0.1F);
    assert_true(submit->has_seed && submit->seed == UINT64_MAX);
    assert_true(submit->has_max_tokens && submit->max_tokens == 17);
    assert_int_equal(submit->stop.count, 2);
    assert_true(same(submit->stop.items[1], "two"));
    assert_int_equal(submit->stop_token_ids.count, 3);
    assert_true(submit->has_deadline_ms && submit->deadline_ms == 9000);
    assert_true(submit->ignore_eos);
    assert_true(submit->detach);
    assert_true(submit->has_parse_special && !submit->parse_special);
    submission_free(&submission);
}

static void defaults_are_left_to_the_coordinator(void **state)
{
    (void)state;
    const struct tandem_request request = {.prompt = "x"};
    struct submission submission;
    assert_int_equal(submission_init(&submission, &request, NULL), TANDEM_OK);
    const struct client_submit *submit = &submission.request.submit;
    assert_false(submit->has_top_p || submit->has_seed || submit->has_max_tokens);
    assert_false(submit->has_deadline_ms || submit->has_parse_special || submit->has_version);
    assert_int_equal(submit->id.length, 32);
    submission_free(&submission);
}

static void drawn_ids_differ(void **state)
{
    (void)state;
    char first[33];
    char second[33];
    assert_int_equal(tandem_draw_id(first, NULL), TANDEM_OK);
    assert_int_equal(tandem_draw_id(second, NULL), TANDEM_OK);
    assert_int_equal(strspn(first, "0123456789abcdef"), 32);
    assert_string_not_equal(first, second);
}

static void messages_arrive_in_order(void **state)
{
    (void)state;
    const struct tandem_message messages[] = {
        {.role = "system", .content = "be brief"},
        {.role = "user", .content = "a\0b", .content_bytes = 3}};
    const struct tandem_request request = {.messages = messages, .message_count = 2};
    struct submission submission;
    assert_int_equal(submission_init(&submission, &request, NULL), TANDEM_OK);
    const struct wire_list *list = &submission.request.submit.messages;
    const struct chat_message *items = list->items;
    assert_int_equal(list->count, 2);
    assert_true(same(items[0].role, "system") && same(items[0].content, "be brief"));
    assert_true(same(items[1].role, "user"));
    assert_int_equal(items[1].content.length, 3);
    submission_free(&submission);
}

static void exactly_one_input_is_taken(void **state)
{
    (void)state;
    static const uint32_t ids[] = {1};
    static const struct tandem_message message = {.role = "user", .content = "x"};
    const struct tandem_request requests[] = {
        {.id = "none"},
        {.prompt = "x", .ids = ids, .id_count = 1},
        {.prompt = "x", .messages = &message, .message_count = 1},
        {.ids = ids, .id_count = 1, .messages = &message, .message_count = 1},
    };
    for (size_t i = 0; i < sizeof requests / sizeof requests[0]; i++) {
        struct submission submission;
        struct tandem_error error;
        assert_int_equal(submission_init(&submission, &requests[i], &error), TANDEM_INVALID);
        assert_non_null(strstr(error.message, "exactly one"));
    }
}

static void what_no_field_can_hold_is_refused(void **state)
{
    (void)state;
    static const char *stops[TANDEM_STOPS_MAX + 1];
    for (size_t i = 0; i < TANDEM_STOPS_MAX + 1; i++)
        stops[i] = "x";
    static const uint32_t ids[1];
    static const struct tandem_message broken = {.role = "user"};
    const char long_id[] = "0123456789012345678901234567890123456789012345678901234567890123456789";
    const struct {
        struct tandem_request request;
        enum tandem_result result;
        const char *field;
    } cases[] = {
        {{.id = "", .prompt = "x"}, TANDEM_INVALID, "id"},
        {{.id = long_id, .prompt = "x"}, TANDEM_INVALID, "id"},
        {{.prompt = "x", .stops = stops, .stop_count = TANDEM_STOPS_MAX + 1},
         TANDEM_INVALID,
         "stop"},
        {{.prompt = "x", .prompt_bytes = TANDEM_FRAME_BYTES_MAX + 1}, TANDEM_TOO_LARGE, "prompt"},
        {{.prompt = "x", .prompt_bytes = SIZE_MAX}, TANDEM_TOO_LARGE, "prompt"},
        {{.ids = ids, .id_count = SIZE_MAX}, TANDEM_TOO_LARGE, "ids"},
        {{.messages = &broken, .message_count = 0}, TANDEM_INVALID, "messages"},
        {{.messages = &broken, .message_count = LIMIT_CHAT_MESSAGES + 1},
         TANDEM_INVALID,
         "messages"},
        {{.messages = &broken, .message_count = 1}, TANDEM_INVALID, "messages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct submission submission;
        struct tandem_error error;
        assert_int_equal(submission_init(&submission, &cases[i].request, &error), cases[i].result);
        assert_string_equal(error.field, cases[i].field);
    }
}

static void tokenize_takes_text_or_messages(void **state)
{
    (void)state;
    static const uint32_t ids[] = {1};
    static const struct tandem_message message = {.role = "user", .content = "x"};
    struct submission submission;
    struct tandem_error error;
    const struct tandem_request text = {.prompt = "", .plain_text = true};
    assert_int_equal(submission_init_tokenize(&submission, &text, &error), TANDEM_OK);
    assert_true(submission.request.tokenize.has_prompt);
    assert_int_equal(submission.request.tokenize.prompt.length, 0);
    assert_true(submission.request.tokenize.has_parse_special);
    submission_free(&submission);
    const struct tandem_request chat = {.messages = &message, .message_count = 1};
    assert_int_equal(submission_init_tokenize(&submission, &chat, &error), TANDEM_OK);
    assert_int_equal(submission.request.tokenize.messages.count, 1);
    submission_free(&submission);
    const struct tandem_request wrong = {.ids = ids, .id_count = 1};
    assert_int_equal(submission_init_tokenize(&submission, &wrong, &error), TANDEM_INVALID);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_field_arrives),
        cmocka_unit_test(defaults_are_left_to_the_coordinator),
        cmocka_unit_test(drawn_ids_differ),
        cmocka_unit_test(messages_arrive_in_order),
        cmocka_unit_test(exactly_one_input_is_taken),
        cmocka_unit_test(what_no_field_can_hold_is_refused),
        cmocka_unit_test(tokenize_takes_text_or_messages),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
