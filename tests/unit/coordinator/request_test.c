/* The life cycle as a table, and what ends a request. */
#include "coordinator/request.h"
#include "sim/letters.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

static void the_life_cycle_has_these_moves_and_no_other(void **state)
{
    (void)state;
    static const char *const rows[] = {
        /* to:       T  Q  R  P  F */
        [REQUEST_STATE_TOKENIZING] = ".Q..F", [REQUEST_STATE_QUEUED] = "..R.F",
        [REQUEST_STATE_RUNNING] = ".Q.PF",    [REQUEST_STATE_PREEMPTED] = "..R.F",
        [REQUEST_STATE_FINISHED] = ".....",
    };
    for (uint32_t from = REQUEST_STATE_TOKENIZING; from <= REQUEST_STATE_FINISHED; from++)
        for (uint32_t to = REQUEST_STATE_TOKENIZING; to <= REQUEST_STATE_FINISHED; to++)
            assert_int_equal(request_may_move(from, to),
                             rows[from][to - REQUEST_STATE_TOKENIZING] != '.');
}

static void end_tokens_stop_unless_ignored_and_stop_tokens_always(void **state)
{
    (void)state;
    struct vocabulary vocabulary;
    letters_open(&vocabulary);
    struct request request = {.stop_token_count = 2, .stop_tokens = {'x', 'y'}};
    assert_true(request_stops_at(&request, &vocabulary, LETTERS_END));
    assert_true(request_stops_at(&request, &vocabulary, 'y'));
    assert_false(request_stops_at(&request, &vocabulary, 'z'));
    request.ignore_eos = true;
    assert_false(request_stops_at(&request, &vocabulary, LETTERS_END));
    assert_true(request_stops_at(&request, &vocabulary, 'x'));
    request.stop_tokens[0] = LETTERS_END;
    assert_true(request_stops_at(&request, &vocabulary, LETTERS_END));
    vocabulary_free(&vocabulary);
}

static void hashes_fold_as_sixteen_little_endian_bytes(void **state)
{
    (void)state;
    const uint8_t bytes[16] = {8, 7, 6, 5, 4, 3, 2, 1, 0xF8, 0xF7, 0, 0, 0, 0, 0, 0};
    assert_true(request_fold_hash(UINT64_C(0x0102030405060708), 0xF7F8) ==
                XXH3_64bits(bytes, sizeof bytes));
}

static void a_finished_request_shows_all_tokens_an_unfinished_one_the_released(void **state)
{
    (void)state;
    uint32_t tokens[8] = {1, 2, 3, 10, 11, 12};
    struct request request = {.state = REQUEST_STATE_RUNNING,
                              .tokens = tokens,
                              .prompt_tokens = 3,
                              .accepted = 3,
                              .detokenizer = {.released_tokens = 2}};
    assert_int_equal(request_released_tokens(&request), 2);
    assert_int_equal(request_output_tokens(&request)[0], 10);
    request.state = REQUEST_STATE_FINISHED; /* its prompt is gone */
    request.tokens = tokens + 3;
    assert_int_equal(request_released_tokens(&request), 3);
    assert_int_equal(request_output_tokens(&request)[0], 10);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_life_cycle_has_these_moves_and_no_other),
        cmocka_unit_test(end_tokens_stop_unless_ignored_and_stop_tokens_always),
        cmocka_unit_test(hashes_fold_as_sixteen_little_endian_bytes),
        cmocka_unit_test(a_finished_request_shows_all_tokens_an_unfinished_one_the_released),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
