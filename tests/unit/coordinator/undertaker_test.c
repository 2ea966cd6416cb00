/* Sockets are closed once they are quiet, one after the other, and one that hangs holds nobody up.
 */
#include "coordinator/undertaker.h"

#include "common/clock.h"

#include <semaphore.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>

#include <cmocka.h>

#define PATIENCE_NS (10 * NS_PER_S)

struct socket {
    struct grave grave;
    atomic_int connected;
    atomic_int closes;
    sem_t *waits_for; /* its close does */
};

/* One for each test and never freed: a thread that has closed a socket may still be on its way out
 * of the queue. */
enum { WORLDS_MAX = 8 };
static struct world {
    struct event_loop loop;
    struct undertaker undertaker;
} worlds[WORLDS_MAX], *world = worlds;
static uint64_t now_ns = 1000 * NS_PER_S; /* the undertaker's; no real time passes */

static bool is_quiet(struct grave *grave)
{
    return atomic_load(&((struct socket *)grave)->connected) == 0;
}

static void close_socket(struct grave *grave)
{
    struct socket *socket = (struct socket *)grave;
    if (socket->waits_for != NULL)
        sem_wait(socket->waits_for);
    atomic_fetch_add(&socket->closes, 1);
}

static struct socket make_socket(int connected)
{
    struct socket socket = {.grave = {.is_quiet = is_quiet, .close = close_socket}};
    atomic_store(&socket.connected, connected);
    return socket;
}

static void pass(uint64_t time_ns)
{
    now_ns += time_ns;
    undertaker_tick(&world->undertaker, now_ns);
}

/* In real time: the thread needs some. */
static struct grave *wait_closed(void)
{
    uint64_t end_ns = clock_now_ns() + PATIENCE_NS;
    struct grave *grave;
    while ((grave = undertaker_next_closed(&world->undertaker)) == NULL && clock_now_ns() < end_ns)
        assert_int_equal(event_loop_wait(&world->loop, end_ns), STATUS_OK);
    return grave;
}

static int open_undertaker(void **state)
{
    (void)state;
    assert_int_equal(event_loop_open(&world->loop), STATUS_OK);
    assert_int_equal(undertaker_init(&world->undertaker, &world->loop), STATUS_OK);
    assert_true(undertaker_next_deadline_ns(&world->undertaker) == EVENT_LOOP_NO_DEADLINE);
    return 0;
}

static int nothing_is_left(void **state)
{
    (void)state;
    pass(NS_PER_S);
    assert_true(undertaker_next_deadline_ns(&world->undertaker) == EVENT_LOOP_NO_DEADLINE);
    world++;
    return 0;
}

static void a_socket_is_closed_when_it_was_quiet_for_a_while(void **state)
{
    (void)state;
    struct socket socket = make_socket(1);
    undertaker_bury(&world->undertaker, &socket.grave, now_ns);
    assert_true(undertaker_next_deadline_ns(&world->undertaker) <= now_ns);
    pass(5 * UNDERTAKER_QUIET_NS);
    assert_null(world->undertaker.closing);
    atomic_store(&socket.connected, 0);
    pass(NS_PER_S);
    pass(UNDERTAKER_QUIET_NS - 1);
    assert_null(world->undertaker.closing);
    atomic_store(&socket.connected, 1); /* one that was still shaking hands */
    pass(NS_PER_S);
    atomic_store(&socket.connected, 0);
    pass(NS_PER_S);
    assert_null(world->undertaker.closing);
    pass(UNDERTAKER_QUIET_NS);
    assert_ptr_equal(wait_closed(), &socket.grave);
    assert_int_equal(atomic_load(&socket.closes), 1);
}

static void a_close_that_hangs_holds_nobody_up(void **state)
{
    (void)state;
    enum { LATER = 2 * UNDERTAKER_WAITING_MAX };
    sem_t end;
    assert_int_equal(sem_init(&end, 0, 0), 0);
    struct socket first = make_socket(0);
    static struct socket later[LATER];
    first.waits_for = &end;
    undertaker_bury(&world->undertaker, &first.grave, now_ns);
    pass(0);
    pass(UNDERTAKER_QUIET_NS);
    assert_ptr_equal(world->undertaker.closing, &first.grave);
    for (int i = 0; i < LATER; i++) {
        later[i] = make_socket(0);
        undertaker_bury(&world->undertaker, &later[i].grave, now_ns);
    }
    for (int i = 0; i < 100; i++)
        pass(NS_PER_S);
    assert_false(undertaker_is_busy(&world->undertaker)); /* though many wait */
    assert_null(undertaker_next_closed(&world->undertaker));
    assert_true(undertaker_next_deadline_ns(&world->undertaker) == EVENT_LOOP_NO_DEADLINE);
    sem_post(&end);
    assert_ptr_equal(wait_closed(), &first.grave);
    for (int i = 0; i < LATER; i++) {
        assert_true(undertaker_next_deadline_ns(&world->undertaker) <= now_ns + NS_PER_S);
        pass(NS_PER_S);
        assert_non_null(wait_closed());
    }
    for (int i = 0; i < LATER; i++)
        assert_int_equal(atomic_load(&later[i].closes), 1);
    sem_destroy(&end);
}

static void many_open_sockets_make_it_busy(void **state)
{
    (void)state;
    static struct socket sockets[UNDERTAKER_WAITING_MAX];
    for (int i = 0; i < UNDERTAKER_WAITING_MAX; i++) {
        assert_false(undertaker_is_busy(&world->undertaker));
        sockets[i] = make_socket(0);
        undertaker_bury(&world->undertaker, &sockets[i].grave, now_ns);
    }
    assert_true(undertaker_is_busy(&world->undertaker));
    pass(0);
    for (int i = 0; i < UNDERTAKER_WAITING_MAX; i++) {
        pass(NS_PER_S);
        assert_non_null(wait_closed());
        assert_false(undertaker_is_busy(&world->undertaker));
    }
}

static void a_socket_to_which_somebody_stays_connected_is_kept(void **state)
{
    (void)state;
    struct socket socket = make_socket(1);
    undertaker_bury(&world->undertaker, &socket.grave, now_ns);
    pass(0);
    pass(UNDERTAKER_PATIENCE_NS - 1);
    assert_true(undertaker_next_deadline_ns(&world->undertaker) != EVENT_LOOP_NO_DEADLINE);
    pass(1 + NS_PER_S);
    assert_true(undertaker_next_deadline_ns(&world->undertaker) == EVENT_LOOP_NO_DEADLINE);
    assert_int_equal(atomic_load(&socket.closes), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_socket_is_closed_when_it_was_quiet_for_a_while,
                                        open_undertaker, nothing_is_left),
        cmocka_unit_test_setup_teardown(a_close_that_hangs_holds_nobody_up, open_undertaker,
                                        nothing_is_left),
        cmocka_unit_test_setup_teardown(many_open_sockets_make_it_busy, open_undertaker,
                                        nothing_is_left),
        cmocka_unit_test_setup_teardown(a_socket_to_which_somebody_stays_connected_is_kept,
                                        open_undertaker, nothing_is_left),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
