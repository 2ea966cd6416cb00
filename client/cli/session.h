/* What every command of `tandem` works with, and how it tells an error. */
#ifndef TANDEM_CLIENT_CLI_SESSION_H
#define TANDEM_CLIENT_CLI_SESSION_H

#include "client/cli/arguments.h"
#include "client/cli/interrupt.h"
#include "client/cli/terminal.h"
#include "client/tandem.h"
#include "common/exit_codes.h"

#include <jansson.h>

struct session {
    const struct arguments *arguments; /* borrowed */
    struct interrupt *interrupt;       /* borrowed */
    struct tandem *tandem;
    struct terminal output; /* standard output */
    struct progress progress;
};

/* Finds the coordinator; to be called when the command line is known to be right. EXIT_CODE_OK, or
 * the error was told. */
enum exit_code session_connect(struct session *session);

/* The sentence on standard error, or with --json the error as JSON on standard output. Returns the
 * exit code for it. */
enum exit_code session_fail(struct session *session, enum tandem_result result,
                            const struct tandem_error *error);

/* The same for a mistake on the command line: always a sentence, always EXIT_CODE_USAGE. */
enum exit_code session_refuse(struct session *session, const char *why);

/* Prints `value` on one line and gives it back. EXIT_CODE_OK or EXIT_CODE_IO. */
enum exit_code session_print_json(struct session *session, json_t *value);

/* Text of a model may be broken UTF-8, which JSON cannot hold: U+FFFD stands for such bytes. */
json_t *json_of_text(const char *text, size_t length);

/* Prints a formatted line on standard output. */
void session_print(struct session *session, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* EXIT_CODE_OK if everything printed so far was taken, else EXIT_CODE_IO with a sentence. */
enum exit_code session_flush(struct session *session);

#endif
