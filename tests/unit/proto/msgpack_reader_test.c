#include "proto/msgpack_reader.h"

#include "common/random.h"
#include "proto/limits.h"
#include "proto/msgpack_writer.h"

#include <msgpack.h>
#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static uint8_t bytes[8 << 20];

static enum msgpack_flaw skim(const void *frame, size_t length)
{
    size_t offset = SIZE_MAX;
    enum msgpack_flaw flaw = msgpack_skim(frame, length, &offset);
    assert_true(offset <= length);
    return flaw;
}

/* ---- Bombs ---- */

/* msgpack-c reserves 8 GB of address space for these five bytes. */
static void five_bytes_that_announce_gigabytes_are_refused(void **state)
{
    (void)state;
    assert_int_equal(skim("\xdd\x0f\0\0\0", 5), MSGPACK_CUT);
    assert_int_equal(skim("\xdf\x7f\xff\xff\xff", 5), MSGPACK_CUT);
    assert_int_equal(skim("\xc6\xff\xff\xff\xff", 5), MSGPACK_CUT);
    assert_int_equal(skim("\xdb\xff\xff\xff\xff", 5), MSGPACK_CUT);
    assert_int_equal(skim("\xc9\xff\xff\xff\xff\x01", 6), MSGPACK_CUT);
}

/* And 16 to 67 GB for 31 nested arrays of 2^24 to 2^26 values. */
static void nested_announcements_are_refused(void **state)
{
    (void)state;
    uint8_t bomb[155];
    for (int i = 0; i < 31; i++)
        memcpy(bomb + 5 * i, "\xdd\x01\0\0\0", 5);
    assert_int_equal(skim(bomb, sizeof bomb), MSGPACK_CUT);
    /* Honest about the bytes left, dishonest about the sum over the levels. */
    uint8_t layered[64];
    memset(layered, 0x9f, sizeof layered);
    assert_int_equal(skim(layered, sizeof layered), MSGPACK_CUT);
}

static void depth_is_bounded(void **state)
{
    (void)state;
    memset(bytes, 0x91, 10000);
    assert_int_equal(skim(bytes, 10000), MSGPACK_DEEP);
    memset(bytes, 0x91, LIMIT_WIRE_DEPTH);
    bytes[LIMIT_WIRE_DEPTH] = 0xc0;
    assert_int_equal(skim(bytes, LIMIT_WIRE_DEPTH + 1), MSGPACK_SOUND);
    memset(bytes, 0x91, LIMIT_WIRE_DEPTH + 1);
    bytes[LIMIT_WIRE_DEPTH + 1] = 0xc0;
    assert_int_equal(skim(bytes, LIMIT_WIRE_DEPTH + 2), MSGPACK_DEEP);
    struct msgpack_reader reader = {bytes, bytes + LIMIT_WIRE_DEPTH + 2};
    assert_false(msgpack_skip(&reader));
    assert_ptr_equal(reader.next, bytes);
}

static void the_number_of_values_is_bounded(void **state)
{
    (void)state;
    for (uint32_t over = 0; over <= 1; over++) {
        struct msgpack_writer writer = {.out = bytes, .capacity = sizeof bytes};
        uint32_t count = LIMIT_WIRE_NODES - 1 + over;
        msgpack_write_array(&writer, count);
        memset(bytes + writer.length, 0x01, count);
        assert_int_equal(skim(bytes, writer.length + count),
                         over == 0 ? MSGPACK_SOUND : MSGPACK_CROWDED);
    }
}

static void nothing_may_follow(void **state)
{
    (void)state;
    assert_int_equal(skim("\x80", 1), MSGPACK_SOUND);
    assert_int_equal(skim("\x80\x80", 2), MSGPACK_TRAILING);
    assert_int_equal(skim("", 0), MSGPACK_CUT);
    assert_int_equal(skim("\xc1", 1), MSGPACK_UNKNOWN);
    assert_int_equal(skim("\x92\x01\xc1", 3), MSGPACK_UNKNOWN);
}

/* ---- Against msgpack-c ---- */

static bool same_bytes(const struct msgpack_item *item, const char *due, uint32_t count)
{
    return item->count == count && (count == 0 || memcmp(item->bytes, due, count) == 0);
}

