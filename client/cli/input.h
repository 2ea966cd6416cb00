/* What a command works on, text or token ids: from the command line, a file, or standard input. */
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

/* Numbers between blanks, commas and brackets, so that the output of `tokenize` and `generate`,
 * with
 * --json or without, can be given back. `text` has `length` bytes and a NUL behind them, `ids` room
 * for one id a byte. STATUS_INVALID with a sentence in `why`. */
MUST_USE enum status input_parse_ids(const char *text, size_t length, uint32_t *ids,
                                     size_t *out_count, struct text *why);

/* The ids of --ids: a list if it begins with a digit or a bracket, else a file, or - for standard
 * input. The statuses of input_read. The caller frees them. */
MUST_USE enum status input_read_ids(const struct arguments *arguments, uint32_t **out_ids,
                                    size_t *out_count, struct text *why);

#endif
