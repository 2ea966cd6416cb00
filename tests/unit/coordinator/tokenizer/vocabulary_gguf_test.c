#include "coordinator/tokenizer/vocabulary_gguf.h"

#include "support/small_tokenizer.h"

#include <setjmp.h>
#include <stdarg.h>
#include <cmocka.h>

static enum status open_with(const struct small_options *options, struct vocabulary *vocabulary,
                             struct reason *reason)
{
    size_t length;
    struct gguf *gguf = NULL;
    uint8_t *file = small_write(options, &length);
    struct text *why = reason_init(reason);
    assert_int_equal(gguf_open_memory(file, length, &gguf, why), STATUS_OK);
    enum status status = vocabulary_from_gguf(gguf, vocabulary, why);
    gguf_close(gguf);
    free(file);
    return status;
}

static void owns_what_it_read(void **state)
{
    (void)state;
    struct small_options options = small_defaults();
    struct vocabulary vocabulary;
    struct reason reason;
    options.end_token = 7;
    options.add_begin_token = true;
    assert_int_equal(open_with(&options, &vocabulary, &reason), STATUS_OK);
    char texts[SMALL_TOKENS_MAX][SMALL_TEXT_BYTES];
    assert_int_equal(vocabulary.token_count, small_tokens(texts));
    assert_int_equal(vocabulary.merge_count, sizeof small_merges / sizeof small_merges[0]);
    assert_int_not_equal(vocabulary_find(&vocabulary, "hello", 5), VOCABULARY_NO_TOKEN);
    assert_true(vocabulary_is_end(&vocabulary, 7));
    assert_true(vocabulary.add_begin_token);
    assert_int_equal(vocabulary.begin_token, SMALL_BEGIN_TOKEN);
    vocabulary_free(&vocabulary);
}

static void missing_keys_have_meanings(void **state)
{
    (void)state;
    struct small_options options = small_defaults();
    struct vocabulary vocabulary;
    struct reason reason;
    assert_int_equal(open_with(&options, &vocabulary, &reason), STATUS_OK);
    assert_false(vocabulary.add_begin_token);
    assert_int_equal(vocabulary.begin_token, VOCABULARY_NO_TOKEN);
    assert_int_equal(vocabulary.end_token_count, 2); /* <|im_end|> and </s>, by their text */
    vocabulary_free(&vocabulary);
}

static void refuses_by_name(void **state)
{
    (void)state;
    struct vocabulary vocabulary;
    struct reason reason;
    struct small_options options = small_defaults();
    options.kind = "llama";
    assert_int_equal(open_with(&options, &vocabulary, &reason), STATUS_UNSUPPORTED);
    assert_string_equal(
        reason.storage,
        "the tokenizer \"llama\" of the model is not supported; known: gpt2 (byte-level BPE)");
    options.kind = NULL;
    assert_int_equal(open_with(&options, &vocabulary, &reason), STATUS_BAD_FILE);
    options = small_defaults();
    options.dropped_types = 1;
    assert_int_equal(open_with(&options, &vocabulary, &reason), STATUS_BAD_FILE);
    assert_non_null(strstr(reason.storage, "token types"));
    options = small_defaults();
    options.end_token = VOCABULARY_TOKENS_MAX + 1;
    assert_int_equal(open_with(&options, &vocabulary, &reason), STATUS_BAD_FILE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owns_what_it_read),
        cmocka_unit_test(missing_keys_have_meanings),
        cmocka_unit_test(refuses_by_name),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