static bool same_object(const struct msgpack_item *item, const msgpack_object *object)
{
    switch (object->type) {
    case MSGPACK_OBJECT_NIL:
        return item->kind == MSGPACK_NIL;
    case MSGPACK_OBJECT_BOOLEAN:
        return item->kind == MSGPACK_BOOL && item->truth == object->via.boolean;
    case MSGPACK_OBJECT_POSITIVE_INTEGER:
        return item->kind == MSGPACK_UNSIGNED && item->number == object->via.u64;
    case MSGPACK_OBJECT_NEGATIVE_INTEGER:
        return item->kind == MSGPACK_NEGATIVE && item->negative == object->via.i64;
    case MSGPACK_OBJECT_FLOAT32:
    case MSGPACK_OBJECT_FLOAT64:
        return item->kind == MSGPACK_FLOAT &&
               memcmp(&item->real, &object->via.f64, sizeof(double)) == 0;
    case MSGPACK_OBJECT_STR:
        return item->kind == MSGPACK_STR &&
               same_bytes(item, object->via.str.ptr, object->via.str.size);
    case MSGPACK_OBJECT_BIN:
        return item->kind == MSGPACK_BIN &&
               same_bytes(item, object->via.bin.ptr, object->via.bin.size);
    case MSGPACK_OBJECT_EXT:
        return item->kind == MSGPACK_EXT && item->count == object->via.ext.size;
    case MSGPACK_OBJECT_ARRAY:
        return item->kind == MSGPACK_ARRAY && item->count == object->via.array.size;
    case MSGPACK_OBJECT_MAP:
        return item->kind == MSGPACK_MAP && item->count == object->via.map.size;
    }
    return false;
}

/* Walks the tree of msgpack-c in the order of the bytes, beside our reader. */
static bool same_tree(const uint8_t *frame, size_t length, const msgpack_object *root)
{
    static const msgpack_object *open[1 << 16];
    size_t count = 0;
    struct msgpack_reader reader = {frame, frame + length};
    open[count++] = root;
    while (count > 0) {
        const msgpack_object *object = open[--count];
        struct msgpack_item item;
        if (!msgpack_read(&reader, &item) || !same_object(&item, object))
            return false;
        uint32_t children = object->type == MSGPACK_OBJECT_ARRAY ? object->via.array.size
                            : object->type == MSGPACK_OBJECT_MAP ? object->via.map.size
                                                                 : 0;
        assert_true(count + 2 * (size_t)children < sizeof open / sizeof open[0]);
        for (uint32_t i = children; i-- > 0;) {
            if (object->type == MSGPACK_OBJECT_ARRAY) {
                open[count++] = &object->via.array.ptr[i];
            } else {
                open[count++] = &object->via.map.ptr[i].val;
                open[count++] = &object->via.map.ptr[i].key;
            }
        }
    }
    return reader.next == reader.end;
}

/* First bytes of all kinds, so that random frames get somewhere. */
static size_t random_frame(struct random *random, uint8_t *out)
{
    static const uint8_t heads[] = {0x81, 0x92, 0x93, 0x82, 0xa3, 0xc4, 0xca, 0xcb, 0xcc, 0xcd,
                                    0xce, 0xcf, 0xd0, 0xd1, 0xd2, 0xd3, 0xd4, 0xd5, 0xd9, 0xda,
                                    0xdc, 0xde, 0xc0, 0xc2, 0xc3, 0xe5, 0x17, 0xc7, 0xd6, 0xdd};
    size_t length = 1 + random_below(random, 40);
    for (size_t i = 0; i < length; i++) {
        uint32_t way = random_below(random, 4);
        out[i] = way == 0   ? (uint8_t)random_next(random)
                 : way == 1 ? heads[random_below(random, sizeof heads)]
                            : (uint8_t)random_below(random, 4);
    }
    return length;
}

