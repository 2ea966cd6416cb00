/* Cursors, resumption, cancellation: what a reader of a stream may rely on. */
#include "client/tandem.h"

#include "support/fake_coordinator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>

#include <cmocka.h>

static const uint32_t tokens[] = {11, 12, 13, 14};

struct bench {
    struct fake fake;
    struct tandem *tandem;
    struct tandem_error error;
};

static void open_bench(struct bench *bench, uint32_t patience_ms)
{
    const struct tandem_settings settings = {.run_dir = bench->fake.directory,
                                             .patience_ms = patience_ms};
    assert_int_equal(tandem_open(&settings, &bench->tandem, &bench->error), TANDEM_OK);
}

static void close_bench(struct bench *bench)
{
    tandem_close(bench->tandem);
    fake_stop(&bench->fake);
    fake_remove_directory(&bench->fake);
}

static struct tandem_stream *submit(struct bench *bench)
{
    const struct tandem_request request = {.id = "id", .prompt = "once"};
    struct tandem_stream *stream = NULL;
    assert_int_equal(tandem_submit(bench->tandem, &request, &stream, &bench->error), TANDEM_OK);
    return stream;
}

static void next_text(struct bench *bench, struct tandem_stream *stream, const char *text,
                      size_t token_count)
{
    struct tandem_output output;
    assert_int_equal(tandem_next(stream, 1000, 1, &output, &bench->error), TANDEM_OK);
    assert_int_equal(output.token_count, token_count);
    assert_int_equal(output.text_bytes, strlen(text));
    assert_memory_equal(output.text, text, strlen(text));
}

static void acceptance_is_handed_out(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {fake_accepted("id", UINT64_MAX)};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 1000);
    struct tandem_stream *stream = submit(&bench);
    const struct tandem_accepted *accepted = tandem_stream_accepted(stream);
    assert_string_equal(accepted->id, "id");
    assert_int_equal(accepted->sequence, 7);
    assert_true(accepted->seed == UINT64_MAX);
    assert_int_equal(accepted->prompt_tokens, 3);
    assert_int_equal(accepted->queue_position, 2);
    assert_int_equal(accepted->state, TANDEM_QUEUED);
    tandem_stream_close(stream);
    close_bench(&bench);
}

static void cursors_grow_with_tokens_and_bytes(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {fake_accepted("id", 1), fake_output(0, 0, tokens, 2, "Gr"),
                                      fake_output(2, 2, tokens + 2, 1, "\xc3\xbc\xc3\x9f"),
                                      fake_output(3, 6, tokens + 3, 1, ""),
                                      fake_finish(4, 6, FINISH_REASON_STOP)};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 1000);
    struct tandem_stream *stream = submit(&bench);
    next_text(&bench, stream, "Gr", 2);
    next_text(&bench, stream, "\xc3\xbc\xc3\x9f", 1);
    next_text(&bench, stream, "", 1); /* a token that completes nothing */
    struct tandem_output output;
    assert_int_equal(tandem_next(stream, 1000, 1, &output, &bench.error), TANDEM_OK);
    assert_true(output.finished);
    assert_string_equal(output.finish.reason, "stop");
    assert_int_equal(output.finish.completion_tokens, 4);
    const uint64_t expected[][2] = {{0, 0}, {2, 2}, {3, 6}, {4, 6}};
    assert_int_equal(bench.fake.seen_count, 5);
    for (size_t i = 0; i < 4; i++) {
        const struct client_request *question = &bench.fake.seen[i + 1];
        assert_int_equal(question->type, CLIENT_NEXT);
        assert_int_equal(question->next.from_token, expected[i][0]);
        assert_int_equal(question->next.from_byte, expected[i][1]);
        assert_int_equal(question->next.max_wait_ms, 1000);
        assert_int_equal(question->next.hold_tokens, 1);
    }
    uint64_t from_token = 0;
    uint64_t from_byte = 0;
    tandem_stream_cursors(stream, &from_token, &from_byte);
    assert_int_equal(from_token, 4);
    assert_int_equal(from_byte, 6);
    tandem_stream_close(stream);
    close_bench(&bench);
}

