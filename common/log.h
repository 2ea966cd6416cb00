/* One line per event on stderr: monotonic stamp, level, fixed event name, key=value pairs.
 * error: a human must act; warn: degraded but heals; info: life cycle, at most one line per
 * request; debug: off. Never prompt or output text. Every event name is listed in
 * docs/OPERATIONS.md.
 *
 * What a peer can cause it can cause at any rate, and the disk is not its own: of one event at most
 * LOG_LINES_PER_WINDOW lines are written in LOG_WINDOW_SECONDS (debug is not limited). The first
 * line that is left out says so as `log_limited`; the first line of the event in a later window is
 * preceded by `log_left_out` with the number. */
#ifndef TANDEM_COMMON_LOG_H
#define TANDEM_COMMON_LOG_H

enum { LOG_LINES_PER_WINDOW = 100, LOG_WINDOW_SECONDS = 10 };

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* Read by the macros below. It and the counts of log.c are the one mutable state at file scope. */
extern enum log_level log_level;

/* Name for the `service` key, a static string; NULL leaves the key out. */
void log_open(const char *service, enum log_level level);

/* One write(2) per line; safe from any thread. `event` is a static string, `format` the key=value
 * part. */
void log_line(enum log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The level is tested before the arguments are evaluated. */
#define log_at(level, ...) ((level) <= log_level ? log_line((level), __VA_ARGS__) : (void)0)
#define log_error(...)     log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)      log_at(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)      log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)     log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
