/* Reads msgpack in place: a cursor that never leaves its bytes, and the skim that judges the
 * structure of a whole frame first. No allocation, no recursion. */
#ifndef TANDEM_PROTO_MSGPACK_READER_H
#define TANDEM_PROTO_MSGPACK_READER_H

#include "common/status.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum msgpack_kind {
    MSGPACK_NONE = 0,
    MSGPACK_NIL,
    MSGPACK_BOOL,
    MSGPACK_UNSIGNED, /* integer >= 0, whichever way it was written */
    MSGPACK_NEGATIVE,
    MSGPACK_FLOAT,
    MSGPACK_STR,
    MSGPACK_BIN,
    MSGPACK_EXT,
    MSGPACK_ARRAY,
    MSGPACK_MAP,
    MSGPACK_KIND_COUNT
};

struct msgpack_item {
    enum msgpack_kind kind;
    uint32_t count; /* bytes of str, bin, ext; values of an array; pairs of a map */
    union {
        bool truth;
        uint64_t number;
        int64_t negative;
        double real;
        const uint8_t *bytes; /* str, bin, ext: borrowed */
    };
};

struct msgpack_reader {
    const uint8_t *next, *end;
};

/* Reads one value; of an array or map only its head. False when the bytes end inside it or are no
 * msgpack; nothing is consumed then. */
bool msgpack_read(struct msgpack_reader *reader, struct msgpack_item *out_item);

enum msgpack_flaw {
    MSGPACK_SOUND = 0,
    MSGPACK_CUT,      /* ends before the declared values */
    MSGPACK_UNKNOWN,  /* byte 0xc1 */
    MSGPACK_DEEP,     /* nested deeper than LIMIT_WIRE_DEPTH */
    MSGPACK_CROWDED,  /* more than LIMIT_WIRE_NODES values */
    MSGPACK_TRAILING, /* bytes behind the value */
};

/* Judges one value that must take all bytes: depth, number of values, and that no array or map
 * declares more values than bytes are left. `out_offset` (not NULL) is where the flaw is. */
enum msgpack_flaw msgpack_skim(const uint8_t *bytes, size_t length, size_t *out_offset);

/* Skips one value with all that is in it. False as msgpack_read, or when it is too deep. */
bool msgpack_skip(struct msgpack_reader *reader);

#endif
