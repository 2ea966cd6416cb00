/* The service manager's notification protocol (sd_notify) without its library: datagrams to
 * $NOTIFY_SOCKET. Without that variable every call does nothing. */
#ifndef TANDEM_COMMON_NOTIFY_H
#define TANDEM_COMMON_NOTIFY_H

#include <stdint.h>

struct notify {
    int descriptor;       /* owned; -1 = nobody listens */
    uint64_t watchdog_ns; /* how often the manager wants a sign of life at least; 0 = never */
};

/* Reads NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID. A socket that cannot be reached is logged
 * and ignored. */
void notify_open(struct notify *notify);
void notify_close(struct notify *notify);

void notify_ready(const struct notify *notify);
void notify_stopping(const struct notify *notify);
void notify_watchdog(const struct notify *notify);
void notify_status(const struct notify *notify, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

#endif
