#include "proto/msgpack_reader.h"

#include "proto/limits.h"

#include <string.h>

static uint64_t big_endian(const uint8_t *bytes, uint32_t count)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

/* What a first byte of 0xc0 .. 0xdf announces: the kind, and the bytes of the number that follows.
 */
static const struct {
    uint8_t kind;
    uint8_t number_bytes;
} heads[32] = {
    [0x00] = {MSGPACK_NIL, 0},      [0x02] = {MSGPACK_BOOL, 0},     [0x03] = {MSGPACK_BOOL, 0},
    [0x04] = {MSGPACK_BIN, 1},      [0x05] = {MSGPACK_BIN, 2},      [0x06] = {MSGPACK_BIN, 4},
    [0x07] = {MSGPACK_EXT, 1},      [0x08] = {MSGPACK_EXT, 2},      [0x09] = {MSGPACK_EXT, 4},
    [0x0a] = {MSGPACK_FLOAT, 4},    [0x0b] = {MSGPACK_FLOAT, 8},    [0x0c] = {MSGPACK_UNSIGNED, 1},
    [0x0d] = {MSGPACK_UNSIGNED, 2}, [0x0e] = {MSGPACK_UNSIGNED, 4}, [0x0f] = {MSGPACK_UNSIGNED, 8},
    [0x10] = {MSGPACK_NEGATIVE, 1}, [0x11] = {MSGPACK_NEGATIVE, 2}, [0x12] = {MSGPACK_NEGATIVE, 4},
    [0x13] = {MSGPACK_NEGATIVE, 8}, [0x14] = {MSGPACK_EXT, 0},      [0x15] = {MSGPACK_EXT, 0},
    [0x16] = {MSGPACK_EXT, 0},      [0x17] = {MSGPACK_EXT, 0},      [0x18] = {MSGPACK_EXT, 0},
    [0x19] = {MSGPACK_STR, 1},      [0x1a] = {MSGPACK_STR, 2},      [0x1b] = {MSGPACK_STR, 4},
    [0x1c] = {MSGPACK_ARRAY, 2},    [0x1d] = {MSGPACK_ARRAY, 4},    [0x1e] = {MSGPACK_MAP, 2},
    [0x1f] = {MSGPACK_MAP, 4},
};

static void set_signed(struct msgpack_item *item, uint64_t raw, uint32_t bytes)
{
    uint32_t shift = 64 - 8 * bytes;
    int64_t value = (int64_t)(raw << shift) >> shift;
    item->kind = value < 0 ? MSGPACK_NEGATIVE : MSGPACK_UNSIGNED;
    if (value < 0)
        item->negative = value;
    else
        item->number = (uint64_t)value;
}

static void set_real(struct msgpack_item *item, uint64_t raw, uint32_t bytes)
{
    if (bytes == 4) {
        uint32_t bits = (uint32_t)raw;
        float value;
        memcpy(&value, &bits, sizeof value);
        item->real = (double)value;
    } else {
        memcpy(&item->real, &raw, sizeof item->real);
    }
}

/* The value of one byte, for all first bytes outside 0xc0 .. 0xdf. */
static void read_short_head(uint8_t first, struct msgpack_item *item)
{
    if (first <= 0x7f) {
        item->kind = MSGPACK_UNSIGNED;
        item->number = first;
    } else if (first >= 0xe0) {
        item->kind = MSGPACK_NEGATIVE;
        item->negative = (int8_t)first;
    } else if (first <= 0x8f) {
        item->kind = MSGPACK_MAP;
        item->count = first & 0x0f;
    } else if (first <= 0x9f) {
        item->kind = MSGPACK_ARRAY;
        item->count = first & 0x0f;
    } else {
        item->kind = MSGPACK_STR;
        item->count = first & 0x1f;
    }
}

