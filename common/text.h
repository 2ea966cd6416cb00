/* Bounded text in memory that the caller owns: reasons, log lines, generated documents.
 * Never fails: what does not fit is cut and `truncated` is set. Always NUL-terminated. */
#ifndef TANDEM_COMMON_TEXT_H
#define TANDEM_COMMON_TEXT_H

#include "common/status.h"

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

struct text {
    char *bytes;     /* borrowed */
    size_t capacity; /* with the terminator */
    size_t length;   /* without it */
    bool truncated;
};

/* A reason with its storage, for judges of outside input. */
struct reason {
    struct text text;
    char storage[512];
};

/* Empty text over `storage` of `capacity` >= 1 bytes. */
void text_init(struct text *text, char *storage, size_t capacity);

/* Empty reason; returns its text. */
struct text *reason_init(struct reason *reason);

/* Appends. A NULL `text` is accepted and ignored, so that a caller may not care for the reason. */
void text_append(struct text *text, const char *bytes, size_t length);
void text_format(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

void text_format_list(struct text *text, const char *format, va_list arguments)
    __attribute__((format(printf, 2, 0)));

/* Empties, then formats. */
void text_set(struct text *text, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Sets `why` to: kind "name" and the formatted rest. Returns `status`. For judges of what a file
 * holds. */
enum status text_refuse(struct text *why, enum status status, const char *kind, const char *name,
                        const char *format, ...) __attribute__((format(printf, 5, 6)));

/* Appends `length` bytes quoted: at most `shown` of them, control and non-ASCII bytes as \xNN. */
void text_append_quoted(struct text *text, const char *bytes, size_t length, size_t shown);

#endif
