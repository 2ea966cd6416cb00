#include "coordinator/tokenizer/vocabulary.h"

#include "support/small_tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <string.h>
#include <cmocka.h>

/* A vocabulary of a few tokens that each test changes. */
struct draft {
    struct byte_view tokens[8];
    uint8_t types[8];
    struct byte_view merges[4];
    struct vocabulary_source source;
};

static struct byte_view view_of(const char *text)
{
    return (struct byte_view){text, strlen(text)};
}

static void draft_init(struct draft *draft)
{
    static const char *const texts[] = {"a",       "b",      "ab",   "\u0120",
                                        "<|end|>", "<tool>", "</s>", "unused"};
    static const uint8_t types[] = {
        TOKEN_TYPE_NORMAL,  TOKEN_TYPE_NORMAL,       TOKEN_TYPE_NORMAL,       TOKEN_TYPE_NORMAL,
        TOKEN_TYPE_CONTROL, TOKEN_TYPE_USER_DEFINED, TOKEN_TYPE_USER_DEFINED, TOKEN_TYPE_UNUSED};
    for (size_t i = 0; i < 8; i++)
        draft->tokens[i] = view_of(texts[i]);
    memcpy(draft->types, types, sizeof types);
    draft->merges[0] = view_of("a b");
    draft->source = (struct vocabulary_source){.tokens = draft->tokens,
                                               .types = draft->types,
                                               .merges = draft->merges,
                                               .token_count = 8,
                                               .merge_count = 1,
                                               .begin_token = VOCABULARY_NO_TOKEN,
                                               .end_token = VOCABULARY_NO_TOKEN,
                                               .end_of_turn_token = VOCABULARY_NO_TOKEN,
                                               .end_of_message_token = VOCABULARY_NO_TOKEN};
}

static void assert_bytes(const struct vocabulary *vocabulary, uint32_t token, const char *expected)
{
    struct byte_view bytes = vocabulary_token_bytes(vocabulary, token);
    assert_int_equal(bytes.length, strlen(expected));
    assert_memory_equal(bytes.bytes, expected, bytes.length);
}

static void tokens_have_their_bytes(void **state)
{
    (void)state;
    struct draft draft;
    struct vocabulary vocabulary;
    draft_init(&draft);
    draft.tokens[1] =
        view_of("\u20ac"); /* outside the alphabet: kept as it is, but merging never makes it */
    draft.source.merge_count = 0;
    assert_int_equal(vocabulary_init(&vocabulary, &draft.source, NULL), STATUS_OK);
    assert_bytes(&vocabulary, 0, "a");
    assert_bytes(&vocabulary, 1, "\u20ac");
    assert_bytes(&vocabulary, 3, " ");
    assert_bytes(&vocabulary, 4, "");
    assert_bytes(&vocabulary, 5, "<tool>");
    assert_bytes(&vocabulary, 7, "");
    assert_int_equal(vocabulary_find(&vocabulary, " ", 1), 3);
    assert_int_equal(vocabulary_find(&vocabulary, "ab", 2), 2);
    assert_int_equal(vocabulary_find(&vocabulary, "\u20ac", 3), VOCABULARY_NO_TOKEN);
    assert_int_equal(vocabulary_find(&vocabulary, "<tool>", 6), VOCABULARY_NO_TOKEN);
    assert_int_equal(vocabulary_find_special(&vocabulary, view_of("<tool>")), 5);
    assert_int_equal(vocabulary_find_special(&vocabulary, view_of("<|end|>")), 4);
    assert_int_equal(vocabulary_find_special(&vocabulary, view_of("a")), VOCABULARY_NO_TOKEN);
    assert_int_equal(vocabulary.byte_tokens['a'], 0);
    assert_int_equal(vocabulary.byte_tokens[' '], 3);
    assert_int_equal(vocabulary.byte_tokens['z'], VOCABULARY_NO_TOKEN);
    vocabulary_free(&vocabulary);
    vocabulary_free(&vocabulary);
}

