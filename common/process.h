/* Identity and end of other processes, and what a service sets for itself. */
#ifndef TANDEM_COMMON_PROCESS_H
#define TANDEM_COMMON_PROCESS_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* Start time of a process in clock ticks since boot (with the pid: who it is). STATUS_NOT_FOUND. */
MUST_USE enum status process_start_time(pid_t pid, uint64_t *out_start_time);

/* A descriptor that becomes readable when `pid` ends. STATUS_UNSUPPORTED, STATUS_NOT_FOUND,
 * STATUS_PERMISSION. */
MUST_USE enum status process_open(pid_t pid, int *out_descriptor);

/* SIGKILL through the descriptor: never hits a later process with the same pid. */
MUST_USE enum status process_kill(int descriptor);

/* No core dumps (they would hold prompts), unless TANDEM_DEBUG_CORES is set. */
void process_forbid_core_dumps(void);

/* As many open files as this process may have: each client is one. */
void process_raise_descriptor_limit(void);

#endif
