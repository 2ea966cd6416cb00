/* The pool's answers are those of the tokenizer itself, whatever the number of threads; its bounds
 * hold. */
#include "coordinator/tokenizer_pool.h"

#include "common/clock.h"
#include "support/small_tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>

#include <cmocka.h>

enum { ORDERS = 300, TEXT_BYTES = 64, IDS_MAX = 4096 };

static struct tokenizer tokenizer;
static struct tokenizer_scratch scratch;
static struct event_loop loop;

static int open_all(void **state)
{
    struct reason why;
    struct small_options options = small_defaults();
    (void)state;
    assert_int_equal(small_open(&options, &tokenizer, reason_init(&why)), STATUS_OK);
    assert_int_equal(event_loop_open(&loop), STATUS_OK);
    return 0;
}

static int close_all(void **state)
{
    (void)state;
    event_loop_close(&loop);
    tokenizer_free(&tokenizer);
    return 0;
}

static struct tokenizer_pool *open_pool(uint32_t threads)
{
    struct tokenizer_pool *pool;
    assert_int_equal(tokenizer_pool_open(&tokenizer, threads, ORDERS, &loop, &pool), STATUS_OK);
    return pool;
}

static struct tokenized_text next_text(struct tokenizer_pool *pool)
{
    struct tokenized_text text;
    uint64_t end_ns = clock_now_ns() + 20 * NS_PER_S;
    while (!tokenizer_pool_next(pool, &text)) {
        assert_true(clock_now_ns() < end_ns);
        assert_int_equal(event_loop_wait(&loop, end_ns), STATUS_OK);
    }
    return text;
}

static void every_order_is_answered_with_its_own_ids(void **state)
{
    (void)state;
    static char texts[ORDERS][TEXT_BYTES];
    for (uint32_t threads = 1; threads <= 4; threads += 3) {
        struct tokenizer_pool *pool = open_pool(threads);
        bool answered[ORDERS] = {false};
        for (uint64_t i = 0; i < ORDERS; i++) {
            snprintf(texts[i], TEXT_BYTES, "hello %llu abc<|im_end|> %c", (unsigned long long)i,
                     (char)('a' + i % 26));
            struct core_tokenize order = {.ticket = i,
                                          .text = wire_text_of(texts[i]),
                                          .parse_special = i % 2 == 0,
                                          .ids_max = IDS_MAX};
            tokenizer_pool_order(pool, &order);
        }
        for (int i = 0; i < ORDERS; i++) {
            struct tokenized_text got = next_text(pool);
            uint32_t storage[IDS_MAX];
            struct token_list expected = {.tokens = storage, .capacity = IDS_MAX};
            struct byte_view text = {texts[got.ticket], strlen(texts[got.ticket])};
            assert_int_equal(tokenizer_encode_prompt(&tokenizer, &scratch, text,
                                                     got.ticket % 2 == 0 ? SPECIAL_TOKENS_PARSED
                                                                         : SPECIAL_TOKENS_AS_TEXT,
                                                     &expected, NULL),
                             STATUS_OK);
            assert_int_equal(got.status, STATUS_OK);
            assert_int_equal(got.count, expected.count);
            assert_memory_equal(got.ids, storage, got.count * sizeof *storage);
            assert_false(answered[got.ticket]);
            answered[got.ticket] = true;
            free(got.ids);
        }
        tokenizer_pool_close(pool);
    }
}

static void more_ids_than_allowed_are_refused(void **state)
{
    (void)state;
    struct tokenizer_pool *pool = open_pool(1);
    for (uint32_t ids_max = 3; ids_max <= 5; ids_max++) {
        struct core_tokenize order = {
            .ticket = ids_max, .text = wire_text_of("zzzz"), .ids_max = ids_max};
        tokenizer_pool_order(pool, &order);
        struct tokenized_text got = next_text(pool);
        assert_int_equal(got.status, ids_max < 4 ? STATUS_TOO_LARGE : STATUS_OK);
        assert_int_equal(got.count, ids_max < 4 ? 0 : 4);
        free(got.ids);
    }
    tokenizer_pool_close(pool);
}

static void what_is_wrong_is_said_in_words(void **state)
{
    (void)state;
    struct tokenizer_pool *pool = open_pool(1);
    struct core_tokenize order = {.ticket = 9, .text = wire_text_of("ab\xff"), .ids_max = IDS_MAX};
    tokenizer_pool_order(pool, &order);
    struct tokenized_text got = next_text(pool);
    assert_int_equal(got.ticket, 9);
    assert_int_equal(got.status, STATUS_INVALID);
    assert_null(got.ids);
    assert_true(strlen(got.why.storage) > 0);
    tokenizer_pool_close(pool);
}

static void a_chat_is_rendered_by_the_template(void **state)
{
    (void)state;
    static const struct chat_message messages[] = {{{"user", 4}, {"hello", 5}},
                                                   {{"assistant", 9}, {"abc <|im_end|>", 14}}};
    struct client_request request = {.type = CLIENT_TOKENIZE}, decoded;
    request.tokenize.has_messages = true;
    request.tokenize.messages.items = messages;
    request.tokenize.messages.count = 2;
    uint8_t frame[512];
    size_t bytes;
    struct wire_error error;
    assert_int_equal(client_request_encode(&request, frame, sizeof frame, &bytes), STATUS_OK);
    assert_int_equal(client_request_decode(frame, bytes, &decoded, &error), STATUS_OK);

    struct tokenizer_pool *pool = open_pool(1);
    struct core_tokenize order = {.messages = decoded.tokenize.messages, .ids_max = IDS_MAX};
    tokenizer_pool_order(pool, &order);
    struct tokenized_text got = next_text(pool);
    uint32_t storage[IDS_MAX];
    struct token_list expected = {.tokens = storage, .capacity = IDS_MAX};
    static const struct chat_turn turns[] = {{{"user", 4}, {"hello", 5}},
                                             {{"assistant", 9}, {"abc <|im_end|>", 14}}};
    assert_int_equal(tokenizer_encode_chat(&tokenizer, &scratch, turns, 2, &expected, NULL),
                     STATUS_OK);
    assert_int_equal(got.status, STATUS_OK);
    assert_int_equal(got.count, expected.count);
    assert_memory_equal(got.ids, storage, got.count * sizeof *storage);
    free(got.ids);
    tokenizer_pool_close(pool);
}

static void closing_drops_what_was_not_done(void **state)
{
    (void)state;
    struct tokenizer_pool *pool = open_pool(2);
    struct core_tokenize order = {.text = wire_text_of("hello"), .ids_max = IDS_MAX};
    for (order.ticket = 0; order.ticket < ORDERS; order.ticket++)
        tokenizer_pool_order(pool, &order);
    tokenizer_pool_close(pool); /* the leak check of the sanitizers looks at the ids */
    tokenizer_pool_close(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_order_is_answered_with_its_own_ids),
        cmocka_unit_test(more_ids_than_allowed_are_refused),
        cmocka_unit_test(what_is_wrong_is_said_in_words),
        cmocka_unit_test(a_chat_is_rendered_by_the_template),
        cmocka_unit_test(closing_drops_what_was_not_done),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