static void tokens_and_text_are_those_of_the_news(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {fake_output(0, 0, tokens, 3, "abc"),
                                      fake_output(3, 3, tokens + 3, 1, "\xff")};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 1000);
    struct tandem_stream *stream = NULL;
    struct tandem_output output;
    assert_int_equal(tandem_resume(bench.tandem, "id", 0, 0, &stream, &bench.error), TANDEM_OK);
    assert_int_equal(tandem_next(stream, 0, 1, &output, &bench.error), TANDEM_OK);
    assert_memory_equal(output.tokens, tokens, 3 * sizeof tokens[0]);
    assert_int_equal(output.state, TANDEM_RUNNING);
    assert_int_equal(output.prompt_tokens_done, 3);
    assert_true(output.worker_ready);
    assert_false(output.finished);
    assert_int_equal(tandem_next(stream, 0, 1, &output, &bench.error), TANDEM_OK);
    assert_int_equal(output.tokens[0], 14);
    assert_memory_equal(output.text, "\xff", 1); /* bytes that are no UTF-8 arrive as they are */
    tandem_stream_close(stream);
    close_bench(&bench);
}

static void a_finished_stream_asks_no_more(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {fake_finish(5, 9, FINISH_REASON_LENGTH)};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 1000);
    struct tandem_stream *stream = NULL;
    struct tandem_output output;
    assert_int_equal(tandem_resume(bench.tandem, "id", 5, 9, &stream, &bench.error), TANDEM_OK);
    for (int i = 0; i < 3; i++) {
        assert_int_equal(tandem_next(stream, 1000, 1, &output, &bench.error), TANDEM_OK);
        assert_true(output.finished);
        assert_int_equal(output.state, TANDEM_FINISHED);
        assert_int_equal(output.text_bytes, 0);
        assert_string_equal(output.finish.reason, "length");
    }
    assert_int_equal(bench.fake.seen_count, 1);
    assert_int_equal(bench.fake.seen[0].next.from_token, 5);
    assert_int_equal(bench.fake.seen[0].next.from_byte, 9);
    tandem_stream_close(stream);
    close_bench(&bench);
}

static void a_stream_survives_a_cut(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {fake_accepted("id", 1),
                                      fake_output(0, 0, tokens, 2, "ab"),
                                      {.action = FAKE_CUT},
                                      {.action = FAKE_CUT},
                                      fake_output(2, 2, tokens + 2, 1, "c")};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 3000);
    struct tandem_stream *stream = submit(&bench);
    next_text(&bench, stream, "ab", 2);
    next_text(&bench, stream, "c", 1);
    assert_int_equal(bench.fake.seen_count, 5);
    for (size_t i = 2; i < 5; i++) {
        assert_int_equal(bench.fake.seen[i].next.from_token, 2);
        assert_int_equal(bench.fake.seen[i].next.from_byte, 2);
    }
    tandem_stream_close(stream);
    close_bench(&bench);
}

static void a_stream_survives_another_process_on_the_socket(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step before[] = {fake_accepted("id", 1), fake_output(0, 0, tokens, 1, "a")};
    const struct fake_step after[] = {fake_output(1, 1, tokens + 1, 1, "b")};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, before);
    open_bench(&bench, 5000);
    struct tandem_stream *stream = submit(&bench);
    next_text(&bench, stream, "a", 1);
    fake_stop(&bench.fake);
    FAKE_START(&bench.fake, after);
    next_text(&bench, stream, "b", 1);
    tandem_stream_close(stream);
    close_bench(&bench);
}

static void news_that_do_not_fit_the_cursors_are_refused(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {fake_output(1, 0, tokens, 1, "a"),
                                      fake_output(0, 3, tokens, 1, "a"),
                                      fake_output(0, 0, tokens, 1, "a")};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 1000);
    struct tandem_stream *stream = NULL;
    struct tandem_output output;
    assert_int_equal(tandem_resume(bench.tandem, "id", 0, 0, &stream, &bench.error), TANDEM_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(tandem_next(stream, 0, 1, &output, &bench.error), TANDEM_BAD_REPLY);
        assert_string_equal(bench.error.code, "bad_reply");
    }
    next_text(&bench, stream, "a", 1); /* an error moves nothing */
    tandem_stream_close(stream);
    close_bench(&bench);
}

static void a_restarted_coordinator_is_told_from_a_typo(void **state)
{
    (void)state;
    struct bench bench;
    struct fake_step unknown = fake_error(ERROR_CODE_NOT_FOUND, "no such request");
    unknown.answer.error.has_instance = true;
    unknown.answer.error.instance = (struct id128){{0x22}};
    const struct fake_step steps[] = {fake_accepted("id", 1), unknown};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 1000);
    struct tandem_output output;
    struct tandem_stream *stream = submit(&bench);
    assert_int_equal(tandem_next(stream, 0, 1, &output, &bench.error), TANDEM_REFUSED);
    assert_string_equal(bench.error.code, "not_found");
    assert_non_null(strstr(bench.error.message, "restarted"));
    tandem_stream_close(stream);

    assert_int_equal(tandem_resume(bench.tandem, "typo", 0, 0, &stream, &bench.error), TANDEM_OK);
    assert_int_equal(tandem_next(stream, 0, 1, &output, &bench.error), TANDEM_REFUSED);
    assert_string_equal(bench.error.message, "no such request");
    assert_string_equal(bench.error.instance, "22000000000000000000000000000000");
    tandem_stream_close(stream);
    close_bench(&bench);
}

