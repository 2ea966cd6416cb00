/* The process behind an attachment: seen, ended, seen as ended; nobody else is hit. */
#include "coordinator/worker_process.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static pid_t start_child(void)
{
    pid_t child = fork();
    if (child == 0)
        for (;;)
            pause();
    return child;
}

static void a_process_is_killed_and_seen_as_ended(void **state)
{
    (void)state;
    pid_t child = start_child();
    struct peer_identity peer = {.pid = child, .uid = getuid()};
    struct worker_process process;
    int result;
    worker_process_open(&process, &peer);
    assert_true(process.descriptor >= 0 && process.start_time > 0);
    assert_false(worker_process_ended(&process));
    assert_true(worker_process_kill(&process));
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGKILL);
    assert_true(worker_process_ended(&process));
    assert_true(worker_process_kill(&process)); /* it is gone, which is what was wanted */
    worker_process_close(&process);
    worker_process_close(&process);
}

static void without_a_descriptor_the_start_time_tells(void **state)
{
    (void)state;
    pid_t child = start_child();
    struct peer_identity peer = {.pid = child, .uid = getuid()};
    struct worker_process process;
    int result;
    worker_process_open(&process, &peer);
    worker_process_close(&process);
    assert_false(worker_process_ended(&process));
    assert_false(worker_process_kill(&process)); /* by pid alone it could be another one */
    process.start_time++;
    assert_true(worker_process_ended(&process)); /* the pid belongs to another process now */
    process.start_time--;
    kill(child, SIGKILL);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(worker_process_ended(&process));
}

static void an_invisible_process_is_neither_ended_nor_hit(void **state)
{
    (void)state;
    struct peer_identity peer = {.pid = 0, .uid = 4711};
    struct worker_process process;
    worker_process_open(&process, &peer);
    assert_int_equal(process.descriptor, -1);
    assert_false(worker_process_ended(&process));
    assert_false(worker_process_kill(&process));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_process_is_killed_and_seen_as_ended),
        cmocka_unit_test(without_a_descriptor_the_start_time_tells),
        cmocka_unit_test(an_invisible_process_is_neither_ended_nor_hit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
