/* The text that a command works on: words of the command line, a file, or standard input. */
#ifndef TANDEM_CLIENT_CLI_INPUT_H
#define TANDEM_CLIENT_CLI_INPUT_H

#include "client/cli/arguments.h"

/* Owned; NUL-terminated behind `length`. */
struct input {
    char *text;
    size_t length;
};

/* Whether input_read would read from a terminal, that is, the user gave no text. */
bool input_is_missing(const struct arguments *arguments);

/* Words are joined by blanks. `trim` drops one newline at the end of a file. STATUS_INVALID (given
 * twice, missing, not readable), STATUS_TOO_LARGE or STATUS_OUT_OF_MEMORY with a sentence in `why`.
 */
MUST_USE enum status input_read(const struct arguments *arguments, bool trim,
                                struct input *out_input, struct text *why);
void input_free(struct input *input);

#endif
