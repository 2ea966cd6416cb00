#include "common/start_failure.h"

#include <stdio.h>

static const char *sentence_of(const struct reason *why, enum status status)
{
    return why->text.length > 0 ? why->storage : status_text(status);
}

int start_failure(const char *program, enum exit_code code, const struct reason *why,
                  enum status status)
{
    (void)fprintf(stderr, "%s: %s\n", program, sentence_of(why, status));
    return (int)code;
}

static enum exit_code code_of_model(enum status status)
{
    switch (status) {
    case STATUS_PERMISSION:
        return EXIT_CODE_PERMISSION;
    case STATUS_OUT_OF_MEMORY:
        return EXIT_CODE_TEMPORARY;
    case STATUS_SYSTEM:
        return EXIT_CODE_SYSTEM;
    default:
        return EXIT_CODE_NO_MODEL;
    }
}

int start_failure_of_model(const char *program, const char *path, const struct reason *why,
                           enum status status)
{
    if (status == STATUS_INVALID)
        return start_failure(program, EXIT_CODE_USAGE, why, status);
    (void)fprintf(stderr, "%s: --model \"%s\": %s\n", program, path, sentence_of(why, status));
    return (int)code_of_model(status);
}
