#include "proto/msgpack_writer.h"

#include "common/check.h"

#include <msgpack/pack.h>
#include <string.h>

/* msgpack-c calls this for every head and body; it never fails, since too long a message is found
 * by its length. */
static int append(void *context, const char *bytes, size_t length)
{
    struct msgpack_writer *writer = context;
    if (length == 0)
        return 0;
    if (writer->sink != NULL)
        writer->sink(writer->sink_context, bytes, length);
    else if (writer->out != NULL && writer->length <= writer->capacity &&
             length <= writer->capacity - writer->length)
        memcpy(writer->out + writer->length, bytes, length);
    writer->length += length;
    return 0;
}

static msgpack_packer packer_of(struct msgpack_writer *writer)
{
    msgpack_packer packer = {.data = writer, .callback = append};
    return packer;
}

void msgpack_write_bool(struct msgpack_writer *writer, bool value)
{
    msgpack_packer packer = packer_of(writer);
    CHECK((value ? msgpack_pack_true(&packer) : msgpack_pack_false(&packer)) == 0);
}

void msgpack_write_unsigned(struct msgpack_writer *writer, uint64_t value)
{
    msgpack_packer packer = packer_of(writer);
    CHECK(msgpack_pack_uint64(&packer, value) == 0);
}

void msgpack_write_negative(struct msgpack_writer *writer, int64_t value)
{
    msgpack_packer packer = packer_of(writer);
    CHECK(msgpack_pack_int64(&packer, value) == 0);
}

void msgpack_write_float(struct msgpack_writer *writer, float value)
{
    msgpack_packer packer = packer_of(writer);
    CHECK(msgpack_pack_float(&packer, value) == 0);
}

void msgpack_write_double(struct msgpack_writer *writer, double value)
{
    msgpack_packer packer = packer_of(writer);
    CHECK(msgpack_pack_double(&packer, value) == 0);
}

void msgpack_write_str(struct msgpack_writer *writer, const void *bytes, size_t length)
{
    msgpack_packer packer = packer_of(writer);
    CHECK(msgpack_pack_str(&packer, length) == 0);
    CHECK(msgpack_pack_str_body(&packer, bytes, length) == 0);
}

void msgpack_write_bin_head(struct msgpack_writer *writer, size_t length)
{
    msgpack_packer packer = packer_of(writer);
    CHECK(msgpack_pack_bin(&packer, length) == 0);
}

void msgpack_write_raw(struct msgpack_writer *writer, const void *bytes, size_t length)
{
    CHECK(append(writer, bytes, length) == 0);
}

void msgpack_write_bin(struct msgpack_writer *writer, const void *bytes, size_t length)
{
    msgpack_write_bin_head(writer, length);
    msgpack_write_raw(writer, bytes, length);
}

void msgpack_write_array(struct msgpack_writer *writer, uint32_t count)
{
    msgpack_packer packer = packer_of(writer);
    CHECK(msgpack_pack_array(&packer, count) == 0);
}

void msgpack_write_map(struct msgpack_writer *writer, uint32_t pairs)
{
    msgpack_packer packer = packer_of(writer);
    CHECK(msgpack_pack_map(&packer, pairs) == 0);
}
