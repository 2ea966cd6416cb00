#include "coordinator/tokenizer/tokenizer.h"

#include "common/check.h"
#include "common/utf8.h"
#include "coordinator/tokenizer/vocabulary_gguf.h"

#include <string.h>

static enum status open_pretokenizer(struct tokenizer *tokenizer, const struct gguf *gguf,
                                     struct text *why)
{
    struct gguf_string name;
    enum status status = gguf_find_string(gguf, "tokenizer.ggml.pre", &name, why);
    if (status == STATUS_NOT_FOUND)
        return STATUS_UNSUPPORTED; /* guessing the rule would be wrong in silence */
    if (status != STATUS_OK)
        return status;
    return pretokenizer_find(name.bytes, name.length, &tokenizer->pretokenizer, why);
}

/* A model whose template is missing or unknown serves plain prompts all the same. */
static void open_chat_template(struct tokenizer *tokenizer, const struct gguf *gguf)
{
    struct text *why = reason_init(&tokenizer->chat_refusal);
    struct gguf_string text;
    enum status status = gguf_find_string(gguf, "tokenizer.chat_template", &text, why);
    if (status == STATUS_OK)
        status = chat_template_recognise((struct byte_view){text.bytes, text.length},
                                         &tokenizer->vocabulary, &tokenizer->chat_template, why);
    if (status == STATUS_NOT_FOUND)
        text_set(why, "the model has no chat template");
}

enum status tokenizer_open(struct tokenizer *tokenizer, const struct gguf *gguf, struct text *why)
{
    *tokenizer = (struct tokenizer){0};
    struct bpe_scratch scratch;
    enum status status = open_pretokenizer(tokenizer, gguf, why);
    if (status == STATUS_OK)
        status = vocabulary_from_gguf(gguf, &tokenizer->vocabulary, why);
    if (status == STATUS_OK)
        status = special_tokens_init(&tokenizer->specials, &tokenizer->vocabulary);
    if (status == STATUS_OK)
        status = pieces_init(&tokenizer->pieces, &tokenizer->vocabulary, &scratch);
    if (status != STATUS_OK) {
        tokenizer_free(tokenizer);
        return status;
    }
    open_chat_template(tokenizer, gguf);
    return STATUS_OK;
}

void tokenizer_free(struct tokenizer *tokenizer)
{
    pieces_free(&tokenizer->pieces);
    special_tokens_free(&tokenizer->specials);
    vocabulary_free(&tokenizer->vocabulary);
    *tokenizer = (struct tokenizer){0};
}

static enum status append_token(struct token_list *out, uint32_t token)
{
    if (out->count == out->capacity)
        return STATUS_TOO_LARGE;
    out->tokens[out->count++] = token;
    return STATUS_OK;
}

/* Text between special tokens: pieces, each one token or merged. */
static enum status encode_section(const struct tokenizer *tokenizer,
                                  struct tokenizer_scratch *scratch, struct byte_view text,
                                  struct token_list *out)
{
    enum status status = STATUS_OK;
    while (text.length > 0 && status == STATUS_OK) {
        size_t length = tokenizer->pretokenizer->first_piece(text.bytes, text.length);
        DEBUG_CHECK(length >= 1 && length <= text.length);
        struct byte_view piece = {text.bytes, length};
        uint32_t token = pieces_find(&tokenizer->pieces, piece);
        if (token != VOCABULARY_NO_TOKEN)
            status = append_token(out, token);
        else
            status = bpe_encode(&tokenizer->vocabulary, &scratch->bpe, piece, out);
        text.bytes += length;
        text.length -= length;
    }
    return status;
}

static enum status encode_sections(const struct tokenizer *tokenizer,
                                   struct tokenizer_scratch *scratch, struct byte_view text,
                                   enum special_tokens_use use, struct token_list *out)
{
    size_t at = 0;
    while (at < text.length) {
        struct special_match match = special_tokens_next(&tokenizer->specials, text, at, use);
        struct byte_view section = {text.bytes + at, match.begin - at};
        enum status status = encode_section(tokenizer, scratch, section, out);
        if (status == STATUS_OK && match.token != VOCABULARY_NO_TOKEN)
            status = append_token(out, match.token);
        if (status != STATUS_OK)
            return status;
        at = match.end;
    }
    return STATUS_OK;
}