/* The alphabet gives each byte a character; both directions agree for all 256. */
static void every_byte_has_its_character(void **state)
{
    (void)state;
    static char texts[256][UTF8_BYTES_MAX];
    static struct byte_view tokens[256];
    static uint8_t types[256];
    struct draft draft;
    struct vocabulary vocabulary;
    for (uint32_t byte = 0; byte < 256; byte++) {
        tokens[byte] = (struct byte_view){texts[byte], small_alphabet((uint8_t)byte, texts[byte])};
        types[byte] = TOKEN_TYPE_NORMAL;
    }
    draft_init(&draft);
    draft.source.tokens = tokens;
    draft.source.types = types;
    draft.source.token_count = 256;
    draft.source.merge_count = 0;
    assert_int_equal(vocabulary_init(&vocabulary, &draft.source, NULL), STATUS_OK);
    for (uint32_t byte = 0; byte < 256; byte++) {
        struct byte_view bytes = vocabulary_token_bytes(&vocabulary, byte);
        assert_int_equal(bytes.length, 1);
        assert_int_equal((uint8_t)bytes.bytes[0], byte);
        assert_int_equal(vocabulary.byte_tokens[byte], byte);
        assert_int_equal(vocabulary.traits[byte] & TOKEN_TRAIT_WHOLE_CHARACTERS,
                         byte < 0x80 ? TOKEN_TRAIT_WHOLE_CHARACTERS : 0);
    }
    vocabulary_free(&vocabulary);
}

static void merges_are_found(void **state)
{
    (void)state;
    struct draft draft;
    struct vocabulary vocabulary;
    struct vocabulary_merge merge;
    draft_init(&draft);
    assert_int_equal(vocabulary_init(&vocabulary, &draft.source, NULL), STATUS_OK);
    assert_true(vocabulary_find_merge(&vocabulary, 0, 1, &merge));
    assert_int_equal(merge.rank, 0);
    assert_int_equal(merge.token, 2);
    assert_false(vocabulary_find_merge(&vocabulary, 1, 0, &merge));
    assert_false(vocabulary_find_merge(&vocabulary, 0, 0, &merge));
    vocabulary_free(&vocabulary);
}

/* By key, and control tokens by their text; a user-defined token of such a text does not end
 * anything. */
static void end_tokens_are_known(void **state)
{
    (void)state;
    struct draft draft;
    struct vocabulary vocabulary;
    draft_init(&draft);
    draft.source.end_token = 2;
    draft.source.end_of_turn_token = 3;
    draft.source.end_of_message_token = 2;
    assert_int_equal(vocabulary_init(&vocabulary, &draft.source, NULL), STATUS_OK);
    static const bool ends[] = {false, false, true, true, true, false, false, false};
    for (uint32_t token = 0; token < 8; token++)
        assert_int_equal(vocabulary_is_end(&vocabulary, token), ends[token]);
    assert_int_equal(vocabulary.end_token_count, 3);
    vocabulary_free(&vocabulary);
}

typedef void (*spoil)(struct draft *draft);

static void spoil_duplicate(struct draft *draft)
{
    draft->tokens[1] = view_of("a");
}

static void spoil_duplicate_special(struct draft *draft)
{
    draft->tokens[5] = view_of("<|end|>");
}

static void spoil_empty_special(struct draft *draft)
{
    draft->tokens[5] = view_of("");
}

static void spoil_type(struct draft *draft)
{
    draft->types[1] = TOKEN_TYPE_BYTE;
}

static void spoil_long(struct draft *draft)
{
    static char text[VOCABULARY_TOKEN_BYTES_MAX + 1];
    memset(text, 'x', sizeof text);
    draft->tokens[1] = (struct byte_view){text, sizeof text};
}

static void spoil_merge_space(struct draft *draft)
{
    draft->merges[0] = view_of("abc");
}

static void spoil_merge_short(struct draft *draft)
{
    draft->merges[0] = view_of("a ");
}

static void spoil_merge_unknown(struct draft *draft)
{
    draft->merges[0] = view_of("a c");
}

static void spoil_merge_result(struct draft *draft)
{
    draft->merges[0] = view_of("b a");
}

static void spoil_merge_alphabet(struct draft *draft)
{
    draft->merges[0] = view_of("a b c");
}

static void spoil_merge_twice(struct draft *draft)
{
    draft->merges[1] = draft->merges[0];
    draft->source.merge_count = 2;
}

static void spoil_end(struct draft *draft)
{
    draft->source.end_token = 8;
}

static void spoil_begin(struct draft *draft)
{
    draft->source.begin_token = 8;
}

static void spoil_no_begin(struct draft *draft)
{
    draft->source.add_begin_token = true;
}

static void spoil_count(struct draft *draft)
{
    draft->source.token_count = 0;
}

