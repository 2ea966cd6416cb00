/* Time and size of messages: plan and result of 1, 64 and 256 rows, the client's hot messages in
 * both styles. Usage: codec_bench. Each figure is the median and the 99th percentile of 10,000
 * calls in batches of 16, in nanoseconds. */
#include "proto/client_messages.h"
#include "proto/worker_messages.h"

#include "common/check.h"
#include "common/clock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SAMPLES = 10000, BATCH = 16 };

static uint8_t frame[LIMIT_CLIENT_FRAME_BYTES];
static size_t frame_bytes;
static struct worker_order order;
static struct worker_report report;
static struct client_request request;
static struct client_answer answer;
static struct wire_error error;

static int compare_times(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *what, uint32_t rows, void (*call)(void))
{
    static double times[SAMPLES];
    for (int i = 0; i < SAMPLES; i++) {
        uint64_t begin = clock_now_ns();
        for (int j = 0; j < BATCH; j++)
            call();
        times[i] = (double)(clock_now_ns() - begin) / BATCH;
    }
    qsort(times, SAMPLES, sizeof times[0], compare_times);
    printf("%-28s %4u  %8.0f %8.0f  %7zu\n", what, rows, times[SAMPLES / 2],
           times[SAMPLES * 99 / 100], frame_bytes);
}

/* ---- Worker link ---- */

static void encode_plan(void)
{
    CHECK(plan_encode(&order.plan, frame, sizeof frame, &frame_bytes) == STATUS_OK);
}

static void encode_result(void)
{
    CHECK(result_encode(&report.result, frame, sizeof frame, &frame_bytes) == STATUS_OK);
}

static void decode_order(void)
{
    CHECK(worker_order_decode(frame, frame_bytes, &order, &error) == STATUS_OK);
}

static void decode_report(void)
{
    CHECK(worker_report_decode(frame, frame_bytes, &report, &error) == STATUS_OK);
}

static void judge_plan(void)
{
    const struct plan_bounds bounds = {LIMIT_SLOTS, LIMIT_CONTEXT_TOKENS, LIMIT_STEP_TOKENS};
    CHECK(plan_judge(&order.plan, &bounds).refusal == PLAN_REFUSAL_NONE);
}

static void judge_result(void)
{
    const struct result_bounds bounds = {LIMIT_SLOTS, LIMIT_CONTEXT_TOKENS, LIMIT_VOCABULARY};
    CHECK(result_judge(&report.result, &bounds, NULL) == STATUS_OK);
}

static void skim_frame(void)
{
    CHECK(wire_skim(frame, frame_bytes, &error) == STATUS_OK);
}

static void measure_rows(uint32_t rows)
{
    order.type = WORKER_PLAN;
    order.plan.epoch = order.plan.step = 1;
    order.plan.row_count = rows;
    report.type = WORKER_RESULT;
    report.result.epoch = report.result.step = 1;
    report.result.has_logits_hash = false;
    report.result.row_count = rows;
    for (uint32_t i = 0; i < rows; i++) {
        order.plan.rows[i] =
            (struct plan_row){i, 7, 1000 + i, 1, PLAN_ROW_SAMPLE | PLAN_ROW_FROM_LAST_SAMPLE};
        report.result.rows[i] = (struct result_row){i, 7, 1001 + i, 4000 + i, -0.5F, 0, 0};
    }
    measure("plan encode", rows, encode_plan);
    measure("plan skim", rows, skim_frame);
    measure("plan decode", rows, decode_order);
    measure("plan judge", rows, judge_plan);
    measure("result encode", rows, encode_result);
    measure("result decode", rows, decode_report);
    measure("result judge", rows, judge_result);
}

/* ---- Client port ---- */

static void encode_request(void)
{
    CHECK(client_request_encode(&request, frame, sizeof frame, &frame_bytes) == STATUS_OK);
}

static void decode_request(void)
{
    CHECK(client_request_decode(frame, frame_bytes, &request, &error) == STATUS_OK);
}

static void encode_answer(void)
{
    CHECK(client_answer_encode(&answer, frame, sizeof frame, &frame_bytes) == STATUS_OK);
}

static void decode_answer(void)
{
    CHECK(client_answer_decode(frame, frame_bytes, &answer, &error) == STATUS_OK);
}

static void hash_body(void)
{
    const struct id128 zero = {{0}};
    struct id128 hash = client_submit_body_hash(&request.submit);
    CHECK(!id128_equal(&hash, &zero));
}

static void measure_client(bool named)
{
    static const uint32_t tokens[] = {4711};
    static char prompt[4096];
    memset(prompt, 'p', sizeof prompt);
    request = (struct client_request){.type = CLIENT_NEXT, .named = named};
    request.next.id = wire_text_of("0123456789abcdef0123456789abcdef");
    request.next.from_token = 100;
    request.next.from_byte = 420;
    request.next.max_wait_ms = 20000;
    measure(named ? "next encode, named" : "next encode", 1, encode_request);
    measure(named ? "next decode, named" : "next decode", 1, decode_request);
    request = (struct client_request){.type = CLIENT_SUBMIT, .named = named};
    request.submit.id = wire_text_of("0123456789abcdef0123456789abcdef");
    request.submit.has_prompt = true;
    request.submit.prompt = (struct wire_text){prompt, sizeof prompt};
    measure(named ? "submit 4 KiB encode, named" : "submit 4 KiB encode", 1, encode_request);
    measure(named ? "submit 4 KiB decode, named" : "submit 4 KiB decode", 1, decode_request);
    measure("submit 4 KiB body hash", 1, hash_body);
    answer = (struct client_answer){.type = CLIENT_ANSWER_OUTPUT, .named = named};
    answer.output.id = wire_text_of("0123456789abcdef0123456789abcdef");
    answer.output.tokens = wire_tokens_of(tokens, 1);
    answer.output.text = wire_text_of(" word");
    answer.output.state = REQUEST_STATE_RUNNING;
    measure(named ? "output encode, named" : "output encode", 1, encode_answer);
    measure(named ? "output decode, named" : "output decode", 1, decode_answer);
}

int main(void)
{
    static const uint32_t rows[] = {1, 64, 256};
    printf("%-28s %4s  %8s %8s  %7s\n", "ns per call", "rows", "median", "p99", "bytes");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++)
        measure_rows(rows[i]);
    measure_client(false);
    measure_client(true);
    return EXIT_SUCCESS;
}
