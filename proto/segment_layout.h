/* The bytes of the two shared segments: what lies where. Views and rules stand in proto/segment.h;
 * every offset is asserted, and part of the fingerprint, in proto/fingerprint.c. */
#ifndef TANDEM_PROTO_SEGMENT_LAYOUT_H
#define TANDEM_PROTO_SEGMENT_LAYOUT_H

#include "common/geometry.h"
#include "common/id128.h"

#include <stdint.h>

enum { SEGMENT_HEADER_BYTES = 4096, SEGMENT_SECTIONS = 4, SEGMENT_ERROR_BYTES = 512 };

/* Hot words behind the fixed part of the header, 128 bytes apart so that no two share a pair of
 * cache lines; those of the worker segment lie behind its header. */
enum segment_offset {
    SEGMENT_OFFSET_STATE = 1024,
    SEGMENT_OFFSET_PUBLISHED_STEP = 1152, /* coordinator segment only */
    SEGMENT_OFFSET_ALIVE = SEGMENT_HEADER_BYTES,
    SEGMENT_OFFSET_PROGRESS = SEGMENT_HEADER_BYTES + 128, /* sequence word, then the group */
    SEGMENT_OFFSET_MEMORY = SEGMENT_HEADER_BYTES + 256,   /* likewise */
    SEGMENT_OFFSET_ERROR_STATE = SEGMENT_HEADER_BYTES + 384,
    SEGMENT_OFFSET_ERROR = SEGMENT_HEADER_BYTES + 512,
    SEGMENT_OFFSET_RESULTS = SEGMENT_HEADER_BYTES + 4096, /* cells, of step modulo their number */
};

enum { SEGMENT_RESULT_CELLS = 2, SEGMENT_RESULT_STRIDE = 36864, SEGMENT_RESULT_FRAME = 128 };

enum segment_state {
    SEGMENT_STATE_INIT = 0,
    SEGMENT_STATE_READY = 1,  /* written last, with release, when the header is complete */
    SEGMENT_STATE_FENCED = 2, /* the epoch is over: the worker leaves at once */
};

enum segment_section_kind {
    SEGMENT_SECTION_NONE = 0,
    SEGMENT_SECTION_SLOT_ROWS = 1,
    SEGMENT_SECTION_TOKEN_LOGS = 2,
    SEGMENT_SECTION_BLOCK_TABLE = 3,
    SEGMENT_SECTION_WORKER_WORDS = 4,
    SEGMENT_SECTION_WORKER_RESULTS = 5,
};

struct segment_section {
    uint32_t kind;   /* enum segment_section_kind */
    uint32_t stride; /* bytes of one entry */
    uint64_t offset; /* from the start of the segment, a multiple of 4096 */
    uint64_t count;  /* entries */
};

/* Sizes on which both sides agree for one epoch. */
struct segment_extents {
    struct kv_geometry geometry;
    uint32_t slots;
    uint32_t context;        /* positions of a slot: entries of its token log */
    uint32_t logical_blocks; /* entries of one table row: kv_blocks_for(context) */
    uint32_t vocabulary;     /* tokens of the tokenizer: ids are below */
    uint32_t step_tokens;    /* input tokens of one plan */
    uint32_t padding;        /* 0 */
    uint64_t pool_blocks;    /* physical blocks: table entries are below, or KV_BLOCK_UNMAPPED */
};

/* Who made a segment. A worker's has instance and epoch 0: it lives longer than an epoch. */
struct segment_identity {
    struct id128 instance;
    uint64_t epoch;
    uint64_t creator_pid;
    uint64_t creator_start_time;
};

/* What a reader keeps of a header: an own copy, judged. */
struct segment_header_fixed {
    uint64_t magic;
    uint32_t layout_version;
    uint32_t header_bytes;
    uint64_t total_bytes;
    uint64_t fingerprint; /* layout_fingerprint() of the writer */
    struct segment_identity identity;
    struct segment_extents extents;
    struct segment_section sections[SEGMENT_SECTIONS];
};

/* Sampling parameters and lengths of a slot's tenant; written once per generation. */
struct slot_row {
    uint32_t generation; /* 0: never used */
    uint32_t prompt_tokens;
    uint32_t token_limit; /* prompt and completion: no position from here on is ever planned */
    uint32_t top_k;       /* 0: all */
    uint64_t seed;
    float temperature; /* 0: greedy */
    float top_p;       /* 0 < top_p <= 1 */
    float min_p;       /* 0 .. 1 */
    uint32_t padding[5];
};

/* ---- Worker segment ---- */

enum worker_phase {
    WORKER_PHASE_NONE = 0,
    WORKER_PHASE_LOADING = 1, /* `done` of `total` bytes of the model */
    WORKER_PHASE_WARMING = 2,
    WORKER_PHASE_ATTACHING = 3,
    WORKER_PHASE_IDLE = 4,
    WORKER_PHASE_STEP = 5, /* computes `step`, is at `layer` */
    WORKER_PHASE_DRAINING = 6,
    WORKER_PHASE_FAILED = 7,
    WORKER_PHASE_COUNT
};

/* What the executing thread is at. */
struct worker_progress {
    uint64_t phase; /* enum worker_phase; a reader may meet a number it does not know */
    uint64_t step;
    uint64_t layer;
    uint64_t since_ns; /* CLOCK_MONOTONIC at the last change */
    uint64_t done, total;
};

struct worker_memory {
    uint64_t weights_bytes;
    uint64_t pool_bytes;         /* reserved */
    uint64_t pool_touched_bytes; /* in memory */
    uint64_t resident_bytes;     /* of the process */
};

#endif
