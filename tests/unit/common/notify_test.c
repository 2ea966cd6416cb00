#include "common/notify.h"

#include "common/duration.h"
#include "common/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

/* A service manager: an abstract datagram socket named in NOTIFY_SOCKET. */
static int manager_open(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    char name[64];
    int length = snprintf(name, sizeof name, "@tandem-notify-test-%ld", (long)getpid());
    memcpy(address.sun_path + 1, name + 1, (size_t)length - 1);
    int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    assert_true(descriptor >= 0);
    socklen_t bytes = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + (size_t)length);
    assert_int_equal(bind(descriptor, (struct sockaddr *)&address, bytes), 0);
    setenv("NOTIFY_SOCKET", name, 1);
    return descriptor;
}

static void assert_told(int manager, const char *expected)
{
    char words[512];
    ssize_t length = recv(manager, words, sizeof words - 1, MSG_DONTWAIT);
    assert_true(length >= 0);
    words[length] = '\0';
    assert_string_equal(words, expected);
}

static void each_state_is_one_datagram(void **state)
{
    (void)state;
    int manager = manager_open();
    setenv("WATCHDOG_USEC", "3000000", 1);
    unsetenv("WATCHDOG_PID");
    struct notify notify;
    notify_open(&notify);
    assert_int_equal(notify.watchdog_ns, 3 * NS_PER_S);
    notify_ready(&notify);
    assert_told(manager, "READY=1");
    notify_watchdog(&notify);
    assert_told(manager, "WATCHDOG=1");
    notify_status(&notify, "epoch %d", 7);
    assert_told(manager, "STATUS=epoch 7");
    notify_stopping(&notify);
    assert_told(manager, "STOPPING=1");
    notify_close(&notify);
    notify_ready(&notify);
    char byte;
    assert_int_equal(recv(manager, &byte, 1, MSG_DONTWAIT), -1);
    close(manager);
}

static void a_long_status_is_cut(void **state)
{
    (void)state;
    int manager = manager_open();
    struct notify notify;
    notify_open(&notify);
    char long_text[1000], words[2000];
    memset(long_text, 'x', sizeof long_text - 1);
    long_text[sizeof long_text - 1] = '\0';
    notify_status(&notify, "%s", long_text);
    ssize_t length = recv(manager, words, sizeof words, MSG_DONTWAIT);
    assert_in_range(length, 100, 256);
    notify_close(&notify);
    close(manager);
}

static void the_watchdog_of_another_process_is_not_ours(void **state)
{
    (void)state;
    int manager = manager_open();
    setenv("WATCHDOG_USEC", "3000000", 1);
    setenv("WATCHDOG_PID", "1", 1);
    struct notify notify;
    notify_open(&notify);
    assert_int_equal(notify.watchdog_ns, 0);
    notify_close(&notify);
    char pid[32];
    snprintf(pid, sizeof pid, "%ld", (long)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    notify_open(&notify);
    assert_int_equal(notify.watchdog_ns, 3 * NS_PER_S);
    notify_close(&notify);
    unsetenv("WATCHDOG_PID");
    close(manager);
}

static void without_a_manager_nothing_happens(void **state)
{
    (void)state;
    static const char *const PATHS[] = {
        NULL, "", "@", "relative", "/nowhere/at/all", "@tandem-nobody-listens-here"};
    log_open(NULL, LOG_LEVEL_ERROR);
    for (size_t i = 0; i < sizeof PATHS / sizeof PATHS[0]; i++) {
        if (PATHS[i] == NULL)
            unsetenv("NOTIFY_SOCKET");
        else
            setenv("NOTIFY_SOCKET", PATHS[i], 1);
        struct notify notify;
        notify_open(&notify);
        assert_int_equal(notify.descriptor, -1);
        notify_ready(&notify);
        notify_close(&notify);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_state_is_one_datagram),
        cmocka_unit_test(a_long_status_is_cut),
        cmocka_unit_test(the_watchdog_of_another_process_is_not_ours),
        cmocka_unit_test(without_a_manager_nothing_happens),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
