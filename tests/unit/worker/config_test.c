/* Options of the worker. */
#include "worker/config.h"

#include "common/geometry.h"
#include "kernels/backend.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

static enum status read_options(struct worker_config *config, const char *word)
{
    struct options_result result;
    struct reason why;
    char *argv[] = {(char *)(uintptr_t) "x", (char *)(uintptr_t)word, NULL};
    struct options_input input = {.program = &worker_options,
                                  .argc = word != NULL ? 2 : 1,
                                  .argv = argv,
                                  .config = config,
                                  .config_bytes = sizeof *config};
    return options_read(&input, &result, reason_init(&why));
}

static void the_defaults_fit_the_coordinators(void **state)
{
    (void)state;
    struct worker_config config;
    assert_int_equal(read_options(&config, NULL), STATUS_OK);
    assert_int_equal(config.kv_pool_bytes, UINT64_C(2) << 30);
    assert_int_equal(config.kv_type, KV_TYPE_F16);
    assert_int_equal(config.slots, 64);
    assert_int_equal(config.block_tokens, 16);
    assert_int_equal(config.step_tokens, 512);
    assert_int_equal(config.backend, BACKEND_AUTO);
    assert_int_equal(config.cpu_isa, CPU_ISA_AUTO);
    assert_false(config.debug_logits_hash);
}

static void names_become_what_the_backend_knows(void **state)
{
    (void)state;
    struct worker_config config;
    assert_int_equal(read_options(&config, "--cpu-isa=plain"), STATUS_OK);
    assert_int_equal(config.cpu_isa, CPU_ISA_PLAIN);
    assert_int_equal(read_options(&config, "--backend=cpu"), STATUS_OK);
    assert_int_equal(config.backend, BACKEND_CPU);
    assert_int_equal(read_options(&config, "--debug-logits-hash"), STATUS_OK);
    assert_true(config.debug_logits_hash);
    assert_int_equal(read_options(&config, "--backend=gpu"), STATUS_INVALID);
}

static void a_model_is_needed(void **state)
{
    (void)state;
    struct worker_config config;
    struct reason why;
    assert_int_equal(read_options(&config, NULL), STATUS_OK);
    assert_int_equal(worker_config_check(&config, reason_init(&why)), STATUS_INVALID);
    assert_non_null(strstr(why.storage, "--model"));
    assert_int_equal(read_options(&config, "--model=x.gguf"), STATUS_OK);
    assert_int_equal(worker_config_check(&config, reason_init(&why)), STATUS_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_defaults_fit_the_coordinators),
        cmocka_unit_test(names_become_what_the_backend_knows),
        cmocka_unit_test(a_model_is_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
