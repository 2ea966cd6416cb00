/* The process behind an attachment, as far as it can be known: who it is, whether it still lives,
 * and its end. The pid is that of SO_PEERCRED, never one that a message claims. */
#ifndef TANDEM_COORDINATOR_WORKER_PROCESS_H
#define TANDEM_COORDINATOR_WORKER_PROCESS_H

#include "common/packet_socket.h"

#include <stdbool.h>
#include <stdint.h>

struct worker_process {
    pid_t pid; /* 0 = not visible from here */
    uid_t uid;
    int descriptor;      /* owned pidfd, readable when it ended; -1 = none */
    uint64_t start_time; /* with the pid: who it is; 0 = unknown */
};

/* Never fails: what cannot be known stays unknown. */
void worker_process_open(struct worker_process *process, const struct peer_identity *peer);
void worker_process_close(struct worker_process *process);

/* True once the process is known to have ended; false while it lives or nothing can be known. */
bool worker_process_ended(const struct worker_process *process);

/* SIGKILL, if the descriptor surely is that process. False: it is fenced by its epoch alone. */
bool worker_process_kill(const struct worker_process *process);

#endif
