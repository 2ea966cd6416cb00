/* What can never be served is refused by field, value and bound. */
#include "coordinator/admission.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

static const struct admission_limits limits = {
    .context = 100, .pool_positions = 1000, .vocabulary = 50, .prompt_bytes = 20};

static void prompts_and_lengths_against_context_and_pool(void **state)
{
    (void)state;
    static const struct {
        uint32_t context;
        uint64_t pool;
        uint32_t prompt, max_tokens;
        enum error_code code; /* UNKNOWN: fits */
        const char *field;
        uint64_t bound; /* limit of a refusal, or settled max_tokens */
    } cases[] = {
        {100, 1000, 1, 0, ERROR_CODE_UNKNOWN, NULL, 99},
        {100, 1000, 99, 0, ERROR_CODE_UNKNOWN, NULL, 1},
        {100, 1000, 100, 0, ERROR_CODE_PROMPT_TOO_LONG, "prompt", 99},
        {100, 1000, 0, 5, ERROR_CODE_INVALID_REQUEST, "prompt", 0},
        {100, 1000, 60, 40, ERROR_CODE_UNKNOWN, NULL, 40},
        {100, 1000, 60, 41, ERROR_CODE_INVALID_REQUEST, "max_tokens", 40},
        {100, 1000, 60, UINT32_MAX, ERROR_CODE_INVALID_REQUEST, "max_tokens", 40},
        /* The last token is never computed: 48 positions carry 49 tokens. */
        {100, 48, 40, 9, ERROR_CODE_UNKNOWN, NULL, 9},
        {100, 48, 40, 10, ERROR_CODE_TOO_LARGE, "max_tokens", 9},
        {100, 48, 40, 0, ERROR_CODE_UNKNOWN, NULL, 9},
        {100, 48, 48, 0, ERROR_CODE_UNKNOWN, NULL, 1},
        {100, 48, 49, 0, ERROR_CODE_TOO_LARGE, "prompt", 48},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct admission_limits with = limits;
        with.context = cases[i].context;
        with.pool_positions = cases[i].pool;
        struct refusal refusal = {0};
        uint32_t max_tokens = 0;
        bool fits = admission_judge_prompt(&with, cases[i].prompt, cases[i].max_tokens, "prompt",
                                           &max_tokens, &refusal);
        assert_int_equal(fits, cases[i].code == ERROR_CODE_UNKNOWN);
        assert_int_equal(refusal.code, cases[i].code);
        if (fits) {
            assert_int_equal(max_tokens, cases[i].bound);
        } else {
            assert_string_equal(refusal.field, cases[i].field);
            assert_int_equal(refusal.limit, cases[i].bound);
            assert_int_equal(refusal.has_limit, cases[i].bound != 0);
            assert_true(strlen(refusal.message) > 10);
        }
    }
}

static void ids_are_named_with_their_place(void **state)
{
    (void)state;
    const uint32_t ids[] = {0, 49, 50};
    struct refusal refusal = {0};
    assert_true(admission_judge_ids(&limits, ids, 2, "ids", &refusal));
    assert_false(admission_judge_ids(&limits, ids, 3, "ids", &refusal));
    assert_int_equal(refusal.code, ERROR_CODE_INVALID_REQUEST);
    assert_string_equal(refusal.field, "ids");
    assert_non_null(strstr(refusal.message, "ids[2] is 50"));
    assert_int_equal(refusal.limit, 49);
}

static void long_texts_and_chats_without_a_template_are_refused(void **state)
{
    (void)state;
    struct stop_set stops;
    struct refusal refusal = {0};
    struct client_submit submit = {.has_prompt = true,
                                   .prompt = wire_text_of("twenty bytes of text")};
    assert_true(admission_judge_submit(&limits, &submit, &stops, &refusal));
    submit.prompt = wire_text_of("twenty-one bytes here");
    assert_false(admission_judge_submit(&limits, &submit, &stops, &refusal));
    assert_int_equal(refusal.code, ERROR_CODE_TOO_LARGE);
    assert_int_equal(refusal.limit, 20);
    const struct client_submit chat = {.has_messages = true, .messages = {.count = 1}};
    assert_false(admission_judge_submit(&limits, &chat, &stops, &refusal));
    assert_int_equal(refusal.code, ERROR_CODE_UNSUPPORTED);
    assert_string_equal(refusal.field, "messages");
}

static void stops_are_prepared_or_refused(void **state)
{
    (void)state;
    struct stop_set stops;
    struct refusal refusal = {0};
    struct client_submit submit = {.has_ids = true};
    submit.stop.items[0] = wire_text_of("END");
    submit.stop.count = 1;
    assert_true(admission_judge_submit(&limits, &submit, &stops, &refusal));
    assert_int_equal(stops.count, 1);
    submit.stop.items[0] = wire_text_of("\xff\xfe");
    assert_false(admission_judge_submit(&limits, &submit, &stops, &refusal));
    assert_int_equal(refusal.code, ERROR_CODE_INVALID_REQUEST);
    assert_string_equal(refusal.field, "stop");
}

static void a_model_without_tokenizer_takes_ids_alone(void **state)
{
    (void)state;
    struct admission_limits with = limits;
    with.ids_only = true;
    struct stop_set stops;
    struct refusal refusal = {0};
    struct client_submit submit = {.has_ids = true};
    assert_true(admission_judge_submit(&with, &submit, &stops, &refusal));
    submit.stop.items[0] = wire_text_of("end");
    submit.stop.count = 1;
    assert_false(admission_judge_submit(&with, &submit, &stops, &refusal));
    assert_int_equal(refusal.code, ERROR_CODE_UNSUPPORTED);
    assert_string_equal(refusal.field, "stop");
    assert_non_null(strstr(refusal.message, "send `stop_token_ids`"));
    const struct client_submit texts[] = {
        {.has_prompt = true, .prompt = wire_text_of("text")},
        {.has_messages = true},
    };
    for (size_t i = 0; i < 2; i++) {
        assert_false(admission_judge_submit(&with, &texts[i], &stops, &refusal));
        assert_int_equal(refusal.code, ERROR_CODE_UNSUPPORTED);
        assert_string_equal(refusal.field, i == 0 ? "prompt" : "messages");
        assert_non_null(strstr(refusal.message, "served without a tokenizer"));
        assert_non_null(strstr(refusal.message, "send `ids`"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_without_tokenizer_takes_ids_alone),
        cmocka_unit_test(prompts_and_lengths_against_context_and_pool),
        cmocka_unit_test(ids_are_named_with_their_place),
        cmocka_unit_test(long_texts_and_chats_without_a_template_are_refused),
        cmocka_unit_test(stops_are_prepared_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
