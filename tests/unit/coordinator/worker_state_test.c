/* Decisions about workers: who attaches, who waits, who is dead. */
#include "coordinator/worker_state.h"

#include "proto/fingerprint.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <string.h>

#define SECOND UINT64_C(1000000000)

static struct worker_state workers;

static int set_up(void **state)
{
    (void)state;
    const struct worker_limits limits = {
        .metadata_hash = {{1}},
        .extents = {.geometry = {.layers = 4,
                                 .kv_heads = 2,
                                 .head_dim = 8,
                                 .block_tokens = 16,
                                 .type = KV_TYPE_F16},
                    .slots = 8,
                    .context = 128,
                    .vocabulary = 100,
                    .step_tokens = 64,
                    .pool_blocks = 400},
    };
    worker_state_init(&workers, &limits);
    return 0;
}

static struct attach_hello good_hello(void)
{
    return (struct attach_hello){
        .version_min = PROTOCOL_VERSION_MIN,
        .version_max = PROTOCOL_VERSION_MAX + 3,
        .layout = layout_fingerprint(),
        .arithmetic = wire_text_of("cpu-2-f16"),
        .metadata_hash = {{1}},
        .tensor_hash = {{2}},
        .geometry = {4, 2, 8, 16, KV_TYPE_F16, KV_ORDER_CUDA},
        .blocks = 400,
        .slots = 8,
        .context = 128,
        .vocabulary = 100,
        .step_tokens = 64,
    };
}

static struct worker_decision hello(uint64_t connection, const struct attach_hello *packet)
{
    struct worker_decision decision;
    worker_state_hello(&workers, connection, packet, &decision);
    return decision;
}

static void attach(uint64_t connection, uint64_t now_ns)
{
    const struct attach_hello packet = good_hello();
    assert_int_equal(hello(connection, &packet).welcome, WORKER_ATTACH);
    assert_true(worker_state_attached(&workers, workers.epoch, now_ns));
    assert_true(worker_state_ready(&workers, workers.epoch));
}

static void the_first_good_worker_attaches_under_epoch_one(void **state)
{
    (void)state;
    const struct attach_hello packet = good_hello();
    assert_int_equal(hello(7, &packet).welcome, WORKER_ATTACH);
    assert_int_equal(workers.epoch, 1);
    assert_int_equal(workers.active.version, PROTOCOL_VERSION_MAX);
    assert_int_equal(worker_state_extents(&workers).geometry.order, KV_ORDER_CUDA);
    assert_false(worker_state_ready(&workers, 1)); /* not attached yet */
    assert_false(worker_state_attached(&workers, 2, 0));
    assert_true(worker_state_attached(&workers, 1, 0));
    assert_false(worker_state_is_ready(&workers));
    assert_true(worker_state_ready(&workers, 1));
    assert_true(worker_state_is_ready(&workers));
}

static void assert_refused(const struct attach_hello *packet, enum attach_refusal reason,
                           const char *message_part)
{
    struct worker_decision decision = hello(99, packet);
    assert_int_equal(decision.welcome, WORKER_REFUSE);
    assert_int_equal(decision.reason, reason);
    if (strstr(decision.message.storage, message_part) == NULL)
        fail_msg("\"%s\" does not say \"%s\"", decision.message.storage, message_part);
    assert_int_equal(workers.stage, WORKER_NONE);
}

static void each_misfit_is_refused_by_name(void **state)
{
    (void)state;
    struct attach_hello packet = good_hello();
    packet.version_min = PROTOCOL_VERSION_MAX + 1;
    assert_refused(&packet, ATTACH_REFUSAL_VERSION, "protocol 2 to 4");
    packet = good_hello();
    packet.version_min = 0;
    packet.version_max = PROTOCOL_VERSION_MIN - 1;
    assert_refused(&packet, ATTACH_REFUSAL_VERSION, "protocol 0 to 0");
    packet = good_hello();
    packet.layout++;
    assert_refused(&packet, ATTACH_REFUSAL_VERSION, "layout");
    packet = good_hello();
    packet.metadata_hash.bytes[15] = 1;
    assert_refused(&packet, ATTACH_REFUSAL_MODEL, "metadata hash 01000000000000000000000000000001");
    packet = good_hello();
    packet.geometry.layers++;
    assert_refused(&packet, ATTACH_REFUSAL_GEOMETRY, "layers is 5");
    packet = good_hello();
    packet.geometry.kv_heads++;
    assert_refused(&packet, ATTACH_REFUSAL_GEOMETRY, "kv_heads is 3");
    packet = good_hello();
    packet.geometry.head_dim++;
    assert_refused(&packet, ATTACH_REFUSAL_GEOMETRY, "head_dim is 9");
    packet = good_hello();
    packet.geometry.block_tokens++;
    assert_refused(&packet, ATTACH_REFUSAL_GEOMETRY, "block_tokens is 17");
    packet = good_hello();
    packet.geometry.type = KV_TYPE_F32;
    assert_refused(&packet, ATTACH_REFUSAL_GEOMETRY, "kv_type is 2");
    packet = good_hello();
    packet.geometry.order = KV_ORDER_CUDA + 1;
    assert_refused(&packet, ATTACH_REFUSAL_GEOMETRY, "kv_order is 3");
    packet = good_hello();
    packet.vocabulary++;
    assert_refused(&packet, ATTACH_REFUSAL_GEOMETRY, "vocabulary is 101");
    packet = good_hello();
    packet.blocks--;
    assert_refused(&packet, ATTACH_REFUSAL_CAPACITY, "399 blocks");
    packet = good_hello();
    packet.slots--;
    assert_refused(&packet, ATTACH_REFUSAL_CAPACITY, "--slots");
    packet = good_hello();
    packet.context--;
    assert_refused(&packet, ATTACH_REFUSAL_CAPACITY, "--context");
    packet = good_hello();
    packet.step_tokens--;
    assert_refused(&packet, ATTACH_REFUSAL_CAPACITY, "63 step tokens");
}

