/* The two shared memory segments between coordinator and worker: layout, and views of one writer
 * each.
 *
 *   coordinator segment, one per epoch, read by the worker:
 *     header | slot rows | token logs | block table
 *   worker segment, one per worker process, read by the coordinator:
 *     header | alive word | progress | memory figures | last error
 *
 * This file knows memory only, no system call: proto/segment_memory.h makes and opens the sealed
 * memory behind a view.
 *
 * Rules.
 * (1) Sections follow from the extents in the header; the header's section table states them for
 *     tools, and a reader refuses a segment where the two differ. It judges a COPY of the header.
 * (2) The writer fills slot rows, token logs and table rows, then stores published_step = N with
 *     release, then sends plan N. The reader of plan N loads published_step with acquire and
 *     refuses the plan if it is below N.
 * (3) Within a generation of a slot its row is written once, its token log and table rows grow.
 * (4) Readers copy, then check the copy.
 * (5) No locks: a process may die holding one. Groups of words carry a sequence word that is odd
 *     while they are written. */
#ifndef TANDEM_PROTO_SEGMENT_H
#define TANDEM_PROTO_SEGMENT_H

#include "common/geometry.h"
#include "common/id128.h"
#include "common/status.h"
#include "common/text.h"
#include "proto/limits.h"
#include "proto/plan.h"
#include "proto/segment_layout.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a row can be the tenant of a slot: generation, lengths within the context, parameters
 * within the bounds of `submit`. The writer CHECKs it, the worker refuses by it. */
bool slot_row_is_valid(const struct slot_row *row, const struct segment_extents *extents);

/* ---- Coordinator segment ---- */

/* Bytes of a coordinator segment, a multiple of 4096. The extents must be valid
 * (segment_extents_judge). */
uint64_t coordinator_segment_bytes(const struct segment_extents *extents);

/* Within proto/limits.h and consistent (logical_blocks, geometry). STATUS_OK or STATUS_INVALID with
 * a sentence. */
MUST_USE enum status segment_extents_judge(const struct segment_extents *extents, struct text *why);

/* The writer's view. Embedded by the caller; borrows the memory, which must outlive it. */
struct segment_writer {
    uint8_t *base; /* NULL: not attached; all writes are then a programming error */
    struct segment_extents extents;
    uint64_t slot_rows_offset, token_logs_offset, block_table_offset;
};

/* Formats zeroed, page-aligned memory of coordinator_segment_bytes(extents) as a segment in state
 * READY. Table rows become KV_BLOCK_UNMAPPED when their slot is first used
 * (segment_write_slot_row): untouched slots cost no memory. */
void segment_writer_format(struct segment_writer *writer, void *memory,
                           const struct segment_extents *extents,
                           const struct segment_identity *identity);

/* Begins a generation: writes the row and unmaps every table entry of the slot below its token
 * limit. */
void segment_write_slot_row(struct segment_writer *writer, uint32_t slot,
                            const struct slot_row *row);
/* Entries first_position .. first_position + count - 1 of the slot's token log. */
void segment_write_tokens(struct segment_writer *writer, uint32_t slot, uint32_t first_position,
                          const uint32_t *tokens, uint32_t count);
/* Table entry [slot][layer][logical]; `block` is a physical block or KV_BLOCK_UNMAPPED. */
void segment_write_block(struct segment_writer *writer, uint32_t slot, uint32_t layer,
                         uint32_t logical, int32_t block);
/* All writes before this are seen by who then sees `step` as published. Steps only grow. */
void segment_publish_step(struct segment_writer *writer, uint64_t step);
/* The epoch is over. */
void segment_fence(struct segment_writer *writer);

/* The reader's view of a coordinator segment. Embedded; borrows the mapping. */
struct segment_reader {
    const uint8_t *base;
    struct segment_header_fixed header; /* judged copy */
    uint64_t slot_rows_offset, token_logs_offset, block_table_offset;
};

/* Judges a copy of the header of `bytes` mapped bytes: magic, versions, fingerprint, extents,
 * sections, total size, state. STATUS_OK, STATUS_MISMATCH (magic, version or fingerprint),
 * STATUS_STALE (fenced) or STATUS_BAD_MESSAGE, with a sentence in `why`. */
MUST_USE enum status segment_reader_open(struct segment_reader *reader, const void *memory,
                                         uint64_t bytes, struct text *why);

enum segment_state segment_reader_state(const struct segment_reader *reader);
uint64_t segment_published_step(const struct segment_reader *reader);

/* Copies; indexes must be within the extents of reader->header (CHECKed: judge the plan first). */
void segment_read_slot_row(const struct segment_reader *reader, uint32_t slot,
                           struct slot_row *out_row);
void segment_read_tokens(const struct segment_reader *reader, uint32_t slot,
                         uint32_t first_position, uint32_t count, uint32_t *out_tokens);
void segment_read_blocks(const struct segment_reader *reader, uint32_t slot, uint32_t layer,
                         uint32_t first_logical, uint32_t count, int32_t *out_blocks);

/* Bounds for plan_judge. */
struct plan_bounds segment_plan_bounds(const struct segment_extents *extents);

/* ---- Worker segment ---- */

const char *worker_phase_name(uint64_t phase);

uint64_t worker_segment_bytes(void);

struct worker_segment_writer {
    uint8_t *base;
};

/* Formats zeroed, page-aligned memory of worker_segment_bytes(). */
void worker_segment_format(struct worker_segment_writer *writer, void *memory,
                           const struct segment_identity *identity);
/* Heartbeat; any one thread. */
void worker_segment_beat(struct worker_segment_writer *writer, uint64_t now_ns);
/* Progress and memory: one thread at a time for each of the two. */
void worker_segment_write_progress(struct worker_segment_writer *writer,
                                   const struct worker_progress *progress);
void worker_segment_write_memory(struct worker_segment_writer *writer,
                                 const struct worker_memory *memory);
/* The first error stays; the rest is cut. Safe from any thread. */
void worker_segment_write_error(struct worker_segment_writer *writer, const char *message);

struct worker_segment_reader {
    const uint8_t *base;
    struct segment_header_fixed header; /* judged copy */
};

/* As segment_reader_open. */
MUST_USE enum status worker_segment_open(struct worker_segment_reader *reader, const void *memory,
                                         uint64_t bytes, struct text *why);
/* 0 before the first beat. */
uint64_t worker_segment_alive_ns(const struct worker_segment_reader *reader);
/* STATUS_OK, or STATUS_AGAIN when the writer was at it each time (or died while it wrote): the
 * output is untouched. */
MUST_USE enum status worker_segment_read_progress(const struct worker_segment_reader *reader,
                                                  struct worker_progress *out_progress);
MUST_USE enum status worker_segment_read_memory(const struct worker_segment_reader *reader,
                                                struct worker_memory *out_memory);
/* Copies the last error text, always terminated, every byte outside printable ASCII replaced by
 * '?'; "" if none. */
void worker_segment_read_error(const struct worker_segment_reader *reader,
                               char out[SEGMENT_ERROR_BYTES]);

#endif
