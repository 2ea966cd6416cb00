#include "sim/letters.h"

#include "common/check.h"

#include <string.h>

/* Byte-level vocabularies are written in an alphabet of printable characters (that of GPT-2). */
static uint32_t character_of(uint32_t byte)
{
    uint32_t shifted = 256;
    for (uint32_t b = 0; b < 256; b++) {
        bool printable = (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174;
        if (b == byte)
            return printable ? b : shifted;
        shifted += !printable;
    }
    return 0;
}

static size_t write_utf8(uint32_t character, char *out)
{
    if (character < 0x80) {
        out[0] = (char)character;
        return 1;
    }
    out[0] = (char)(0xC0 | character >> 6);
    out[1] = (char)(0x80 | (character & 0x3F));
    return 2;
}

static struct byte_view write_text(const char *bytes, size_t length, char *storage)
{
    size_t used = 0;
    for (size_t i = 0; i < length; i++)
        used += write_utf8(character_of((uint8_t)bytes[i]), storage + used);
    return (struct byte_view){storage, used};
}

void letters_open(struct vocabulary *vocabulary)
{
    static char storage[LETTERS_TOKENS][16];
    struct byte_view texts[LETTERS_TOKENS];
    uint8_t types[LETTERS_TOKENS];
    for (uint32_t id = 0; id < LETTERS_TOKENS; id++) {
        char byte = (char)id;
        texts[id] = write_text(&byte, 1, storage[id]);
        types[id] = TOKEN_TYPE_NORMAL;
    }
    texts[LETTERS_AND] = write_text(" and", 4, storage[LETTERS_AND]);
    texts[LETTERS_THE] = write_text(" the", 4, storage[LETTERS_THE]);
    texts[LETTERS_END] = (struct byte_view){"<end>", 5};
    types[LETTERS_END] = TOKEN_TYPE_CONTROL;
    const struct vocabulary_source source = {
        .tokens = texts,
        .types = types,
        .token_count = LETTERS_TOKENS,
        .begin_token = VOCABULARY_NO_TOKEN,
        .end_token = LETTERS_END,
        .end_of_turn_token = VOCABULARY_NO_TOKEN,
        .end_of_message_token = VOCABULARY_NO_TOKEN,
    };
    CHECK(vocabulary_init(vocabulary, &source, NULL) == STATUS_OK);
}
