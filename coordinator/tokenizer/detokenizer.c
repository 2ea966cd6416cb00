#include "coordinator/tokenizer/detokenizer.h"

#include "common/check.h"

#include <string.h>

/* What a call shows. */
struct output {
    char *bytes; /* room for DETOKENIZER_OUTPUT_BYTES_MAX */
    size_t length;
};

void detokenizer_init(struct detokenizer *detokenizer, struct byte_view prompt_tail)
{
    CHECK(prompt_tail.length <= DETOKENIZER_TAIL_BYTES_MAX);
    memset(detokenizer, 0, sizeof *detokenizer);
    detokenizer->matched_stop = STOP_STRINGS_MAX;
    memcpy(detokenizer->pending, prompt_tail.bytes, prompt_tail.length);
    detokenizer->pending_length = (uint8_t)prompt_tail.length;
    detokenizer->pending_from_prompt = (uint8_t)prompt_tail.length;
}

/* Whether these bytes begin a character and do not end it. */
static bool is_unfinished(const uint8_t *bytes, size_t length)
{
    for (size_t i = 0; i < length; i++)
        if (utf8_step(bytes, i, bytes[i]) != UTF8_PENDING)
            return false;
    return true;
}

size_t detokenizer_prompt_tail(const struct vocabulary *vocabulary, const uint32_t *prompt,
                               size_t prompt_tokens, char out_tail[DETOKENIZER_TAIL_BYTES_MAX])
{
    uint8_t last[DETOKENIZER_TAIL_BYTES_MAX]; /* filled from its end */
    size_t room = sizeof last;
    while (prompt_tokens > 0 && room > 0) {
        struct byte_view bytes = vocabulary_token_bytes(vocabulary, prompt[--prompt_tokens]);
        while (bytes.length > 0 && room > 0)
            last[--room] = (uint8_t)bytes.bytes[--bytes.length];
    }
    for (size_t begin = room; begin < sizeof last; begin++) {
        if (is_unfinished(last + begin, sizeof last - begin)) {
            memcpy(out_tail, last + begin, sizeof last - begin);
            return sizeof last - begin;
        }
    }
    return 0;
}

static void write_text(struct detokenizer *detokenizer, struct output *output, const void *bytes,
                       size_t length)
{
    memcpy(output->bytes + output->length, bytes, length);
    output->length += length;
    detokenizer->released_bytes += length;
}

/* Shows the first `count` held bytes and releases the tokens that end there. */
static void release_held(struct detokenizer *detokenizer, struct output *output, size_t count)
{
    write_text(detokenizer, output, detokenizer->held, count);
    for (size_t i = 0; i <= count; i++)
        detokenizer->released_tokens += detokenizer->held_tokens[i];
    size_t kept = detokenizer->held_length - count;
    memmove(detokenizer->held, detokenizer->held + count, kept);
    detokenizer->held_tokens[0] = 0;
    for (size_t i = 1; i <= kept; i++)
        detokenizer->held_tokens[i] = detokenizer->held_tokens[count + i];
    for (size_t i = kept + 1; i <= detokenizer->held_length; i++)
        detokenizer->held_tokens[i] = 0;
    detokenizer->held_length = (uint8_t)kept;
}

/* The text ends before the stop that its last bytes are; every token counts as released. */
static void end_at_stop(struct detokenizer *detokenizer, const struct stop_set *stops,
                        uint32_t stop, struct output *output)
{
    CHECK(detokenizer->held_length >= stops->lengths[stop]);
    write_text(detokenizer, output, detokenizer->held,
               detokenizer->held_length - (size_t)stops->lengths[stop]);
    detokenizer->held_length = 0;
    detokenizer->matched_stop = stop;
    detokenizer->ended = true;
}

/* One whole decoded character more. Stops are well-formed, so they begin and end between
 * characters, and so does what is held. */
