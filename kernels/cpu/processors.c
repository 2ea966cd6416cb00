#include "kernels/cpu/processors.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PROCESSORS_FOLDER "/sys/devices/system/cpu"
#define QUOTA_FILE        "/sys/fs/cgroup/cpu.max"

enum { LINE_BYTES = 4096, PATH_BYTES = 256 };

static bool read_line(const char *path, char line[LINE_BYTES])
{
    FILE *file = fopen(path, "re");
    if (file == NULL)
        return false;
    bool good = fgets(line, LINE_BYTES, file) != NULL;
    fclose(file);
    return good;
}

/* Takes a number off `*at`; false where there is none. */
static bool take_number(const char **at, unsigned long *out_number)
{
    char *end;
    if (**at < '0' || **at > '9')
        return false;
    errno = 0;
    *out_number = strtoul(*at, &end, 10);
    *at = end;
    return errno == 0;
}

/* True where the list ("0,64" or "0-1,8-9") names an allowed processor below `processor`. */
static bool names_lower(const char *list, const cpu_set_t *allowed, uint32_t processor)
{
    unsigned long first, last;
    while (take_number(&list, &first)) {
        last = first;
        if (*list == '-') {
            list++;
            if (!take_number(&list, &last))
                return false;
        }
        for (unsigned long i = first; i <= last && i < processor; i++)
            if (CPU_ISSET(i, allowed))
                return true;
        if (*list == ',')
            list++;
    }
    return false;
}

/* The folder of a processor holds a link to its node. */
static uint32_t node_at(const char *folder, uint32_t processor)
{
    for (uint32_t node = 0; node < MEMORY_NODES_MAX; node++) {
        char path[PATH_BYTES];
        int length = snprintf(path, sizeof path, "%s/cpu%u/node%u", folder, processor, node);
        if (length > 0 && (size_t)length < sizeof path && access(path, F_OK) == 0)
            return node;
    }
    return 0;
}

void processors_cores(const char *folder, const cpu_set_t *allowed,
                      struct processors *out_processors)
{
    struct processors found = {0};
    for (uint32_t i = 0; i < CPU_SETSIZE; i++) {
        char path[PATH_BYTES], siblings[LINE_BYTES];
        if (!CPU_ISSET(i, allowed))
            continue;
        int length =
            snprintf(path, sizeof path, "%s/cpu%u/topology/thread_siblings_list", folder, i);
        bool described = length > 0 && (size_t)length < sizeof path && read_line(path, siblings);
        uint32_t node = node_at(folder, i);
        CPU_SET(i, &found.on_node[node]);
        if (!described || !names_lower(siblings, allowed, i)) {
            found.node_of[found.count] = node;
            found.first_of[found.count++] = i;
        }
    }
    if (found.count == 0) {
        CPU_SET(0, &found.on_node[0]);
        found.count = 1;
    }
    found.paid = found.count;
    *out_processors = found;
}

uint32_t processors_quota(const char *path)
{
    char line[LINE_BYTES];
    unsigned long quota, period;
    const char *at = line;
    if (!read_line(path, line) || !take_number(&at, &quota) || *at++ != ' ' ||
        !take_number(&at, &period) || period == 0)
        return 0;
    unsigned long whole = quota / period + (quota % period != 0 ? 1 : 0);
    return whole < POOL_THREADS_MAX ? (uint32_t)whole : POOL_THREADS_MAX;
}

void processors_find(struct processors *out_processors)
{
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
        CPU_ZERO(&allowed);
        CPU_SET(0, &allowed);
    }
    processors_cores(PROCESSORS_FOLDER, &allowed, out_processors);
    uint32_t quota = processors_quota(QUOTA_FILE);
    if (quota != 0 && quota < out_processors->count)
        out_processors->paid = quota;
}
