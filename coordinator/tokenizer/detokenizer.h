/* Turns the tokens of one request into text, as they come.
 * The text is the bytes of the tokens decoded as UTF-8, with U+FFFD for each maximal ill-formed
 * subpart, cut before the first stop string (the one that ends first; the longest of those). It
 * does not depend on how the bytes are spread over tokens. What is not certain yet is held back:
 * the beginning of a character, and the longest end of the text that a stop may begin with. A token
 * is released when every character that it touches is shown; at the end all are. The state is a
 * function of the prompt's tail, the stops and the tokens: replaying them gives equal bytes of
 * state. No memory beyond the struct; a token costs time in proportion to its bytes. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_DETOKENIZER_H
#define TANDEM_COORDINATOR_TOKENIZER_DETOKENIZER_H

#include "common/utf8.h"
#include "coordinator/tokenizer/stop_set.h"
#include "coordinator/tokenizer/vocabulary.h"

enum {
    /* A stop but its last byte, and the character that completes or breaks it. */
    DETOKENIZER_HELD_BYTES_MAX = STOP_STRING_BYTES_MAX - 1 + UTF8_BYTES_MAX,
    DETOKENIZER_TAIL_BYTES_MAX = UTF8_BYTES_MAX - 1,
    /* Room that one call may need: each byte may become U+FFFD, and what was held goes out with it.
     */
    DETOKENIZER_OUTPUT_BYTES_MAX =
        UTF8_REPLACEMENT_BYTES * (VOCABULARY_TOKEN_BYTES_MAX + 1) + DETOKENIZER_HELD_BYTES_MAX,
};

/* Embedded in the request; fields may be read, the first four are the result. */
struct detokenizer {
    uint64_t released_bytes;  /* of text */
    uint32_t released_tokens; /* of pushed ones */
    uint32_t pushed_tokens;
    uint32_t matched_stop; /* number of the stop string; STOP_STRINGS_MAX while there is none */
    bool ended;            /* by a stop or by detokenizer_finish(): nothing more may be pushed */
    uint8_t held_length;
    uint8_t pending_length;      /* bytes of an unfinished character */
    uint8_t pending_from_prompt; /* how many of them came from the prompt */
    uint8_t pending[UTF8_BYTES_MAX];
    uint32_t pending_tokens; /* that end inside the unfinished character */
    struct stop_progress stop_progress;
    uint8_t held[DETOKENIZER_HELD_BYTES_MAX + 1];         /* decoded text that may begin a stop */
    uint32_t held_tokens[DETOKENIZER_HELD_BYTES_MAX + 1]; /* that end before held[i] */
};

/* `prompt_tail` is what detokenizer_prompt_tail() found: the generated text may complete a
 * character that the prompt began; that character is shown, while one of prompt bytes alone never
 * is. */
void detokenizer_init(struct detokenizer *detokenizer, struct byte_view prompt_tail);

/* The unfinished character at the end of the prompt, 0 to DETOKENIZER_TAIL_BYTES_MAX bytes; their
 * number is returned. */
size_t detokenizer_prompt_tail(const struct vocabulary *vocabulary, const uint32_t *prompt,
                               size_t prompt_tokens, char out_tail[DETOKENIZER_TAIL_BYTES_MAX]);

/* Takes the next token (< token_count, CHECKed). Writes the text that it releases to `out`, which
 * has room for DETOKENIZER_OUTPUT_BYTES_MAX bytes, and returns its length. `stops` may be NULL and
 * must be the same in every call. A stop match sets `ended`, `matched_stop` and releases every
 * token. */
size_t detokenizer_push(struct detokenizer *detokenizer, const struct vocabulary *vocabulary,
                        const struct stop_set *stops, uint32_t token, char *out);

/* No token follows: releases what was held (an unfinished character as U+FFFD), text as from
 * detokenizer_push(). After a stop match it does nothing. */
size_t detokenizer_finish(struct detokenizer *detokenizer, const struct stop_set *stops, char *out);

#endif
