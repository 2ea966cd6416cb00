/* Forgotten connections are silenced, everything else is left alone. */
#include "coordinator/hangup_sweep.h"

#include "common/duration.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

static struct hangup_sweep sweep;
static uint64_t now_ns;
static int poller;

static int set_up(void **state)
{
    (void)state;
    sweep = (struct hangup_sweep){0};
    now_ns = NS_PER_S;
    poller = epoll_create1(0);
    return poller < 0;
}

static int tear_down(void **state)
{
    (void)state;
    return close(poller);
}

/* A connection as nng forgets it: registered for nothing, the peer gone. */
static int forgotten(int type)
{
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, type, 0, pair), 0);
    struct epoll_event event = {.events = 0};
    assert_int_equal(epoll_ctl(poller, EPOLL_CTL_ADD, pair[0], &event), 0);
    close(pair[1]);
    return pair[0];
}

static int reported(void)
{
    struct epoll_event events[8];
    return epoll_wait(poller, events, 8, 0);
}

static uint32_t next_sweep(void)
{
    now_ns += 2 * NS_PER_S;
    return hangup_sweep_tick(&sweep, now_ns);
}

static void a_forgotten_connection_is_silent_after_two_sweeps(void **state)
{
    (void)state;
    int descriptor = forgotten(SOCK_STREAM);
    assert_int_equal(reported(), 1);
    assert_int_equal(next_sweep(), 0); /* its reader may be on the way */
    assert_int_equal(reported(), 1);
    assert_int_equal(next_sweep(), 1);
    assert_int_equal(reported(), 0);
    assert_int_equal(next_sweep(), 0);
    char byte;
    assert_true(recv(descriptor, &byte, 1, MSG_DONTWAIT) < 0); /* nng would close it now */
    assert_int_equal(close(descriptor), 0);                    /* the number was kept */
}

static void sweeps_are_two_seconds_apart(void **state)
{
    (void)state;
    int descriptor = forgotten(SOCK_STREAM);
    assert_int_equal(next_sweep(), 0);
    assert_int_equal(hangup_sweep_tick(&sweep, now_ns + 2 * NS_PER_S - 1), 0);
    assert_int_equal(reported(), 1);
    assert_int_equal(next_sweep(), 1);
    close(descriptor);
}

static void living_connections_and_sockets_of_our_own_stay(void **state)
{
    (void)state;
    int pair[2], packets = forgotten(SOCK_SEQPACKET);
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    for (int i = 0; i < 3; i++)
        assert_int_equal(next_sweep(), 0);
    assert_int_equal(write(pair[0], "x", 1), 1);
    char byte;
    assert_int_equal(read(pair[1], &byte, 1), 1);
    assert_int_equal(reported(), 1);
    close(packets);
    close(pair[0]);
    close(pair[1]);
}

static void a_number_that_was_given_away_again_is_another_connection(void **state)
{
    (void)state;
    int descriptor = forgotten(SOCK_STREAM);
    assert_int_equal(next_sweep(), 0);
    close(descriptor);
    int successor = forgotten(SOCK_STREAM);
    assert_int_equal(successor, descriptor);
    assert_int_equal(next_sweep(), 0);
    assert_int_equal(reported(), 1);
    assert_int_equal(next_sweep(), 1);
    close(successor);
}

static void more_than_fit_wait_their_turn(void **state)
{
    (void)state;
    enum { COUNT = HANGUP_SUSPECTS_MAX + 10 };
    int descriptors[COUNT];
    for (int i = 0; i < COUNT; i++)
        descriptors[i] = forgotten(SOCK_STREAM);
    uint32_t silenced = 0;
    for (int i = 0; i < 4; i++)
        silenced += next_sweep();
    assert_int_equal(silenced, COUNT);
    assert_int_equal(reported(), 0);
    for (int i = 0; i < COUNT; i++)
        close(descriptors[i]);
}

#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        CASE(a_forgotten_connection_is_silent_after_two_sweeps),
        CASE(sweeps_are_two_seconds_apart),
        CASE(living_connections_and_sockets_of_our_own_stay),
        CASE(a_number_that_was_given_away_again_is_another_connection),
        CASE(more_than_fit_wait_their_turn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
