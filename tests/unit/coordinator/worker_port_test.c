/* The link of an epoch against a worker that is a plain nng socket of this process. */
#include "coordinator/worker_port.h"

#include "common/clock.h"

#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static struct {
    struct run_directory directory;
    struct event_loop loop;
    struct worker_port *port;
} fixture = {.directory = {.path = "/tmp/tandem-link-XXXXXX"}};

/* Made before the first call of nng, which does not survive a fork. */
enum { CHILDREN = 3 };
static pid_t children[CHILDREN];

static int open_fixture(void **state)
{
    struct reason why;
    (void)state;
    for (int i = 0; i < CHILDREN; i++) {
        children[i] = fork();
        if (children[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL); /* a failed test leaves nobody behind */
            for (;;)
                pause();
        }
    }
    assert_non_null(mkdtemp(fixture.directory.path));
    assert_int_equal(event_loop_open(&fixture.loop), STATUS_OK);
    assert_int_equal(
        worker_port_open(&fixture.loop, &fixture.directory, &fixture.port, reason_init(&why)),
        STATUS_OK);
    return 0;
}

static int close_fixture(void **state)
{
    (void)state;
    return rmdir(fixture.directory.path); /* every socket of every epoch was removed */
}

static struct epoch_terms terms_of(uint64_t epoch)
{
    struct kv_geometry geometry = {2, 1, 16, 16, KV_TYPE_F16, KV_ORDER_CPU};
    return (struct epoch_terms){.epoch = epoch,
                                .connection = 100 + epoch,
                                .extents = {.geometry = geometry,
                                            .slots = 4,
                                            .context = 64,
                                            .logical_blocks = 4,
                                            .vocabulary = 100,
                                            .step_tokens = 64,
                                            .pool_blocks = 32},
                                .identity = {.epoch = epoch, .creator_pid = (uint64_t)getpid()},
                                .pid = getpid(),
                                .uid = getuid()};
}

static struct epoch_link start_epoch(uint64_t epoch)
{
    struct epoch_terms terms = terms_of(epoch);
    struct epoch_link link;
    struct reason why;
    assert_int_equal(worker_port_start(fixture.port, &terms, &link, reason_init(&why)), STATUS_OK);
    assert_int_equal(link.epoch, epoch);
    return link;
}

static nng_socket dial(const char *url)
{
    nng_socket socket;
    assert_int_equal(nng_pair0_open(&socket), 0);
    assert_int_equal(nng_socket_set_ms(socket, NNG_OPT_RECVTIMEO, 5000), 0);
    assert_int_equal(nng_socket_set_ms(socket, NNG_OPT_SENDTIMEO, 5000), 0);
    assert_int_equal(nng_dial(socket, url, NULL, 0), 0);
    return socket;
}

static void end_epoch(uint64_t epoch, const struct worker_process *process)
{
    struct epoch_end end = {.epoch = epoch, .process_known = process != NULL};
    if (process != NULL)
        end.process = *process;
    worker_port_end(fixture.port, &end, clock_now_ns());
}

static bool wait_event(struct worker_event *event, uint64_t patience_ms)
{
    uint64_t end_ns = clock_now_ns() + patience_ms * NS_PER_MS;
    while (!worker_port_next(fixture.port, event)) {
        uint64_t now_ns = clock_now_ns();
        if (now_ns >= end_ns)
            return false;
        worker_port_tick(fixture.port, now_ns);
        uint64_t tick_ns = worker_port_next_deadline_ns(fixture.port);
        assert_int_equal(event_loop_wait(&fixture.loop, tick_ns < end_ns ? tick_ns : end_ns),
                         STATUS_OK);
    }
    return true;
}

static void send_report(nng_socket worker, struct worker_report *report)
{
    uint8_t frame[4096];
    size_t bytes;
    assert_int_equal(worker_report_encode(report, frame, sizeof frame, &bytes), STATUS_OK);
    assert_int_equal(nng_send(worker, frame, bytes, 0), 0);
}

