#include "common/log.h"

#include "common/clock.h"
#include "common/text.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

enum { LINE_BYTES = 2048 };

enum log_level log_level = LOG_LEVEL_INFO;
static const char *log_service;

static const char *const LEVEL_NAMES[] = {"error", "warn", "info", "debug"};

void log_open(const char *service, enum log_level level)
{
    log_service = service;
    log_level = level;
}

void log_line(enum log_level level, const char *event, const char *format, ...)
{
    char storage[LINE_BYTES];
    struct text line;
    text_init(&line, storage, sizeof storage - 1); /* one byte is kept for the newline */
    uint64_t now_us = clock_now_ns() / 1000;
    text_format(&line, "t=%" PRIu64 ".%06" PRIu64 " level=%s", now_us / 1000000, now_us % 1000000,
                LEVEL_NAMES[level]);
    if (log_service != NULL)
        text_format(&line, " service=%s", log_service);
    text_format(&line, " event=%s ", event);

    char pairs[LINE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(pairs, sizeof pairs, format, arguments);
    va_end(arguments);
    if (length > 0)
        text_append(&line, pairs,
                    (size_t)length < sizeof pairs ? (size_t)length : sizeof pairs - 1);
    for (size_t i = 0; i < line.length; i++)
        if ((unsigned char)storage[i] < 0x20)
            storage[i] = ' '; /* one event is one line, whatever a peer put into a value */
    storage[line.length] = '\n';
    ssize_t written = write(STDERR_FILENO, storage, line.length + 1);
    (void)written; /* nowhere left to complain */
}
