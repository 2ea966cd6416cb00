#include "common/utf8.h"

#include "common/check.h"

#include <string.h>

const char utf8_replacement[UTF8_REPLACEMENT_BYTES] = {'\xef', '\xbf', '\xbd'};

enum { CONTINUATION_LOW = 0x80, CONTINUATION_HIGH = 0xbf };

/* How many bytes a character has that begins with `byte`, and which second bytes it may have; 0 for
 * a byte that begins none. The narrower second bytes exclude overlong forms, surrogates and what
 * lies beyond U+10FFFF. */
static size_t lead_byte(uint8_t byte, uint8_t *out_low, uint8_t *out_high)
{
    *out_low = byte == 0xe0 ? 0xa0 : byte == 0xf0 ? 0x90 : CONTINUATION_LOW;
    *out_high = byte == 0xed ? 0x9f : byte == 0xf4 ? 0x8f : CONTINUATION_HIGH;
    if (byte < 0x80)
        return 1;
    if (byte < 0xc2)
        return 0;
    if (byte < 0xe0)
        return 2;
    if (byte < 0xf0)
        return 3;
    return byte < 0xf5 ? 4 : 0;
}

/* Length of the well-formed character at `bytes`, 0 if there is none. */
static size_t character_length(const uint8_t *bytes, size_t available)
{
    uint8_t low, high;
    size_t length = lead_byte(bytes[0], &low, &high);
    if (length == 0 || length > available)
        return 0;
    if (length > 1 && (bytes[1] < low || bytes[1] > high))
        return 0;
    for (size_t i = 2; i < length; i++)
        if (bytes[i] < CONTINUATION_LOW || bytes[i] > CONTINUATION_HIGH)
            return 0;
    return length;
}

size_t utf8_valid_prefix(const char *bytes, size_t length)
{
    const uint8_t *octets = (const uint8_t *)bytes;
    size_t at = 0;
    while (at < length) {
        uint64_t eight;
        if (length - at >= sizeof eight) {
            memcpy(&eight, octets + at, sizeof eight);
            if ((eight & UINT64_C(0x8080808080808080)) == 0) {
                at += sizeof eight;
                continue;
            }
        }
        size_t step = character_length(octets + at, length - at);
        if (step == 0)
            break;
        at += step;
    }
    return at;
}

bool utf8_valid(const char *bytes, size_t length)
{
    return utf8_valid_prefix(bytes, length) == length;
}

uint32_t utf8_decode(const char *bytes, size_t *out_bytes)
{
    const uint8_t *octets = (const uint8_t *)bytes;
    uint32_t first = octets[0];
    if (first < 0x80) {
        *out_bytes = 1;
        return first;
    }
    if (first < 0xe0) {
        *out_bytes = 2;
        return (first & 0x1f) << 6 | (octets[1] & 0x3fu);
    }
    if (first < 0xf0) {
        *out_bytes = 3;
        return (first & 0xf) << 12 | (octets[1] & 0x3fu) << 6 | (octets[2] & 0x3fu);
    }
    *out_bytes = 4;
    return (first & 7) << 18 | (octets[1] & 0x3fu) << 12 | (octets[2] & 0x3fu) << 6 |
           (octets[3] & 0x3fu);
}

size_t utf8_encode(uint32_t code_point, char out[UTF8_BYTES_MAX])
{
    CHECK(code_point < 0x110000 && (code_point < 0xd800 || code_point > 0xdfff));
    if (code_point < 0x80) {
        out[0] = (char)code_point;
        return 1;
    }
    size_t length = code_point < 0x800 ? 2 : code_point < 0x10000 ? 3 : 4;
    static const uint8_t lead[UTF8_BYTES_MAX + 1] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = length - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (code_point & 0x3f));
        code_point >>= 6;
    }
    out[0] = (char)(lead[length] | code_point);
    return length;
}

enum utf8_step utf8_step(const uint8_t *pending, size_t pending_bytes, uint8_t byte)
{
    uint8_t low, high;
    if (pending_bytes == 0) {
        size_t length = lead_byte(byte, &low, &high);
        return length == 0 ? UTF8_BROKEN : length == 1 ? UTF8_COMPLETE : UTF8_PENDING;
    }
    size_t length = lead_byte(pending[0], &low, &high);
    DEBUG_CHECK(pending_bytes < length);
    if (pending_bytes > 1) {
        low = CONTINUATION_LOW;
        high = CONTINUATION_HIGH;
    }
    if (byte < low || byte > high)
        return UTF8_BROKEN;
    return pending_bytes + 1 == length ? UTF8_COMPLETE : UTF8_PENDING;
}
