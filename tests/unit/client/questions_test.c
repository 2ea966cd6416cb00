/* What is asked and answered once: each answer arrives whole in the structs of the public header.
 */
#include "client/tandem.h"

#include "support/fake_coordinator.h"

#include <setjmp.h>
#include <stdarg.h>

#include <cmocka.h>

struct bench {
    struct fake fake;
    struct tandem *tandem;
    struct tandem_error error;
    struct fake_step step; /* the one answer */
};

static void open_bench(struct bench *bench, struct client_answer answer)
{
    fake_make_directory(&bench->fake);
    const struct tandem_settings settings = {.run_dir = bench->fake.directory, .patience_ms = 1000};
    bench->step = fake_step_of(answer);
    fake_listen(&bench->fake, &bench->step, 1);
    assert_int_equal(tandem_open(&settings, &bench->tandem, &bench->error), TANDEM_OK);
}

static void close_bench(struct bench *bench)
{
    tandem_close(bench->tandem);
    fake_stop(&bench->fake);
    fake_remove_directory(&bench->fake);
}

static void status_arrives_whole(void **state)
{
    (void)state;
    struct bench bench;
    struct client_answer answer = {.type = CLIENT_ANSWER_STATUS};
    answer.status = (struct client_status_answer){.id = fake_text("id"),
                                                  .sequence = 1,
                                                  .seed = 2,
                                                  .state = REQUEST_STATE_FINISHED,
                                                  .queue_position = 3,
                                                  .prompt_tokens = 4,
                                                  .prompt_tokens_done = 5,
                                                  .completion_tokens = 6,
                                                  .text_bytes = 7,
                                                  .preemptions = 8,
                                                  .age_ms = 9,
                                                  .worker_ready = true,
                                                  .has_finish = true};
    answer.status.finish.reason = FINISH_REASON_STOP;
    open_bench(&bench, answer);
    struct tandem_status status;
    assert_int_equal(tandem_status(bench.tandem, "id", &status, &bench.error), TANDEM_OK);
    assert_int_equal(status.sequence, 1);
    assert_int_equal(status.seed, 2);
    assert_int_equal(status.state, TANDEM_FINISHED);
    assert_int_equal(status.queue_position, 3);
    assert_int_equal(status.prompt_tokens, 4);
    assert_int_equal(status.prompt_tokens_done, 5);
    assert_int_equal(status.completion_tokens, 6);
    assert_int_equal(status.text_bytes, 7);
    assert_int_equal(status.preemptions, 8);
    assert_int_equal(status.age_ms, 9);
    assert_true(status.worker_ready);
    assert_string_equal(status.finish.reason, "stop");
    assert_int_equal(tandem_status(bench.tandem, "", &status, &bench.error), TANDEM_INVALID);
    assert_int_equal(bench.fake.seen_count, 1);
    close_bench(&bench);
}

static void reasons_of_health_are_joined(void **state)
{
    (void)state;
    struct bench bench;
    struct client_answer answer = {.type = CLIENT_ANSWER_HEALTH};
    answer.health.live = true;
    answer.health.draining = true;
    answer.health.reasons.count = 2;
    answer.health.reasons.items[0] = fake_text("no_worker");
    answer.health.reasons.items[1] = fake_text("draining");
    answer.health.instance = (struct id128){{0xab}};
    answer.health.epoch = 4;
    answer.health.uptime_ms = 5;
    open_bench(&bench, answer);
    struct tandem_health health;
    assert_int_equal(tandem_health(bench.tandem, &health, &bench.error), TANDEM_OK);
    assert_true(health.live && !health.ready && health.draining);
    assert_string_equal(health.reasons, "no_worker, draining");
    assert_string_equal(health.instance, "ab000000000000000000000000000000");
    assert_int_equal(health.epoch, 4);
    assert_int_equal(health.uptime_ms, 5);
    close_bench(&bench);
}

static void the_longest_reasons_fit(void **state)
{
    (void)state;
    struct bench bench;
    static char word[LIMIT_STOP_BYTES];
    memset(word, 'x', sizeof word);
    struct client_answer answer = {.type = CLIENT_ANSWER_HEALTH};
    answer.health.reasons.count = LIMIT_STOP_STRINGS;
    for (uint32_t i = 0; i < LIMIT_STOP_STRINGS; i++)
        answer.health.reasons.items[i] = (struct wire_text){word, sizeof word};
    open_bench(&bench, answer);
    struct tandem_health health;
    assert_int_equal(tandem_health(bench.tandem, &health, &bench.error), TANDEM_OK);
    assert_int_equal(strlen(health.reasons), LIMIT_STOP_STRINGS * (LIMIT_STOP_BYTES + 2) - 2);
    close_bench(&bench);
}

static void figures_carry_their_names(void **state)
{
    (void)state;
    struct bench bench;
    struct client_answer answer = {.type = CLIENT_ANSWER_STATS};
    answer.stats.uptime_ms = 12;
    answer.stats.blocks_free = UINT64_MAX;
    open_bench(&bench, answer);
    struct tandem_figure *figures = NULL;
    size_t count = 0;
    assert_int_equal(tandem_stats(bench.tandem, &figures, &count, &bench.error), TANDEM_OK);
    assert_int_equal(count, client_stats_answer_table.field_count - 1); /* all but the instance */
    assert_string_equal(figures[0].name, "uptime_ms");
    assert_int_equal(figures[0].value, 12);
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        if (strcmp(figures[i].name, "blocks_free") == 0 && figures[i].value == UINT64_MAX)
            found++;
    }
    assert_int_equal(found, 1);
    tandem_free(figures);
    close_bench(&bench);
}

