/* The loop and the queue that feeds it: deadlines, descriptors, signals, wakes from many threads.
 */
#include "common/event_loop.h"

#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/epoll.h>
#include <sys/types.h>
#include <unistd.h>

#include <cmocka.h>

static void the_deadline_ends_the_wait(void **state)
{
    (void)state;
    struct event_loop loop;
    assert_int_equal(event_loop_open(&loop), STATUS_OK);
    uint64_t start_ns = clock_now_ns();
    uint64_t deadline_ns = start_ns + 20 * NS_PER_MS;
    while (clock_now_ns() < deadline_ns)
        assert_int_equal(event_loop_wait(&loop, deadline_ns), STATUS_OK);
    uint64_t waited_ns = clock_now_ns() - start_ns;
    assert_in_range(waited_ns, 20 * NS_PER_MS, 2000 * NS_PER_MS);
    /* A deadline in the past, also zero, returns at once. */
    assert_int_equal(event_loop_wait(&loop, 0), STATUS_OK);
    assert_int_equal(event_loop_wait(&loop, start_ns), STATUS_OK);
    event_loop_close(&loop);
}

struct counted {
    struct event_loop *loop;
    int descriptor;
    int other; /* removed by the handler when >= 0 */
    int calls;
};

static void count_event(void *context, uint32_t events)
{
    struct counted *counted = context;
    assert_true((events & EPOLLIN) != 0);
    counted->calls++;
    char byte;
    assert_int_equal(read(counted->descriptor, &byte, 1), 1);
    if (counted->other >= 0)
        event_loop_remove(counted->loop, counted->other);
}

static void a_removed_source_is_not_called_in_the_same_batch(void **state)
{
    (void)state;
    struct event_loop loop;
    assert_int_equal(event_loop_open(&loop), STATUS_OK);
    int first[2], second[2];
    assert_int_equal(pipe(first), 0);
    assert_int_equal(pipe(second), 0);
    struct counted a = {&loop, first[0], second[0], 0};
    struct counted b = {&loop, second[0], first[0], 0};
    assert_int_equal(event_loop_add(&loop, first[0], EPOLLIN, count_event, &a), STATUS_OK);
    assert_int_equal(event_loop_add(&loop, second[0], EPOLLIN, count_event, &b), STATUS_OK);
    assert_int_equal(write(first[1], "x", 1), 1);
    assert_int_equal(write(second[1], "x", 1), 1);
    assert_int_equal(event_loop_wait(&loop, clock_now_ns() + NS_PER_S), STATUS_OK);
    assert_int_equal(a.calls + b.calls, 1); /* whoever came first removed the other */
    for (int i = 0; i < 2; i++) {
        close(first[i]);
        close(second[i]);
    }
    event_loop_close(&loop);
}

static void the_loop_has_a_bound(void **state)
{
    (void)state;
    struct event_loop loop;
    assert_int_equal(event_loop_open(&loop), STATUS_OK);
    int pair[2];
    assert_int_equal(pipe(pair), 0);
    int copies[EVENT_LOOP_SOURCES_MAX + 1];
    struct counted counted = {&loop, pair[0], -1, 0};
    for (int i = 0; i < EVENT_LOOP_SOURCES_MAX; i++) {
        copies[i] = dup(pair[0]);
        assert_int_equal(event_loop_add(&loop, copies[i], EPOLLIN, count_event, &counted),
                         STATUS_OK);
    }
    assert_int_equal(event_loop_add(&loop, pair[0], EPOLLIN, count_event, &counted), STATUS_FULL);
    event_loop_remove(&loop, copies[3]);
    assert_int_equal(event_loop_add(&loop, pair[0], EPOLLIN, count_event, &counted), STATUS_OK);
    for (int i = 0; i < EVENT_LOOP_SOURCES_MAX; i++)
        close(copies[i]);
    close(pair[0]);
    close(pair[1]);
    event_loop_close(&loop);
}

static void note_signal(void *context, int signal_number)
{
    *(int *)context = signal_number;
}

static void signals_arrive_inside_the_loop(void **state)
{
    (void)state;
    struct event_loop loop;
    assert_int_equal(event_loop_open(&loop), STATUS_OK);
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    int seen = 0;
    assert_int_equal(event_loop_add_signals(&loop, &set, note_signal, &seen), STATUS_OK);
    kill(getpid(), SIGUSR1);
    uint64_t deadline_ns = clock_now_ns() + 2 * NS_PER_S;
    while (seen == 0 && clock_now_ns() < deadline_ns)
        assert_int_equal(event_loop_wait(&loop, deadline_ns), STATUS_OK);
    assert_int_equal(seen, SIGUSR1);
    event_loop_close(&loop);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_deadline_ends_the_wait),
        cmocka_unit_test(a_removed_source_is_not_called_in_the_same_batch),
        cmocka_unit_test(the_loop_has_a_bound),
        cmocka_unit_test(signals_arrive_inside_the_loop),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
