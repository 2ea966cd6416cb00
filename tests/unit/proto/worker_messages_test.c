#include "proto/worker_messages.h"

#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static uint8_t packet[LIMIT_ATTACH_BYTES];

static struct attach_hello full_hello(void)
{
    static char name[LIMIT_NAME_BYTES + 1];
    memset(name, 'n', LIMIT_NAME_BYTES);
    struct attach_hello hello = {
        .version_min = 1,
        .version_max = UINT32_MAX,
        .layout = UINT64_MAX,
        .build = wire_text_of(name),
        .backend = wire_text_of(name),
        .arithmetic = wire_text_of(name),
        .geometry = {30, 3, 64, 16, 1, 1},
        .blocks = LIMIT_POOL_BLOCKS,
        .slots = UINT32_MAX,
        .context = UINT32_MAX,
        .vocabulary = LIMIT_VOCABULARY,
        .step_tokens = UINT32_MAX,
        .pid = UINT64_MAX,
        .start_time = UINT64_MAX,
    };
    return hello;
}

static void the_largest_hello_fits_a_packet(void **state)
{
    (void)state;
    struct attach_hello hello = full_hello(), read;
    size_t length;
    struct wire_error error;
    assert_int_equal(attach_hello_encode(&hello, packet, sizeof packet, &length), STATUS_OK);
    assert_int_equal(attach_hello_decode(packet, length, &read, &error), STATUS_OK);
    assert_int_equal(read.geometry.head_dim, 64);
    assert_int_equal(read.geometry.block_tokens, 16);
    assert_int_equal(read.arithmetic.length, LIMIT_NAME_BYTES);
    assert_true(read.layout == UINT64_MAX && read.blocks == LIMIT_POOL_BLOCKS);
    hello.geometry.layers = 0;
    assert_int_equal(attach_hello_encode(&hello, packet, sizeof packet, &length), STATUS_OK);
    assert_int_equal(attach_hello_decode(packet, length, &read, &error), STATUS_BAD_MESSAGE);
    assert_string_equal(error.field, "geometry.layers");
    assert_true(error.has_limit && error.limit == 1);
}

static void answers_to_a_worker_come_back(void **state)
{
    (void)state;
    static char sentence[LIMIT_ERROR_MESSAGE_BYTES + 1], url[LIMIT_URL_BYTES + 1];
    memset(sentence, 's', LIMIT_ERROR_MESSAGE_BYTES);
    memset(url, 'u', LIMIT_URL_BYTES);
    struct attach_answer answers[3] = {
        {.type = ATTACH_ANSWER_ATTACH,
         .attach = {.epoch = 7, .version = 1, .url = wire_text_of(url)}},
        {.type = ATTACH_ANSWER_STANDBY, .standby = {.position = 2}},
        {.type = ATTACH_ANSWER_REFUSED,
         .refused = {ATTACH_REFUSAL_ARITHMETIC, wire_text_of(sentence)}},
    };
    for (int i = 0; i < 3; i++) {
        size_t length;
        struct wire_error error;
        struct attach_answer read;
        assert_int_equal(attach_answer_encode(&answers[i], packet, sizeof packet, &length),
                         STATUS_OK);
        assert_int_equal(attach_answer_decode(packet, length, &read, &error), STATUS_OK);
        assert_int_equal(read.type, answers[i].type);
        if (i == 0)
            assert_true(read.attach.epoch == 7 && read.attach.url.length == LIMIT_URL_BYTES);
        else if (i == 1)
            assert_int_equal(read.standby.position, 2);
        else
            assert_int_equal(read.refused.reason, ATTACH_REFUSAL_ARITHMETIC);
    }
}

/* A newer peer may add fields and reasons: both are passed over. */
static void a_newer_peer_is_understood(void **state)
{
    (void)state;
    static const uint8_t refused[] = "\x84\x01\x04\x02\x7d\x03\xa2no\x09\x93\x01\x02\x03";
    struct attach_answer answer;
    struct wire_error error;
    assert_int_equal(attach_answer_decode(refused, sizeof refused - 1, &answer, &error), STATUS_OK);
    assert_int_equal(answer.type, ATTACH_ANSWER_REFUSED);
    assert_int_equal(answer.refused.reason, ATTACH_REFUSAL_UNKNOWN);
    assert_memory_equal(answer.refused.message.bytes, "no", 2);
}

