/* The worker's end of the link against a coordinator that is a plain nng socket of this process. */
#include "worker/coordinator_port.h"

#include "common/clock.h"

#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static struct event_loop loop;

struct coordinator {
    char url[64];
    nng_socket socket;
};

static void open_coordinator(struct coordinator *coordinator, const char *name)
{
    snprintf(coordinator->url, sizeof coordinator->url, "ipc:///tmp/tandem-port-%ld-%s",
             (long)getpid(), name);
    assert_int_equal(nng_pair0_open(&coordinator->socket), 0);
    assert_int_equal(nng_socket_set_ms(coordinator->socket, NNG_OPT_RECVTIMEO, 5000), 0);
    assert_int_equal(nng_socket_set_ms(coordinator->socket, NNG_OPT_SENDTIMEO, 5000), 0);
    assert_int_equal(nng_listen(coordinator->socket, coordinator->url, NULL, 0), 0);
}

static struct coordinator_port *open_port(const struct coordinator *coordinator)
{
    struct coordinator_port *port;
    struct reason why;
    assert_int_equal(coordinator_port_open(&loop, coordinator->url, &port, reason_init(&why)),
                     STATUS_OK);
    return port;
}

static void send_ready(struct coordinator_port *port, uint64_t epoch)
{
    static struct worker_report report;
    report = (struct worker_report){.type = WORKER_READY};
    report.ready.epoch = epoch;
    assert_int_equal(coordinator_port_send(port, &report, NULL), STATUS_OK);
}

static void assert_ready(const struct coordinator *coordinator, uint64_t epoch)
{
    static struct worker_report report;
    uint8_t *frame = NULL;
    size_t bytes = 0;
    struct wire_error error;
    assert_int_equal(nng_recv(coordinator->socket, &frame, &bytes, NNG_FLAG_ALLOC), 0);
    assert_int_equal(worker_report_decode(frame, bytes, &report, &error), STATUS_OK);
    assert_int_equal(report.type, WORKER_READY);
    assert_int_equal(report.ready.epoch, epoch);
    nng_free(frame, bytes);
}

static void send_plan(const struct coordinator *coordinator, uint64_t step)
{
    static struct plan plan;
    uint8_t frame[1024];
    size_t bytes;
    plan = (struct plan){.epoch = 1, .step = step, .row_count = 1, .rows = {{3, 1, 0, 9, 1}}};
    assert_int_equal(plan_encode(&plan, frame, sizeof frame, &bytes), STATUS_OK);
    assert_int_equal(nng_send(coordinator->socket, frame, bytes, 0), 0);
}

/* Runs the loop until the port has something to say. */
static enum status next_order(struct coordinator_port *port, struct coordinator_order *order)
{
    struct reason why;
    enum status status;
    uint64_t end_ns = clock_now_ns() + 5 * NS_PER_S;
    while ((status = coordinator_port_next(port, order, reason_init(&why))) == STATUS_AGAIN) {
        assert_true(clock_now_ns() < end_ns);
        assert_int_equal(event_loop_wait(&loop, end_ns), STATUS_OK);
    }
    return status;
}

static void plans_come_in_order_and_reports_leave(void **state)
{
    (void)state;
    struct coordinator coordinator;
    struct coordinator_order order;
    open_coordinator(&coordinator, "order");
    struct coordinator_port *port = open_port(&coordinator);
    send_ready(port, 1);
    assert_ready(&coordinator, 1);
    uint64_t before_ns = clock_now_ns();
    for (uint64_t step = 1; step <= 4; step++)
        send_plan(&coordinator, step);
    for (uint64_t step = 1; step <= 4; step++) {
        assert_int_equal(next_order(port, &order), STATUS_OK);
        assert_int_equal(order.order->type, WORKER_PLAN);
        assert_int_equal(order.order->plan.step, step);
        assert_int_equal(order.order->plan.rows[0].count, 9);
        assert_in_range(order.received_ns, before_ns, clock_now_ns());
    }
    uint64_t end_ns = clock_now_ns() + 5 * NS_PER_S;
    while (coordinator_port_unsent(port) > 0) {
        assert_true(clock_now_ns() < end_ns);
        assert_int_equal(event_loop_wait(&loop, end_ns), STATUS_OK);
    }
    coordinator_port_abandon(port);
    nng_close(coordinator.socket);
}

