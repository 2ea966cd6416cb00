/* Writes msgpack through msgpack-c's packer into a buffer of the caller, into a sink, or nowhere
 * (to measure). */
#ifndef TANDEM_PROTO_MSGPACK_WRITER_H
#define TANDEM_PROTO_MSGPACK_WRITER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Set one of `out` and `sink`, or neither. What does not fit is counted but not written: compare
 * length with capacity at the end. */
struct msgpack_writer {
    uint8_t *out;
    size_t capacity;
    size_t length; /* bytes written, or that would have been */
    void (*sink)(void *context, const void *bytes, size_t length);
    void *sink_context;
};

void msgpack_write_bool(struct msgpack_writer *writer, bool value);
void msgpack_write_unsigned(struct msgpack_writer *writer, uint64_t value);
void msgpack_write_negative(struct msgpack_writer *writer, int64_t value);
void msgpack_write_float(struct msgpack_writer *writer, float value);
void msgpack_write_double(struct msgpack_writer *writer, double value);
void msgpack_write_str(struct msgpack_writer *writer, const void *bytes, size_t length);
void msgpack_write_bin(struct msgpack_writer *writer, const void *bytes, size_t length);
/* A bin in pieces: its head, then bytes that sum up to `length`. */
void msgpack_write_bin_head(struct msgpack_writer *writer, size_t length);
void msgpack_write_raw(struct msgpack_writer *writer, const void *bytes, size_t length);
void msgpack_write_array(struct msgpack_writer *writer, uint32_t count);
void msgpack_write_map(struct msgpack_writer *writer, uint32_t pairs);

#endif