static void models_carry_the_limits(void **state)
{
    (void)state;
    struct bench bench;
    const struct client_model served[2] = {{.name = fake_text("small"),
                                            .architecture = fake_text("llama"),
                                            .metadata_hash = {{1}},
                                            .context = 2048,
                                            .vocabulary = 49152,
                                            .chat_template = true,
                                            .arithmetic = fake_text("cpu-2-f16")},
                                           {.name = fake_text("other"), .ids_only = true}};
    struct client_answer answer = {.type = CLIENT_ANSWER_MODELS};
    answer.models.models = (struct wire_list){.items = served, .count = 2};
    answer.models.slots = 64;
    answer.models.pool_tokens = 1000;
    answer.models.prompt_bytes_max = 1 << 20;
    answer.models.queue_requests_max = 10000;
    answer.models.kept_ms = 120000;
    open_bench(&bench, answer);
    struct tandem_model *models = NULL;
    size_t count = 0;
    assert_int_equal(tandem_models(bench.tandem, &models, &count, &bench.error), TANDEM_OK);
    assert_int_equal(count, 2);
    assert_string_equal(models[0].name, "small");
    assert_string_equal(models[0].architecture, "llama");
    assert_string_equal(models[0].arithmetic, "cpu-2-f16");
    assert_string_equal(models[0].hash, "01000000000000000000000000000000");
    assert_int_equal(models[0].context, 2048);
    assert_int_equal(models[0].vocabulary, 49152);
    assert_true(models[0].chat_template);
    assert_int_equal(models[1].slots, 64);
    assert_int_equal(models[1].pool_tokens, 1000);
    assert_int_equal(models[1].prompt_bytes_max, 1 << 20);
    assert_int_equal(models[1].queue_requests_max, 10000);
    assert_int_equal(models[1].kept_ms, 120000);
    assert_string_equal(models[1].name, "other");
    assert_false(models[0].ids_only);
    assert_true(models[1].ids_only);
    tandem_free(models);
    close_bench(&bench);
}

static void ids_and_bytes_arrive(void **state)
{
    (void)state;
    struct bench bench;
    static const uint32_t ids[] = {1, 70000, 3};
    struct client_answer answer = {.type = CLIENT_ANSWER_TOKENS};
    answer.tokens.ids = wire_tokens_of(ids, 3);
    open_bench(&bench, answer);
    uint32_t *out_ids = NULL;
    size_t count = 0;
    const struct tandem_request text = {.prompt = "gr\xc3\xbc\xc3\x9f"};
    assert_int_equal(tandem_tokenize(bench.tandem, &text, &out_ids, &count, &bench.error),
                     TANDEM_OK);
    assert_int_equal(count, 3);
    assert_memory_equal(out_ids, ids, sizeof ids);
    assert_int_equal(bench.fake.seen[0].tokenize.prompt.length, 6);
    tandem_free(out_ids);
    close_bench(&bench);

    answer = (struct client_answer){.type = CLIENT_ANSWER_TEXT};
    answer.text.text = (struct wire_text){"a\0\xff", 3};
    open_bench(&bench, answer);
    char *bytes = NULL;
    assert_int_equal(tandem_detokenize(bench.tandem, ids, 3, &bytes, &count, &bench.error),
                     TANDEM_OK);
    assert_int_equal(count, 3);
    assert_memory_equal(bytes, "a\0\xff", 4); /* a NUL stands behind */
    uint32_t sent[3];
    assert_int_equal(wire_tokens_copy(&bench.fake.seen[0].detokenize.ids, sent, 3), 3);
    assert_memory_equal(sent, ids, sizeof ids);
    tandem_free(bytes);
    assert_int_equal(tandem_detokenize(bench.tandem, ids, SIZE_MAX, &bytes, &count, &bench.error),
                     TANDEM_TOO_LARGE);
    close_bench(&bench);
}

static void cancel_names_the_request(void **state)
{
    (void)state;
    struct bench bench;
    open_bench(&bench, fake_finish(2, 2, FINISH_REASON_CANCELLED).answer);
    assert_int_equal(tandem_cancel(bench.tandem, "mine", &bench.error), TANDEM_OK);
    assert_int_equal(bench.fake.seen[0].type, CLIENT_CANCEL);
    assert_memory_equal(bench.fake.seen[0].cancel.id.bytes, "mine", 4);
    assert_int_equal(tandem_cancel(bench.tandem, NULL, &bench.error), TANDEM_INVALID);
    close_bench(&bench);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(status_arrives_whole),     cmocka_unit_test(reasons_of_health_are_joined),
        cmocka_unit_test(the_longest_reasons_fit),  cmocka_unit_test(figures_carry_their_names),
        cmocka_unit_test(models_carry_the_limits),  cmocka_unit_test(ids_and_bytes_arrive),
        cmocka_unit_test(cancel_names_the_request),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