static enum status fail(enum status status, struct token_list *out, size_t count, struct text *why)
{
    out->count = count;
    if (status == STATUS_TOO_LARGE)
        text_set(why, "the text has more than %zu tokens", out->capacity);
    else if (status == STATUS_OUT_OF_MEMORY)
        text_set(why, "no memory to tokenize the text");
    return status;
}

enum status tokenizer_encode(const struct tokenizer *tokenizer, struct tokenizer_scratch *scratch,
                             struct byte_view text, enum special_tokens_use use,
                             struct token_list *out, struct text *why)
{
    size_t valid = utf8_valid_prefix(text.bytes, text.length);
    if (valid < text.length) {
        text_set(why, "the text is not UTF-8 at byte %zu", valid);
        return STATUS_INVALID;
    }
    size_t count = out->count;
    enum status status = encode_sections(tokenizer, scratch, text, use, out);
    return status == STATUS_OK ? STATUS_OK : fail(status, out, count, why);
}

enum status tokenizer_encode_prompt(const struct tokenizer *tokenizer,
                                    struct tokenizer_scratch *scratch, struct byte_view text,
                                    enum special_tokens_use use, struct token_list *out,
                                    struct text *why)
{
    size_t count = out->count;
    enum status status = STATUS_OK;
    if (tokenizer->vocabulary.add_begin_token)
        status = append_token(out, tokenizer->vocabulary.begin_token);
    if (status != STATUS_OK)
        return fail(status, out, count, why);
    status = tokenizer_encode(tokenizer, scratch, text, use, out, why);
    if (status != STATUS_OK)
        out->count = count;
    return status;
}

static enum status encode_rendering(const struct tokenizer *tokenizer,
                                    struct tokenizer_scratch *scratch,
                                    const struct chat_rendering *rendering, struct token_list *out)
{
    enum status status = STATUS_OK;
    for (size_t i = 0; i < rendering->segment_count && status == STATUS_OK; i++) {
        const struct chat_segment *segment = &rendering->segments[i];
        struct byte_view text = {rendering->bytes + segment->begin, segment->end - segment->begin};
        if (segment->token != VOCABULARY_NO_TOKEN)
            status = append_token(out, segment->token);
        else
            status = encode_sections(tokenizer, scratch, text, SPECIAL_TOKENS_AS_TEXT, out);
    }
    return status;
}

/* Memory for a rendering whose sizes were measured. */
static enum status take_rendering(struct arena *arena, struct chat_rendering *rendering)
{
    enum { ROUNDING = 128 };
    size_t segments_bytes = rendering->segment_count * sizeof(struct chat_segment);
    enum status status = arena_init(arena, rendering->length + segments_bytes + ROUNDING);
    if (status != STATUS_OK)
        return status;
    rendering->bytes = arena_alloc(arena, rendering->length);
    rendering->segments = arena_alloc(arena, segments_bytes);
    CHECK(rendering->bytes != NULL && rendering->segments != NULL);
    rendering->capacity = rendering->length;
    rendering->segment_capacity = rendering->segment_count;
    return STATUS_OK;
}

enum status tokenizer_encode_chat(const struct tokenizer *tokenizer,
                                  struct tokenizer_scratch *scratch,
                                  const struct chat_turn *messages, size_t message_count,
                                  struct token_list *out, struct text *why)
{
    const struct chat_template *chat_template = &tokenizer->chat_template;
    if (chat_template->kind == CHAT_TEMPLATE_NONE) {
        text_set(why, "%s", tokenizer->chat_refusal.storage);
        return STATUS_UNSUPPORTED;
    }
    struct chat_rendering rendering = {0};
    enum status status = chat_template_render(chat_template, messages, message_count,
                                              CHAT_ENDS_WITH_ANSWER_BEGUN, &rendering, why);
    if (status != STATUS_TOO_LARGE)
        return status;
    struct arena arena = {0};
    size_t count = out->count;
    status = take_rendering(&arena, &rendering);
    if (status == STATUS_OK)
        status = chat_template_render(chat_template, messages, message_count,
                                      CHAT_ENDS_WITH_ANSWER_BEGUN, &rendering, why);
    if (status == STATUS_OK)
        status = encode_rendering(tokenizer, scratch, &rendering, out);
    arena_free(&arena);
    return status == STATUS_OK ? STATUS_OK : fail(status, out, count, why);
}
