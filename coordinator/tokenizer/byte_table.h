/* Looks up byte strings: open addressing, built once, then read by any number of threads.
 * Strings of up to eight bytes are compared inside the slot, which is where most pieces of text
 * end. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_BYTE_TABLE_H
#define TANDEM_COORDINATOR_TOKENIZER_BYTE_TABLE_H

#include "common/arena.h"
#include "common/status.h"

#include <stddef.h>
#include <stdint.h>

/* "Not there". */
#define BYTE_TABLE_NONE UINT32_MAX

struct byte_table_slot {
    uint64_t key; /* the bytes themselves, or their hash if they are more than eight */
    const char *bytes;
    uint32_t length; /* 0: free slot */
    uint32_t value;
};

struct byte_table {
    struct byte_table_slot *slots; /* from the arena given to byte_table_init() */
    uint32_t shift;                /* 64 - log2 of the number of slots */
    uint32_t count, capacity;
};

/* Bytes of arena that a table of `capacity` strings takes. */
size_t byte_table_bytes(uint32_t capacity);

/* Empty table for up to `capacity` strings. STATUS_OUT_OF_MEMORY if the arena is full. */
MUST_USE enum status byte_table_init(struct byte_table *table, struct arena *arena,
                                     uint32_t capacity);

/* Adds a string of length >= 1, which the table borrows for life. STATUS_EXISTS if an equal one is
 * there, STATUS_FULL. */
MUST_USE enum status byte_table_add(struct byte_table *table, const char *bytes, uint32_t length,
                                    uint32_t value);

/* Value of a string, BYTE_TABLE_NONE if it is not there. */
uint32_t byte_table_find(const struct byte_table *table, const char *bytes, size_t length);

#endif
