/* No more callbacks run at a time than threads were left, and all of them run. */
#include "coordinator/nng_threads.h"

#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <nng/nng.h>
#include <nng/protocol/pair0/pair.h>
#include <nng/supplemental/util/platform.h>
#include <stdatomic.h>
#include <unistd.h>

enum { CALLBACKS = 12, KEPT = 2 };

static atomic_uint running, most, finished;
static atomic_bool released;

static void callback(void *context)
{
    (void)context;
    unsigned now = atomic_fetch_add(&running, 1) + 1, seen = atomic_load(&most);
    while (seen < now && !atomic_compare_exchange_weak(&most, &seen, now)) {
    }
    while (!atomic_load(&released))
        usleep(100);
    atomic_fetch_sub(&running, 1);
    atomic_fetch_add(&finished, 1);
}

static bool comes_true(unsigned (*value)(void), unsigned wanted)
{
    uint64_t end_ns = clock_now_ns() + 10 * NS_PER_S;
    while (value() < wanted && clock_now_ns() < end_ns)
        usleep(1000);
    return value() >= wanted;
}

static unsigned running_now(void)
{
    return atomic_load(&running);
}

static unsigned finished_now(void)
{
    return atomic_load(&finished);
}

static void start_callbacks(nng_aio **aios)
{
    atomic_store(&most, 0);
    atomic_store(&finished, 0);
    atomic_store(&released, false);
    for (uint32_t i = 0; i < CALLBACKS; i++)
        nng_sleep_aio(1, aios[i]);
}

static void only_those_that_are_kept_run_callbacks(void **state)
{
    (void)state;
    nng_socket left, right;
    nng_aio *aios[CALLBACKS];
    assert_int_equal(nng_pair0_open(&left), 0);
    assert_int_equal(nng_pair0_open(&right), 0);
    for (uint32_t i = 0; i < CALLBACKS; i++)
        assert_int_equal(nng_aio_alloc(&aios[i], callback, NULL), 0);

    start_callbacks(aios); /* nng has at least two threads for each core */
    assert_true(comes_true(running_now, KEPT));
    atomic_store(&released, true);
    assert_true(comes_true(finished_now, CALLBACKS));

    uint32_t taken = nng_threads_limit(KEPT);
    assert_in_range(taken, sysconf(_SC_NPROCESSORS_ONLN) > 1 ? 1 : 0, 14);
    assert_int_equal(nng_threads_limit(KEPT + taken), 0); /* none is left beyond that */
    usleep(50000);                                        /* until the callbacks that stay run */
    start_callbacks(aios);
    assert_true(comes_true(running_now, KEPT));
    usleep(50000);
    assert_int_equal(atomic_load(&most), KEPT);
    atomic_store(&released, true);
    assert_true(comes_true(finished_now, CALLBACKS));

    assert_int_equal(nng_listen(left, "inproc://threads", NULL, 0), 0);
    assert_int_equal(nng_dial(right, "inproc://threads", NULL, 0), 0);
    char text[] = "still";
    size_t length = sizeof text;
    assert_int_equal(nng_send(left, text, length, 0), 0);
    assert_int_equal(nng_recv(right, text, &length, 0), 0);
    assert_string_equal(text, "still");
    for (uint32_t i = 0; i < CALLBACKS; i++)
        nng_aio_free(aios[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_those_that_are_kept_run_callbacks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