static void more_than_needed_is_welcome(void **state)
{
    (void)state;
    struct attach_hello packet = good_hello();
    packet.blocks *= 2;
    packet.slots = 1000;
    packet.context = 8192;
    packet.step_tokens = 4096;
    assert_int_equal(hello(1, &packet).welcome, WORKER_ATTACH);
}

static void the_first_worker_pins_arithmetic_and_tensors(void **state)
{
    (void)state;
    attach(1, 0);
    struct attach_hello packet = good_hello();
    packet.arithmetic = wire_text_of("cuda-1-bf16");
    struct worker_decision decision = hello(2, &packet);
    assert_int_equal(decision.reason, ATTACH_REFUSAL_ARITHMETIC);
    assert_non_null(strstr(decision.message.storage, "cuda-1-bf16"));
    assert_non_null(strstr(decision.message.storage, "cpu-2-f16"));
    packet = good_hello();
    packet.tensor_hash.bytes[0]++;
    assert_int_equal(hello(2, &packet).reason, ATTACH_REFUSAL_MODEL);
    worker_state_fenced(&workers); /* pinned for the instance, not for the epoch */
    assert_int_equal(hello(2, &packet).reason, ATTACH_REFUSAL_MODEL);
}

static void four_wait_in_order_and_are_promoted_in_order(void **state)
{
    (void)state;
    attach(1, 0);
    const struct attach_hello packet = good_hello();
    for (uint64_t i = 0; i < LIMIT_STANDBY_WORKERS; i++) {
        struct worker_decision decision = hello(10 + i, &packet);
        assert_int_equal(decision.welcome, WORKER_STAND_BY);
        assert_int_equal(decision.position, i + 1);
    }
    assert_int_equal(hello(50, &packet).reason, ATTACH_REFUSAL_STANDBYS);
    assert_int_equal(hello(10, &packet).reason, ATTACH_REFUSAL_MALFORMED);
    assert_int_equal(hello(1, &packet).reason, ATTACH_REFUSAL_MALFORMED);
    assert_false(worker_state_promote(&workers));  /* one is active */
    assert_false(worker_state_lost(&workers, 11)); /* a standby went away */
    assert_true(worker_state_lost(&workers, 1));
    worker_state_fenced(&workers);
    assert_true(worker_state_promote(&workers));
    assert_int_equal(workers.active.connection, 10);
    assert_int_equal(workers.epoch, 2);
    worker_state_fenced(&workers);
    assert_true(worker_state_promote(&workers));
    assert_int_equal(workers.active.connection, 12);
    assert_int_equal(workers.epoch, 3);
    assert_false(worker_state_lost(&workers, 1)); /* long gone */
}

static void abandoned_epochs_are_bounded(void **state)
{
    (void)state;
    const struct attach_hello packet = good_hello();
    for (uint64_t i = 0; i < LIMIT_ABANDONED_EPOCHS; i++) {
        assert_int_equal(hello(100 + i, &packet).welcome, WORKER_ATTACH);
        worker_state_fenced(&workers);
    }
    assert_int_equal(hello(900, &packet).reason, ATTACH_REFUSAL_ABANDONED);
    worker_state_epoch_gone(&workers, 5);
    worker_state_epoch_gone(&workers, 5); /* once is enough */
    assert_int_equal(workers.abandoned_count, LIMIT_ABANDONED_EPOCHS - 1);
    assert_int_equal(hello(901, &packet).welcome, WORKER_ATTACH);
    assert_int_equal(workers.epoch, LIMIT_ABANDONED_EPOCHS + 1);
}

static enum core_fence_reason look(uint64_t alive_ns, uint64_t layer, uint32_t plans,
                                   uint64_t now_ns)
{
    const struct core_observation observation = {.alive_ns = alive_ns,
                                                 .progress = {.layer = layer}};
    return worker_state_observe(&workers, &observation, plans, now_ns);
}

