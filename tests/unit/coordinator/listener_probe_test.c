/* The self-test of the listener against servers that answer, answer late, answer in pieces, or
 * never. Time is an argument, so nothing waits. */
#include "coordinator/listener_probe.h"

#include "common/clock.h"
#include "support/sp_client.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

static const uint8_t question[] = {0x81, 0x01, 0x06};

struct server {
    char directory[32], path[64];
    int listener;
    struct event_loop loop;
    struct listener_probe probe;
};

static void open_server(struct server *server)
{
    *server = (struct server){.directory = "/tmp/tandem-probe-XXXXXX"};
    assert_non_null(mkdtemp(server->directory));
    snprintf(server->path, sizeof server->path, "%s/s", server->directory);
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    memcpy(address.sun_path, server->path, strlen(server->path));
    server->listener = socket(AF_UNIX, SOCK_STREAM, 0);
    assert_int_equal(bind(server->listener, (struct sockaddr *)&address, sizeof address), 0);
    assert_int_equal(listen(server->listener, 8), 0);
    assert_int_equal(event_loop_open(&server->loop), STATUS_OK);
    listener_probe_open(&server->probe, &server->loop, server->path, question, sizeof question);
}

static void close_server(struct server *server)
{
    listener_probe_close(&server->probe);
    event_loop_close(&server->loop);
    close(server->listener);
    unlink(server->path);
    rmdir(server->directory);
}

/* Takes the probe's connection and checks what it says, as a REP socket would. */
static int accept_probe(struct server *server)
{
    uint8_t got[SP_HELLO_BYTES + SP_HEAD_BYTES + SP_ID_BYTES + sizeof question];
    int connection = accept(server->listener, NULL, NULL);
    assert_true(connection >= 0);
    assert_true(sp_read(connection, got, sizeof got));
    assert_memory_equal(got, sp_hello_req, SP_HELLO_BYTES);
    assert_int_equal(got[SP_HELLO_BYTES], 1);
    assert_int_equal(got[SP_HELLO_BYTES + 8], SP_ID_BYTES + sizeof question);
    assert_int_equal(got[SP_HELLO_BYTES + SP_HEAD_BYTES] & 0x80, 0x80);
    assert_memory_equal(got + sizeof got - sizeof question, question, sizeof question);
    return connection;
}

/* `bytes` of a hello and an answer of 100 bytes. */
static void answer_part(int connection, size_t from, size_t bytes)
{
    uint8_t whole[SP_HELLO_BYTES + SP_HEAD_BYTES + 100] = {0};
    memcpy(whole, sp_hello_rep, SP_HELLO_BYTES);
    whole[SP_HELLO_BYTES] = 1;
    whole[SP_HELLO_BYTES + 8] = 100;
    assert_true(sp_write(connection, whole + from, bytes));
}

enum { WHOLE_BYTES = SP_HELLO_BYTES + SP_HEAD_BYTES + 100 };

static void an_answer_in_pieces_is_an_answer(void **state)
{
    (void)state;
    struct server server;
    open_server(&server);
    uint64_t now_ns = 1000 * NS_PER_S;
    for (int round = 0; round < 4; round++) {
        assert_false(listener_probe_tick(&server.probe, now_ns));
        int connection = accept_probe(&server);
        size_t step = round == 0 ? 1 : 37;
        for (size_t at = 0; at < WHOLE_BYTES; at += step) {
            size_t bytes = WHOLE_BYTES - at < step ? WHOLE_BYTES - at : step;
            assert_true(server.probe.descriptor >= 0); /* not content before the end */
            answer_part(connection, at, bytes);
            assert_int_equal(event_loop_wait(&server.loop, EVENT_LOOP_NO_DEADLINE), STATUS_OK);
        }
        assert_int_equal(server.probe.descriptor, -1);
        assert_int_equal(server.probe.deadline_ns, now_ns + 2 * NS_PER_S);
        close(connection);
        now_ns += 2 * NS_PER_S;
    }
    close_server(&server);
}

static void silence_twice_is_a_dead_listener(void **state)
{
    (void)state;
    struct server server;
    open_server(&server);
    uint64_t now_ns = 1000 * NS_PER_S;
    assert_false(listener_probe_tick(&server.probe, now_ns));
    int first = accept_probe(&server);
    assert_false(listener_probe_tick(&server.probe, now_ns + NS_PER_S - 1)); /* still patient */
    assert_false(listener_probe_tick(&server.probe, now_ns + NS_PER_S));     /* once: asks again */
    int second = accept_probe(&server);
    answer_part(second, 0, WHOLE_BYTES - 1); /* all but one byte is no answer */
    assert_true(listener_probe_tick(&server.probe, now_ns + 2 * NS_PER_S));
    close(first);
    close(second);
    close_server(&server);
}

static void an_answer_that_the_loop_saw_late_counts(void **state)
{
    (void)state;
    struct server server;
    open_server(&server);
    uint64_t now_ns = 1000 * NS_PER_S;
    for (int round = 0; round < 3; round++) {
        assert_false(listener_probe_tick(&server.probe, now_ns));
        int connection = accept_probe(&server);
        answer_part(connection, 0, WHOLE_BYTES);
        now_ns += 10 * NS_PER_S; /* the loop slept, the bytes are in the socket */
        assert_false(listener_probe_tick(&server.probe, now_ns));
        assert_int_equal(server.probe.failures, 0);
        close(connection);
    }
    close_server(&server);
}

static void who_is_not_there_or_hangs_up_fails(void **state)
{
    (void)state;
    struct server server;
    open_server(&server);
    uint64_t now_ns = 1000 * NS_PER_S;
    assert_false(listener_probe_tick(&server.probe, now_ns));
    close(accept_probe(&server));
    assert_int_equal(event_loop_wait(&server.loop, EVENT_LOOP_NO_DEADLINE), STATUS_OK);
    unlink(server.path);
    assert_false(
        listener_probe_tick(&server.probe, now_ns + 1)); /* hung up; the next cannot connect */
    assert_true(listener_probe_tick(&server.probe, now_ns + 2 * NS_PER_S));
    close_server(&server);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_in_pieces_is_an_answer),
        cmocka_unit_test(silence_twice_is_a_dead_listener),
        cmocka_unit_test(an_answer_that_the_loop_saw_late_counts),
        cmocka_unit_test(who_is_not_there_or_hangs_up_fails),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