static void plans_go_out_and_reports_come_in(void **state)
{
    (void)state;
    static struct worker_report report;
    static struct plan plan;
    static struct worker_order order;
    struct epoch_link link = start_epoch(1);
    nng_socket worker = dial(link.url);
    report = (struct worker_report){.type = WORKER_READY};
    report.ready.epoch = 1;
    send_report(worker, &report);
    struct worker_event event;
    assert_true(wait_event(&event, 5000));
    assert_int_equal(event.kind, WORKER_EVENT_REPORT);
    assert_int_equal(event.report->type, WORKER_READY);
    assert_int_equal(event.epoch, 1);
    assert_int_equal(event.connection, 101);

    plan = (struct plan){.epoch = 1, .row_count = 1, .rows = {{2, 1, 0, 5, PLAN_ROW_SAMPLE}}};
    for (plan.step = 1; plan.step <= 2; plan.step++) /* two in flight */
        assert_int_equal(worker_port_send(fixture.port, 1, &plan), STATUS_OK);
    for (uint64_t step = 1; step <= 2; step++) {
        uint8_t *frame = NULL;
        size_t bytes = 0;
        struct wire_error error;
        assert_int_equal(nng_recv(worker, &frame, &bytes, NNG_FLAG_ALLOC), 0);
        assert_int_equal(worker_order_decode(frame, bytes, &order, &error), STATUS_OK);
        assert_int_equal(order.plan.step, step);
        assert_int_equal(order.plan.rows[0].count, 5);
        nng_free(frame, bytes);
    }
    assert_int_equal(nng_send(worker, (void *)(uintptr_t) "\xc1", 1, 0), 0);
    assert_true(wait_event(&event, 5000));
    assert_int_equal(event.kind, WORKER_EVENT_NONSENSE);
    assert_true(strlen(event.why) > 0);
    end_epoch(1, NULL);
    assert_int_equal(worker_port_send(fixture.port, 1, &plan), STATUS_CLOSED);
}

static struct worker_report *result_of(uint64_t epoch, uint64_t step)
{
    static struct worker_report report;
    report = (struct worker_report){.type = WORKER_RESULT};
    report.result.epoch = epoch;
    report.result.step = step;
    report.result.row_count = 1;
    report.result.rows[0] = (struct result_row){.slot = 2, .generation = 1, .position = 5};
    return &report;
}

static void show(struct worker_segment_writer *writer, uint64_t step, struct worker_report *report)
{
    uint8_t frame[4096];
    size_t bytes;
    assert_int_equal(worker_report_encode(report, frame, sizeof frame, &bytes), STATUS_OK);
    worker_segment_show_result(writer, step, clock_now_ns(), frame, bytes);
}