static void what_is_sound_is_read_as_msgpack_c_reads_it(void **state)
{
    (void)state;
    struct random random = {2026};
    uint32_t sound = 0;
    for (uint32_t round = 0; round < 400000; round++) {
        uint8_t frame[64];
        size_t length = random_frame(&random, frame);
        if (skim(frame, length) != MSGPACK_SOUND)
            continue;
        sound++;
        msgpack_unpacked unpacked;
        msgpack_unpacked_init(&unpacked);
        size_t offset = 0;
        assert_int_equal(msgpack_unpack_next(&unpacked, (const char *)frame, length, &offset),
                         MSGPACK_UNPACK_SUCCESS);
        assert_int_equal(offset, length);
        assert_true(same_tree(frame, length, &unpacked.data));
        msgpack_unpacked_destroy(&unpacked);
    }
    assert_true(sound > 2000);
}

/* The other way round: small frames that msgpack-c takes in full are sound, unless too deep. */
static void what_msgpack_c_takes_is_sound(void **state)
{
    (void)state;
    struct random random = {99};
    uint32_t taken = 0;
    for (uint32_t round = 0; round < 300000; round++) {
        uint8_t frame[64];
        size_t length = random_frame(&random, frame);
        bool bomb = false; /* a head of 32-bit counts would make msgpack-c reserve gigabytes */
        for (size_t i = 0; i < length; i++)
            bomb = bomb || frame[i] == 0xdd || frame[i] == 0xdf;
        if (bomb)
            continue;
        msgpack_unpacked unpacked;
        msgpack_unpacked_init(&unpacked);
        size_t offset = 0;
        if (msgpack_unpack_next(&unpacked, (const char *)frame, length, &offset) ==
                MSGPACK_UNPACK_SUCCESS &&
            offset == length) {
            taken++;
            enum msgpack_flaw flaw = skim(frame, length);
            assert_true(flaw == MSGPACK_SOUND || flaw == MSGPACK_DEEP);
        }
        msgpack_unpacked_destroy(&unpacked);
    }
    assert_true(taken > 2000);
}

static void integers_have_one_kind_whatever_their_form(void **state)
{
    (void)state;
    static const struct {
        const char *frame;
        size_t length;
        bool is_negative;
        int64_t value;
    } cases[] = {
        {"\x00", 1, false, 0},
        {"\x7f", 1, false, 127},
        {"\xe0", 1, true, -32},
        {"\xff", 1, true, -1},
        {"\xcc\xff", 2, false, 255},
        {"\xcd\xff\xff", 3, false, 65535},
        {"\xce\xff\xff\xff\xff", 5, false, INT64_C(4294967295)},
        {"\xcf\x7f\xff\xff\xff\xff\xff\xff\xff", 9, false, INT64_MAX},
        {"\xd0\x05", 2, false, 5},
        {"\xd0\x80", 2, true, -128},
        {"\xd1\x7f\xff", 3, false, 32767},
        {"\xd1\x80\x00", 3, true, -32768},
        {"\xd2\x80\x00\x00\x00", 5, true, -INT64_C(2147483648)},
        {"\xd3\x80\x00\x00\x00\x00\x00\x00\x00", 9, true, INT64_MIN},
        {"\xd3\x00\x00\x00\x00\x00\x00\x00\x09", 9, false, 9},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const uint8_t *frame = (const uint8_t *)cases[i].frame;
        struct msgpack_reader reader = {frame, frame + cases[i].length};
        struct msgpack_item item;
        assert_true(msgpack_read(&reader, &item));
        assert_ptr_equal(reader.next, reader.end);
        assert_int_equal(item.kind, cases[i].is_negative ? MSGPACK_NEGATIVE : MSGPACK_UNSIGNED);
        assert_true(cases[i].is_negative ? item.negative == cases[i].value
                                         : item.number == (uint64_t)cases[i].value);
        for (size_t cut = 0; cut < cases[i].length; cut++) {
            struct msgpack_reader shorter = {frame, frame + cut};
            assert_false(msgpack_read(&shorter, &item));
            assert_ptr_equal(shorter.next, frame);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(five_bytes_that_announce_gigabytes_are_refused),
        cmocka_unit_test(nested_announcements_are_refused),
        cmocka_unit_test(depth_is_bounded),
        cmocka_unit_test(the_number_of_values_is_bounded),
        cmocka_unit_test(nothing_may_follow),
        cmocka_unit_test(what_is_sound_is_read_as_msgpack_c_reads_it),
        cmocka_unit_test(what_msgpack_c_takes_is_sound),
        cmocka_unit_test(integers_have_one_kind_whatever_their_form),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
