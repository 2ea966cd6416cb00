/* The attach port against workers that are this process: hellos, refusals, losses, strangers. */
#include "coordinator/attach_port.h"

#include "common/clock.h"
#include "common/run_directory.h"
#include "proto/fingerprint.h"
#include "proto/segment_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

struct house {
    char directory[32], path[SOCKET_PATH_BYTES];
    struct event_loop loop;
    struct worker_users users;
    struct attach_port *port;
    struct shm shm; /* of the worker */
    struct worker_segment_writer segment;
};

static void open_house(struct house *house)
{
    struct segment_identity identity = {.creator_pid = (uint64_t)getpid()};
    struct reason why;
    *house = (struct house){.directory = "/tmp/tandem-attach-XXXXXX",
                            .users = {.uids = {geteuid()}, .count = 1}};
    assert_non_null(mkdtemp(house->directory));
    snprintf(house->path, sizeof house->path, "%s/attach.sock", house->directory);
    assert_int_equal(event_loop_open(&house->loop), STATUS_OK);
    assert_int_equal(
        attach_port_open(&house->loop, house->path, &house->users, &house->port, reason_init(&why)),
        STATUS_OK);
    assert_int_equal(
        worker_segment_create(&identity, &house->shm, &house->segment, reason_init(&why)),
        STATUS_OK);
}

static void close_house(struct house *house)
{
    attach_port_close(house->port);
    assert_int_equal(access(house->path, F_OK), -1);
    shm_close(&house->shm);
    event_loop_close(&house->loop);
    rmdir(house->directory);
}

static int connect_worker(struct house *house)
{
    int worker;
    assert_int_equal(packet_socket_connect(house->path, &worker), STATUS_OK);
    return worker;
}

static void say_hello(int worker, int passed)
{
    struct attach_hello hello = {.version_min = 1,
                                 .version_max = 1,
                                 .layout = layout_fingerprint(),
                                 .backend = wire_text_of("test"),
                                 .arithmetic = wire_text_of("test-1"),
                                 .geometry = {1, 1, 64, 16, KV_TYPE_F16, KV_ORDER_CPU},
                                 .blocks = 1,
                                 .slots = 1,
                                 .context = 16,
                                 .vocabulary = 10,
                                 .step_tokens = 1};
    uint8_t packet[LIMIT_ATTACH_BYTES];
    size_t length;
    assert_int_equal(attach_hello_encode(&hello, packet, sizeof packet, &length), STATUS_OK);
    assert_int_equal(packet_socket_send(worker, packet, length, passed), STATUS_OK);
}

/* Runs the loop until something is told; false after `patience_ms`. */
static bool wait_event(struct house *house, struct attach_event *event, uint64_t patience_ms)
{
    uint64_t end_ns = clock_now_ns() + patience_ms * NS_PER_MS;
    while (!attach_port_next(house->port, event)) {
        if (clock_now_ns() >= end_ns)
            return false;
        assert_int_equal(event_loop_wait(&house->loop, end_ns), STATUS_OK);
    }
    return true;
}

static struct attach_event next_event(struct house *house)
{
    struct attach_event event;
    assert_true(wait_event(house, &event, 5000));
    return event;
}

/* Whatever is under way has been handled, and nobody is to be told. */
static void assert_no_event(struct house *house)
{
    struct attach_event event;
    assert_false(wait_event(house, &event, 30));
}

static struct attach_answer read_answer(int worker, uint8_t *packet, int *passed)
{
    struct attach_answer answer;
    struct wire_error error;
    size_t length;
    assert_int_equal(packet_socket_receive(worker, packet, LIMIT_ATTACH_BYTES, &length, passed),
                     STATUS_OK);
    assert_int_equal(attach_answer_decode(packet, length, &answer, &error), STATUS_OK);
    return answer;
}

static void assert_refused(struct house *house, int worker, enum attach_refusal reason)
{
    uint8_t packet[LIMIT_ATTACH_BYTES];
    size_t length;
    int passed;
    assert_no_event(house);
    struct attach_answer answer = read_answer(worker, packet, &passed);
    assert_int_equal(answer.type, ATTACH_ANSWER_REFUSED);
    assert_int_equal(answer.refused.reason, reason);
    assert_true(answer.refused.message.length > 0);
    assert_int_equal(packet_socket_receive(worker, packet, sizeof packet, &length, &passed),
                     STATUS_CLOSED);
    close(worker);
}

static void a_hello_is_told_with_who_said_it(void **state)
{
    (void)state;
    struct house house;
    open_house(&house);
    int worker = connect_worker(&house);
    say_hello(worker, house.shm.descriptor);
    struct attach_event event = next_event(&house);
    assert_int_equal(event.kind, ATTACH_EVENT_HELLO);
    assert_true(event.user_allowed);
    assert_int_equal(event.process->pid, getpid());
    assert_int_equal(event.hello.context, 16);
    worker_segment_beat(&house.segment, 4711);
    assert_int_equal(worker_segment_alive_ns(attach_port_segment(house.port, event.connection)),
                     4711);

    int pair[2];
    uint8_t packet[LIMIT_ATTACH_BYTES];
    assert_int_equal(pipe(pair), 0);
    struct attach_answer answer = {.type = ATTACH_ANSWER_ATTACH};
    answer.attach.epoch = 3;
    answer.attach.version = 1;
    answer.attach.url = wire_text_of("ipc:///x");
    attach_port_answer(house.port, event.connection, &answer, pair[1]);
    int passed = -1;
    struct attach_answer got = read_answer(worker, packet, &passed);
    assert_int_equal(got.attach.epoch, 3);
    assert_true(passed >= 0);
    close(passed);

    struct worker_process process;
    assert_true(attach_port_release(house.port, event.connection, &process));
    assert_int_equal(process.pid, getpid());
    worker_process_close(&process);
    assert_false(attach_port_release(house.port, event.connection, &process));
    assert_null(attach_port_segment(house.port, event.connection));
    size_t length;
    assert_int_equal(packet_socket_receive(worker, packet, sizeof packet, &length, &passed),
                     STATUS_CLOSED);
    close(worker);
    close(pair[0]);
    close(pair[1]);
    close_house(&house);
}

