/* Hostile tokenizer metadata: tokens of every type, empty, repeated or overlong; merges that name
 * tokens that are not there, or build on each other in any order; marks beyond the end. Refused
 * with a reason, or a vocabulary that keeps its invariants and that a text goes through.
 * Input: a whole model file (begins with GGUF), or: flags, begin token, end token, number of
 * tokens, for each its type, length and text; then merges: two tokens by number, or 0xff, a length
 * and so much text. */
#include "coordinator/tokenizer/tokenizer.h"

#include "support/small_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { INPUT_BYTES_MAX = 1 << 16, TOKENS_MAX = 256 + 255, FREE_MERGE = 0xff };
enum { FLAG_BYTES = 1, FLAG_BEGIN = 2, FLAG_CHAT = 4, FLAG_MARKS = 8, FLAG_FEW_TYPES = 16 };
enum { TEXT_BYTES_MAX = 1 << 12 };

struct reader {
    const uint8_t *at, *end;
};

static uint8_t next_byte(struct reader *reader)
{
    return reader->at < reader->end ? *reader->at++ : 0;
}

static struct byte_view next_bytes(struct reader *reader, size_t wanted)
{
    size_t rest = (size_t)(reader->end - reader->at);
    struct byte_view view = {(const char *)reader->at, wanted < rest ? wanted : rest};
    reader->at += view.length;
    return view;
}

static void put_view(struct gguf_builder *builder, struct byte_view view)
{
    builder_put_u64(&builder->keys, view.length);
    builder_put(&builder->keys, view.bytes, view.length);
}

struct lists {
    struct byte_view tokens[TOKENS_MAX];
    uint32_t types[TOKENS_MAX];
    char alphabet[256][UTF8_BYTES_MAX];
    uint32_t count;
};

static void read_tokens(struct reader *reader, bool with_bytes, struct lists *out)
{
    out->count = 0;
    for (uint32_t byte = 0; with_bytes && byte < 256; byte++) {
        size_t length = small_alphabet((uint8_t)byte, out->alphabet[byte]);
        out->types[out->count] = TOKEN_TYPE_NORMAL;
        out->tokens[out->count++] = (struct byte_view){out->alphabet[byte], length};
    }
    for (uint32_t rest = next_byte(reader); rest > 0; rest--) {
        out->types[out->count] = next_byte(reader) % 8;
        out->tokens[out->count++] = next_bytes(reader, next_byte(reader));
    }
}

static void put_merges(struct gguf_builder *builder, struct reader *reader,
                       const struct lists *lists)
{
    struct gguf_builder merges = {0};
    uint64_t count = 0;
    for (; reader->at < reader->end && lists->count > 0; count++) {
        uint8_t first = next_byte(reader);
        if (first == FREE_MERGE) {
            put_view(&merges, next_bytes(reader, next_byte(reader)));
            continue;
        }
        struct byte_view left = lists->tokens[(lists->count - 1 + first) % lists->count];
        struct byte_view right = lists->tokens[next_byte(reader) % lists->count];
        builder_put_u64(&merges.keys, left.length + 1 + right.length);
        builder_put(&merges.keys, left.bytes, left.length);
        builder_put(&merges.keys, " ", 1);
        builder_put(&merges.keys, right.bytes, right.length);
    }
    builder_array(builder, "tokenizer.ggml.merges", GGUF_VALUE_STRING, count);
    builder_put(&builder->keys, merges.keys.bytes, merges.keys.length);
    builder_free(&merges);
}

static uint8_t *make_file(struct reader *reader, size_t *out_length)
{
    static struct lists lists;
    struct gguf_builder builder;
    builder_init(&builder);
    uint8_t flags = next_byte(reader), begin = next_byte(reader), end = next_byte(reader);
    read_tokens(reader, (flags & FLAG_BYTES) != 0, &lists);
    builder_string(&builder, "tokenizer.ggml.model", "gpt2");
    builder_string(&builder, "tokenizer.ggml.pre", "smollm");
    if ((flags & FLAG_CHAT) != 0)
        builder_string(&builder, "tokenizer.chat_template", small_chat_template);
    builder_array(&builder, "tokenizer.ggml.tokens", GGUF_VALUE_STRING, lists.count);
    for (uint32_t i = 0; i < lists.count; i++)
        put_view(&builder, lists.tokens[i]);
    uint32_t types = lists.count - ((flags & FLAG_FEW_TYPES) != 0 && lists.count > 0);
    builder_array(&builder, "tokenizer.ggml.token_type", GGUF_VALUE_I32, types);
    for (uint32_t i = 0; i < types; i++)
        builder_put_u32(&builder.keys, lists.types[i]);
    put_merges(&builder, reader, &lists);
    builder_bool(&builder, "tokenizer.ggml.add_bos_token", (flags & FLAG_BEGIN) != 0);
    if ((flags & FLAG_MARKS) != 0) {
        builder_u32(&builder, "tokenizer.ggml.bos_token_id", begin);
        builder_u32(&builder, "tokenizer.ggml.eos_token_id", end);
    }
    uint8_t *file = builder_finish(&builder, out_length);
    builder_free(&builder);
    return file;
}

