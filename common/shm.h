/* Anonymous shared memory with one writer, which the kernel enforces.
 * The creator maps it read-write, then seals it: from then on nobody can map it writable, write,
 * grow or shrink it, or change the seals; the mapping made before goes on. Nothing has a name, so
 * nothing is left behind by a killed process. */
#ifndef TANDEM_COMMON_SHM_H
#define TANDEM_COMMON_SHM_H

#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>
#include <stdint.h>

/* A zeroed shm is closed. */
struct shm {
    uint8_t *base; /* owned mapping; read-only memory unless `writable` */
    uint64_t bytes;
    int descriptor; /* owned, close-on-exec; meaningful while base is set */
    bool writable;
};

/* What the system must offer: memfd_create and F_SEAL_FUTURE_WRITE (Linux 5.1). STATUS_UNSUPPORTED
 * names what is missing. */
MUST_USE enum status shm_probe(struct text *why);

/* Zeroed memory of `bytes` (> 0), reserved (a later touch cannot fail for lack of space) but not
 * touched, mapped read-write, sealed. `label` shows up in /proc only. STATUS_OUT_OF_MEMORY,
 * STATUS_UNSUPPORTED, STATUS_SYSTEM, with a sentence in `why`. */
MUST_USE enum status shm_create(const char *label, uint64_t bytes, struct shm *out_shm,
                                struct text *why);

/* Maps a descriptor of the peer read-only, after checking that all four seals are on and its size
 * is within the bounds. On success out_shm owns `descriptor`; on failure the caller still does.
 * STATUS_BAD_MESSAGE, STATUS_SYSTEM. */
MUST_USE enum status shm_open_sealed(int descriptor, uint64_t bytes_min, uint64_t bytes_max,
                                     struct shm *out_shm, struct text *why);

/* Unmaps without closing the descriptor, which goes back to the caller. */
void shm_unmap(struct shm *shm);

/* Unmaps and closes; accepts a zeroed shm, leaves it zeroed. */
void shm_close(struct shm *shm);

#endif
