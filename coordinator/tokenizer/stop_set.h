/* The stop strings of one request, prepared for matching byte by byte. 2.2 KB: take one only for
 * requests that have any. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_STOP_SET_H
#define TANDEM_COORDINATOR_TOKENIZER_STOP_SET_H

#include "common/status.h"
#include "common/text.h"
#include "coordinator/tokenizer/vocabulary.h"

enum {
    STOP_STRINGS_MAX = 16,
    STOP_STRING_BYTES_MAX = 64,
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

/* One more byte. Returns the number of bytes at the end of the text that may begin a stop; the
 * longest stop that ends here, if any, has its number in out_stop (else STOP_STRINGS_MAX) and the
 * text must not be continued. */
uint32_t stop_set_advance(const struct stop_set *stops, struct stop_progress *progress,
                          uint8_t byte, uint32_t *out_stop);

#endif
