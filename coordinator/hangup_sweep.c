#include "coordinator/hangup_sweep.h"

#include "common/duration.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define SWEEP_NS (2 * NS_PER_S)

/* Numbers of the open descriptors into `polled`; asks for nothing: a hang-up is told unasked. */
static uint32_t list_descriptors(struct pollfd *polled)
{
    DIR *directory = opendir("/proc/self/fd");
    if (directory == NULL)
        return 0;
    uint32_t count = 0;
    const struct dirent *entry;
    while (count < HANGUP_DESCRIPTORS_MAX && (entry = readdir(directory)) != NULL) {
        char *end;
        long number = strtol(entry->d_name, &end, 10);
        if (end != entry->d_name && *end == '\0' && number != dirfd(directory))
            polled[count++] = (struct pollfd){.fd = (int)number};
    }
    closedir(directory);
    return count;
}

/* Only connections of the kind that nng makes: ours are of other types. */
static bool is_stream(int descriptor, uint64_t *out_inode)
{
    struct stat status;
    int domain = 0, type = 0;
    socklen_t length = sizeof domain;
    if (fstat(descriptor, &status) != 0 || !S_ISSOCK(status.st_mode))
        return false;
    if (getsockopt(descriptor, SOL_SOCKET, SO_DOMAIN, &domain, &length) != 0 || domain != AF_UNIX)
        return false;
    length = sizeof type;
    if (getsockopt(descriptor, SOL_SOCKET, SO_TYPE, &type, &length) != 0 || type != SOCK_STREAM)
        return false;
    *out_inode = status.st_ino;
    return true;
}

static bool was_suspect(const struct hangup_suspect *suspects, uint32_t count,
                        struct hangup_suspect suspect)
{
    for (uint32_t i = 0; i < count; i++)
        if (suspects[i].descriptor == suspect.descriptor && suspects[i].inode == suspect.inode)
            return true;
    return false;
}

/* The socket behind the number is closed by this, and with it the poller's interest. */
static bool silence(int descriptor)
{
    int quiet = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (quiet < 0)
        return false;
    bool replaced = dup3(quiet, descriptor, O_CLOEXEC) == descriptor;
    close(quiet);
    return replaced;
}

uint32_t hangup_sweep_tick(struct hangup_sweep *sweep, uint64_t now_ns)
{
    if (now_ns < sweep->next_ns)
        return 0;
    sweep->next_ns = now_ns + SWEEP_NS;
    uint32_t count = list_descriptors(sweep->polled);
    struct hangup_suspect seen[HANGUP_SUSPECTS_MAX];
    uint32_t seen_count = 0, silenced = 0;
    if (poll(sweep->polled, count, 0) < 0)
        count = 0;
    for (uint32_t i = 0; i < count; i++) {
        struct hangup_suspect suspect = {.descriptor = sweep->polled[i].fd};
        if ((sweep->polled[i].revents & POLLHUP) == 0 ||
            !is_stream(suspect.descriptor, &suspect.inode))
            continue;
        if (was_suspect(sweep->suspects, sweep->suspect_count, suspect))
            silenced += silence(suspect.descriptor);
        else if (seen_count < HANGUP_SUSPECTS_MAX)
            seen[seen_count++] = suspect;
    }
    for (uint32_t i = 0; i < seen_count; i++)
        sweep->suspects[i] = seen[i];
    sweep->suspect_count = seen_count;
    return silenced;
}