static void nonsense_and_floods_are_told(void **state)
{
    (void)state;
    struct coordinator coordinator;
    struct coordinator_order order;
    open_coordinator(&coordinator, "flood");
    struct coordinator_port *port = open_port(&coordinator);
    send_ready(port, 1);
    assert_ready(&coordinator, 1);
    assert_int_equal(nng_send(coordinator.socket, (void *)(uintptr_t) "\xc1", 1, 0), 0);
    assert_int_equal(next_order(port, &order), STATUS_BAD_MESSAGE);
    for (uint64_t step = 1; step <= 40; step++)
        send_plan(&coordinator, step);
    enum status status;
    uint32_t taken = 0;
    uint64_t end_ns = clock_now_ns() + 5 * NS_PER_S;
    do {
        status = next_order(port, &order);
        taken += status == STATUS_OK;
        assert_true(clock_now_ns() < end_ns);
    } while (status == STATUS_OK && taken < 40);
    assert_true(status == STATUS_BAD_MESSAGE || taken == 40); /* a quick reader misses nothing */
    coordinator_port_abandon(port);
    nng_close(coordinator.socket);
}

/* A socket file behind which nobody accepts. */
static int make_dead_end(const char *path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    memcpy(address.sun_path, path, strlen(path));
    assert_int_equal(bind(listener, (struct sockaddr *)&address, sizeof address), 0);
    return listener;
}

static void reports_wait_only_up_to_a_bound(void **state)
{
    (void)state;
    static struct worker_report report;
    struct coordinator_port *port;
    struct reason why;
    char url[64];
    snprintf(url, sizeof url, "ipc:///tmp/tandem-port-%ld-dead", (long)getpid());
    int dead_end = make_dead_end(url + strlen("ipc://"));
    assert_int_equal(coordinator_port_open(&loop, url, &port, reason_init(&why)), STATUS_OK);
    report = (struct worker_report){.type = WORKER_READY};
    report.ready.epoch = 1;
    uint32_t sent = 0;
    while (coordinator_port_send(port, &report, NULL) == STATUS_OK)
        sent++;
    assert_in_range(sent, 2, 8);
    assert_int_equal(coordinator_port_unsent(port), sent);
    coordinator_port_abandon(port);
    coordinator_port_abandon(NULL);
    close(dead_end);
    unlink(url + strlen("ipc://"));
}

static void a_place_without_a_socket_is_told(void **state)
{
    (void)state;
    static const char *const urls[] = {"ipc:///nonexistent/worker.1.ipc", "tcp://127.0.0.1:1", ""};
    for (size_t i = 0; i < sizeof urls / sizeof urls[0]; i++) {
        struct coordinator_port *port;
        struct reason why;
        assert_true(coordinator_port_open(&loop, urls[i], &port, reason_init(&why)) != STATUS_OK);
        assert_non_null(strstr(why.storage, "no socket"));
    }
}

/* The pipe of the next message of the worker. */
static nng_pipe receive_pipe(const struct coordinator *coordinator)
{
    nng_msg *message;
    assert_int_equal(nng_recvmsg(coordinator->socket, &message, 0), 0);
    nng_pipe pipe = nng_msg_get_pipe(message);
    nng_msg_free(message);
    return pipe;
}

static void a_cut_link_never_reaches_a_successor(void **state)
{
    (void)state;
    /* nng dials again at once after about every second cut: eight rounds make it sure. */
    for (int round = 0; round < 8; round++) {
        struct coordinator coordinator, successor;
        char name[16];
        snprintf(name, sizeof name, "cut%d", round);
        open_coordinator(&coordinator, name);
        struct coordinator_port *port = open_port(&coordinator);
        send_ready(port, 1);
        nng_pipe pipe = receive_pipe(&coordinator);
        unlink(coordinator.url + strlen("ipc://"));
        open_coordinator(&successor, name); /* at the same path */
        assert_int_equal(nng_socket_set_ms(successor.socket, NNG_OPT_RECVTIMEO, 60), 0);
        nng_pipe_close(pipe);
        send_ready(port, 1);
        uint8_t byte;
        size_t bytes = sizeof byte;
        assert_int_equal(nng_recv(successor.socket, &byte, &bytes, 0), NNG_ETIMEDOUT);
        assert_int_equal(nng_socket_set_ms(successor.socket, NNG_OPT_RECVTIMEO, 5000), 0);
        struct coordinator_port *next = open_port(&successor);
        send_ready(next, 2);
        assert_ready(&successor, 2);
        coordinator_port_abandon(next);
        coordinator_port_abandon(port);
        nng_close(successor.socket);
        nng_close(coordinator.socket);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plans_come_in_order_and_reports_leave),
        cmocka_unit_test(nonsense_and_floods_are_told),
        cmocka_unit_test(reports_wait_only_up_to_a_bound),
        cmocka_unit_test(a_place_without_a_socket_is_told),
        cmocka_unit_test(a_cut_link_never_reaches_a_successor),
    };
    if (event_loop_open(&loop) != STATUS_OK)
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    fflush(stdout);
    _exit(failed); /* threads of nng and undertakers are still there */
}
