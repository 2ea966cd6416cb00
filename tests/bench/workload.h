/* Workloads by the names that model_bench and client_bench share: pp512, tg128, tg64@1024, b32. */
#ifndef TANDEM_BENCH_WORKLOAD_H
#define TANDEM_BENCH_WORKLOAD_H

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { WORKLOAD_NUMBER_MAX = 1 << 20 };

struct workload {
    enum { WORKLOAD_PROMPT = 1, WORKLOAD_STREAM, WORKLOAD_BATCH } kind;
    uint32_t count; /* tokens of the prompt; tokens of the stream; streams */
    uint32_t depth; /* of a stream: positions before it */
};

/* The number at `text`, which the character `end` follows; false for anything else and above
 * WORKLOAD_NUMBER_MAX. Leaves what follows `end`, or its NUL, in out_rest. */
static inline bool workload_number(const char *text, char end, uint32_t *out_number,
                                   const char **out_rest)
{
    char *rest;
    if (*text < '0' || *text > '9')
        return false;
    errno = 0;
    unsigned long number = strtoul(text, &rest, 10);
    if (errno != 0 || number > WORKLOAD_NUMBER_MAX || *rest != end)
        return false;
    *out_number = (uint32_t)number;
    *out_rest = end == '\0' ? rest : rest + 1;
    return true;
}

static inline bool workload_parse(const char *text, struct workload *out_workload)
{
    struct workload found = {0};
    const char *rest = text;
    bool good = false;
    if (strncmp(text, "pp", 2) == 0) {
        found.kind = WORKLOAD_PROMPT;
        good = workload_number(text + 2, '\0', &found.count, &rest);
    } else if (strncmp(text, "tg", 2) == 0) {
        found.kind = WORKLOAD_STREAM;
        good = workload_number(text + 2, '\0', &found.count, &rest) ||
               (workload_number(text + 2, '@', &found.count, &rest) &&
                workload_number(rest, '\0', &found.depth, &rest));
    } else if (*text == 'b') {
        found.kind = WORKLOAD_BATCH;
        good = workload_number(text + 1, '\0', &found.count, &rest);
    }
    if (good && found.count >= 1)
        *out_workload = found;
    return good && found.count >= 1;
}

#endif
