/* Any bytes as a text: no crash; what is no UTF-8 is refused; otherwise the tokens' bytes joined
 * are the text, but for the two bytes that the small vocabulary lacks, and no control token comes
 * out unless it was asked for. */
#include "coordinator/tokenizer/tokenizer.h"

#include "support/small_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { TEXT_BYTES_MAX = 1 << 16 };

struct fixture {
    struct tokenizer tokenizer;
    struct tokenizer_scratch scratch;
    uint32_t tokens[TEXT_BYTES_MAX];
    char expected[TEXT_BYTES_MAX];
    char decoded[TEXT_BYTES_MAX];
};

/* Opened once: a run must not depend on the one before, and none can change it. */
static struct fixture *fixture(void)
{
    static struct fixture *opened;
    if (opened == NULL) {
        struct small_options options = small_defaults();
        opened = calloc(1, sizeof *opened);
        CHECK(opened != NULL);
        enum status status = small_open(&options, &opened->tokenizer, NULL);
        CHECK(status == STATUS_OK);
    }
    return opened;
}

static struct byte_view text_of(const struct vocabulary *vocabulary, uint32_t token)
{
    for (uint32_t i = 0; i < vocabulary->special_count; i++)
        if (vocabulary->specials[i].token == token)
            return vocabulary->specials[i].text;
    return vocabulary_token_bytes(vocabulary, token);
}

static void check_round_trip(struct fixture *fixture, struct byte_view text,
                             enum special_tokens_use use)
{
    struct token_list list = {.tokens = fixture->tokens, .capacity = TEXT_BYTES_MAX};
    enum status status =
        tokenizer_encode(&fixture->tokenizer, &fixture->scratch, text, use, &list, NULL);
    bool valid = utf8_valid(text.bytes, text.length);
    CHECK(status == (valid ? STATUS_OK : STATUS_INVALID));
    if (!valid)
        return;
    size_t expected = 0, decoded = 0;
    for (size_t i = 0; i < text.length; i++)
        if (small_has_byte((uint8_t)text.bytes[i]))
            fixture->expected[expected++] = text.bytes[i];
    for (size_t i = 0; i < list.count; i++) {
        CHECK(use == SPECIAL_TOKENS_PARSED ||
              fixture->tokenizer.vocabulary.types[list.tokens[i]] != TOKEN_TYPE_CONTROL);
        struct byte_view part = text_of(&fixture->tokenizer.vocabulary, list.tokens[i]);
        CHECK(part.length <= TEXT_BYTES_MAX - decoded);
        memcpy(fixture->decoded + decoded, part.bytes, part.length);
        decoded += part.length;
    }
    CHECK(decoded == expected && memcmp(fixture->decoded, fixture->expected, decoded) == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    if (length > TEXT_BYTES_MAX)
        return 0;
    struct byte_view text = {(const char *)bytes, length};
    check_round_trip(fixture(), text, SPECIAL_TOKENS_AS_TEXT);
    check_round_trip(fixture(), text, SPECIAL_TOKENS_PARSED);
    return 0;
}