/* The invariants that vocabulary.h states. */
static void check_vocabulary(const struct vocabulary *vocabulary)
{
    for (uint32_t token = 0; token < vocabulary->token_count; token++) {
        struct byte_view bytes = vocabulary_token_bytes(vocabulary, token);
        CHECK(bytes.length <= VOCABULARY_TOKEN_BYTES_MAX);
        CHECK(vocabulary->types[token] != TOKEN_TYPE_CONTROL || bytes.length == 0);
    }
    uint32_t merges = 0;
    for (size_t i = 0; i <= SIZE_MAX >> vocabulary->merge_shift; i++) {
        const struct vocabulary_merge_slot *slot = &vocabulary->merge_slots[i];
        if (slot->merge.rank == VOCABULARY_NO_TOKEN)
            continue;
        struct byte_view left = vocabulary_token_bytes(vocabulary, (uint32_t)(slot->pair >> 32));
        struct byte_view right = vocabulary_token_bytes(vocabulary, (uint32_t)slot->pair);
        struct byte_view joined = vocabulary_token_bytes(vocabulary, slot->merge.token);
        CHECK(left.length > 0 && right.length > 0 && joined.length == left.length + right.length);
        CHECK(memcmp(joined.bytes, left.bytes, left.length) == 0);
        CHECK(memcmp(joined.bytes + left.length, right.bytes, right.length) == 0);
        merges++;
    }
    CHECK(merges == vocabulary->merge_count);
    for (uint32_t i = 0; i < vocabulary->end_token_count; i++)
        CHECK(vocabulary->end_tokens[i] < vocabulary->token_count);
    CHECK(!vocabulary->add_begin_token || vocabulary->begin_token < vocabulary->token_count);
}

/* A text of what the tokens say; cut before what is no UTF-8. */
static size_t make_text(const struct vocabulary *vocabulary, char out[TEXT_BYTES_MAX])
{
    size_t length = 0;
    for (uint32_t token = 0; token < vocabulary->token_count; token++) {
        struct byte_view bytes = vocabulary_token_bytes(vocabulary, token);
        if (bytes.length > TEXT_BYTES_MAX - length || !utf8_valid(bytes.bytes, bytes.length))
            continue;
        memcpy(out + length, bytes.bytes, bytes.length);
        length += bytes.length;
    }
    return length;
}

/* The tokens' bytes are those of the text in order; only a byte without a token may be missing. */
static void check_encoding(const struct tokenizer *tokenizer)
{
    static char text[TEXT_BYTES_MAX];
    static uint32_t tokens[TEXT_BYTES_MAX];
    struct tokenizer_scratch *scratch = calloc(1, sizeof *scratch);
    struct token_list list = {.tokens = tokens, .capacity = TEXT_BYTES_MAX};
    const struct vocabulary *vocabulary = &tokenizer->vocabulary;
    struct byte_view view = {text, make_text(vocabulary, text)};
    CHECK(scratch != NULL);
    enum status status =
        tokenizer_encode(tokenizer, scratch, view, SPECIAL_TOKENS_AS_TEXT, &list, NULL);
    CHECK(status == STATUS_OK);
    size_t at = 0;
    for (size_t i = 0; i < list.count; i++) {
        struct byte_view bytes = vocabulary_token_bytes(vocabulary, list.tokens[i]);
        CHECK(bytes.length > 0);
        for (size_t j = 0; j < bytes.length; j++, at++)
            while (at < view.length && text[at] != bytes.bytes[j]) {
                CHECK(vocabulary->byte_tokens[(uint8_t)text[at]] == VOCABULARY_NO_TOKEN);
                at++;
            }
        CHECK(at <= view.length);
    }
    free(scratch);
}

static void try_file(const uint8_t *file, size_t length)
{
    struct gguf *gguf = NULL;
    struct tokenizer tokenizer;
    struct reason reason;
    if (gguf_open_memory(file, length, &gguf, reason_init(&reason)) != STATUS_OK)
        return;
    enum status status = tokenizer_open(&tokenizer, gguf, reason_init(&reason));
    gguf_close(gguf);
    CHECK(status == STATUS_OK || status == STATUS_BAD_FILE || status == STATUS_UNSUPPORTED ||
          status == STATUS_TOO_LARGE);
    CHECK(status == STATUS_OK || reason.text.length > 0);
    if (status != STATUS_OK)
        return;
    check_vocabulary(&tokenizer.vocabulary);
    check_encoding(&tokenizer);
    tokenizer_free(&tokenizer);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    if (length > INPUT_BYTES_MAX)
        return 0;
    if (length >= 4 && memcmp(bytes, "GGUF", 4) == 0) {
        try_file(bytes, length);
        return 0;
    }
    struct reader reader = {bytes, bytes + length};
    size_t file_bytes;
    uint8_t *file = make_file(&reader, &file_bytes);
    try_file(file, file_bytes);
    free(file);
    return 0;
}
