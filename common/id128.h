/* 128 opaque bits: the instance of a coordinator, the hash of a model. Compared, copied and shown,
 * never computed with. */
#ifndef TANDEM_COMMON_ID128_H
#define TANDEM_COMMON_ID128_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

struct id128 {
    uint8_t bytes[16];
};

enum { ID128_TEXT_BYTES = 33 }; /* 32 hexadecimal digits and the terminator */

static inline bool id128_equal(const struct id128 *a, const struct id128 *b)
{
    return memcmp(a->bytes, b->bytes, sizeof a->bytes) == 0;
}

static inline bool id128_is_zero(const struct id128 *id)
{
    const struct id128 zero = {{0}};
    return id128_equal(id, &zero);
}

/* Writes 32 lower-case hexadecimal digits and a NUL; returns `out`. */
static inline const char *id128_format(const struct id128 *id, char out[ID128_TEXT_BYTES])
{
    static const char digits[] = "0123456789abcdef";
    for (int i = 0; i < 16; i++) {
        out[2 * i] = digits[id->bytes[i] >> 4];
        out[2 * i + 1] = digits[id->bytes[i] & 15];
    }
    out[32] = '\0';
    return out;
}

#endif
