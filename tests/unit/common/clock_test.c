#include "common/clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static void time_goes_on(void **state)
{
    (void)state;
    uint64_t first = clock_now_ns(), last = first;
    for (int i = 0; i < 1000; i++) {
        uint64_t now = clock_now_ns();
        assert_true(now >= last);
        last = now;
    }
    assert_true(last > first);
    assert_true(last - first < 10 * NS_PER_S);
}

/* Other processes of the host compare our stamps with theirs: it must be the monotonic clock. */
static void it_is_the_monotonic_clock(void **state)
{
    (void)state;
    FILE *file = fopen("/proc/uptime", "r");
    assert_non_null(file);
    char line[64];
    assert_non_null(fgets(line, sizeof line, file));
    fclose(file);
    uint64_t uptime_ns = (uint64_t)(strtod(line, NULL) * 1e9);
    uint64_t now = clock_now_ns();
    /* /proc/uptime also counts the time that a machine slept. */
    assert_true(now < uptime_ns + NS_PER_S);
}

static void a_thread_that_sleeps_does_not_run(void **state)
{
    const struct timespec nap = {0, 30 * 1000 * 1000};
    clockid_t clock;
    (void)state;
    assert_int_equal(pthread_getcpuclockid(pthread_self(), &clock), 0);
    uint64_t before = clock_ran_ns(clock);
    nanosleep(&nap, NULL);
    uint64_t after = clock_ran_ns(clock);
    assert_true(after - before < 20 * NS_PER_MS);
    while (clock_ran_ns(clock) - after < 2 * NS_PER_MS)
        continue;
    assert_true(clock_ran_ns((clockid_t)-1) == UINT64_MAX);
}

static void units_are_related(void **state)
{
    (void)state;
    assert_int_equal(NS_PER_S, 1000 * NS_PER_MS);
    assert_int_equal(NS_PER_MS, 1000 * NS_PER_US);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(time_goes_on),
        cmocka_unit_test(it_is_the_monotonic_clock),
        cmocka_unit_test(a_thread_that_sleeps_does_not_run),
        cmocka_unit_test(units_are_related),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
