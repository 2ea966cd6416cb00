/* A vocabulary made of given byte strings and nothing else: no merges, one control token. */
#ifndef TANDEM_TESTS_SUPPORT_TOKEN_SET_H
#define TANDEM_TESTS_SUPPORT_TOKEN_SET_H

#include "common/check.h"
#include "coordinator/tokenizer/vocabulary.h"
#include "support/small_tokenizer.h"

enum {
    TOKEN_SET_MAX = 2048,
    TOKEN_SET_RAW_BYTES = 32,
    TOKEN_SET_TEXT_BYTES = 2 * TOKEN_SET_RAW_BYTES
};

struct token_set {
    char texts[TOKEN_SET_MAX][TOKEN_SET_TEXT_BYTES];
    struct byte_view views[TOKEN_SET_MAX];
    uint8_t types[TOKEN_SET_MAX];
    char raw[TOKEN_SET_MAX][TOKEN_SET_RAW_BYTES];
    size_t raw_lengths[TOKEN_SET_MAX];
    uint32_t count;
    struct vocabulary vocabulary; /* made by token_set_build() */
};

/* Token of these bytes, VOCABULARY_NO_TOKEN if it was not added. */
static inline uint32_t token_set_find(const struct token_set *set, const char *bytes, size_t length)
{
    for (uint32_t i = 0; i < set->count; i++)
        if (set->raw_lengths[i] == length && memcmp(set->raw[i], bytes, length) == 0)
            return i;
    return VOCABULARY_NO_TOKEN;
}

/* Adds a byte string, unless it is there. */
static inline void token_set_add(struct token_set *set, const char *bytes, size_t length)
{
    if (token_set_find(set, bytes, length) != VOCABULARY_NO_TOKEN)
        return;
    CHECK(set->count < TOKEN_SET_MAX && length <= TOKEN_SET_RAW_BYTES);
    uint32_t token = set->count++;
    size_t text_length = 0;
    for (size_t i = 0; i < length; i++) {
        CHECK(text_length + UTF8_BYTES_MAX <= TOKEN_SET_TEXT_BYTES);
        text_length += small_alphabet((uint8_t)bytes[i], set->texts[token] + text_length);
    }
    memcpy(set->raw[token], bytes, length);
    set->raw_lengths[token] = length;
    set->views[token] = (struct byte_view){set->texts[token], text_length};
    set->types[token] = TOKEN_TYPE_NORMAL;
}

/* Adds a token that shows nothing; its id is returned. */
static inline uint32_t token_set_add_control(struct token_set *set, const char *text)
{
    CHECK(set->count < TOKEN_SET_MAX);
    uint32_t token = set->count++;
    set->views[token] = (struct byte_view){text, strlen(text)};
    set->types[token] = TOKEN_TYPE_CONTROL;
    return token;
}

static inline void token_set_build(struct token_set *set)
{
    struct reason reason;
    struct vocabulary_source source = {.tokens = set->views,
                                       .types = set->types,
                                       .token_count = set->count,
                                       .begin_token = VOCABULARY_NO_TOKEN,
                                       .end_token = VOCABULARY_NO_TOKEN,
                                       .end_of_turn_token = VOCABULARY_NO_TOKEN,
                                       .end_of_message_token = VOCABULARY_NO_TOKEN};
    enum status status = vocabulary_init(&set->vocabulary, &source, reason_init(&reason));
    CHECK(status == STATUS_OK);
}

#endif
