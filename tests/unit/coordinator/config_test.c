/* Options of the coordinator that depend on each other, and the users that may attach a worker. */
#include "coordinator/config.h"

#include "common/geometry.h"
#include "proto/limits.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

static struct coordinator_config defaults(void)
{
    struct coordinator_config config;
    struct options_result result;
    struct reason why;
    char *argv[] = {(char *)(uintptr_t) "x", NULL};
    struct options_input input = {.program = &coordinator_options,
                                  .argc = 1,
                                  .argv = argv,
                                  .config = &config,
                                  .config_bytes = sizeof config};
    assert_int_equal(options_read(&input, &result, reason_init(&why)), STATUS_OK);
    snprintf(config.model, sizeof config.model, "model.gguf");
    return config;
}

static void the_defaults_are_those_of_the_documents(void **state)
{
    (void)state;
    struct coordinator_config config = defaults();
    assert_int_equal(config.kv_pool_bytes, UINT64_C(2) << 30);
    assert_int_equal(config.slots, 64);
    assert_int_equal(config.context, 0);
    assert_int_equal(config.block_tokens, 16);
    assert_int_equal(config.step_tokens, 512);
    assert_int_equal(config.queue_requests, 10000);
    assert_int_equal(config.queue_bytes, UINT64_C(256) << 20);
    assert_int_equal(config.prompt_bytes, 1 << 20);
    assert_int_equal(config.kept_requests, 10000);
    assert_int_equal(config.kept_ms, 120000);
    assert_int_equal(config.orphan_ms, 30000);
    assert_int_equal(config.drain_timeout_ms, 30000);
}

/* S7: with two slots the article's system could use a sixteenth of its pool; here the default has
 * enough of them to fill it: 32 sequences of 2,048 tokens. */
static void s7_the_default_slots_can_fill_the_default_pool(void **state)
{
    (void)state;
    const struct kv_geometry article = {.layers = 16,
                                        .kv_heads = 8,
                                        .head_dim = 64,
                                        .block_tokens = 16,
                                        .type = KV_TYPE_F16,
                                        .order = KV_ORDER_CPU};
    struct coordinator_config config = defaults();
    uint64_t positions =
        kv_pool_positions(&article, kv_pool_blocks(&article, config.kv_pool_bytes));
    assert_true(config.slots * UINT64_C(2048) >= positions);
}

static void options_that_do_not_go_together_are_refused(void **state)
{
    (void)state;
    struct worker_users users;
    struct reason why;
    struct coordinator_config config = defaults();
    config.model[0] = '\0';
    assert_int_equal(coordinator_config_check(&config, &users, reason_init(&why)), STATUS_INVALID);
    assert_non_null(strstr(why.storage, "--model"));
    config = defaults();
    config.block_tokens = 20;
    assert_int_equal(coordinator_config_check(&config, &users, reason_init(&why)), STATUS_INVALID);
    assert_non_null(strstr(why.storage, "--block-tokens"));
    config = defaults();
    config.prefill_chunk = config.step_tokens + 1;
    assert_int_equal(coordinator_config_check(&config, &users, reason_init(&why)), STATUS_INVALID);
    assert_non_null(strstr(why.storage, "--prefill-chunk"));
    config.prefill_chunk = config.step_tokens;
    assert_int_equal(coordinator_config_check(&config, &users, reason_init(&why)), STATUS_OK);
}

static void workers_are_our_own_user_or_those_that_are_named(void **state)
{
    (void)state;
    struct worker_users users;
    struct reason why;
    struct coordinator_config config = defaults();
    assert_int_equal(coordinator_config_check(&config, &users, reason_init(&why)), STATUS_OK);
    assert_int_equal(users.count, 1);
    assert_int_equal(users.uids[0], geteuid());
    snprintf(config.worker_user, sizeof config.worker_user, "%s", "root,4711, daemon");
    assert_int_equal(coordinator_config_check(&config, &users, reason_init(&why)), STATUS_OK);
    assert_int_equal(users.count, 3);
    assert_int_equal(users.uids[0], 0);
    assert_int_equal(users.uids[1], 4711);
    assert_int_equal(users.uids[2], 1);
}

static void users_that_do_not_exist_are_refused(void **state)
{
    (void)state;
    static const char *const lists[] = {"nobody-of-that-name", "root,4294967295", "12x",
                                        "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16"};
    for (size_t i = 0; i < sizeof lists / sizeof lists[0]; i++) {
        struct worker_users users;
        struct reason why;
        struct coordinator_config config = defaults();
        snprintf(config.worker_user, sizeof config.worker_user, "%s", lists[i]);
        assert_int_equal(coordinator_config_check(&config, &users, reason_init(&why)),
                         STATUS_INVALID);
        assert_non_null(strstr(why.storage, "--worker-user"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults_are_those_of_the_documents),
        cmocka_unit_test(s7_the_default_slots_can_fill_the_default_pool),
        cmocka_unit_test(options_that_do_not_go_together_are_refused),
        cmocka_unit_test(workers_are_our_own_user_or_those_that_are_named),
        cmocka_unit_test(users_that_do_not_exist_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
