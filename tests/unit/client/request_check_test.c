/* Every mistake of a caller is found before anything is sent, and named. */
#include "client/request_check.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static struct client_request good_submit(void)
{
    struct client_request request = {.type = CLIENT_SUBMIT};
    request.submit.id = wire_text_of("id");
    request.submit.has_prompt = true;
    request.submit.prompt = wire_text_of("once");
    return request;
}

/* One field set wrong; the others are right. */
struct mistake {
    const char *field; /* as the error names it */
    void (*make)(struct client_submit *submit);
    double limit; /* NAN: the error has none */
};

static void empty_id(struct client_submit *submit)
{
    submit->id.length = 0;
}
static void long_id(struct client_submit *submit)
{
    static const char bytes[LIMIT_REQUEST_ID_BYTES + 1];
    submit->id = (struct wire_text){bytes, sizeof bytes};
}
static void empty_prompt(struct client_submit *submit)
{
    submit->prompt.length = 0;
}
static void broken_prompt(struct client_submit *submit)
{
    submit->prompt = wire_text_of("ab\xff");
}
static void hot_temperature(struct client_submit *submit)
{
    submit->temperature = 100.5F;
}
static void negative_temperature(struct client_submit *submit)
{
    submit->temperature = -0.5F;
}
static void nan_temperature(struct client_submit *submit)
{
    submit->temperature = NAN;
}
static void infinite_min_p(struct client_submit *submit)
{
    submit->min_p = INFINITY;
}
static void zero_top_p(struct client_submit *submit)
{
    submit->has_top_p = true;
    submit->top_p = 0;
}
static void large_top_p(struct client_submit *submit)
{
    submit->has_top_p = true;
    submit->top_p = 1.5F;
}
static void large_top_k(struct client_submit *submit)
{
    submit->top_k = LIMIT_VOCABULARY + 1;
}
static void zero_max_tokens(struct client_submit *submit)
{
    submit->has_max_tokens = true;
    submit->max_tokens = 0;
}
static void large_max_tokens(struct client_submit *submit)
{
    submit->has_max_tokens = true;
    submit->max_tokens = LIMIT_CONTEXT_TOKENS + 1;
}
static void long_deadline(struct client_submit *submit)
{
    submit->has_deadline_ms = true;
    submit->deadline_ms = (uint64_t)LIMIT_DEADLINE_MS + 1;
}
static void empty_stop(struct client_submit *submit)
{
    submit->stop.count = 2;
    submit->stop.items[0] = wire_text_of("fine");
    submit->stop.items[1] = wire_text_of("");
}
static void broken_stop(struct client_submit *submit)
{
    submit->stop.count = 1;
    submit->stop.items[0] = wire_text_of("\xc3");
}
static void many_stop_tokens(struct client_submit *submit)
{
    static const uint32_t ids[LIMIT_STOP_TOKENS + 1];
    submit->stop_token_ids = wire_tokens_of(ids, LIMIT_STOP_TOKENS + 1);
}
static void large_token(struct client_submit *submit)
{
    static const uint32_t ids[] = {1, LIMIT_VOCABULARY};
    submit->has_prompt = false;
    submit->has_ids = true;
    submit->ids = wire_tokens_of(ids, 2);
}
static void no_ids(struct client_submit *submit)
{
    static const uint32_t ids[] = {1};
    submit->has_prompt = false;
    submit->has_ids = true;
    submit->ids = wire_tokens_of(ids, 0);
}
static void broken_content(struct client_submit *submit)
{
    static struct chat_message messages[2];
    messages[0].role = messages[1].role = wire_text_of("user");
    messages[0].content = wire_text_of("fine");
    messages[1].content = wire_text_of("\xed\xa0\x80"); /* a surrogate */
    submit->has_prompt = false;
    submit->has_messages = true;
    submit->messages = (struct wire_list){.items = messages, .count = 2};
}
static void empty_role(struct client_submit *submit)
{
    static struct chat_message message;
    message.role = wire_text_of("");
    message.content = wire_text_of("x");
    submit->has_prompt = false;
    submit->has_messages = true;
    submit->messages = (struct wire_list){.items = &message, .count = 1};
}

