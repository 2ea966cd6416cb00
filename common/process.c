#include "common/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum status process_start_time(pid_t pid, uint64_t *out_start_time)
{
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    int descriptor = open(path, O_RDONLY | O_CLOEXEC);
    if (descriptor < 0)
        return STATUS_NOT_FOUND;
    ssize_t length = read(descriptor, line, sizeof line - 1);
    close(descriptor);
    if (length <= 0)
        return STATUS_NOT_FOUND;
    line[length] = '\0';
    /* Field 2 is the name in brackets and may hold anything; field 22 is counted from the last
     * bracket. */
    const char *field = strrchr(line, ')');
    for (int i = 2; field != NULL && i < 22; i++) {
        field = strchr(field + 1, ' ');
    }
    if (field == NULL)
        return STATUS_NOT_FOUND;
    *out_start_time = strtoull(field + 1, NULL, 10);
    return STATUS_OK;
}

enum status process_open(pid_t pid, int *out_descriptor)
{
    long descriptor = syscall(SYS_pidfd_open, pid, 0);
    if (descriptor >= 0) {
        *out_descriptor = (int)descriptor;
        return STATUS_OK;
    }
    switch (errno) {
    case ESRCH:
        return STATUS_NOT_FOUND;
    case EPERM:
    case EACCES:
        return STATUS_PERMISSION;
    default:
        return STATUS_UNSUPPORTED;
    }
}

enum status process_kill(int descriptor)
{
    if (syscall(SYS_pidfd_send_signal, descriptor, SIGKILL, NULL, 0) == 0)
        return STATUS_OK;
    if (errno == ESRCH)
        return STATUS_NOT_FOUND;
    return errno == EPERM ? STATUS_PERMISSION : STATUS_SYSTEM;
}

void process_forbid_core_dumps(void)
{
    if (getenv("TANDEM_DEBUG_CORES") != NULL)
        return;
    struct rlimit none = {0};
    setrlimit(RLIMIT_CORE, &none); /* lowering a limit cannot fail */
    prctl(PR_SET_DUMPABLE, 0);
}

void process_raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_NOFILE, &limit); /* raising to the hard limit is always permitted */
}
