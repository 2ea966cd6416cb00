/* Repetition, time-outs, the frame limit, errors of the coordinator, answers that are wrong. */
#include "client/exchange.h"

#include "common/clock.h"
#include "support/fake_coordinator.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

static const struct client_request health = {.type = CLIENT_HEALTH};

struct retries {
    size_t count;
    char last[128];
};

static void count_retry(void *context, const char *why)
{
    struct retries *retries = context;
    retries->count++;
    (void)snprintf(retries->last, sizeof retries->last, "%s", why);
}

struct bench {
    struct fake fake;
    struct tandem *tandem;
    struct tandem_error error;
    struct retries retries;
};

static void open_bench(struct bench *bench, uint32_t patience_ms)
{
    const struct tandem_settings settings = {.run_dir = bench->fake.directory,
                                             .patience_ms = patience_ms,
                                             .on_retry = count_retry,
                                             .context = &bench->retries};
    memset(&bench->retries, 0, sizeof bench->retries);
    assert_int_equal(tandem_open(&settings, &bench->tandem, &bench->error), TANDEM_OK);
}

static void close_bench(struct bench *bench)
{
    tandem_close(bench->tandem);
    fake_stop(&bench->fake);
    fake_remove_directory(&bench->fake);
}

static struct fake_step healthy(void)
{
    struct client_answer answer = {.type = CLIENT_ANSWER_HEALTH};
    answer.health.live = true;
    answer.health.ready = true;
    return fake_step_of(answer);
}

static enum tandem_result ask(struct bench *bench, const struct client_request *question,
                              enum client_answer_type expected)
{
    struct answer answer = {.frame = NULL};
    enum tandem_result result = exchange(bench->tandem, question, expected, &answer, &bench->error);
    if (result == TANDEM_OK)
        answer_free(&answer);
    assert_null(answer.frame);
    return result;
}

static void a_silent_coordinator_is_asked_again(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {{.action = FAKE_SILENCE}, healthy()};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 600);
    assert_int_equal(ask(&bench, &health, CLIENT_ANSWER_HEALTH), TANDEM_OK);
    assert_int_equal(bench.fake.seen_count, 2);
    assert_int_equal(bench.retries.count, 1);
    assert_non_null(strstr(bench.retries.last, "silent"));
    close_bench(&bench);
}

static void silence_ends_in_a_time_out(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {{.action = FAKE_SILENCE}};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 300);
    const uint64_t start_ns = clock_now_ns();
    assert_int_equal(ask(&bench, &health, CLIENT_ANSWER_HEALTH), TANDEM_TIMEOUT);
    const uint64_t took_ms = (clock_now_ns() - start_ns) / NS_PER_MS;
    assert_in_range(took_ms, 290, 1500);
    assert_string_equal(bench.error.code, "timeout");
    assert_in_range(bench.fake.seen_count, 2, 4);
    close_bench(&bench);
}

static void a_cut_question_is_repeated_as_it_was(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {{.action = FAKE_CUT}, fake_accepted("x", 1)};
    struct client_request submit = {.type = CLIENT_SUBMIT};
    submit.submit.id = wire_text_of("x");
    submit.submit.has_prompt = true;
    submit.submit.prompt = wire_text_of("once");
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 3000);
    assert_int_equal(ask(&bench, &submit, CLIENT_ANSWER_ACCEPTED), TANDEM_OK);
    assert_int_equal(bench.fake.seen_count, 2);
    assert_int_equal(nng_msg_len(bench.fake.frames[0]), nng_msg_len(bench.fake.frames[1]));
    assert_memory_equal(nng_msg_body(bench.fake.frames[0]), nng_msg_body(bench.fake.frames[1]),
                        nng_msg_len(bench.fake.frames[0]));
    assert_non_null(strstr(bench.retries.last, "cut"));
    close_bench(&bench);
}

static void a_repeated_poll_waits_no_longer_than_what_is_left(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {{.action = FAKE_SILENCE}};
    struct client_request next = {.type = CLIENT_NEXT};
    next.next.id = wire_text_of("x");
    next.next.max_wait_ms = 200;
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 300);
    const uint64_t start_ns = clock_now_ns();
    assert_int_equal(ask(&bench, &next, CLIENT_ANSWER_OUTPUT), TANDEM_TIMEOUT);
    assert_in_range((clock_now_ns() - start_ns) / NS_PER_MS, 490, 1500);
    assert_int_equal(bench.fake.seen[0].next.max_wait_ms, 200);
    assert_true(bench.fake.seen_count >= 2);
    assert_true(bench.fake.seen[bench.fake.seen_count - 1].next.max_wait_ms < 200);
    close_bench(&bench);
}

