/* One line per event on stderr: monotonic stamp, level, fixed event name, key=value pairs.
 * error: a human must act; warn: degraded but heals; info: life cycle, at most one line per
 * request; debug: off. Never prompt or output text. Every event name is listed in
 * docs/OPERATIONS.md. */
#ifndef TANDEM_COMMON_LOG_H
#define TANDEM_COMMON_LOG_H

enum log_level { LOG_LEVEL_ERROR, LOG_LEVEL_WARN, LOG_LEVEL_INFO, LOG_LEVEL_DEBUG };

/* The one mutable state at file scope; read by the macros below. */
extern enum log_level log_level;

/* Name for the `service` key, a static string; NULL leaves the key out. */
void log_open(const char *service, enum log_level level);

/* One write(2) per line; safe from any thread. `format` is the key=value part. */
void log_line(enum log_level level, const char *event, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* The level is tested before the arguments are evaluated. */
#define log_at(level, ...) ((level) <= log_level ? log_line((level), __VA_ARGS__) : (void)0)
#define log_error(...)     log_at(LOG_LEVEL_ERROR, __VA_ARGS__)
#define log_warn(...)      log_at(LOG_LEVEL_WARN, __VA_ARGS__)
#define log_info(...)      log_at(LOG_LEVEL_INFO, __VA_ARGS__)
#define log_debug(...)     log_at(LOG_LEVEL_DEBUG, __VA_ARGS__)

#endif
