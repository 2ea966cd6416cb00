#include "proto/msgpack_writer.h"

#include "proto/msgpack_reader.h"

#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static void write_all(struct msgpack_writer *writer)
{
    msgpack_write_map(writer, 1);
    msgpack_write_str(writer, "key", 3);
    msgpack_write_array(writer, 8);
    msgpack_write_bool(writer, true);
    msgpack_write_unsigned(writer, UINT64_MAX);
    msgpack_write_negative(writer, -300);
    msgpack_write_float(writer, 0.5F);
    msgpack_write_double(writer, 0.1);
    msgpack_write_str(writer, "", 0);
    msgpack_write_bin(writer, "\0\1", 2);
    msgpack_write_bin_head(writer, 3);
    msgpack_write_raw(writer, "ab", 2);
    msgpack_write_raw(writer, "c", 1);
}

static struct msgpack_item read_one(struct msgpack_reader *reader)
{
    struct msgpack_item item;
    assert_true(msgpack_read(reader, &item));
    return item;
}

static void what_was_written_is_read(void **state)
{
    (void)state;
    uint8_t out[128];
    struct msgpack_writer writer = {.out = out, .capacity = sizeof out};
    write_all(&writer);
    struct msgpack_reader reader = {out, out + writer.length};
    assert_int_equal(read_one(&reader).kind, MSGPACK_MAP);
    assert_memory_equal(read_one(&reader).bytes, "key", 3);
    assert_int_equal(read_one(&reader).count, 8);
    assert_true(read_one(&reader).truth);
    assert_true(read_one(&reader).number == UINT64_MAX);
    assert_int_equal(read_one(&reader).negative, -300);
    assert_true(read_one(&reader).real == 0.5);
    assert_true(read_one(&reader).real == 0.1);
    assert_int_equal(read_one(&reader).count, 0);
    assert_memory_equal(read_one(&reader).bytes, "\0\1", 2);
    struct msgpack_item pieces = read_one(&reader);
    assert_int_equal(pieces.kind, MSGPACK_BIN);
    assert_int_equal(pieces.count, 3);
    assert_memory_equal(pieces.bytes, "abc", 3);
    assert_ptr_equal(reader.next, reader.end);
}

static void too_small_a_buffer_is_counted_not_overrun(void **state)
{
    (void)state;
    struct msgpack_writer measure = {0};
    write_all(&measure);
    for (size_t capacity = 0; capacity < measure.length; capacity++) {
        uint8_t out[128];
        memset(out, 0xa5, sizeof out);
        struct msgpack_writer writer = {.out = out, .capacity = capacity};
        write_all(&writer);
        assert_int_equal(writer.length, measure.length);
        for (size_t i = capacity; i < sizeof out; i++)
            assert_int_equal(out[i], 0xa5);
    }
}

static void count_bytes(void *context, const void *bytes, size_t length)
{
    assert_non_null(bytes);
    assert_true(length > 0);
    *(size_t *)context += length;
}

static void a_sink_gets_everything(void **state)
{
    (void)state;
    size_t seen = 0;
    struct msgpack_writer writer = {.sink = count_bytes, .sink_context = &seen};
    write_all(&writer);
    assert_int_equal(seen, writer.length);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_was_written_is_read),
        cmocka_unit_test(too_small_a_buffer_is_counted_not_overrun),
        cmocka_unit_test(a_sink_gets_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
