/* Any bytes as a configuration file and as a command line of both programs: a value within its
 * bounds, or one sentence that says what is wrong.
 * Input: a byte (0: coordinator, 1: worker), arguments that end with a zero byte each, an empty
 * argument, and the rest is the file. */
#include "common/options.h"
#include "coordinator/config.h"
#include "worker/config.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { INPUT_BYTES_MAX = 1 << 14, ARGUMENTS_MAX = 16 };

union config {
    struct coordinator_config coordinator;
    struct worker_config worker;
};

static void check_choice(const struct option *option, const void *field)
{
    uint32_t value;
    memcpy(&value, field, sizeof value);
    const struct option_choice *choice = option->choices;
    while (choice->name != NULL && choice->value != value)
        choice++;
    CHECK(choice->name != NULL);
}

static void check_values(const struct option_program *program, const union config *config)
{
    for (size_t i = 0; i < program->count; i++) {
        const struct option *option = &program->options[i];
        const void *field = (const uint8_t *)config + option->offset;
        uint64_t number;
        switch (option->kind) {
        case OPTION_FLAG:
            CHECK(*(const uint8_t *)field <= 1);
            break;
        case OPTION_TEXT:
            CHECK(memchr(field, '\0', OPTION_TEXT_BYTES) != NULL);
            break;
        case OPTION_CHOICE:
            check_choice(option, field);
            break;
        case OPTION_COUNT:
        case OPTION_BYTES:
        case OPTION_MILLISECONDS:
            memcpy(&number, field, sizeof number);
            CHECK(number >= option->minimum && number <= option->maximum);
            break;
        }
    }
}

/* Splits the arguments off; returns where the file begins. One that names a file is left out: the
 * run would depend on it. */
static size_t split(char *text, size_t length, char **arguments, int *count)
{
    size_t at = 0;
    while (at < length && text[at] != '\0' && *count < ARGUMENTS_MAX) {
        char *end = memchr(text + at, '\0', length - at);
        if (end == NULL)
            return length;
        if (strncmp(text + at, "--config", strlen("--config")) != 0)
            arguments[(*count)++] = text + at;
        at = (size_t)(end - text) + 1;
    }
    return at < length ? at + 1 : length;
}

static void read_all(const struct option_program *program, int count, char **arguments,
                     bool readable)
{
    union config config;
    struct options_result result;
    struct reason reason;
    const struct options_input input = {.program = program,
                                        .argc = count,
                                        .argv = arguments,
                                        .config = &config,
                                        .config_bytes = sizeof config};
    enum status status = options_read(&input, &result, reason_init(&reason));
    CHECK(status == STATUS_OK || status == STATUS_INVALID);
    CHECK(status == STATUS_OK || reason.text.length > 0);
    if (status != STATUS_OK || result.action > OPTIONS_CHECK)
        return;
    CHECK(readable);
    check_values(program, &config);
    struct worker_users users;
    status = program == &worker_options
                 ? worker_config_check(&config.worker, reason_init(&reason))
                 : coordinator_config_check(&config.coordinator, &users, reason_init(&reason));
    CHECK(status == STATUS_OK || reason.text.length > 0);
}

/* One file in memory for all runs, made afresh each time. */
static int file_of(const char *bytes, size_t length, char path[64])
{
    int descriptor = memfd_create("options", MFD_CLOEXEC);
    CHECK(descriptor >= 0 && write(descriptor, bytes, length) == (ssize_t)length);
    (void)snprintf(path, 64, "--config=/proc/self/fd/%d", descriptor);
    return descriptor;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    if (length < 1 || length > INPUT_BYTES_MAX)
        return 0;
    char *text = malloc(length); /* one more than it holds: never empty */
    CHECK(text != NULL);
    memcpy(text, bytes + 1, length - 1);
    char name[] = "program", path[64];
    char *arguments[ARGUMENTS_MAX + 2] = {name, path};
    int count = 2;
    size_t file = split(text, length - 1, arguments, &count);
    int descriptor = file_of(text + file, length - 1 - file, path);
    bool readable = memchr(text + file, '\0', length - 1 - file) == NULL;
    read_all(bytes[0] == 0 ? &coordinator_options : &worker_options, count, arguments, readable);
    CHECK(close(descriptor) == 0);
    free(text);
    return 0;
}
