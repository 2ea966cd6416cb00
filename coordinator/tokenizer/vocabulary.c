#include "coordinator/tokenizer/vocabulary.h"

#include "common/check.h"
#include "common/utf8.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum {
    SHOWN_BYTES = 40, /* of a token's text in a reason */
    LOG2_MERGE_SLOTS_MIN = 4,
    /* The byte-level alphabet gives the 188 printable Latin-1 characters to their own bytes and the
     * other 68 bytes, in order, to U+0100 and what follows. */
    ALPHABET_MOVED = 0x100,
    ALPHABET_MOVED_COUNT = 68,
    ALPHABET_SIZE = ALPHABET_MOVED + ALPHABET_MOVED_COUNT,
    NO_BYTE = -1,
};

/* Control tokens that end a generation in models whose files do not say so in a key. */
static const char *const end_token_texts[] = {
    "<|eot_id|>", "<|eom_id|>",      "<|im_end|>",    "<|endoftext|>",
    "<|end|>",    "<|end_of_text|>", "<end_of_turn>", "</s>",
};

/* What is under construction: the vocabulary with its arrays still writable. */
struct builder {
    struct vocabulary *vocabulary;
    const struct vocabulary_source *source;
    struct text *why;
    uint32_t *byte_offsets;
    char *token_bytes;
    uint8_t *types, *traits;
    struct vocabulary_special *specials;
    char *special_bytes;
    int16_t alphabet[ALPHABET_SIZE]; /* character -> byte or NO_BYTE */
};

static void make_alphabet(struct builder *builder)
{
    memset(builder->alphabet, 0xff, sizeof builder->alphabet); /* NO_BYTE everywhere */
    uint32_t moved = ALPHABET_MOVED;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool stays =
            (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        builder->alphabet[stays ? byte : moved++] = (int16_t)byte;
    }
    CHECK(moved == ALPHABET_SIZE);
}

/* Bytes that `text` stands for in the byte-level alphabet, at most text.length of them, in out.
 * False if a character is not of the alphabet. */
static bool from_alphabet(const struct builder *builder, struct byte_view text, char *out,
                          size_t *out_length)
{
    if (!utf8_valid(text.bytes, text.length))
        return false;
    size_t written = 0;
    for (size_t at = 0, step; at < text.length; at += step) {
        uint32_t character = utf8_decode(text.bytes + at, &step);
        if (character >= ALPHABET_SIZE || builder->alphabet[character] == NO_BYTE)
            return false;
        out[written++] = (char)builder->alphabet[character];
    }
    *out_length = written;
    return true;
}

static enum status refuse_token(const struct builder *builder, uint32_t token, const char *problem)
{
    text_set(builder->why, "token %u ", token);
    text_append_quoted(builder->why, builder->source->tokens[token].bytes,
                       builder->source->tokens[token].length, SHOWN_BYTES);
    text_format(builder->why, " of the model's vocabulary %s", problem);
    return STATUS_BAD_FILE;
}

static enum status refuse_merge(const struct builder *builder, uint32_t rank, const char *problem)
{
    text_set(builder->why, "merge %u ", rank);
    text_append_quoted(builder->why, builder->source->merges[rank].bytes,
                       builder->source->merges[rank].length, SHOWN_BYTES);
    text_format(builder->why, " of the model's vocabulary %s", problem);
    return STATUS_BAD_FILE;
}

static bool is_special(uint8_t type)
{
    return type == TOKEN_TYPE_CONTROL || type == TOKEN_TYPE_USER_DEFINED;
}

static uint32_t log2_merge_slots(uint32_t merges)
{
    uint32_t log2 = LOG2_MERGE_SLOTS_MIN;
    while ((UINT64_C(1) << log2) < 2 * (uint64_t)merges)
        log2++;
    return log2;
}

