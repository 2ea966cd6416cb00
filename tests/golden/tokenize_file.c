/* Tokenizes records from standard input for tokenizer_oracle.py, which compares with the reference.
 * usage: tokenize_file MODEL.gguf < records > answers
 * A record is {u32 kind, u32 length, bytes}, kind of enum record_kind. An answer is {u32 count, u32
 * ids[count]}, or for RECORD_RENDER {u32 length, bytes}. Numbers in the order of this machine. A
 * refused record answers {UINT32_MAX}. The bytes of a chat are {u32 length, bytes} for each role
 * and content in turn. */
#include "common/exit_codes.h"
#include "coordinator/tokenizer/tokenizer.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum record_kind { RECORD_PLAIN, RECORD_PARSED, RECORD_CHAT, RECORD_RENDER };

enum { RECORD_BYTES_MAX = 64 << 20, MESSAGES_MAX = 256, RENDER_EXTRA_BYTES = 1 << 16 };

struct driver {
    struct tokenizer tokenizer;
    struct tokenizer_scratch scratch;
    struct token_list tokens;
    char *record;
    char *rendered;
};

static bool read_exactly(void *bytes, size_t length)
{
    return fread(bytes, 1, length, stdin) == length;
}

static void answer(uint32_t count, const void *items, size_t item_bytes)
{
    (void)fwrite(&count, sizeof count, 1, stdout);
    (void)fwrite(items, item_bytes, count, stdout);
}

static void refuse(const char *why)
{
    uint32_t none = UINT32_MAX;
    (void)fwrite(&none, sizeof none, 1, stdout);
    (void)fprintf(stderr, "refused: %s\n", why);
}

static struct byte_view next_field(const char **at, const char *end)
{
    uint32_t length;
    if ((size_t)(end - *at) < sizeof length)
        return (struct byte_view){NULL, 0};
    memcpy(&length, *at, sizeof length);
    struct byte_view field = {*at + sizeof length, length};
    *at += sizeof length + length;
    return field;
}

static size_t read_messages(const char *bytes, size_t length, struct chat_turn *messages)
{
    const char *at = bytes, *end = bytes + length;
    size_t count = 0;
    while (at < end && count < MESSAGES_MAX) {
        messages[count].role = next_field(&at, end);
        messages[count].content = next_field(&at, end);
        count++;
    }
    return count;
}

static void answer_chat(struct driver *driver, uint32_t kind, size_t length, struct text *why)
{
    static struct chat_turn messages[MESSAGES_MAX];
    size_t count = read_messages(driver->record, length, messages);
    if (kind == RECORD_CHAT) {
        if (tokenizer_encode_chat(&driver->tokenizer, &driver->scratch, messages, count,
                                  &driver->tokens, why) != STATUS_OK)
            refuse(why->bytes);
        else
            answer((uint32_t)driver->tokens.count, driver->tokens.tokens, sizeof(uint32_t));
        return;
    }
    static struct chat_segment segments[8 * MESSAGES_MAX];
    struct chat_rendering rendering = {.bytes = driver->rendered,
                                       .capacity = RECORD_BYTES_MAX + RENDER_EXTRA_BYTES,
                                       .segments = segments,
                                       .segment_capacity = 8 * MESSAGES_MAX};
    if (chat_template_render(&driver->tokenizer.chat_template, messages, count,
                             CHAT_ENDS_WITH_ANSWER_BEGUN, &rendering, why) != STATUS_OK)
        refuse(why->bytes);
    else
        answer((uint32_t)rendering.length, rendering.bytes, 1);
}

static bool answer_record(struct driver *driver, uint32_t kind, size_t length)
{
    struct reason reason;
    struct text *why = reason_init(&reason);
    if (length > RECORD_BYTES_MAX || !read_exactly(driver->record, length))
        return false;
    driver->tokens.count = 0;
    if (kind == RECORD_CHAT || kind == RECORD_RENDER) {
        answer_chat(driver, kind, length, why);
        return true;
    }
    enum special_tokens_use use =
        kind == RECORD_PARSED ? SPECIAL_TOKENS_PARSED : SPECIAL_TOKENS_AS_TEXT;
    struct byte_view text = {driver->record, length};
    if (tokenizer_encode(&driver->tokenizer, &driver->scratch, text, use, &driver->tokens, why) !=
        STATUS_OK)
        refuse(why->bytes);
    else
        answer((uint32_t)driver->tokens.count, driver->tokens.tokens, sizeof(uint32_t));
    return true;
}

int main(int argument_count, char **arguments)
{
    static struct driver driver;
    struct reason reason;
    struct text *why = reason_init(&reason);
    struct gguf *gguf = NULL;
    if (argument_count != 2) {
        (void)fprintf(stderr, "usage: tokenize_file MODEL.gguf < records > answers\n");
        return EXIT_CODE_USAGE;
    }
    enum status status = gguf_open(arguments[1], &gguf, why);
    if (status == STATUS_OK)
        status = tokenizer_open(&driver.tokenizer, gguf, why);
    gguf_close(gguf);
    if (status != STATUS_OK) {
        (void)fprintf(stderr, "tokenize_file: %s: %s\n", arguments[1], why->bytes);
        return EXIT_CODE_INTERNAL;
    }
    driver.record = malloc(RECORD_BYTES_MAX);
    driver.rendered = malloc(RECORD_BYTES_MAX + RENDER_EXTRA_BYTES);
    driver.tokens.capacity = RECORD_BYTES_MAX;
    driver.tokens.tokens = malloc(RECORD_BYTES_MAX * sizeof(uint32_t));
    uint32_t head[2];
    while (driver.record != NULL && driver.rendered != NULL && driver.tokens.tokens != NULL &&
           read_exactly(head, sizeof head) && answer_record(&driver, head[0], head[1]))
        continue;
    free(driver.record);
    free(driver.rendered);
    free(driver.tokens.tokens);
    tokenizer_free(&driver.tokenizer);
    return fflush(stdout) == 0 ? 0 : EXIT_CODE_INTERNAL;
}
