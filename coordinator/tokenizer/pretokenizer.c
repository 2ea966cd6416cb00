#include "coordinator/tokenizer/pretokenizer.h"

#include "common/utf8.h"
#include "coordinator/tokenizer/unicode_classes.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum {
    LETTER = UNICODE_CLASS_LETTER,
    NUMBER = UNICODE_CLASS_NUMBER,
    SPACE = UNICODE_CLASS_SPACE,
    DIGIT = UNICODE_CLASS_DIGIT,
};

/* Classes of the character at `at` and its length. ASCII is answered from the first row: the
 * generator numbers rows by first use. */
static inline uint8_t classes_at(const char *text, size_t at, size_t *out_bytes)
{
    uint8_t byte = (uint8_t)text[at];
    if (byte < 0x80) {
        *out_bytes = 1;
        return unicode_class_rows[0][byte];
    }
    return unicode_classes(utf8_decode(text + at, out_bytes));
}

/* Where the run of characters ends, from `at` on, whose classes among `mask` are exactly `wanted`.
 */
static inline size_t run_end(const char *text, size_t length, size_t at, uint8_t mask,
                             uint8_t wanted)
{
    while (at < length) {
        size_t bytes;
        if ((classes_at(text, at, &bytes) & mask) != wanted)
            break;
        at += bytes;
    }
    return at;
}

/* Length of one of 's 't 'm 'd 're 've 'll at the apostrophe that begins `text`, 0 if there is
 * none. */
static size_t contraction(const char *text, size_t length)
{
    if (length >= 2 && memchr("stmd", text[1], 4) != NULL)
        return 2;
    if (length >= 3 && (memcmp(text + 1, "re", 2) == 0 || memcmp(text + 1, "ve", 2) == 0 ||
                        memcmp(text + 1, "ll", 2) == 0))
        return 3;
    return 0;
}

/* A run of spaces. Its last character stays for the next piece, if there is a next piece that it
 * can begin or the rule
 * `\s+(?!\S)` leaves it over; a digit has been cut off before that rule looks, so the run is then
 * whole. */
static size_t spaces(const char *text, size_t length)
{
    size_t end = 0, last = 0, bytes = 0;
    while (end < length && (classes_at(text, end, &bytes) & SPACE) != 0) {
        last = end;
        end += bytes;
    }
    bool followed = end < length && (classes_at(text, end, &bytes) & DIGIT) == 0;
    return followed && last > 0 ? last : end;
}

/* Digits one by one, then GPT-2's rule on what lies between them:
 *   's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 * The Digits rule knows a later Unicode than the regex: its digits end every run. */
static size_t smollm_first_piece(const char *text, size_t length)
{
    size_t bytes;
    uint8_t classes = classes_at(text, 0, &bytes);
    if ((classes & DIGIT) != 0)
        return bytes;
    if (text[0] == '\'') {
        size_t end = contraction(text, length);
        if (end > 0)
            return end;
    }
    size_t start = 0;
    if (text[0] == ' ' && length > 1) {
        start = 1;
        classes = classes_at(text, 1, &bytes);
    }
    if ((classes & (SPACE | DIGIT)) != 0)
        return spaces(text, length);
    if ((classes & LETTER) != 0)
        return run_end(text, length, start, LETTER | DIGIT, LETTER);
    if ((classes & NUMBER) != 0)
        return run_end(text, length, start, NUMBER | DIGIT, NUMBER);
    return run_end(text, length, start, LETTER | NUMBER | SPACE | DIGIT, 0);
}

static const struct pretokenizer known[] = {
    {.name = "smollm", .first_piece = smollm_first_piece},
};

enum { KNOWN_COUNT = sizeof known / sizeof known[0] };

enum status pretokenizer_find(const char *name, size_t length,
                              const struct pretokenizer **out_pretokenizer, struct text *why)
{
    for (size_t i = 0; i < KNOWN_COUNT; i++) {
        if (strlen(known[i].name) == length && memcmp(known[i].name, name, length) == 0) {
            *out_pretokenizer = &known[i];
            return STATUS_OK;
        }
    }
    text_set(why, "the splitting rule ");
    text_append_quoted(why, name, length, 40);
    text_format(why, " of the model is not supported; known:");
    for (size_t i = 0; i < KNOWN_COUNT; i++)
        text_format(why, " %s", known[i].name);
    return STATUS_UNSUPPORTED;
}
