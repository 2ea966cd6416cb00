/* Takes an encoded message apart into its pairs and puts it together again with a mistake: for
 * tests of refusals. */
#ifndef TANDEM_TESTS_SUPPORT_FRAME_EDITOR_H
#define TANDEM_TESTS_SUPPORT_FRAME_EDITOR_H

#include "common/check.h"
#include "proto/msgpack_reader.h"
#include "proto/msgpack_writer.h"

#include <string.h>

enum { EDITOR_PAIRS_MAX = 80, EDITOR_NOBODY = EDITOR_PAIRS_MAX };

struct raw_bytes {
    const uint8_t *bytes;
    size_t length;
};

struct frame_parts {
    struct raw_bytes keys[EDITOR_PAIRS_MAX], values[EDITOR_PAIRS_MAX];
    uint32_t count;
};

static inline void frame_split(const uint8_t *frame, size_t length, struct frame_parts *parts)
{
    struct msgpack_reader reader = {frame, frame + length};
    struct msgpack_item head;
    CHECK(msgpack_read(&reader, &head) && head.kind == MSGPACK_MAP);
    CHECK(head.count <= EDITOR_PAIRS_MAX);
    parts->count = head.count;
    for (uint32_t i = 0; i < head.count; i++) {
        struct raw_bytes *const both[] = {&parts->keys[i], &parts->values[i]};
        for (int k = 0; k < 2; k++) {
            const uint8_t *begin = reader.next;
            CHECK(msgpack_skip(&reader));
            *both[k] = (struct raw_bytes){begin, (size_t)(reader.next - begin)};
        }
    }
}

/* Index of the pair with this integer key, or EDITOR_NOBODY. */
static inline uint32_t frame_find(const struct frame_parts *parts, uint32_t key)
{
    for (uint32_t i = 0; i < parts->count; i++) {
        struct msgpack_reader reader = {parts->keys[i].bytes,
                                        parts->keys[i].bytes + parts->keys[i].length};
        struct msgpack_item item;
        CHECK(msgpack_read(&reader, &item));
        if (item.kind == MSGPACK_UNSIGNED && item.number == key)
            return i;
    }
    return EDITOR_NOBODY;
}

static inline void frame_put(struct msgpack_writer *writer, const struct raw_bytes *piece)
{
    msgpack_write_raw(writer, piece->bytes, piece->length);
}

/* The frame without pair `gone`, with `value` in place of the value of pair `changed`, and with the
 * pair (extra_key, extra_value) behind the rest. EDITOR_NOBODY and NULL switch each change off.
 * Returns the length; the buffer must be large enough. */
struct frame_change {
    uint32_t gone, changed;
    const struct raw_bytes *value, *extra_key, *extra_value;
};

static inline size_t frame_join(const struct frame_parts *parts, const struct frame_change *change,
                                uint8_t *out, size_t capacity)
{
    struct msgpack_writer writer = {.out = out, .capacity = capacity};
    uint32_t pairs =
        parts->count - (change->gone < parts->count ? 1 : 0) + (change->extra_key != NULL ? 1 : 0);
    msgpack_write_map(&writer, pairs);
    for (uint32_t i = 0; i < parts->count; i++) {
        if (i == change->gone)
            continue;
        frame_put(&writer, &parts->keys[i]);
        frame_put(&writer, i == change->changed ? change->value : &parts->values[i]);
    }
    if (change->extra_key != NULL) {
        frame_put(&writer, change->extra_key);
        frame_put(&writer, change->extra_value);
    }
    CHECK(writer.length <= capacity);
    return writer.length;
}

#endif