static void damaged_vocabularies_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        spoil spoil;
        enum status status;
        const char *reason;
    } cases[] = {
        {spoil_duplicate, STATUS_BAD_FILE, "token 1 \"a\" of the model's vocabulary occurs twice"},
        {spoil_duplicate_special, STATUS_BAD_FILE,
         "token 5 \"<|end|>\" of the model's vocabulary occurs twice"},
        {spoil_empty_special, STATUS_BAD_FILE,
         "token 5 \"\" of the model's vocabulary is special but has no readable text"},
        {spoil_type, STATUS_BAD_FILE,
         "token 1 \"b\" of the model's vocabulary has a type that byte-level BPE does not know"},
        {spoil_long, STATUS_BAD_FILE,
         "token 1 \"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx\"... of the model's vocabulary is too "
         "long"},
        {spoil_merge_space, STATUS_BAD_FILE,
         "merge 0 \"abc\" of the model's vocabulary has no space between two tokens"},
        {spoil_merge_short, STATUS_BAD_FILE,
         "merge 0 \"a \" of the model's vocabulary is too short or too long"},
        {spoil_merge_unknown, STATUS_BAD_FILE,
         "merge 0 \"a c\" of the model's vocabulary names a token that is not there"},
        {spoil_merge_result, STATUS_BAD_FILE,
         "merge 0 \"b a\" of the model's vocabulary names a token that is not there"},
        {spoil_merge_alphabet, STATUS_BAD_FILE,
         "merge 0 \"a b c\" of the model's vocabulary has characters outside the byte-level "
         "alphabet"},
        {spoil_merge_twice, STATUS_BAD_FILE,
         "merge 1 \"a b\" of the model's vocabulary occurs twice"},
        {spoil_end, STATUS_BAD_FILE, "the model's end token 8 is beyond its 8 tokens"},
        {spoil_begin, STATUS_BAD_FILE,
         "the model asks for a begin token and has none below its 8 tokens"},
        {spoil_no_begin, STATUS_BAD_FILE,
         "the model asks for a begin token and has none below its 8 tokens"},
        {spoil_count, STATUS_TOO_LARGE,
         "the vocabulary has 0 tokens and 1 merges; 1 to 1048576 and up to 4194304 are supported"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct draft draft;
        struct vocabulary vocabulary;
        struct reason reason;
        draft_init(&draft);
        cases[i].spoil(&draft);
        assert_int_equal(vocabulary_init(&vocabulary, &draft.source, reason_init(&reason)),
                         cases[i].status);
        assert_string_equal(reason.storage, cases[i].reason);
        vocabulary_free(&vocabulary); /* what failed may be freed */
    }
}

static void ids_alone_have_ends_and_no_text(void **state)
{
    (void)state;
    static const uint32_t ends[] = {7, 0, 7};
    struct vocabulary vocabulary;
    struct reason reason;
    assert_int_equal(vocabulary_init_ids(&vocabulary, 1000, ends, 3, NULL), STATUS_OK);
    assert_int_equal(vocabulary.token_count, 1000);
    for (uint32_t token = 0; token < 1000; token++) {
        assert_int_equal(vocabulary_token_bytes(&vocabulary, token).length, 0);
        assert_int_equal(vocabulary_is_end(&vocabulary, token), token == 0 || token == 7);
    }
    assert_int_equal(vocabulary_find(&vocabulary, "a", 1), VOCABULARY_NO_TOKEN);
    vocabulary_free(&vocabulary);
    const uint32_t beyond = 1000;
    assert_int_equal(vocabulary_init_ids(&vocabulary, 1000, &beyond, 1, reason_init(&reason)),
                     STATUS_BAD_FILE);
    assert_non_null(strstr(reason.storage, "end token 1000 is beyond its 1000 tokens"));
    assert_int_equal(vocabulary_init_ids(&vocabulary, 0, NULL, 0, NULL), STATUS_TOO_LARGE);
    assert_int_equal(vocabulary_init_ids(&vocabulary, VOCABULARY_TOKENS_MAX + 1, NULL, 0, NULL),
                     STATUS_TOO_LARGE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ids_alone_have_ends_and_no_text),
        cmocka_unit_test(tokens_have_their_bytes),
        cmocka_unit_test(every_byte_has_its_character),
        cmocka_unit_test(merges_are_found),
        cmocka_unit_test(end_tokens_are_known),
        cmocka_unit_test(damaged_vocabularies_are_refused_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
