#include "common/log.h"

#include "common/clock.h"
#include "common/text.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
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

/* What was written of one event in the window that began at `begin_ns`. */
struct event_count {
    const char *event; /* NULL: free */
    uint64_t begin_ns;
    uint64_t lines, left_out;
};

/* More events than there are names in docs/OPERATIONS.md; if not, the last place is shared. */
enum { EVENTS_MAX = 128 };

static struct {
    pthread_mutex_t mutex;
    struct event_count events[EVENTS_MAX];
} counts = {.mutex = PTHREAD_MUTEX_INITIALIZER};

static struct event_count *count_of(const char *event)
{
    uint32_t place = 0;
    while (place < EVENTS_MAX - 1 && counts.events[place].event != NULL &&
           strcmp(counts.events[place].event, event) != 0)
        place++;
    if (counts.events[place].event == NULL)
        counts.events[place].event = event;
    return &counts.events[place];
}

/* What to write of this event: the line itself, and what has to be said of lines that are left
 * out. */
struct allowance {
    bool line, first_left_out;
    uint64_t left_out_before;
};

static struct allowance take_allowance(const char *event, uint64_t now_ns)
{
    struct allowance allowance = {.line = true};
    pthread_mutex_lock(&counts.mutex);
    struct event_count *count = count_of(event);
    if (count->lines == 0 || now_ns - count->begin_ns >= LOG_WINDOW_SECONDS * NS_PER_S) {
        allowance.left_out_before = count->left_out;
        count->begin_ns = now_ns;
        count->lines = 0;
        count->left_out = 0;
    }
    if (count->lines < LOG_LINES_PER_WINDOW) {
        count->lines++;
    } else {
        allowance.line = false;
        allowance.first_left_out = count->left_out++ == 0;
    }
    pthread_mutex_unlock(&counts.mutex);
    return allowance;
}

static void write_line(enum log_level level, const char *event, uint64_t now_ns, const char *pairs)
{
    char storage[LINE_BYTES];
    struct text line;
    text_init(&line, storage, sizeof storage - 1); /* one byte is kept for the newline */
    uint64_t now_us = now_ns / 1000;
    text_format(&line, "t=%" PRIu64 ".%06" PRIu64 " level=%s", now_us / 1000000, now_us % 1000000,
                LEVEL_NAMES[level]);
    if (log_service != NULL)
        text_format(&line, " service=%s", log_service);
    text_format(&line, " event=%s ", event);
    text_append(&line, pairs, strlen(pairs));
    for (size_t i = 0; i < line.length; i++)
        if ((unsigned char)storage[i] < 0x20)
            storage[i] = ' '; /* one event is one line, whatever a peer put into a value */
    storage[line.length] = '\n';
    ssize_t written = write(STDERR_FILENO, storage, line.length + 1);
    (void)written; /* nowhere left to complain */
}

void log_line(enum log_level level, const char *event, const char *format, ...)
{
    char pairs[LINE_BYTES];
    uint64_t now_ns = clock_now_ns();
    struct allowance allowance = {.line = true};
    if (level < LOG_LEVEL_DEBUG)
        allowance = take_allowance(event, now_ns);
    if (allowance.first_left_out) {
        snprintf(pairs, sizeof pairs, "of=%s lines=%d seconds=%d", event, LOG_LINES_PER_WINDOW,
                 LOG_WINDOW_SECONDS);
        write_line(LOG_LEVEL_WARN, "log_limited", now_ns, pairs);
    }
    if (allowance.left_out_before > 0) {
        snprintf(pairs, sizeof pairs, "of=%s lines=%" PRIu64, event, allowance.left_out_before);
        write_line(LOG_LEVEL_WARN, "log_left_out", now_ns, pairs);
    }
    if (!allowance.line)
        return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(pairs, sizeof pairs, format, arguments);
    va_end(arguments);
    write_line(level, event, now_ns, pairs);
}
