/* What a human sees: the text of the model on standard output, progress and errors on standard
 * error. On a terminal nothing of what a model wrote is interpreted: control characters appear as
 * escapes, only newline and tab pass. Into a pipe or file text goes as it is. */
#ifndef TANDEM_CLIENT_CLI_TERMINAL_H
#define TANDEM_CLIENT_CLI_TERMINAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Text written to one stream. */
struct terminal {
    FILE *file;
    bool interactive; /* it is a terminal */
    bool line_open;   /* the last character was no newline */
    int failure;      /* errno of the first write that failed; 0 = none */
};

void terminal_open(struct terminal *terminal, FILE *file);

/* Writes at once. False when the stream takes no more (full disk, closed pipe): see `failure`. */
bool terminal_write(struct terminal *terminal, const char *text, size_t length);

/* Hands on what was printed to the stream by other means. */
bool terminal_flush(struct terminal *terminal);

/* A newline where the last line has none. */
bool terminal_end_line(struct terminal *terminal);

/* One line on standard error that is overwritten by the next; nothing where standard error is no
 * terminal. */
struct progress {
    bool enabled;
    char shown[128]; /* "" = nothing stands there */
};

void progress_open(struct progress *progress, bool wanted);
/* `text` is ours: plain ASCII. */
void progress_show(struct progress *progress, const char *text);
void progress_clear(struct progress *progress);

#endif