static void take_character(struct detokenizer *detokenizer, const struct stop_set *stops,
                           const void *character, size_t length, struct output *output)
{
    const uint8_t *bytes = character;
    uint32_t tokens = detokenizer->pending_tokens;
    detokenizer->pending_tokens = 0;
    detokenizer->pending_length = 0;
    detokenizer->pending_from_prompt = 0;
    if (detokenizer->held_length == 0 && (stops == NULL || !stop_set_may_begin(stops, bytes[0]))) {
        write_text(detokenizer, output, bytes, length);
        detokenizer->released_tokens += tokens;
        return;
    }
    CHECK(detokenizer->held_length + length <= DETOKENIZER_HELD_BYTES_MAX);
    memcpy(detokenizer->held + detokenizer->held_length, bytes, length);
    detokenizer->held_length = (uint8_t)(detokenizer->held_length + length);
    detokenizer->held_tokens[detokenizer->held_length] += tokens;
    uint32_t uncertain = 0, stop = STOP_STRINGS_MAX;
    for (size_t i = 0; i < length; i++)
        uncertain = stop_set_advance(stops, &detokenizer->stop_progress, bytes[i], &stop);
    if (stop != STOP_STRINGS_MAX)
        end_at_stop(detokenizer, stops, stop, output);
    else
        release_held(detokenizer, output, detokenizer->held_length - uncertain);
}

/* The unfinished character stays unfinished. What the prompt alone began is not ours to show. */
static void break_pending(struct detokenizer *detokenizer, const struct stop_set *stops,
                          struct output *output)
{
    if (detokenizer->pending_length > detokenizer->pending_from_prompt) {
        take_character(detokenizer, stops, utf8_replacement, UTF8_REPLACEMENT_BYTES, output);
    } else {
        detokenizer->pending_length = 0;
        detokenizer->pending_from_prompt = 0;
    }
}

static void take_byte(struct detokenizer *detokenizer, const struct stop_set *stops, uint8_t byte,
                      struct output *output)
{
    enum utf8_step step = utf8_step(detokenizer->pending, detokenizer->pending_length, byte);
    if (step == UTF8_BROKEN && detokenizer->pending_length > 0) {
        break_pending(detokenizer, stops, output);
        if (detokenizer->ended)
            return;
        step = utf8_step(detokenizer->pending, 0, byte);
    }
    if (step == UTF8_BROKEN) {
        take_character(detokenizer, stops, utf8_replacement, UTF8_REPLACEMENT_BYTES, output);
        return;
    }
    detokenizer->pending[detokenizer->pending_length++] = byte;
    if (step == UTF8_COMPLETE) {
        uint8_t character[UTF8_BYTES_MAX];
        size_t length = detokenizer->pending_length;
        memcpy(character, detokenizer->pending, sizeof character);
        take_character(detokenizer, stops, character, length, output);
    }
}

/* Notes where the token that was just taken ends: it waits for what is held there, or for nothing.
 */
static void end_token(struct detokenizer *detokenizer)
{
    detokenizer->pushed_tokens++;
    if (detokenizer->ended)
        detokenizer->released_tokens = detokenizer->pushed_tokens;
    else if (detokenizer->pending_length > detokenizer->pending_from_prompt)
        detokenizer->pending_tokens++;
    else if (detokenizer->held_length > 0)
        detokenizer->held_tokens[detokenizer->held_length]++;
    else
        detokenizer->released_tokens++;
}

size_t detokenizer_push(struct detokenizer *detokenizer, const struct vocabulary *vocabulary,
                        const struct stop_set *stops, uint32_t token, char *out)
{
    CHECK(!detokenizer->ended);
    struct byte_view bytes = vocabulary_token_bytes(vocabulary, token);
    struct output output = {.bytes = out};
    bool whole = (vocabulary->traits[token] & TOKEN_TRAIT_WHOLE_CHARACTERS) != 0;
    if (whole && detokenizer->pending_length == 0 && (stops == NULL || stops->count == 0)) {
        write_text(detokenizer, &output, bytes.bytes, bytes.length);
    } else {
        for (size_t i = 0; i < bytes.length && !detokenizer->ended; i++)
            take_byte(detokenizer, stops, (uint8_t)bytes.bytes[i], &output);
    }
    end_token(detokenizer);
    DEBUG_CHECK(detokenizer->released_tokens <= detokenizer->pushed_tokens);
    return output.length;
}

size_t detokenizer_finish(struct detokenizer *detokenizer, const struct stop_set *stops, char *out)
{
    struct output output = {.bytes = out};
    if (detokenizer->ended)
        return 0;
    if (detokenizer->pending_length > 0)
        break_pending(detokenizer, stops, &output);
    if (!detokenizer->ended)
        release_held(detokenizer, &output, detokenizer->held_length);
    detokenizer->ended = true;
    detokenizer->released_tokens = detokenizer->pushed_tokens;
    return output.length;
}