/* Judges the sizes and sums them up before any memory is taken. */
static enum status measure(const struct builder *builder, size_t *out_text_bytes,
                           uint32_t *out_specials)
{
    const struct vocabulary_source *source = builder->source;
    if (source->token_count == 0 || source->token_count > VOCABULARY_TOKENS_MAX ||
        source->merge_count > VOCABULARY_MERGES_MAX) {
        text_set(builder->why,
                 "the vocabulary has %u tokens and %u merges; 1 to %d and up to %d are supported",
                 source->token_count, source->merge_count, VOCABULARY_TOKENS_MAX,
                 VOCABULARY_MERGES_MAX);
        return STATUS_TOO_LARGE;
    }
    size_t bytes = 0;
    uint32_t specials = 0;
    for (uint32_t token = 0; token < source->token_count; token++) {
        if (source->tokens[token].length > VOCABULARY_TOKEN_BYTES_MAX)
            return refuse_token(builder, token, "is too long");
        bytes += source->tokens[token].length;
        specials += is_special(source->types[token]);
    }
    if (specials > VOCABULARY_SPECIAL_TOKENS_MAX) {
        text_set(builder->why, "the vocabulary has %u special tokens; up to %d are supported",
                 specials, VOCABULARY_SPECIAL_TOKENS_MAX);
        return STATUS_TOO_LARGE;
    }
    *out_text_bytes = bytes;
    *out_specials = specials;
    return STATUS_OK;
}

static enum status take_memory(struct builder *builder, size_t text_bytes, uint32_t specials)
{
    struct vocabulary *vocabulary = builder->vocabulary;
    size_t tokens = builder->source->token_count, merges = builder->source->merge_count;
    uint32_t log2 = log2_merge_slots((uint32_t)merges);
    enum { ARRAYS = 8, ROUNDING = 64 };
    size_t bytes = 2 * text_bytes + tokens * (sizeof(uint32_t) + 2) +
                   specials * sizeof(struct vocabulary_special) +
                   (sizeof(struct vocabulary_merge_slot) << log2) +
                   byte_table_bytes((uint32_t)tokens) + (size_t)ARRAYS * ROUNDING;
    enum status status = arena_init(&vocabulary->arena, bytes);
    if (status != STATUS_OK)
        return status;
    struct arena *arena = &vocabulary->arena;
    builder->byte_offsets = arena_alloc_array(arena, tokens + 1, sizeof(uint32_t));
    builder->token_bytes = arena_alloc(arena, text_bytes);
    builder->special_bytes = arena_alloc(arena, text_bytes);
    builder->types = arena_alloc(arena, tokens);
    builder->traits = arena_alloc(arena, tokens);
    builder->specials = arena_alloc_array(arena, specials, sizeof(struct vocabulary_special));
    vocabulary->merge_slots =
        arena_alloc_array(arena, (size_t)1 << log2, sizeof(struct vocabulary_merge_slot));
    vocabulary->merge_shift = 64 - log2;
    status = byte_table_init(&vocabulary->normals, arena, (uint32_t)tokens);
    CHECK(status == STATUS_OK && vocabulary->merge_slots != NULL); /* the sum above has them all */
    vocabulary->byte_offsets = builder->byte_offsets;
    vocabulary->token_bytes = builder->token_bytes;
    vocabulary->types = builder->types;
    vocabulary->traits = builder->traits;
    vocabulary->specials = builder->specials;
    return STATUS_OK;
}

/* A normal token's bytes; one with characters outside the alphabet keeps its text and never comes
 * from merging. */
static enum status add_normal(struct builder *builder, uint32_t token, char *out,
                              size_t *out_length)
{
    struct byte_view text = builder->source->tokens[token];
    if (!from_alphabet(builder, text, out, out_length)) {
        memcpy(out, text.bytes, text.length);
        *out_length = text.length;
        return STATUS_OK;
    }
    if (*out_length == 0)
        return STATUS_OK;
    struct byte_table *normals = &builder->vocabulary->normals;
    if (byte_table_add(normals, out, (uint32_t)*out_length, token) != STATUS_OK)
        return refuse_token(builder, token, "occurs twice");
    if (*out_length == 1)
        builder->vocabulary->byte_tokens[(uint8_t)out[0]] = token;
    return STATUS_OK;
}