struct collected {
    char text[64];
    size_t length;
    size_t calls;
    size_t cancel_at; /* the call that wants no more; 0 = never */
};

static bool collect(void *context, const struct tandem_output *output)
{
    struct collected *collected = context;
    memcpy(collected->text + collected->length, output->text, output->text_bytes);
    collected->length += output->text_bytes;
    return ++collected->calls != collected->cancel_at;
}

static void generate_collects_the_whole(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {fake_accepted("id", 1), fake_output(0, 0, tokens, 2, "ab"),
                                      fake_output(2, 2, tokens + 2, 1, "c"),
                                      fake_finish(3, 3, FINISH_REASON_STOP)};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 1000);
    struct collected collected = {.length = 0};
    struct tandem_finish finish;
    const struct tandem_request request = {.prompt = "once"};
    assert_int_equal(
        tandem_generate(bench.tandem, &request, collect, &collected, &finish, &bench.error),
        TANDEM_OK);
    assert_int_equal(collected.length, 3);
    assert_memory_equal(collected.text, "abc", 3);
    assert_string_equal(finish.reason, "stop");
    assert_false(finish.failed);
    assert_int_equal(bench.fake.seen[0].submit.id.length, 32); /* drawn */
    close_bench(&bench);
}

static void generate_cancels_when_the_callback_says_so(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {fake_accepted("id", 1), fake_output(0, 0, tokens, 1, "a"),
                                      fake_finish(1, 1, FINISH_REASON_CANCELLED),
                                      fake_finish(1, 1, FINISH_REASON_CANCELLED)};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 1000);
    struct collected collected = {.cancel_at = 1};
    struct tandem_finish finish;
    const struct tandem_request request = {.id = "mine", .prompt = "once"};
    assert_int_equal(
        tandem_generate(bench.tandem, &request, collect, &collected, &finish, &bench.error),
        TANDEM_OK);
    assert_string_equal(finish.reason, "cancelled");
    assert_int_equal(collected.calls, 1); /* what came after is not shown */
    assert_int_equal(bench.fake.seen[2].type, CLIENT_CANCEL);
    assert_memory_equal(bench.fake.seen[2].cancel.id.bytes, "mine", 4);
    close_bench(&bench);
}

static void generate_reports_a_request_that_failed(void **state)
{
    (void)state;
    struct bench bench;
    struct fake_step failed = fake_finish(0, 0, FINISH_REASON_ERROR);
    failed.answer.output.finish.has_error = true;
    failed.answer.output.finish.error.code = ERROR_CODE_DEADLINE_EXCEEDED;
    failed.answer.output.finish.error.message = fake_text("too late");
    const struct fake_step steps[] = {fake_accepted("id", 1), failed};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 1000);
    struct tandem_finish finish = {.total_ns = 0};
    const struct tandem_request request = {.prompt = "once"};
    assert_int_equal(tandem_generate(bench.tandem, &request, NULL, NULL, &finish, &bench.error),
                     TANDEM_REFUSED);
    assert_string_equal(bench.error.code, "deadline_exceeded");
    assert_string_equal(bench.error.message, "too late");
    assert_true(finish.failed);
    assert_int_equal(finish.total_ns, 5000);
    close_bench(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(acceptance_is_handed_out),
        cmocka_unit_test(cursors_grow_with_tokens_and_bytes),
        cmocka_unit_test(tokens_and_text_are_those_of_the_news),
        cmocka_unit_test(a_finished_stream_asks_no_more),
        cmocka_unit_test(a_stream_survives_a_cut),
        cmocka_unit_test(a_stream_survives_another_process_on_the_socket),
        cmocka_unit_test(news_that_do_not_fit_the_cursors_are_refused),
        cmocka_unit_test(a_restarted_coordinator_is_told_from_a_typo),
        cmocka_unit_test(generate_collects_the_whole),
        cmocka_unit_test(generate_cancels_when_the_callback_says_so),
        cmocka_unit_test(generate_reports_a_request_that_failed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