static void a_coordinator_that_stays_away_is_unavailable(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {healthy()};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 200);
    fake_stop(&bench.fake);
    struct client_request next = {.type = CLIENT_NEXT};
    next.next.id = wire_text_of("x");
    next.next.max_wait_ms = LIMIT_WAIT_MS; /* does not lengthen the search for a coordinator */
    const uint64_t start_ns = clock_now_ns();
    assert_int_equal(ask(&bench, &next, CLIENT_ANSWER_OUTPUT), TANDEM_UNAVAILABLE);
    assert_in_range((clock_now_ns() - start_ns) / NS_PER_MS, 190, 1500);
    assert_string_equal(bench.error.code, "unavailable");
    assert_non_null(strstr(bench.error.message, bench.fake.directory));
    tandem_close(bench.tandem);
    fake_remove_directory(&bench.fake);
}

static void a_frame_above_the_limit_is_not_sent(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {healthy()};
    char *text = malloc(LIMIT_CLIENT_FRAME_BYTES);
    assert_non_null(text);
    memset(text, 'x', LIMIT_CLIENT_FRAME_BYTES);
    struct client_request submit = {.type = CLIENT_SUBMIT};
    submit.submit.id = wire_text_of("x");
    submit.submit.has_prompt = true;
    submit.submit.prompt = (struct wire_text){text, LIMIT_CLIENT_FRAME_BYTES};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 500);
    assert_int_equal(ask(&bench, &submit, CLIENT_ANSWER_ACCEPTED), TANDEM_TOO_LARGE);
    assert_string_equal(bench.error.code, "too_large");
    assert_true(bench.error.has_limit);
    assert_true(bench.error.limit == LIMIT_CLIENT_FRAME_BYTES);
    assert_int_equal(bench.fake.seen_count, 0);
    assert_int_equal(ask(&bench, &health, CLIENT_ANSWER_HEALTH), TANDEM_OK); /* still connected */
    close_bench(&bench);
    free(text);
}

static void words_of_the_coordinator_are_kept(void **state)
{
    (void)state;
    struct bench bench;
    struct fake_step refusal = fake_error(ERROR_CODE_OVERLOADED, "the queue is full");
    struct client_error *error = &refusal.answer.error;
    error->has_field = true;
    error->field = fake_text("queue");
    error->has_limit = true;
    error->limit = 10000;
    error->has_retry_after_ms = true;
    error->retry_after_ms = 250;
    const struct fake_step steps[] = {refusal};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 500);
    assert_int_equal(ask(&bench, &health, CLIENT_ANSWER_HEALTH), TANDEM_REFUSED);
    assert_string_equal(bench.error.code, "overloaded");
    assert_string_equal(bench.error.field, "queue");
    assert_string_equal(bench.error.message, "the queue is full");
    assert_true(bench.error.has_limit && bench.error.limit == 10000);
    assert_int_equal(bench.error.retry_after_ms, 250);
    assert_string_equal(bench.error.instance, "");
    assert_int_equal(bench.retries.count, 0); /* a refusal is an answer */
    close_bench(&bench);
}

static void answers_that_are_wrong_are_named(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {healthy(),
                                      {.action = FAKE_BYTES, .bytes = "\xc1", .length = 1}};
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 500);
    assert_int_equal(ask(&bench, &health, CLIENT_ANSWER_STATS), TANDEM_BAD_REPLY);
    assert_non_null(strstr(bench.error.message, "type"));
    assert_int_equal(ask(&bench, &health, CLIENT_ANSWER_HEALTH), TANDEM_BAD_REPLY);
    assert_non_null(strstr(bench.error.message, "cannot be read"));
    close_bench(&bench);
}

enum { THREADS = 4, ROUNDS = 40 };

static void *ask_often(void *context)
{
    for (int i = 0; i < ROUNDS; i++) {
        struct tandem_health answer;
        if (tandem_health(context, &answer, NULL) != TANDEM_OK || !answer.ready)
            return context;
    }
    return NULL;
}

static void threads_share_a_connection(void **state)
{
    (void)state;
    struct bench bench;
    const struct fake_step steps[] = {healthy()};
    pthread_t threads[THREADS];
    fake_make_directory(&bench.fake);
    FAKE_START(&bench.fake, steps);
    open_bench(&bench, 2000);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, ask_often, bench.tandem), 0);
    for (int i = 0; i < THREADS; i++) {
        void *failed = NULL;
        assert_int_equal(pthread_join(threads[i], &failed), 0);
        assert_null(failed);
    }
    assert_int_equal(bench.fake.seen_count, THREADS * ROUNDS);
    close_bench(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_silent_coordinator_is_asked_again),
        cmocka_unit_test(silence_ends_in_a_time_out),
        cmocka_unit_test(a_cut_question_is_repeated_as_it_was),
        cmocka_unit_test(a_repeated_poll_waits_no_longer_than_what_is_left),
        cmocka_unit_test(a_coordinator_that_stays_away_is_unavailable),
        cmocka_unit_test(a_frame_above_the_limit_is_not_sent),
        cmocka_unit_test(words_of_the_coordinator_are_kept),
        cmocka_unit_test(answers_that_are_wrong_are_named),
        cmocka_unit_test(threads_share_a_connection),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