static void read_long_head(uint8_t first, uint64_t raw, struct msgpack_item *item)
{
    uint32_t bytes = heads[first & 0x1f].number_bytes;
    item->kind = (enum msgpack_kind)heads[first & 0x1f].kind;
    switch (item->kind) {
    case MSGPACK_BOOL:
        item->truth = first == 0xc3;
        break;
    case MSGPACK_UNSIGNED:
        item->number = raw;
        break;
    case MSGPACK_NEGATIVE:
        set_signed(item, raw, bytes);
        break;
    case MSGPACK_FLOAT:
        set_real(item, raw, bytes);
        break;
    case MSGPACK_EXT:
        item->count = bytes == 0 ? 1u << (first - 0xd4) : (uint32_t)raw;
        break;
    default:
        item->count = (uint32_t)raw;
    }
}

bool msgpack_read(struct msgpack_reader *reader, struct msgpack_item *out_item)
{
    const uint8_t *next = reader->next;
    if (next >= reader->end)
        return false;
    size_t left = (size_t)(reader->end - next) - 1;
    uint8_t first = *next++;
    struct msgpack_item item = {.kind = MSGPACK_NONE};
    if (first < 0xc0 || first > 0xdf) {
        read_short_head(first, &item);
    } else {
        uint32_t bytes = heads[first & 0x1f].number_bytes;
        if (heads[first & 0x1f].kind == MSGPACK_NONE || left < bytes)
            return false;
        read_long_head(first, big_endian(next, bytes), &item);
        next += bytes;
        left -= bytes;
    }
    if (item.kind == MSGPACK_STR || item.kind == MSGPACK_BIN || item.kind == MSGPACK_EXT) {
        size_t body = (size_t)item.count + (item.kind == MSGPACK_EXT ? 1 : 0);
        if (left < body)
            return false;
        item.bytes = next;
        next += body;
    }
    reader->next = next;
    *out_item = item;
    return true;
}

/* Walks one value. `pending` counts the values that are declared and not yet seen over all levels:
 * each takes at least one byte, so more of them than bytes left is a lie, found before anything is
 * made of it. */
static enum msgpack_flaw walk(struct msgpack_reader *reader)
{
    uint64_t open[LIMIT_WIRE_DEPTH + 1]; /* values left on each level */
    uint32_t depth = 0, nodes = 0;
    uint64_t pending = 1;
    open[0] = 1;
    for (;;) {
        while (open[depth] == 0) {
            if (depth == 0)
                return MSGPACK_SOUND;
            depth--;
        }
        struct msgpack_item item;
        if (!msgpack_read(reader, &item))
            return reader->next < reader->end && *reader->next == 0xc1 ? MSGPACK_UNKNOWN
                                                                       : MSGPACK_CUT;
        open[depth]--;
        pending--;
        if (++nodes > LIMIT_WIRE_NODES)
            return MSGPACK_CROWDED;
        if (item.kind != MSGPACK_ARRAY && item.kind != MSGPACK_MAP)
            continue;
        if (depth == LIMIT_WIRE_DEPTH)
            return MSGPACK_DEEP;
        open[++depth] = (uint64_t)item.count << (item.kind == MSGPACK_MAP);
        pending += open[depth];
        if (pending > (uint64_t)(reader->end - reader->next))
            return MSGPACK_CUT;
    }
}

enum msgpack_flaw msgpack_skim(const uint8_t *bytes, size_t length, size_t *out_offset)
{
    struct msgpack_reader reader = {bytes, bytes + length};
    enum msgpack_flaw flaw = walk(&reader);
    if (flaw == MSGPACK_SOUND && reader.next != reader.end)
        flaw = MSGPACK_TRAILING;
    *out_offset = (size_t)(reader.next - bytes);
    return flaw;
}

bool msgpack_skip(struct msgpack_reader *reader)
{
    struct msgpack_reader copy = *reader;
    if (walk(&copy) != MSGPACK_SOUND)
        return false;
    *reader = copy;
    return true;
}