static void a_result_that_is_shown_comes_once(void **state)
{
    (void)state;
    const struct segment_identity identity = {.creator_pid = 1};
    struct worker_segment_writer writer;
    struct worker_segment_reader reader;
    struct worker_event event;
    void *memory = aligned_alloc(4096, worker_segment_bytes());
    assert_non_null(memory);
    memset(memory, 0, worker_segment_bytes());
    worker_segment_format(&writer, memory, &identity);
    assert_int_equal(worker_segment_open(&reader, memory, worker_segment_bytes(), NULL), STATUS_OK);
    struct epoch_link link = start_epoch(7);
    nng_socket worker = dial(link.url);

    assert_false(worker_port_shown(fixture.port, 7, &reader, 1, &event));
    for (uint64_t step = 1; step <= 2; step++) {
        show(&writer, step, result_of(7, step));
        assert_false(worker_port_shown(fixture.port, 8, &reader, step, &event)); /* no such epoch */
        assert_true(worker_port_shown(fixture.port, 7, &reader, step, &event));
        assert_int_equal(event.kind, WORKER_EVENT_REPORT);
        assert_int_equal(event.epoch, 7);
        assert_int_equal(event.connection, 107);
        assert_int_equal(event.report->type, WORKER_RESULT);
        assert_int_equal(event.report->result.step, step);
        assert_int_equal(event.report->result.rows[0].position, 5);
        assert_false(worker_port_shown(fixture.port, 7, &reader, step, &event));
    }
    /* Two frames are due: what is shown now has to wait, since one of them would be forgotten. */
    show(&writer, 3, result_of(7, 3));
    assert_false(worker_port_shown(fixture.port, 7, &reader, 3, &event));
    send_report(worker, result_of(7, 1));
    send_report(worker, result_of(7, 2));
    assert_false(wait_event(&event, 100)); /* known */
    assert_true(worker_port_shown(fixture.port, 7, &reader, 3, &event));
    /* The same once more, and one with other bytes, are for the core to judge. */
    send_report(worker, result_of(7, 2));
    assert_true(wait_event(&event, 5000));
    assert_int_equal(event.report->result.step, 2);
    struct worker_report *other = result_of(7, 3);
    other->result.rows[0].token = 1;
    send_report(worker, other);
    assert_true(wait_event(&event, 5000));
    assert_int_equal(event.report->result.rows[0].token, 1);
    end_epoch(7, NULL);

    /* What is shown is no result, or of another step. */
    for (uint64_t epoch = 8; epoch <= 10; epoch++) {
        start_epoch(epoch);
        struct worker_report *lie = result_of(epoch, epoch == 8 ? 6 : 5);
        if (epoch == 9)
            *lie = (struct worker_report){.type = WORKER_READY};
        show(&writer, 5, lie);
        if (epoch == 10)
            worker_segment_show_result(&writer, 5, 1, (const uint8_t *)"\xc1", 1);
        assert_true(worker_port_shown(fixture.port, epoch, &reader, 5, &event));
        assert_int_equal(event.kind, WORKER_EVENT_NONSENSE);
        assert_true(strlen(event.why) > 0);
        end_epoch(epoch, NULL);
    }
    free(memory);
}

static void nothing_of_an_old_epoch_reaches_the_next(void **state)
{
    (void)state;
    static struct worker_report report;
    struct epoch_link old_link = start_epoch(2);
    char old_url[SOCKET_PATH_BYTES + 8];
    snprintf(old_url, sizeof old_url, "%s", old_link.url);
    nng_socket old_worker = dial(old_url);
    static struct plan plan;
    plan = (struct plan){.epoch = 2, .step = 1, .row_count = 1, .rows = {{0, 1, 0, 1, 0}}};
    assert_int_equal(worker_port_send(fixture.port, 2, &plan), STATUS_OK);
    report = (struct worker_report){.type = WORKER_READY};
    report.ready.epoch = 2;
    send_report(old_worker, &report);
    usleep(100000); /* it is queued here, and nobody has looked at it when the epoch ends */
    worker_port_fence(fixture.port, 2);
    end_epoch(2, NULL);

    struct epoch_link link = start_epoch(3);
    assert_string_not_equal(link.url, old_url);
    nng_socket worker = dial(link.url);
    send_report(old_worker, &report); /* a zombie speaks into a socket that nobody reads */
    struct worker_event event;
    assert_false(wait_event(&event, 100));
    uint8_t byte;
    size_t bytes = sizeof byte;
    assert_int_equal(nng_socket_set_ms(worker, NNG_OPT_RECVTIMEO, 50), 0);
    assert_int_equal(nng_recv(worker, &byte, &bytes, 0), NNG_ETIMEDOUT);
    end_epoch(3, NULL);
}

static void a_flood_ends_the_epoch_and_not_the_process(void **state)
{
    (void)state;
    static struct worker_report report;
    struct epoch_link link = start_epoch(4);
    nng_socket worker = dial(link.url);
    report = (struct worker_report){.type = WORKER_READY};
    report.ready.epoch = 4;
    for (int i = 0; i < 500; i++) /* nobody looks meanwhile */
        send_report(worker, &report);
    struct worker_event event;
    uint32_t reports = 0;
    while (wait_event(&event, 5000) && event.kind == WORKER_EVENT_REPORT)
        reports++;
    assert_int_equal(event.kind, WORKER_EVENT_NONSENSE);
    assert_in_range(reports, 1, 500);
    end_epoch(4, NULL);
}

