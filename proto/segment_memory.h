/* Segments in sealed shared memory: makes one to write, opens one that the peer sent. */
#ifndef TANDEM_PROTO_SEGMENT_MEMORY_H
#define TANDEM_PROTO_SEGMENT_MEMORY_H

#include "common/shm.h"
#include "common/status.h"
#include "common/text.h"
#include "proto/segment.h"

/* Coordinator: a sealed segment for one epoch and its writer. Close with shm_close after the last
 * write. STATUS_INVALID (extents), STATUS_OUT_OF_MEMORY, STATUS_UNSUPPORTED, STATUS_SYSTEM, with a
 * sentence in `why`. `out_shm->descriptor` goes to the worker. */
MUST_USE enum status coordinator_segment_create(const struct segment_extents *extents,
                                                const struct segment_identity *identity,
                                                struct shm *out_shm,
                                                struct segment_writer *out_writer,
                                                struct text *why);

/* Worker: judges and maps what came with `attach`. On success out_shm owns `descriptor`; on failure
 * the caller still does. STATUS_MISMATCH, STATUS_BAD_MESSAGE (not sealed, short, inconsistent),
 * STATUS_SYSTEM. */
MUST_USE enum status coordinator_segment_open(int descriptor, struct shm *out_shm,
                                              struct segment_reader *out_reader, struct text *why);

/* Worker: its own segment. */
MUST_USE enum status worker_segment_create(const struct segment_identity *identity,
                                           struct shm *out_shm,
                                           struct worker_segment_writer *out_writer,
                                           struct text *why);

/* Coordinator: judges and maps what came with `hello`. Ownership as above. */
MUST_USE enum status worker_segment_accept(int descriptor, struct shm *out_shm,
                                           struct worker_segment_reader *out_reader,
                                           struct text *why);

#endif
