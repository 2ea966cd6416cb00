/* One coordinator per run directory: makes the directory, takes its lock, clears what a killed one
 * left. Comes before any socket: a second coordinator that only tried to listen would already harm
 * the first. */
#ifndef TANDEM_COORDINATOR_RUN_LOCK_H
#define TANDEM_COORDINATOR_RUN_LOCK_H

#include "common/run_directory.h"
#include "common/status.h"
#include "common/text.h"

/* The lock lives as long as the descriptor, at most as long as the process. STATUS_BUSY (with the
 * owner's pid), STATUS_PERMISSION, STATUS_SYSTEM with a sentence in `why` that says what to do. */
MUST_USE enum status run_lock_take(const struct run_directory *directory, int *out_descriptor,
                                   struct text *why);

/* Removes sockets that a killed coordinator left behind. Only with the lock held. */
void run_lock_clear_sockets(const struct run_directory *directory);

#endif