static void a_silent_word_for_two_seconds_is_death(void **state)
{
    (void)state;
    attach(1, SECOND);
    uint64_t now = 2 * SECOND;
    assert_int_equal(look(1, 0, 0, now), 0);
    for (int i = 1; i < 4; i++)
        assert_int_equal(look(1, 0, 0, now + (uint64_t)i * SECOND / 2), 0);
    assert_int_equal(look(1, 0, 0, now + 2 * SECOND), CORE_FENCE_SILENT);
}

static void a_word_that_moves_is_life(void **state)
{
    (void)state;
    attach(1, SECOND);
    for (uint64_t i = 0; i < 20; i++)
        assert_int_equal(look(i / 3, 0, 0, (2 + i / 2) * SECOND), 0);
}

/* The coordinator itself was stopped for an hour: one look later it must not blame the worker. */
static void a_long_pause_of_ours_is_not_silence_of_theirs(void **state)
{
    (void)state;
    attach(1, SECOND);
    assert_int_equal(look(1, 0, 1, 2 * SECOND), 0);
    assert_int_equal(look(1, 0, 1, 3600 * SECOND), 0);
    assert_int_equal(look(2, 1, 1, 3601 * SECOND), 0);
}

static void an_idle_worker_is_not_hung_a_busy_one_may_be(void **state)
{
    (void)state;
    attach(1, SECOND);
    uint64_t alive = 0, now = 2 * SECOND;
    for (int i = 0; i < 30; i++, now += SECOND / 2)
        assert_int_equal(look(alive++, 3, 0, now), 0);
    worker_state_plan_sent(&workers);
    for (int i = 0; i < 9; i++, now += SECOND / 2)
        assert_int_equal(look(alive++, 3, 1, now), 0);
    assert_int_equal(look(alive, 3, 1, now), CORE_FENCE_HUNG);
}

static void layers_that_move_are_progress(void **state)
{
    (void)state;
    attach(1, SECOND);
    for (uint64_t i = 0; i < 60; i++)
        assert_int_equal(look(i, i / 4, 1, 2 * SECOND + i * SECOND), 0);
}

/* 50 layers' time: a device that takes a second per layer has 50 s. */
static void slow_layers_have_more_time(void **state)
{
    (void)state;
    attach(1, SECOND);
    worker_state_step_done(&workers, 4 * SECOND);
    assert_int_equal(workers.layer_ns_average, SECOND);
    uint64_t now = 2 * SECOND;
    for (uint64_t i = 0; i < 50; i++, now += SECOND)
        assert_int_equal(look(i, 3, 1, now), 0);
    assert_int_equal(look(1000, 3, 1, now), CORE_FENCE_HUNG);
}

static void a_lie_about_duration_does_not_switch_the_watch_off(void **state)
{
    (void)state;
    attach(1, SECOND);
    worker_state_step_done(&workers, UINT64_MAX);
    assert_true(workers.layer_ns_average <= WORKER_STALL_NS_MIN);
}

static void who_never_gets_ready_is_fenced(void **state)
{
    (void)state;
    const struct attach_hello packet = good_hello();
    assert_int_equal(worker_state_deadline_ns(&workers), CORE_NO_DEADLINE);
    assert_int_equal(hello(1, &packet).welcome, WORKER_ATTACH);
    assert_true(worker_state_attached(&workers, 1, SECOND));
    assert_int_equal(worker_state_deadline_ns(&workers), SECOND + WORKER_OBSERVE_NS);
    assert_int_equal(worker_state_tick(&workers, SECOND + WORKER_READY_NS - 1), 0);
    assert_true(worker_state_deadline_ns(&workers) > SECOND + WORKER_READY_NS);
    assert_int_equal(worker_state_tick(&workers, SECOND + WORKER_READY_NS), CORE_FENCE_NEVER_READY);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup(name, set_up)
    const struct CMUnitTest tests[] = {
        CASE(the_first_good_worker_attaches_under_epoch_one),
        CASE(each_misfit_is_refused_by_name),
        CASE(more_than_needed_is_welcome),
        CASE(the_first_worker_pins_arithmetic_and_tensors),
        CASE(four_wait_in_order_and_are_promoted_in_order),
        CASE(abandoned_epochs_are_bounded),
        CASE(a_silent_word_for_two_seconds_is_death),
        CASE(a_word_that_moves_is_life),
        CASE(a_long_pause_of_ours_is_not_silence_of_theirs),
        CASE(an_idle_worker_is_not_hung_a_busy_one_may_be),
        CASE(layers_that_move_are_progress),
        CASE(slow_layers_have_more_time),
        CASE(a_lie_about_duration_does_not_switch_the_watch_off),
        CASE(who_never_gets_ready_is_fenced),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
