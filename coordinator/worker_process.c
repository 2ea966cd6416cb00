#include "coordinator/worker_process.h"

#include "common/process.h"

#include <poll.h>
#include <unistd.h>

void worker_process_open(struct worker_process *process, const struct peer_identity *peer)
{
    *process = (struct worker_process){.pid = peer->pid, .uid = peer->uid, .descriptor = -1};
    uint64_t before = 0, after = 0;
    if (peer->pid == 0 || process_start_time(peer->pid, &before) != STATUS_OK)
        return;
    if (process_open(peer->pid, &process->descriptor) != STATUS_OK)
        process->descriptor = -1;
    /* The same start time before and after: the descriptor is of the process that connected, unless
     * that one had ended before; then its connection is at its end as well. */
    if (process_start_time(peer->pid, &after) == STATUS_OK && after == before)
        process->start_time = before;
}

void worker_process_close(struct worker_process *process)
{
    if (process->descriptor >= 0)
        close(process->descriptor);
    process->descriptor = -1;
}

bool worker_process_ended(const struct worker_process *process)
{
    if (process->descriptor >= 0) {
        struct pollfd wait = {.fd = process->descriptor, .events = POLLIN};
        return poll(&wait, 1, 0) == 1;
    }
    uint64_t now = 0;
    if (process->pid == 0 || process->start_time == 0)
        return false;
    return process_start_time(process->pid, &now) != STATUS_OK || now != process->start_time;
}

bool worker_process_kill(const struct worker_process *process)
{
    if (process->descriptor < 0 || process->start_time == 0)
        return false;
    enum status status = process_kill(process->descriptor);
    return status == STATUS_OK || status == STATUS_NOT_FOUND;
}
