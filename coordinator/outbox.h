/* Outputs of one event, in order, and the memory that they borrow until the next one. */
#ifndef TANDEM_COORDINATOR_OUTBOX_H
#define TANDEM_COORDINATOR_OUTBOX_H

#include "common/arena.h"
#include "coordinator/core.h"

enum {
    OUTBOX_LOG_LINES_MAX = 32, /* of one event; more are counted and dropped */
    OUTBOX_TEXT_BYTES = 32 << 10,
};

struct outbox_chunk; /* heap memory that lives until the next event */

struct outbox {
    struct core_output *items; /* [capacity] */
    uint32_t capacity, first, count;
    uint32_t log_lines, log_lines_dropped;
    char *text; /* [OUTBOX_TEXT_BYTES] */
    uint32_t text_bytes;
    struct outbox_chunk *chunks;
    void *(*reallocate)(void *memory, size_t bytes);
};

/* Memory is the arena's. `capacity`: outputs of one event. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status outbox_init(struct outbox *outbox, struct arena *arena, uint32_t capacity,
                                 void *(*reallocate)(void *memory, size_t bytes));
void outbox_free(struct outbox *outbox);

/* A new event: the outputs of the last one must have been taken (CHECKed). */
void outbox_begin(struct outbox *outbox);

/* The next output, to be filled in place. */
struct core_output *outbox_add(struct outbox *outbox, enum core_output_kind kind);
bool outbox_take(struct outbox *outbox, struct core_output *out_output);

/* Text that lives until the next event; cut when the room for text is used up. */
const char *outbox_format(struct outbox *outbox, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* `bytes` of heap memory that live until the next event; NULL when there is none. */
void *outbox_allocate(struct outbox *outbox, size_t bytes);

void outbox_log(struct outbox *outbox, enum log_level level, const char *event, const char *format,
                ...) __attribute__((format(printf, 4, 5)));

#endif