static enum status add_special(struct builder *builder, uint32_t token, char *out,
                               size_t *out_length, size_t *special_bytes)
{
    struct byte_view text = builder->source->tokens[token];
    bool control = builder->source->types[token] == TOKEN_TYPE_CONTROL;
    if (text.length == 0 || !utf8_valid(text.bytes, text.length))
        return refuse_token(builder, token, "is special but has no readable text");
    char *copy = builder->special_bytes + *special_bytes;
    memcpy(copy, text.bytes, text.length);
    *special_bytes += text.length;
    struct byte_view owned = {.bytes = copy, .length = text.length};
    if (vocabulary_find_special(builder->vocabulary, owned) != VOCABULARY_NO_TOKEN)
        return refuse_token(builder, token, "occurs twice");
    builder->specials[builder->vocabulary->special_count++] =
        (struct vocabulary_special){.text = owned, .token = token, .control = control};
    *out_length = control ? 0 : text.length;
    memcpy(out, text.bytes, *out_length);
    return STATUS_OK;
}

static enum status add_tokens(struct builder *builder)
{
    size_t used = 0, special_bytes = 0;
    for (uint32_t token = 0; token < builder->source->token_count; token++) {
        uint8_t type = builder->source->types[token];
        char *out = builder->token_bytes + used;
        size_t length = 0;
        enum status status = STATUS_OK;
        if (type == TOKEN_TYPE_NORMAL)
            status = add_normal(builder, token, out, &length);
        else if (is_special(type))
            status = add_special(builder, token, out, &length, &special_bytes);
        else if (type != TOKEN_TYPE_UNUSED && type != TOKEN_TYPE_UNKNOWN)
            status = refuse_token(builder, token, "has a type that byte-level BPE does not know");
        if (status != STATUS_OK)
            return status;
        builder->byte_offsets[token] = (uint32_t)used;
        builder->types[token] = type;
        builder->traits[token] = utf8_valid(out, length) ? TOKEN_TRAIT_WHOLE_CHARACTERS : 0;
        used += length;
        builder->vocabulary->token_count++;
    }
    builder->byte_offsets[builder->source->token_count] = (uint32_t)used;
    return STATUS_OK;
}

static uint64_t pair_of(uint32_t left, uint32_t right)
{
    return (uint64_t)left << 32 | right;
}

static size_t first_merge_slot(const struct vocabulary *vocabulary, uint64_t pair)
{
    return (size_t)((pair * UINT64_C(0x9e3779b97f4a7c15)) >> vocabulary->merge_shift);
}

/* The slot of the pair, or the free one where it would go. At least half of the slots are free. */
static inline struct vocabulary_merge_slot *merge_slot_of(const struct vocabulary *vocabulary,
                                                          uint64_t pair)
{
    size_t mask = SIZE_MAX >> vocabulary->merge_shift;
    size_t index = first_merge_slot(vocabulary, pair);
    struct vocabulary_merge_slot *slots = vocabulary->merge_slots;
    while (slots[index].pair != pair && slots[index].merge.rank != VOCABULARY_NO_TOKEN)
        index = (index + 1) & mask;
    return &slots[index];
}

/* Tokens of both sides of a merge and of what they join to. */
static enum status resolve_merge(const struct builder *builder, uint32_t rank, uint64_t *out_pair,
                                 uint32_t *out_token)
{
    struct byte_view text = builder->source->merges[rank];
    char joined[2 * VOCABULARY_TOKEN_BYTES_MAX];
    if (text.length < 3 || text.length > sizeof joined)
        return refuse_merge(builder, rank, "is too short or too long");
    const char *space = memchr(text.bytes + 1, ' ', text.length - 1);
    if (space == NULL)
        return refuse_merge(builder, rank, "has no space between two tokens");
    struct byte_view left = {text.bytes, (size_t)(space - text.bytes)};
    struct byte_view right = {space + 1, text.length - left.length - 1};
    size_t left_bytes, right_bytes;
    if (!from_alphabet(builder, left, joined, &left_bytes) ||
        !from_alphabet(builder, right, joined + left_bytes, &right_bytes))
        return refuse_merge(builder, rank, "has characters outside the byte-level alphabet");
    const struct vocabulary *vocabulary = builder->vocabulary;
    uint32_t left_token = vocabulary_find(vocabulary, joined, left_bytes);
    uint32_t right_token = vocabulary_find(vocabulary, joined + left_bytes, right_bytes);
    uint32_t token = vocabulary_find(vocabulary, joined, left_bytes + right_bytes);
    if (left_token == VOCABULARY_NO_TOKEN || right_token == VOCABULARY_NO_TOKEN ||
        token == VOCABULARY_NO_TOKEN)
        return refuse_merge(builder, rank, "names a token that is not there");
    *out_pair = pair_of(left_token, right_token);
    *out_token = token;
    return STATUS_OK;
}