static void short_orders_and_reports_come_back(void **state)
{
    (void)state;
    static struct worker_order order, read_order;
    static struct worker_report report, read_report;
    size_t length;
    struct wire_error error;
    order.type = WORKER_DRAIN;
    order.drain.epoch = 11;
    assert_int_equal(worker_order_encode(&order, packet, sizeof packet, &length), STATUS_OK);
    assert_int_equal(worker_order_decode(packet, length, &read_order, &error), STATUS_OK);
    assert_int_equal(read_order.type, WORKER_DRAIN);
    assert_true(read_order.drain.epoch == 11);
    static const enum worker_report_type types[] = {WORKER_READY, WORKER_REFUSED, WORKER_DRAINED,
                                                    WORKER_FATAL};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        memset(&report, 0, sizeof report);
        report.type = types[i];
        report.ready.epoch = 12; /* all begin with instance and epoch */
        if (types[i] == WORKER_REFUSED)
            report.refused = (struct worker_refused){.epoch = 12,
                                                     .step = 3,
                                                     .has_row = true,
                                                     .row = 5,
                                                     .reason = PLAN_REFUSAL_TOKEN,
                                                     .message = wire_text_of("token 9")};
        if (types[i] == WORKER_FATAL)
            report.fatal = (struct worker_fatal){
                .epoch = 12, .reason = WORKER_FATAL_DEVICE, .message = wire_text_of("gone")};
        assert_int_equal(worker_report_encode(&report, packet, sizeof packet, &length), STATUS_OK);
        assert_int_equal(worker_report_decode(packet, length, &read_report, &error), STATUS_OK);
        assert_int_equal(read_report.type, types[i]);
        assert_true(read_report.ready.epoch == 12);
        if (types[i] == WORKER_REFUSED)
            assert_true(read_report.refused.has_row && read_report.refused.row == 5 &&
                        read_report.refused.reason == PLAN_REFUSAL_TOKEN);
    }
}

/* The link has two directions: what goes down is not accepted from below. */
static void directions_are_kept_apart(void **state)
{
    (void)state;
    static struct worker_order order;
    static struct worker_report report;
    size_t length;
    struct wire_error error;
    report.type = WORKER_DRAINED;
    report.drained.epoch = 1;
    assert_int_equal(worker_report_encode(&report, packet, sizeof packet, &length), STATUS_OK);
    assert_int_equal(worker_order_decode(packet, length, &order, &error), STATUS_BAD_MESSAGE);
    assert_string_equal(error.field, "type");
    order.type = WORKER_DRAIN;
    order.drain.epoch = 1;
    assert_int_equal(worker_order_encode(&order, packet, sizeof packet, &length), STATUS_OK);
    assert_int_equal(worker_report_decode(packet, length, &report, &error), STATUS_BAD_MESSAGE);
    struct attach_hello hello;
    assert_int_equal(attach_hello_decode(packet, length, &hello, &error), STATUS_BAD_MESSAGE);
}

/* Epoch 0 is never given: a zeroed message is no message. */
static void epoch_zero_is_refused(void **state)
{
    (void)state;
    static struct worker_report report;
    size_t length;
    struct wire_error error;
    report.type = WORKER_READY;
    assert_int_equal(worker_report_encode(&report, packet, sizeof packet, &length), STATUS_OK);
    assert_int_equal(worker_report_decode(packet, length, &report, &error), STATUS_BAD_MESSAGE);
    assert_string_equal(error.field, "epoch");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_largest_hello_fits_a_packet),
        cmocka_unit_test(answers_to_a_worker_come_back),
        cmocka_unit_test(a_newer_peer_is_understood),
        cmocka_unit_test(short_orders_and_reports_come_back),
        cmocka_unit_test(directions_are_kept_apart),
        cmocka_unit_test(epoch_zero_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
