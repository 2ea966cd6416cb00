/* Where the sockets of one instance lie. Used by the services and the clients alike.
 *   lock        flock: one coordinator per directory        client.ipc         nng REP
 *   attach.sock AF_UNIX SOCK_SEQPACKET of the workers       worker.<epoch>.ipc nng pair0 of one
 * attachment */
#ifndef TANDEM_COMMON_RUN_DIRECTORY_H
#define TANDEM_COMMON_RUN_DIRECTORY_H

#include "common/status.h"
#include "common/text.h"

#include <stddef.h>
#include <stdint.h>

/* The longest path of a socket, with its terminator (sun_path). */
enum { SOCKET_PATH_BYTES = 108 };

#define RUN_LOCK_NAME   "lock"
#define RUN_CLIENT_NAME "client.ipc"
#define RUN_ATTACH_NAME "attach.sock"

struct run_directory {
    char path[SOCKET_PATH_BYTES]; /* short enough for every socket in it */
};

/* `chosen` (--run-dir) if not empty, else $XDG_RUNTIME_DIR/tandem, else /run/tandem. Made absolute,
 * not created. STATUS_TOO_LARGE with a sentence in `why` when a socket in it would have a path that
 * is too long. */
MUST_USE enum status run_directory_resolve(struct run_directory *directory, const char *chosen,
                                           struct text *why);

/* Path of `name` in the directory, into `out_path` of SOCKET_PATH_BYTES. */
void run_directory_path(const struct run_directory *directory, const char *name, char *out_path);

/* Path of the socket of one epoch. */
void run_directory_worker_path(const struct run_directory *directory, uint64_t epoch,
                               char *out_path);

#endif
