/* Well-formed UTF-8 as the Unicode standard has it (table 3-7): no overlong forms, no surrogates,
 * at most U+10FFFF. */
#ifndef TANDEM_COMMON_UTF8_H
#define TANDEM_COMMON_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    UTF8_BYTES_MAX = 4,         /* of one character */
    UTF8_REPLACEMENT_BYTES = 3, /* of U+FFFD */
};

/* The bytes of U+FFFD, which stand for what cannot be decoded. */
extern const char utf8_replacement[UTF8_REPLACEMENT_BYTES];

/* Length of the longest well-formed prefix, which ends between two characters; `length` if all of
 * it is. */
size_t utf8_valid_prefix(const char *bytes, size_t length);

bool utf8_valid(const char *bytes, size_t length);

/* Character at `bytes`, which must be well-formed from here on; its length in out_bytes (1 to 4).
 */
uint32_t utf8_decode(const char *bytes, size_t *out_bytes);

/* Writes `code_point` (a scalar value) and returns how many bytes that took. */
size_t utf8_encode(uint32_t code_point, char out[UTF8_BYTES_MAX]);

/* What one more byte does to the beginning of a character. `UTF8_BROKEN` says that `pending` is no
 * beginning of a character together with `byte`: the pending bytes alone are then one maximal
 * subpart, and `byte` starts anew (with nothing pending it is an ill-formed subpart by itself). */
enum utf8_step { UTF8_COMPLETE, UTF8_PENDING, UTF8_BROKEN };

/* `pending` (0 to 3 bytes that returned UTF8_PENDING one after the other) followed by `byte`. */
enum utf8_step utf8_step(const uint8_t *pending, size_t pending_bytes, uint8_t byte);

#endif
