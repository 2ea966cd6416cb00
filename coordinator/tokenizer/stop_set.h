/* The stop strings of one request, prepared for matching byte by byte. 2.2 KB: take one only for
 * requests that have any. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_STOP_SET_H
#define TANDEM_COORDINATOR_TOKENIZER_STOP_SET_H

#include "common/status.h"
#include "common/text.h"
#include "coordinator/tokenizer/vocabulary.h"
#include "proto/limits.h"

#include <stdbool.h>

enum {
    STOP_STRINGS_MAX = LIMIT_STOP_STRINGS,
    STOP_STRING_BYTES_MAX = LIMIT_STOP_BYTES,
};

/* Embedded by the caller, holds copies, no memory of its own; a zeroed one never matches. */
struct stop_set {
    uint32_t count;
    uint8_t lengths[STOP_STRINGS_MAX];
    uint8_t bytes[STOP_STRINGS_MAX][STOP_STRING_BYTES_MAX];
    uint8_t fallback[STOP_STRINGS_MAX][STOP_STRING_BYTES_MAX]; /* longest border of each prefix */
    uint8_t begins[256 / 8];                                   /* bit per byte that begins a stop */
};

/* STATUS_INVALID: more than STOP_STRINGS_MAX, one empty, longer than STOP_STRING_BYTES_MAX or no
 * UTF-8; `why` names it. */
MUST_USE enum status stop_set_init(struct stop_set *stops, const struct byte_view *strings,
                                   size_t count, struct text *why);

/* How much of each stop the text so far ends with. */
struct stop_progress {
    uint8_t matched[STOP_STRINGS_MAX];
};

/* Whether a stop begins with this byte. */
static inline bool stop_set_may_begin(const struct stop_set *stops, uint8_t byte)
{
    return (stops->begins[byte / 8] >> byte % 8 & 1) != 0;
}

/* One more byte of a text that no stop has ended yet. Returns how many bytes at the end of the text
 * may begin a stop (a whole one, if it ends here). The number of the longest stop that ends here in
 * out_stop, else STOP_STRINGS_MAX. */
uint32_t stop_set_advance(const struct stop_set *stops, struct stop_progress *progress,
                          uint8_t byte, uint32_t *out_stop);

#endif
