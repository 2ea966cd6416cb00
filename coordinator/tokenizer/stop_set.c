#include "coordinator/tokenizer/stop_set.h"

#include "common/check.h"
#include "common/utf8.h"

#include <string.h>

/* For each prefix of the stop the length of its longest border (proper prefix that is a suffix):
 * where matching goes on after a byte that does not fit. */
static void find_borders(const uint8_t *bytes, uint32_t length, uint8_t *fallback)
{
    uint8_t border = 0;
    fallback[0] = 0;
    for (uint32_t i = 1; i < length; i++) {
        while (border > 0 && bytes[border] != bytes[i])
            border = fallback[border - 1];
        if (bytes[border] == bytes[i])
            border++;
        fallback[i] = border;
    }
}

enum status stop_set_init(struct stop_set *stops, const struct byte_view *strings, size_t count,
                          struct text *why)
{
    if (count > STOP_STRINGS_MAX) {
        text_set(why, "%zu stop strings; up to %d are allowed", count, STOP_STRINGS_MAX);
        return STATUS_INVALID;
    }
    for (size_t i = 0; i < count; i++) {
        size_t length = strings[i].length;
        if (length == 0 || length > STOP_STRING_BYTES_MAX) {
            text_set(why, "stop string %zu has %zu bytes; 1 to %d are allowed", i, length,
                     STOP_STRING_BYTES_MAX);
            return STATUS_INVALID;
        }
        if (!utf8_valid(strings[i].bytes, length)) {
            text_set(why, "stop string %zu is not UTF-8", i);
            return STATUS_INVALID;
        }
    }
    *stops = (struct stop_set){.count = (uint32_t)count};
    for (size_t i = 0; i < count; i++) {
        stops->lengths[i] = (uint8_t)strings[i].length;
        memcpy(stops->bytes[i], strings[i].bytes, strings[i].length);
        find_borders(stops->bytes[i], stops->lengths[i], stops->fallback[i]);
        stops->begins[stops->bytes[i][0] / 8] |= (uint8_t)(1 << stops->bytes[i][0] % 8);
    }
    return STATUS_OK;
}

static uint8_t advance_one(const struct stop_set *stops, uint32_t stop, uint8_t matched,
                           uint8_t byte)
{
    DEBUG_CHECK(matched < stops->lengths[stop]);
    while (matched > 0 && stops->bytes[stop][matched] != byte)
        matched = stops->fallback[stop][matched - 1];
    return stops->bytes[stop][matched] == byte ? (uint8_t)(matched + 1) : 0;
}

uint32_t stop_set_advance(const struct stop_set *stops, struct stop_progress *progress,
                          uint8_t byte, uint32_t *out_stop)
{
    uint32_t longest = 0, stop = STOP_STRINGS_MAX;
    for (uint32_t i = 0; i < stops->count; i++) {
        uint8_t matched = advance_one(stops, i, progress->matched[i], byte);
        progress->matched[i] = matched;
        if (matched > longest)
            longest = matched;
        if (matched == stops->lengths[i] &&
            (stop == STOP_STRINGS_MAX || matched > stops->lengths[stop]))
            stop = i;
    }
    *out_stop = stop;
    return longest;
}
