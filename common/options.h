/* One table of options per program. A value comes from the first of: the command line (`--x-y
 * value` or `--x-y=value`), the configuration file (`x-y = value`, --config FILE), the environment
 * (TANDEM_X_Y), the default. The same table yields --help, --print-config (a sample file), the
 * listing of --check and the table in the documentation.
 * Every program also has --help, --version, --check, --print-config and --config. */
#ifndef TANDEM_COMMON_OPTIONS_H
#define TANDEM_COMMON_OPTIONS_H

#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

enum { OPTION_TEXT_BYTES = 1024, OPTIONS_MAX = 64 };

enum option_kind {
    OPTION_FLAG = 1,     /* bool: `--x`, `--x no`, `--x=no`; yes/no, true/false, on/off, 1/0 */
    OPTION_TEXT,         /* char[OPTION_TEXT_BYTES]; may be empty */
    OPTION_CHOICE,       /* uint32_t: the value of the named choice */
    OPTION_COUNT,        /* uint64_t: a plain number */
    OPTION_BYTES,        /* uint64_t: a number with K, M or G (times 1024, optional "iB") */
    OPTION_MILLISECONDS, /* uint64_t: milliseconds, or with "ms", "s", "min" */
};

struct option_choice {
    const char *name; /* NULL ends the list */
    uint32_t value;
};

struct option {
    const char *name; /* without the dashes */
    enum option_kind kind;
    size_t offset;             /* of the field in the program's configuration struct */
    const char *standard;      /* the default, written as a user would; NULL = empty text, no, 0 */
    uint64_t minimum, maximum; /* both included; COUNT, BYTES, MILLISECONDS */
    const struct option_choice *choices; /* CHOICE only */
    const char *help;                    /* one sentence without a full stop */
};

struct option_program {
    const char *name;    /* of the executable */
    const char *summary; /* one line */
    const struct option *options;
    size_t count; /* <= OPTIONS_MAX */
};

enum option_source {
    OPTION_FROM_DEFAULT,
    OPTION_FROM_ENVIRONMENT,
    OPTION_FROM_FILE,
    OPTION_FROM_COMMAND
};

enum options_action {
    OPTIONS_RUN = 1,
    OPTIONS_CHECK,
    OPTIONS_HELP,
    OPTIONS_VERSION,
    OPTIONS_PRINT_CONFIG
};

struct options_result {
    enum options_action action;
    char config_path[OPTION_TEXT_BYTES]; /* empty = none */
    uint8_t source[OPTIONS_MAX];         /* enum option_source of each option */
};

/* Where options come from and go to. */
struct options_input {
    const struct option_program *program;
    int argc;
    char *const *argv;
    void *config; /* zeroed, then filled */
    size_t config_bytes;
};

/* STATUS_INVALID with one sentence in `why` that names the option, where it came from, the value,
 * the bound and what to do. --help, --version and --print-config win over errors in values. */
MUST_USE enum status options_read(const struct options_input *input,
                                  struct options_result *out_result, struct text *why);

/* options_read for a main: answers --help, --version and --print-config on stdout and errors on
 * stderr. True = go on (OPTIONS_RUN or OPTIONS_CHECK); false = leave with *out_exit_code. */
MUST_USE bool options_start(const struct options_input *input, struct options_result *out_result,
                            int *out_exit_code);

void options_print_help(const struct option_program *program, FILE *file);
void options_print_sample(const struct option_program *program, FILE *file);

/* `name = value  (source)` for each option. */
void options_print_effective(const struct option_program *program, const void *config,
                             const struct options_result *result, FILE *file);

/* Rows of the option table in Markdown, for docs/OPERATIONS.md. */
void options_print_markdown(const struct option_program *program, FILE *file);

#endif
