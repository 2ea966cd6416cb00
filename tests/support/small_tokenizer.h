/* A tokenizer small enough to reason about, opened from a GGUF file made in memory: every byte but
 * 0x04 and 0xf1, some merges, three control tokens and one user-defined one. For unit tests and
 * fuzz targets. */
#ifndef TANDEM_TESTS_SUPPORT_SMALL_TOKENIZER_H
#define TANDEM_TESTS_SUPPORT_SMALL_TOKENIZER_H

#include "common/utf8.h"
#include "coordinator/tokenizer/tokenizer.h"
#include "support/gguf_builder.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SMALL_TOKENS_MAX = 512,
    SMALL_TEXT_BYTES = 64,
    SMALL_BEGIN_TOKEN = 64, /* of an arbitrary token */
};

/* "left right" in the byte-level alphabet, by rank; Ġ is the space. */
static const char *const small_merges[] = {
    "h e",      "l l",           "he ll",         "hell o",
    "\u0120 w", "\u0120w o",     "\u0120 \u0120", "\u0120\u0120 \u0120\u0120",
    "a b",      "ab c",          "b c",           "\u00c3 \u00a9",
    "1 2",      "\u010a \u010a", "' s",           "\u0120 a",
    "= =",      "== ==",
};

static const char *const small_controls[] = {"<|im_start|>", "<|im_end|>", "<|im_end|>+", "</s>"};
static const char small_user_defined[] = "<tool>";

static const char small_chat_template[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\n"
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif "
    "%}"
    "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% "
    "endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

/* What a test may change before the file is written. */
struct small_options {
    const char *kind; /* tokenizer.ggml.model; NULL leaves the key out, as for the others */
    const char *rule; /* tokenizer.ggml.pre */
    const char *chat_template; /* tokenizer.chat_template */
    bool add_begin_token;
    uint32_t end_token;     /* tokenizer.ggml.eos_token_id */
    uint32_t dropped_types; /* this many token types are missing */
};

static inline struct small_options small_defaults(void)
{
    return (struct small_options){.kind = "gpt2",
                                  .rule = "smollm",
                                  .chat_template = small_chat_template,
                                  .end_token = VOCABULARY_NO_TOKEN};
}

/* The byte-level alphabet, written down a second time for the sake of the test. */
static inline size_t small_alphabet(uint8_t byte, char out[UTF8_BYTES_MAX])
{
    uint32_t character = byte;
    if (byte <= 0x20)
        character = 0x100u + byte;
    else if (byte >= 0x7f && byte <= 0xa0)
        character = 0x121u + (byte - 0x7fu);
    else if (byte == 0xad)
        character = 0x143;
    return utf8_encode(character, out);
}

static inline bool small_has_byte(uint8_t byte)
{
    return byte != 0x04 && byte != 0xf1;
}

/* Texts of all tokens in order of their ids; returns how many: bytes, merges, controls, the
 * user-defined one. */
static inline uint32_t small_tokens(char texts[SMALL_TOKENS_MAX][SMALL_TEXT_BYTES])
{
    uint32_t count = 0;
    for (uint32_t byte = 0; byte < 256; byte++) {
        if (!small_has_byte((uint8_t)byte))
            continue;
        size_t length = small_alphabet((uint8_t)byte, texts[count]);
        texts[count++][length] = '\0';
    }
    for (size_t i = 0; i < sizeof small_merges / sizeof small_merges[0]; i++) {
        size_t length = 0;
        for (const char *at = small_merges[i]; *at != '\0'; at++)
            if (*at != ' ')
                texts[count][length++] = *at;
        texts[count++][length] = '\0';
    }
    for (size_t i = 0; i < sizeof small_controls / sizeof small_controls[0]; i++)
        (void)snprintf(texts[count++], SMALL_TEXT_BYTES, "%s", small_controls[i]);
    (void)snprintf(texts[count++], SMALL_TEXT_BYTES, "%s", small_user_defined);
    return count;
}

static inline int32_t small_type(uint32_t token, uint32_t count)
{
    uint32_t controls = sizeof small_controls / sizeof small_controls[0];
    if (token == count - 1)
        return TOKEN_TYPE_USER_DEFINED;
    return token >= count - 1 - controls ? TOKEN_TYPE_CONTROL : TOKEN_TYPE_NORMAL;
}

static inline void small_put_text(struct gguf_builder *builder, const char *key, const char *text)
{
    if (text != NULL)
        builder_string(builder, key, text);
}

static inline void small_put_vocabulary(struct gguf_builder *builder,
                                        const struct small_options *options)
{
    char texts[SMALL_TOKENS_MAX][SMALL_TEXT_BYTES];
    uint32_t count = small_tokens(texts);
    builder_array(builder, "tokenizer.ggml.tokens", GGUF_VALUE_STRING, count);
    for (uint32_t i = 0; i < count; i++)
        builder_put_string(&builder->keys, texts[i]);
    builder_array(builder, "tokenizer.ggml.token_type", GGUF_VALUE_I32,
                  count - options->dropped_types);
    for (uint32_t i = 0; i < count - options->dropped_types; i++)
        builder_put_u32(&builder->keys, (uint32_t)small_type(i, count));
    size_t merges = sizeof small_merges / sizeof small_merges[0];
    builder_array(builder, "tokenizer.ggml.merges", GGUF_VALUE_STRING, merges);
    for (size_t i = 0; i < merges; i++)
        builder_put_string(&builder->keys, small_merges[i]);
}

static inline void small_put_keys(struct gguf_builder *builder, const struct small_options *options)
{
    small_put_text(builder, "tokenizer.ggml.model", options->kind);
    small_put_text(builder, "tokenizer.ggml.pre", options->rule);
    small_put_text(builder, "tokenizer.chat_template", options->chat_template);
    small_put_vocabulary(builder, options);
    if (options->add_begin_token) {
        builder_bool(builder, "tokenizer.ggml.add_bos_token", 1);
        builder_u32(builder, "tokenizer.ggml.bos_token_id", SMALL_BEGIN_TOKEN);
    }
    if (options->end_token != VOCABULARY_NO_TOKEN)
        builder_u32(builder, "tokenizer.ggml.eos_token_id", options->end_token);
}

/* A file of keys without a tensor; the caller frees it. */
static inline uint8_t *small_write(const struct small_options *options, size_t *out_length)
{
    struct gguf_builder builder;
    builder_init(&builder);
    small_put_keys(&builder, options);
    uint8_t *file = builder_finish(&builder, out_length);
    builder_free(&builder);
    return file;
}

/* Opens a tokenizer and overwrites the file behind it: nothing may point there any more. */
static inline enum status small_open(const struct small_options *options,
                                     struct tokenizer *tokenizer, struct text *why)
{
    struct gguf *gguf = NULL;
    size_t length;
    uint8_t *file = small_write(options, &length);
    enum status status = gguf_open_memory(file, length, &gguf, why);
    if (status == STATUS_OK)
        status = tokenizer_open(tokenizer, gguf, why);
    gguf_close(gguf);
    memset(file, 0xee, length);
    free(file);
    return status;
}

#endif