static enum status add_merges(struct builder *builder)
{
    struct vocabulary *vocabulary = builder->vocabulary;
    for (size_t i = 0; i <= SIZE_MAX >> vocabulary->merge_shift; i++)
        vocabulary->merge_slots[i].merge.rank = VOCABULARY_NO_TOKEN;
    for (uint32_t rank = 0; rank < builder->source->merge_count; rank++) {
        uint64_t pair = 0;
        uint32_t token = 0;
        enum status status = resolve_merge(builder, rank, &pair, &token);
        if (status != STATUS_OK)
            return status;
        struct vocabulary_merge_slot *slot = merge_slot_of(vocabulary, pair);
        if (slot->merge.rank != VOCABULARY_NO_TOKEN)
            return refuse_merge(builder, rank, "occurs twice");
        *slot = (struct vocabulary_merge_slot){.pair = pair, .merge = {rank, token}};
        vocabulary->merge_count++;
    }
    return STATUS_OK;
}

static enum status add_end_token(struct builder *builder, uint32_t token)
{
    struct vocabulary *vocabulary = builder->vocabulary;
    if (token == VOCABULARY_NO_TOKEN || vocabulary_is_end(vocabulary, token))
        return STATUS_OK;
    if (token >= vocabulary->token_count) {
        text_set(builder->why, "the model's end token %u is beyond its %u tokens", token,
                 vocabulary->token_count);
        return STATUS_BAD_FILE;
    }
    CHECK(vocabulary->end_token_count < VOCABULARY_END_TOKENS_MAX);
    vocabulary->end_tokens[vocabulary->end_token_count++] = token;
    return STATUS_OK;
}

static enum status add_marks(struct builder *builder)
{
    const struct vocabulary_source *source = builder->source;
    struct vocabulary *vocabulary = builder->vocabulary;
    const uint32_t keyed[] = {source->end_token, source->end_of_turn_token,
                              source->end_of_message_token};
    enum {
        KEYED = sizeof keyed / sizeof keyed[0],
        BY_TEXT = sizeof end_token_texts / sizeof end_token_texts[0]
    };
    static_assert(KEYED + BY_TEXT <= VOCABULARY_END_TOKENS_MAX, "every end token has a place");
    enum status status = STATUS_OK;
    for (size_t i = 0; i < KEYED && status == STATUS_OK; i++)
        status = add_end_token(builder, keyed[i]);
    for (size_t i = 0; i < BY_TEXT && status == STATUS_OK; i++) {
        struct byte_view text = {end_token_texts[i], strlen(end_token_texts[i])};
        uint32_t token = vocabulary_find_special(vocabulary, text);
        if (token != VOCABULARY_NO_TOKEN && vocabulary->types[token] == TOKEN_TYPE_CONTROL)
            status = add_end_token(builder, token);
    }
    if (status != STATUS_OK)
        return status;
    vocabulary->begin_token = source->begin_token;
    vocabulary->add_begin_token = source->add_begin_token;
    if (source->begin_token >= vocabulary->token_count &&
        (source->begin_token != VOCABULARY_NO_TOKEN || source->add_begin_token)) {
        text_set(builder->why, "the model asks for a begin token and has none below its %u tokens",
                 vocabulary->token_count);
        return STATUS_BAD_FILE;
    }
    return STATUS_OK;
}