static const struct mistake mistakes[] = {
    {"id", empty_id, 1},
    {"id", long_id, LIMIT_REQUEST_ID_BYTES},
    {"prompt", empty_prompt, 1},
    {"prompt", broken_prompt, (double)NAN},
    {"temperature", hot_temperature, LIMIT_TEMPERATURE},
    {"temperature", negative_temperature, 0},
    {"temperature", nan_temperature, 0},
    {"min_p", infinite_min_p, 1},
    {"top_p", zero_top_p, 0},
    {"top_p", large_top_p, 1},
    {"top_k", large_top_k, LIMIT_VOCABULARY},
    {"max_tokens", zero_max_tokens, 1},
    {"max_tokens", large_max_tokens, LIMIT_CONTEXT_TOKENS},
    {"deadline_ms", long_deadline, LIMIT_DEADLINE_MS},
    {"stop[1]", empty_stop, 1},
    {"stop[0]", broken_stop, (double)NAN},
    {"stop_token_ids", many_stop_tokens, LIMIT_STOP_TOKENS},
    {"ids", large_token, LIMIT_VOCABULARY - 1},
    {"ids", no_ids, 1},
    {"messages[1].content", broken_content, (double)NAN},
    {"messages[0].role", empty_role, 1},
};

static void every_mistake_names_field_and_bound(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof mistakes / sizeof mistakes[0]; i++) {
        struct client_request request = good_submit();
        struct tandem_error error;
        mistakes[i].make(&request.submit);
        assert_int_equal(request_check(&request, &error), TANDEM_INVALID);
        assert_string_equal(error.field, mistakes[i].field);
        assert_non_null(strstr(error.message, mistakes[i].field));
        assert_string_equal(error.code, "invalid_request");
        assert_int_equal(error.has_limit, !isnan(mistakes[i].limit));
        if (error.has_limit)
            assert_true(error.limit == mistakes[i].limit);
    }
}

/* What passes here is encoded by a module that CHECKs the same bounds: it must not end the process.
 */
static void what_passes_can_be_encoded(void **state)
{
    (void)state;
    static const uint32_t ids[] = {0, LIMIT_VOCABULARY - 1};
    struct client_request request = good_submit();
    struct client_submit *submit = &request.submit;
    submit->temperature = LIMIT_TEMPERATURE;
    submit->top_k = LIMIT_VOCABULARY;
    submit->has_top_p = true;
    submit->top_p = 1;
    submit->min_p = 1;
    submit->has_max_tokens = true;
    submit->max_tokens = LIMIT_CONTEXT_TOKENS;
    submit->has_deadline_ms = true;
    submit->deadline_ms = LIMIT_DEADLINE_MS;
    submit->stop.count = LIMIT_STOP_STRINGS;
    for (uint32_t i = 0; i < LIMIT_STOP_STRINGS; i++)
        submit->stop.items[i] = wire_text_of("\xf0\x9f\x8c\x8d");
    submit->stop_token_ids = wire_tokens_of(ids, 2);
    struct tandem_error error;
    assert_int_equal(request_check(&request, &error), TANDEM_OK);
    size_t bytes = 0;
    uint8_t frame[4096];
    assert_int_equal(client_request_encode(&request, frame, sizeof frame, &bytes), STATUS_OK);
    struct client_request back;
    struct wire_error why;
    assert_int_equal(client_request_decode(frame, bytes, &back, &why), STATUS_OK);
}

static void other_questions_are_checked_too(void **state)
{
    (void)state;
    struct tandem_error error;
    struct client_request request = {.type = CLIENT_NEXT};
    request.next.id = wire_text_of("id");
    request.next.max_wait_ms = LIMIT_WAIT_MS + 1;
    assert_int_equal(request_check(&request, &error), TANDEM_INVALID);
    assert_string_equal(error.field, "max_wait_ms");
    assert_true(error.limit == LIMIT_WAIT_MS);
    request.next.max_wait_ms = LIMIT_WAIT_MS;
    assert_int_equal(request_check(&request, &error), TANDEM_OK);
    const struct client_request stats = {.type = CLIENT_STATS};
    assert_int_equal(request_check(&stats, &error), TANDEM_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_mistake_names_field_and_bound),
        cmocka_unit_test(what_passes_can_be_encoded),
        cmocka_unit_test(other_questions_are_checked_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
