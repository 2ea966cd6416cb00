/* Ends the spinning of nng over connections that it has forgotten.
 *
 * nng 1.5.2 registers a descriptor with its poller before it waits for anything. A peer that hangs
 * up before the handshake (connect and close, the poke that also wedges a listener) leaves such a
 * descriptor behind: nobody reads it, nobody closes it, and since a hang-up is always reported, the
 * poller of nng runs at the full speed of a core for ever.
 *
 * A descriptor that is hung up at two sweeps in a row, seconds apart, has no reader: a living pipe
 * would have met the end of its stream and closed. It is replaced by one that never reports
 * anything. The number stays taken, so that nng may still close it; a read finds no socket and
 * fails. */
#ifndef TANDEM_COORDINATOR_HANGUP_SWEEP_H
#define TANDEM_COORDINATOR_HANGUP_SWEEP_H

#include <poll.h>
#include <stdint.h>

enum { HANGUP_DESCRIPTORS_MAX = 4096, HANGUP_SUSPECTS_MAX = 64 };

struct hangup_suspect {
    int descriptor;
    uint64_t inode; /* tells a descriptor from a later one of the same number */
};

/* Embedded; zeroed before the first call. */
struct hangup_sweep {
    struct hangup_suspect suspects[HANGUP_SUSPECTS_MAX]; /* of the sweep before */
    uint32_t suspect_count;
    struct pollfd polled[HANGUP_DESCRIPTORS_MAX];
    uint64_t next_ns;
};

/* Sweeps if the last one is two seconds old. Returns how many descriptors were replaced. Sees the
 * lowest HANGUP_DESCRIPTORS_MAX descriptors of the process; more suspects than fit wait their turn.
 */
uint32_t hangup_sweep_tick(struct hangup_sweep *sweep, uint64_t now_ns);

#endif