enum status vocabulary_init(struct vocabulary *vocabulary, const struct vocabulary_source *source,
                            struct text *why)
{
    *vocabulary = (struct vocabulary){0};
    memset(vocabulary->byte_tokens, 0xff, sizeof vocabulary->byte_tokens);
    struct builder builder = {.vocabulary = vocabulary, .source = source, .why = why};
    make_alphabet(&builder);
    size_t text_bytes = 0;
    uint32_t specials = 0;
    enum status status = measure(&builder, &text_bytes, &specials);
    if (status == STATUS_OK)
        status = take_memory(&builder, text_bytes, specials);
    if (status == STATUS_OK)
        status = add_tokens(&builder);
    if (status == STATUS_OK)
        status = add_merges(&builder);
    if (status == STATUS_OK)
        status = add_marks(&builder);
    if (status != STATUS_OK)
        vocabulary_free(vocabulary);
    return status;
}

enum status vocabulary_init_ids(struct vocabulary *vocabulary, uint32_t token_count,
                                const uint32_t *end_tokens, uint32_t end_token_count,
                                struct text *why)
{
    CHECK(end_token_count <= VOCABULARY_END_TOKENS_MAX);
    struct byte_view *tokens = calloc((size_t)token_count + 1, sizeof *tokens);
    uint8_t *types = malloc((size_t)token_count + 1);
    enum status status = STATUS_OUT_OF_MEMORY;
    *vocabulary = (struct vocabulary){0};
    if (tokens != NULL && types != NULL) {
        memset(types, TOKEN_TYPE_UNUSED, token_count);
        const struct vocabulary_source source = {
            .tokens = tokens,
            .types = types,
            .token_count = token_count,
            .begin_token = VOCABULARY_NO_TOKEN,
            .end_token = VOCABULARY_NO_TOKEN,
            .end_of_turn_token = VOCABULARY_NO_TOKEN,
            .end_of_message_token = VOCABULARY_NO_TOKEN,
        };
        status = vocabulary_init(vocabulary, &source, why);
    }
    struct builder builder = {.vocabulary = vocabulary, .why = why};
    for (uint32_t i = 0; i < end_token_count && status == STATUS_OK; i++)
        status = add_end_token(&builder, end_tokens[i]);
    if (status != STATUS_OK)
        vocabulary_free(vocabulary);
    free(tokens);
    free(types);
    return status;
}

void vocabulary_free(struct vocabulary *vocabulary)
{
    arena_free(&vocabulary->arena);
    *vocabulary = (struct vocabulary){0};
}

struct byte_view vocabulary_token_bytes(const struct vocabulary *vocabulary, uint32_t token)
{
    CHECK(token < vocabulary->token_count);
    uint32_t begin = vocabulary->byte_offsets[token];
    return (struct byte_view){vocabulary->token_bytes + begin,
                              vocabulary->byte_offsets[token + 1] - begin};
}

uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *bytes, size_t length)
{
    return byte_table_find(&vocabulary->normals, bytes, length);
}

uint32_t vocabulary_find_special(const struct vocabulary *vocabulary, struct byte_view text)
{
    for (uint32_t i = 0; i < vocabulary->special_count; i++) {
        const struct vocabulary_special *special = &vocabulary->specials[i];
        if (special->text.length == text.length &&
            memcmp(special->text.bytes, text.bytes, text.length) == 0)
            return special->token;
    }
    return VOCABULARY_NO_TOKEN;
}

bool vocabulary_find_merge(const struct vocabulary *vocabulary, uint32_t left, uint32_t right,
                           struct vocabulary_merge *out_merge)
{
    const struct vocabulary_merge_slot *slot = merge_slot_of(vocabulary, pair_of(left, right));
    *out_merge = slot->merge;
    return slot->merge.rank != VOCABULARY_NO_TOKEN;
}

bool vocabulary_is_end(const struct vocabulary *vocabulary, uint32_t token)
{
    for (uint32_t i = 0; i < vocabulary->end_token_count; i++)
        if (vocabulary->end_tokens[i] == token)
            return true;
    return false;
}
