#include "coordinator/tokenizer/vocabulary_gguf.h"

#include "common/arena.h"

#define KEY(name) "tokenizer.ggml." name

/* Only byte-level BPE: other kinds of tokenizers need other code, not other data. */
static enum status judge_kind(const struct gguf *gguf, struct text *why)
{
    struct gguf_string kind;
    enum status status = gguf_find_string(gguf, KEY("model"), &kind, why);
    if (status == STATUS_NOT_FOUND)
        return STATUS_BAD_FILE;
    if (status != STATUS_OK || gguf_string_equal(kind, "gpt2"))
        return status;
    enum { SHOWN_BYTES = 40 };
    text_set(why, "the tokenizer ");
    text_append_quoted(why, kind.bytes, kind.length, SHOWN_BYTES);
    text_format(why, " of the model is not supported; known: gpt2 (byte-level BPE)");
    return STATUS_UNSUPPORTED;
}

static enum status find_list(const struct gguf *gguf, const char *key, enum gguf_value_type type,
                             struct gguf_array *out_array, struct text *why)
{
    enum status status = gguf_find_array(gguf, key, type, out_array, why);
    return status == STATUS_NOT_FOUND ? STATUS_BAD_FILE : status;
}

static enum status optional_token(const struct gguf *gguf, const char *key, uint32_t *out_token,
                                  struct text *why)
{
    uint64_t value = VOCABULARY_NO_TOKEN;
    enum status status = gguf_find_integer(gguf, key, VOCABULARY_TOKENS_MAX, &value, why);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    *out_token = (uint32_t)value;
    return STATUS_OK;
}

static enum status find_marks(const struct gguf *gguf, struct vocabulary_source *source,
                              struct text *why)
{
    const struct {
        const char *key;
        uint32_t *token;
    } marks[] = {
        {KEY("bos_token_id"), &source->begin_token},
        {KEY("eos_token_id"), &source->end_token},
        {KEY("eot_token_id"), &source->end_of_turn_token},
        {KEY("eom_token_id"), &source->end_of_message_token},
    };
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        enum status status = optional_token(gguf, marks[i].key, marks[i].token, why);
        if (status != STATUS_OK)
            return status;
    }
    enum status status = gguf_find_bool(gguf, KEY("add_bos_token"), &source->add_begin_token, why);
    return status == STATUS_NOT_FOUND ? STATUS_OK : status;
}

static void fill_views(struct gguf_array array, struct byte_view *views)
{
    struct gguf_string string;
    for (size_t i = 0; gguf_next_string(&array, &string); i++)
        views[i] = (struct byte_view){string.bytes, string.length};
}

/* Views of the lists in memory of `arena`, whose size follows from counts that were judged before.
 */
static enum status fill_lists(struct arena *arena, struct gguf_array tokens,
                              struct gguf_array types, struct gguf_array merges,
                              struct vocabulary_source *source)
{
    enum { ROUNDING = 64, LISTS = 3 };
    size_t bytes = (tokens.remaining + merges.remaining) * sizeof(struct byte_view) +
                   tokens.remaining + (size_t)LISTS * ROUNDING;
    enum status status = arena_init(arena, bytes);
    if (status != STATUS_OK)
        return status;
    struct byte_view *token_views = arena_alloc_array(arena, tokens.remaining, sizeof *token_views);
    struct byte_view *merge_views = arena_alloc_array(arena, merges.remaining, sizeof *merge_views);
    uint8_t *type_bytes = arena_alloc(arena, tokens.remaining);
    fill_views(tokens, token_views);
    fill_views(merges, merge_views);
    int64_t type;
    for (size_t i = 0; gguf_next_integer(&types, &type); i++)
        type_bytes[i] = type > 0 && type <= UINT8_MAX ? (uint8_t)type : 0;
    source->token_count = (uint32_t)tokens.remaining;
    source->merge_count = (uint32_t)merges.remaining;
    source->tokens = token_views;
    source->merges = merge_views;
    source->types = type_bytes;
    return STATUS_OK;
}

enum status vocabulary_from_gguf(const struct gguf *gguf, struct vocabulary *out_vocabulary,
                                 struct text *why)
{
    *out_vocabulary = (struct vocabulary){0};
    struct arena arena = {0};
    struct gguf_array tokens, types, merges;
    struct vocabulary_source source = {.begin_token = VOCABULARY_NO_TOKEN};
    enum status status = judge_kind(gguf, why);
    if (status == STATUS_OK)
        status = find_list(gguf, KEY("tokens"), GGUF_VALUE_STRING, &tokens, why);
    if (status == STATUS_OK)
        status = find_list(gguf, KEY("token_type"), GGUF_VALUE_I32, &types, why);
    if (status == STATUS_OK)
        status = find_list(gguf, KEY("merges"), GGUF_VALUE_STRING, &merges, why);
    if (status == STATUS_OK)
        status = find_marks(gguf, &source, why);
    if (status != STATUS_OK)
        return status;
    if (types.remaining != tokens.remaining) {
        text_set(why, "the model has %llu tokens and %llu token types",
                 (unsigned long long)tokens.remaining, (unsigned long long)types.remaining);
        return STATUS_BAD_FILE;
    }
    if (tokens.remaining > VOCABULARY_TOKENS_MAX || merges.remaining > VOCABULARY_MERGES_MAX) {
        text_set(why,
                 "the vocabulary has %llu tokens and %llu merges; up to %d and %d are supported",
                 (unsigned long long)tokens.remaining, (unsigned long long)merges.remaining,
                 VOCABULARY_TOKENS_MAX, VOCABULARY_MERGES_MAX);
        return STATUS_TOO_LARGE;
    }
    status = fill_lists(&arena, tokens, types, merges, &source);
    if (status == STATUS_OK)
        status = vocabulary_init(out_vocabulary, &source, why);
    else
        text_set(why, "no memory for the lists of the vocabulary");
    arena_free(&arena);
    return status;
}