static void another_user_is_told_as_such(void **state)
{
    (void)state;
    struct house house;
    open_house(&house);
    house.users.uids[0] = geteuid() + 1;
    int worker = connect_worker(&house);
    say_hello(worker, house.shm.descriptor);
    assert_false(next_event(&house).user_allowed); /* the core refuses it by name */
    close(worker);
    close_house(&house);
}

static void hellos_that_are_none_are_refused_by_name(void **state)
{
    (void)state;
    struct house house;
    open_house(&house);
    int worker = connect_worker(&house);
    assert_int_equal(packet_socket_send(worker, "\xc1 what?", 7, house.shm.descriptor), STATUS_OK);
    assert_refused(&house, worker, ATTACH_REFUSAL_MALFORMED);

    static const uint8_t large[LIMIT_ATTACH_BYTES + 1];
    worker = connect_worker(&house);
    assert_int_equal(packet_socket_send(worker, large, sizeof large, -1), STATUS_OK);
    assert_refused(&house, worker, ATTACH_REFUSAL_MALFORMED);

    worker = connect_worker(&house);
    say_hello(worker, -1);
    assert_refused(&house, worker, ATTACH_REFUSAL_SEGMENT);

    int unsealed = memfd_create("unsealed", MFD_ALLOW_SEALING | MFD_CLOEXEC);
    assert_int_equal(ftruncate(unsealed, (off_t)worker_segment_bytes()), 0);
    worker = connect_worker(&house);
    say_hello(worker, unsealed);
    assert_refused(&house, worker, ATTACH_REFUSAL_SEGMENT);
    close(unsealed);
    close_house(&house);
}

static void a_loss_is_told_once_and_only_after_a_hello(void **state)
{
    (void)state;
    struct house house;
    open_house(&house);
    close(connect_worker(&house));
    assert_no_event(&house);
    int worker = connect_worker(&house);
    say_hello(worker, house.shm.descriptor);
    struct attach_event hello = next_event(&house);
    close(worker);
    struct attach_event lost = next_event(&house);
    assert_int_equal(lost.kind, ATTACH_EVENT_LOST);
    assert_int_equal(lost.connection, hello.connection);
    assert_no_event(&house);
    struct worker_process process;
    assert_true(attach_port_release(house.port, lost.connection, &process));
    worker_process_close(&process);
    close_house(&house);
}

static void who_says_nothing_makes_room_for_others(void **state)
{
    (void)state;
    struct house house;
    open_house(&house);
    int silent[ATTACH_CONNECTIONS_MAX];
    for (int i = 0; i < ATTACH_CONNECTIONS_MAX; i++)
        silent[i] = connect_worker(&house);
    assert_no_event(&house);
    int late = connect_worker(&house), passed;
    uint8_t packet[LIMIT_ATTACH_BYTES];
    size_t length;
    assert_no_event(&house);
    assert_int_equal(packet_socket_receive(late, packet, sizeof packet, &length, &passed),
                     STATUS_CLOSED); /* no place: it tries again */
    close(late);
    uint64_t deadline_ns = attach_port_next_deadline_ns(house.port);
    assert_in_range(deadline_ns, clock_now_ns(), clock_now_ns() + 5 * NS_PER_S);
    attach_port_tick(house.port, deadline_ns - 1);
    attach_port_tick(house.port, deadline_ns + NS_PER_S);
    for (int i = 0; i < ATTACH_CONNECTIONS_MAX; i++)
        assert_refused(&house, silent[i], ATTACH_REFUSAL_MALFORMED);
    int worker = connect_worker(&house);
    say_hello(worker, house.shm.descriptor);
    assert_int_equal(next_event(&house).kind, ATTACH_EVENT_HELLO);
    close(worker);
    close_house(&house);
}

static void without_descriptors_it_pauses_and_goes_on_later(void **state)
{
    (void)state;
    struct house house;
    struct rlimit limit, none;
    open_house(&house);
    int worker = connect_worker(&house);
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    none = limit;
    none.rlim_cur = 0;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &none), 0);
    uint32_t waits = 0;
    uint64_t end_ns = clock_now_ns() + 100 * NS_PER_MS;
    while (clock_now_ns() < end_ns) {
        assert_int_equal(event_loop_wait(&house.loop, end_ns), STATUS_OK);
        attach_port_tick(house.port, clock_now_ns());
        waits++;
    }
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
    assert_in_range(waits, 1, 5); /* it does not spin */
    say_hello(worker, house.shm.descriptor);
    uint64_t resume_ns = attach_port_next_deadline_ns(house.port);
    assert_in_range(resume_ns, end_ns, end_ns + NS_PER_S);
    attach_port_tick(house.port, resume_ns);
    assert_int_equal(next_event(&house).kind, ATTACH_EVENT_HELLO);
    close(worker);
    close_house(&house);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_hello_is_told_with_who_said_it),
        cmocka_unit_test(another_user_is_told_as_such),
        cmocka_unit_test(hellos_that_are_none_are_refused_by_name),
        cmocka_unit_test(a_loss_is_told_once_and_only_after_a_hello),
        cmocka_unit_test(who_says_nothing_makes_room_for_others),
        cmocka_unit_test(without_descriptors_it_pauses_and_goes_on_later),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
