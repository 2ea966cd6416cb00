/* What the text of some tokens is, found the slow way from all bytes at once: the judge of the
 * incremental detokenizer. */
#ifndef TANDEM_TESTS_SUPPORT_NAIVE_DETOKENIZER_H
#define TANDEM_TESTS_SUPPORT_NAIVE_DETOKENIZER_H

#include "common/check.h"
#include "coordinator/tokenizer/detokenizer.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { NAIVE_RAW_MAX = 4096, NAIVE_TEXT_MAX = 3 * NAIVE_RAW_MAX, NAIVE_STOPPED_NOWHERE = -1 };

struct naive_stops {
    struct byte_view strings[STOP_STRINGS_MAX];
    size_t count;
};

struct naive_text {
    char bytes[NAIVE_TEXT_MAX];
    size_t length;
    size_t ends[NAIVE_RAW_MAX]; /* of each raw byte: where the character that it belongs to ends in
                                   `bytes` */
    size_t decoded_raw;         /* raw bytes that are decoded; the rest begins a character */
};

/* Code points that characters with these first `length` bytes can have, as a range; false if there
 * are none. */
static inline bool naive_begins_character(const uint8_t *bytes, size_t length, size_t *out_whole)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t whole = bytes[0] < 0x80                       ? 1
                   : bytes[0] >= 0xc0 && bytes[0] < 0xe0 ? 2
                   : (bytes[0] & 0xf0) == 0xe0           ? 3
                   : bytes[0] >= 0xf0 && bytes[0] < 0xf8 ? 4
                                                         : 0;
    if (whole == 0 || length > whole)
        return false;
    uint32_t low = whole == 1 ? bytes[0] : bytes[0] & (0x7fu >> whole), high = low;
    for (size_t i = 1; i < whole; i++) {
        if (i < length && (bytes[i] & 0xc0) != 0x80)
            return false;
        low = low << 6 | (i < length ? bytes[i] & 0x3fu : 0);
        high = high << 6 | (i < length ? bytes[i] & 0x3fu : 0x3fu);
    }
    if (low < least[whole])
        low = least[whole];
    if (high > 0x10ffff)
        high = 0x10ffff;
    *out_whole = whole;
    return low <= high && !(low >= 0xd800 && high <= 0xdfff);
}

/* Decodes tail and raw together, with U+FFFD for each maximal subpart; one of tail bytes alone is
 * left out. `ended`: nothing follows, so an unfinished character is ill-formed. */
static inline void naive_decode(const uint8_t *raw, size_t length, size_t tail_length, bool ended,
                                struct naive_text *text)
{
    CHECK(length <= NAIVE_RAW_MAX);
    text->length = 0;
    size_t at = 0;
    while (at < length) {
        size_t part = 0, whole = 0, found;
        for (size_t tried = 1; tried <= 4 && at + tried <= length; tried++) {
            if (naive_begins_character(raw + at, tried, &found)) {
                part = tried;
                whole = found;
            }
        }
        bool complete = part > 0 && part == whole;
        if (!complete && part > 0 && at + part == length && !ended)
            break;
        part = part > 0 ? part : 1;
        size_t shown = complete ? part : UTF8_REPLACEMENT_BYTES;
        if (!complete && at + part <= tail_length)
            shown = 0;
        memcpy(text->bytes + text->length, complete ? (const char *)raw + at : utf8_replacement,
               shown);
        text->length += shown;
        for (size_t i = 0; i < part; i++)
            text->ends[at + i] = text->length;
        at += part;
    }
    text->decoded_raw = at;
}

/* The stop that ends first, the longest of those: its number, and in out_cut where it begins. */
static inline int naive_first_stop(const struct naive_text *text, const struct naive_stops *stops,
                                   size_t *out_cut)
{
    for (size_t end = 1; end <= text->length; end++) {
        int best = NAIVE_STOPPED_NOWHERE;
        for (size_t i = 0; i < stops->count; i++) {
            size_t length = stops->strings[i].length;
            if (length > end ||
                memcmp(text->bytes + end - length, stops->strings[i].bytes, length) != 0)
                continue;
            if (best == NAIVE_STOPPED_NOWHERE || length > stops->strings[best].length)
                best = (int)i;
        }
        if (best != NAIVE_STOPPED_NOWHERE) {
            *out_cut = end - stops->strings[best].length;
            return best;
        }
    }
    return NAIVE_STOPPED_NOWHERE;
}

/* Bytes at the end of the text that a stop may begin with. */
static inline size_t naive_held(const struct naive_text *text, const struct naive_stops *stops)
{
    size_t held = 0;
    for (size_t i = 0; i < stops->count; i++)
        for (size_t length = 1; length < stops->strings[i].length && length <= text->length;
             length++)
            if (length > held &&
                memcmp(text->bytes + text->length - length, stops->strings[i].bytes, length) == 0)
                held = length;
    return held;
}

/* Tokens end at raw offsets token_ends[0..token_count), which count from the end of the tail. */
struct naive_input {
    const uint8_t *raw; /* the tail and the bytes of the tokens */
    size_t tail_length;
    const size_t *token_ends;
    uint32_t token_count;
    bool ended; /* no token follows */
};

/* What must be shown after some tokens. */
struct naive_state {
    struct naive_text text;
    size_t shown;             /* bytes of text */
    uint32_t released_tokens; /* of those that were pushed */
    int stop;
};

static inline void naive_run(const struct naive_input *input, const struct naive_stops *stops,
                             struct naive_state *state)
{
    size_t generated = input->token_count > 0 ? input->token_ends[input->token_count - 1] : 0;
    naive_decode(input->raw, input->tail_length + generated, input->tail_length, input->ended,
                 &state->text);
    state->stop = naive_first_stop(&state->text, stops, &state->shown);
    if (state->stop != NAIVE_STOPPED_NOWHERE || input->ended) {
        if (state->stop == NAIVE_STOPPED_NOWHERE)
            state->shown = state->text.length;
        state->released_tokens = input->token_count;
        return;
    }
    state->shown = state->text.length - naive_held(&state->text, stops);
    state->released_tokens = 0;
    for (uint32_t i = 0; i < input->token_count; i++) {
        size_t end = input->tail_length + input->token_ends[i];
        bool touches_nothing = input->token_ends[i] == 0;
        if (!touches_nothing &&
            (end > state->text.decoded_raw || state->text.ends[end - 1] > state->shown))
            break;
        state->released_tokens++;
    }
}

#endif
