#include "common/process.h"

#include "common/clock.h"
#include "common/duration.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

/* A child that does nothing until it is ended. */
static pid_t start_child(void)
{
    /* The name, which /proc shows in brackets, must not confuse whoever counts fields; the child
     * inherits it. */
    prctl(PR_SET_NAME, "a ) b (c");
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        for (;;)
            pause();
    }
    return child;
}

static void end_child(pid_t child)
{
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, NULL, 0), child);
}

static void start_time_is_that_of_the_process(void **state)
{
    (void)state;
    uint64_t own = 0, again = 0, of_child = 0;
    assert_int_equal(process_start_time(getpid(), &own), STATUS_OK);
    assert_int_equal(process_start_time(getpid(), &again), STATUS_OK);
    assert_int_equal(own, again);
    assert_true(own > 0);
    pid_t child = start_child();
    assert_int_equal(process_start_time(child, &of_child), STATUS_OK);
    assert_true(of_child >= own);
    /* Ticks since boot: what /proc/uptime says, not the time of day. */
    assert_true(own / (uint64_t)sysconf(_SC_CLK_TCK) <= clock_now_ns() / NS_PER_S + 1);
    end_child(child);
    assert_int_equal(process_start_time(child, &of_child), STATUS_NOT_FOUND);
}

static void the_descriptor_tells_the_end_and_kills(void **state)
{
    (void)state;
    pid_t child = start_child();
    int descriptor = -1;
    assert_int_equal(process_open(child, &descriptor), STATUS_OK);
    struct pollfd wait = {.fd = descriptor, .events = POLLIN};
    assert_int_equal(poll(&wait, 1, 0), 0);
    assert_int_equal(process_kill(descriptor), STATUS_OK);
    assert_int_equal(poll(&wait, 1, 10000), 1);
    assert_int_equal(waitpid(child, NULL, 0), child);
    assert_int_equal(process_kill(descriptor), STATUS_NOT_FOUND);
    close(descriptor);
    assert_int_equal(process_open(child, &descriptor), STATUS_NOT_FOUND);
}

static void core_dumps_are_forbidden_unless_asked_for(void **state)
{
    (void)state;
    for (int asked = 0; asked < 2; asked++) {
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            if (asked)
                setenv("TANDEM_DEBUG_CORES", "1", 1);
            else
                unsetenv("TANDEM_DEBUG_CORES");
            process_forbid_core_dumps();
            _exit(prctl(PR_GET_DUMPABLE) == asked ? 0 : 1);
        }
        int status;
        assert_int_equal(waitpid(child, &status, 0), child);
        assert_int_equal(status, 0);
    }
}

static void the_limit_of_descriptors_is_the_hard_one(void **state)
{
    (void)state;
    struct rlimit limit, lowered;
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &limit), 0);
    lowered = limit;
    lowered.rlim_cur = 64;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &lowered), 0);
    process_raise_descriptor_limit();
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &lowered), 0);
    assert_int_equal(lowered.rlim_cur, limit.rlim_max);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(start_time_is_that_of_the_process),
        cmocka_unit_test(the_descriptor_tells_the_end_and_kills),
        cmocka_unit_test(core_dumps_are_forbidden_unless_asked_for),
        cmocka_unit_test(the_limit_of_descriptors_is_the_hard_one),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