static void an_epoch_is_over_after_its_process(void **state)
{
    (void)state;
    struct peer_identity peer = {.pid = children[0], .uid = getuid()};
    struct worker_process process;
    worker_process_open(&process, &peer);
    start_epoch(5);
    end_epoch(5, &process);
    struct worker_event event;
    assert_false(wait_event(&event, 600)); /* it lives */
    kill(children[0], SIGKILL);
    waitpid(children[0], NULL, 0);
    assert_true(wait_event(&event, 5000));
    assert_int_equal(event.kind, WORKER_EVENT_GONE);
    assert_int_equal(event.epoch, 5);
}

static void a_process_that_must_go_is_killed_when_its_time_has_come(void **state)
{
    (void)state;
    struct peer_identity peer = {.pid = children[1], .uid = getuid()};
    struct epoch_end end = {.epoch = 6, .kill = true, .process_known = true};
    worker_process_open(&end.process, &peer);
    start_epoch(6);
    uint64_t now_ns = clock_now_ns();
    end.kill_at_ns = now_ns + 400 * NS_PER_MS;
    worker_port_end(fixture.port, &end, now_ns);
    struct worker_event event;
    assert_false(wait_event(&event, 100));
    assert_int_equal(waitpid(children[1], NULL, WNOHANG), 0);
    uint64_t end_ns = clock_now_ns() + 5 * NS_PER_S;
    while (waitpid(children[1], NULL, WNOHANG) == 0) {
        assert_true(clock_now_ns() < end_ns);
        assert_false(wait_event(&event, 20)); /* not over before it was reaped */
    }
    assert_true(clock_now_ns() >= now_ns + 400 * NS_PER_MS);
    assert_true(wait_event(&event, 5000));
    assert_int_equal(event.kind, WORKER_EVENT_GONE);
}

/* A child of the worker, say, or nng that did not notice. */
static void an_epoch_is_over_although_somebody_stays_connected(void **state)
{
    (void)state;
    struct peer_identity peer = {.pid = children[2], .uid = getuid()};
    struct worker_process process;
    worker_process_open(&process, &peer);
    struct epoch_link link = start_epoch(7);
    nng_socket worker = dial(link.url);
    static struct worker_report report;
    report = (struct worker_report){.type = WORKER_READY};
    report.ready.epoch = 7;
    send_report(worker, &report);
    struct worker_event event;
    assert_true(wait_event(&event, 5000));
    end_epoch(7, &process);
    kill(children[2], SIGKILL);
    waitpid(children[2], NULL, 0);
    assert_true(wait_event(&event, 5000));
    assert_int_equal(event.kind, WORKER_EVENT_GONE);
    assert_int_equal(event.epoch, 7);
}

static void an_unknown_epoch_ends_without_harm(void **state)
{
    (void)state;
    worker_port_fence(fixture.port, 99);
    end_epoch(99, NULL);
    struct worker_event event;
    assert_false(wait_event(&event, 10));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_go_out_and_reports_come_in),
        cmocka_unit_test(a_result_that_is_shown_comes_once),
        cmocka_unit_test(nothing_of_an_old_epoch_reaches_the_next),
        cmocka_unit_test(a_flood_ends_the_epoch_and_not_the_process),
        cmocka_unit_test(an_epoch_is_over_after_its_process),
        cmocka_unit_test(a_process_that_must_go_is_killed_when_its_time_has_come),
        cmocka_unit_test(an_epoch_is_over_although_somebody_stays_connected),
        cmocka_unit_test(an_unknown_epoch_ends_without_harm),
    };
    int failed = cmocka_run_group_tests(tests, open_fixture, close_fixture);
    fflush(stdout);
    _exit(failed); /* threads of nng are still there */
}
