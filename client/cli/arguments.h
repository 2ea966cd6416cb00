/* The command line of `tandem`: one command, its options, the rest is text. One table says which
 * option belongs to which command, its kind, its bounds and its help. */
#ifndef TANDEM_CLIENT_CLI_ARGUMENTS_H
#define TANDEM_CLIENT_CLI_ARGUMENTS_H

#include "client/tandem.h"
#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* X(name, arguments, help): the order is that of --help. */
#define COMMAND_LIST(X)                                                                            \
    X(GENERATE, "generate", "[PROMPT]", "Continue a text.")                                        \
    X(CHAT, "chat", "[MESSAGE]", "Answer a message; without one, on a terminal: a conversation.")  \
    X(STATUS, "status", "ID", "Where a request stands.")                                           \
    X(CANCEL, "cancel", "ID", "End a request.")                                                    \
    X(HEALTH, "health", "", "Is the service ready? Exit code 0 if it is, 1 if not.")               \
    X(STATS, "stats", "", "Counters of the coordinator.")                                          \
    X(MODELS, "models", "", "The model that is served, and its limits.")                           \
    X(TOKENIZE, "tokenize", "[TEXT]", "The token ids of a text.")                                  \
    X(DETOKENIZE, "detokenize", "[IDS]", "The text of token ids.")

enum command {
    COMMAND_NONE,
#define COMMAND_ENUM(name, word, arguments, help) COMMAND_##name,
    COMMAND_LIST(COMMAND_ENUM)
#undef COMMAND_ENUM
        COMMAND_COUNT
};

struct arguments {
    enum command command;
    bool help;
    bool version;
    const char *const *words; /* what is not an option; point into argv */
    size_t word_count;

    const char *run_dir;
    uint64_t patience_ms;
    bool json;
    bool quiet;

    const char *file;
    const char *ids; /* a list or the name of a file; NULL: the prompt is text */
    const char *system;
    const char *id;
    const char *stops[TANDEM_STOPS_MAX];
    size_t stop_count;
    double temperature;
    double top_p;
    double min_p;
    uint64_t top_k;
    uint64_t max_tokens;
    uint64_t seed;
    bool has_seed;
    uint64_t deadline_ms;
    bool ignore_eos;
    bool plain_text;
    bool chat; /* tokenize: through the chat template */
};

/* Reads the command line; `words` (room for argc pointers) is the caller's. STATUS_INVALID with one
 * sentence in `why` that names option, value and bound; then `command` alone is set, as far as it
 * was seen. --help and --version win over mistakes. */
MUST_USE enum status arguments_read(int argc, char **argv, const char **words,
                                    struct arguments *out_arguments, struct text *why);

/* The word of a command as typed. */
const char *command_word(enum command command);

/* Help of one command, or the overview for COMMAND_NONE. */
void arguments_print_help(enum command command, FILE *file);

#endif
