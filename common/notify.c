#include "common/notify.h"

#include "common/clock.h"
#include "common/log.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static uint64_t watchdog_interval_ns(void)
{
    const char *interval = getenv("WATCHDOG_USEC");
    const char *pid = getenv("WATCHDOG_PID");
    if (interval == NULL || (pid != NULL && strtoll(pid, NULL, 10) != getpid()))
        return 0;
    return strtoull(interval, NULL, 10) * NS_PER_US;
}

void notify_open(struct notify *notify)
{
    *notify = (struct notify){.descriptor = -1};
    const char *path = getenv("NOTIFY_SOCKET");
    if (path == NULL)
        return;
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    size_t length = strlen(path);
    if ((path[0] != '/' && path[0] != '@') || length < 2 || length >= sizeof address.sun_path) {
        log_warn("notify_unreachable", "reason=path_not_usable");
        return;
    }
    memcpy(address.sun_path, path, length);
    if (path[0] == '@')
        address.sun_path[0] = '\0'; /* an abstract name */
    int descriptor = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    socklen_t address_length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length);
    if (descriptor < 0 ||
        connect(descriptor, (const struct sockaddr *)&address, address_length) != 0) {
        log_warn("notify_unreachable", "errno=%d", errno);
        if (descriptor >= 0)
            close(descriptor);
        return;
    }
    notify->descriptor = descriptor;
    notify->watchdog_ns = watchdog_interval_ns();
}

void notify_close(struct notify *notify)
{
    if (notify->descriptor >= 0)
        close(notify->descriptor);
    notify->descriptor = -1;
}

static void send_state(const struct notify *notify, const char *state)
{
    if (notify->descriptor < 0)
        return;
    ssize_t sent = send(notify->descriptor, state, strlen(state), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0)
        log_debug("notify_failed", "errno=%d", errno);
}

void notify_ready(const struct notify *notify)
{
    send_state(notify, "READY=1");
}

void notify_stopping(const struct notify *notify)
{
    send_state(notify, "STOPPING=1");
}

void notify_watchdog(const struct notify *notify)
{
    send_state(notify, "WATCHDOG=1");
}

void notify_status(const struct notify *notify, const char *format, ...)
{
    char state[256] = "STATUS=";
    size_t prefix = strlen(state);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(state + prefix, sizeof state - prefix, format, arguments);
    va_end(arguments);
    send_state(notify, state);
}
