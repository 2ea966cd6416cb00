/* AF_UNIX SOCK_SEQPACKET with one passed descriptor per packet: what nng cannot do. */
#ifndef TANDEM_COMMON_PACKET_SOCKET_H
#define TANDEM_COMMON_PACKET_SOCKET_H

#include "common/status.h"
#include "common/text.h"

#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

struct peer_identity {
    pid_t pid; /* 0 = not visible from here (another pid namespace) */
    uid_t uid;
    gid_t gid;
};

/* Listens at `path` with `mode`, non-blocking; an old file is removed (the caller holds the
 * directory's lock). STATUS_PERMISSION, STATUS_SYSTEM with a sentence in `why`. */
MUST_USE enum status packet_socket_listen(const char *path, mode_t mode, int *out_descriptor,
                                          struct text *why);

/* STATUS_AGAIN when nobody waits; the new descriptor is non-blocking. */
MUST_USE enum status packet_socket_accept(int listener, int *out_descriptor,
                                          struct peer_identity *out_peer);

/* STATUS_NOT_FOUND (no such file or nobody listens), STATUS_PERMISSION, STATUS_SYSTEM. Blocking
 * descriptor. */
MUST_USE enum status packet_socket_connect(const char *path, int *out_descriptor);

/* One packet, with `passed` (-1 = none) as its descriptor. STATUS_CLOSED, STATUS_AGAIN,
 * STATUS_SYSTEM. */
MUST_USE enum status packet_socket_send(int descriptor, const void *bytes, size_t length,
                                        int passed);

/* One packet into `buffer`; *out_passed is -1 or a new descriptor that the caller owns
 * (close-on-exec). STATUS_CLOSED at the end, STATUS_AGAIN, STATUS_TOO_LARGE (the packet is lost),
 * STATUS_BAD_MESSAGE (more than one descriptor; all are closed). */
MUST_USE enum status packet_socket_receive(int descriptor, void *buffer, size_t capacity,
                                           size_t *out_length, int *out_passed);

#endif
