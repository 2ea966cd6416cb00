#include "coordinator/tokenizer/chat_template.h"

#include "common/check.h"
#include "common/utf8.h"

#include <string.h>

#define BEGIN_TEXT     "<|im_start|>"
#define END_TEXT       "<|im_end|>"
#define DEFAULT_SYSTEM "You are a helpful AI assistant named SmolLM, trained by Hugging Face"

/* The template of SmolLM2-Instruct as its files carry it, to the byte. */
static const char smollm2_text[] =
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '" BEGIN_TEXT "system\n" DEFAULT_SYSTEM END_TEXT "\n' }}{% endif %}"
    "{{'" BEGIN_TEXT "' + message['role'] + '\n' + message['content'] + '" END_TEXT "' + '\n'}}"
    "{% endfor %}{% if add_generation_prompt %}{{ '" BEGIN_TEXT "assistant\n' }}{% endif %}";

static bool view_equals(struct byte_view view, const char *text)
{
    return view.length == strlen(text) && memcmp(view.bytes, text, view.length) == 0;
}

static struct byte_view view_of(const char *text)
{
    return (struct byte_view){text, strlen(text)};
}

static uint32_t find_control(const struct vocabulary *vocabulary, const char *text)
{
    uint32_t token = vocabulary_find_special(vocabulary, view_of(text));
    if (token == VOCABULARY_NO_TOKEN || vocabulary->types[token] != TOKEN_TYPE_CONTROL)
        return VOCABULARY_NO_TOKEN;
    return token;
}

enum status chat_template_recognise(struct byte_view text, const struct vocabulary *vocabulary,
                                    struct chat_template *out_template, struct text *why)
{
    enum { SHOWN_BYTES = 60 };
    if (!view_equals(text, smollm2_text)) {
        text_set(why,
                 "the model's chat template is not supported (known: ChatML of SmolLM2); it has "
                 "%zu bytes and begins ",
                 text.length);
        text_append_quoted(why, text.bytes, text.length, SHOWN_BYTES);
        return STATUS_UNSUPPORTED;
    }
    struct chat_template found = {.kind = CHAT_TEMPLATE_SMOLLM2,
                                  .begin_token = find_control(vocabulary, BEGIN_TEXT),
                                  .end_token = find_control(vocabulary, END_TEXT)};
    if (found.begin_token == VOCABULARY_NO_TOKEN || found.end_token == VOCABULARY_NO_TOKEN) {
        text_set(why,
                 "the model's vocabulary lacks the control tokens %s and %s of its chat template",
                 BEGIN_TEXT, END_TEXT);
        return STATUS_UNSUPPORTED;
    }
    *out_template = found;
    return STATUS_OK;
}

static bool is_role_byte(char byte)
{
    return (byte >= 'a' && byte <= 'z') || (byte >= '0' && byte <= '9') || byte == '_' ||
           byte == '-';
}

static enum status judge_message(const struct chat_turn *message, size_t index, struct text *why)
{
    bool named = message->role.length >= 1 && message->role.length <= LIMIT_CHAT_ROLE_BYTES;
    for (size_t i = 0; named && i < message->role.length; i++)
        named = is_role_byte(message->role.bytes[i]);
    if (!named) {
        text_set(
            why,
            "messages[%zu].role must be 1 to %d characters of a-z, 0-9, '_' and '-', such as user",
            index, LIMIT_CHAT_ROLE_BYTES);
        return STATUS_INVALID;
    }
    size_t valid = utf8_valid_prefix(message->content.bytes, message->content.length);
    if (valid < message->content.length) {
        text_set(why, "messages[%zu].content is not UTF-8 at byte %zu", index, valid);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

static enum status judge(const struct chat_turn *messages, size_t message_count, struct text *why)
{
    if (message_count == 0 || message_count > LIMIT_CHAT_MESSAGES) {
        text_set(why, "messages has %zu entries; 1 to %d are allowed", message_count,
                 LIMIT_CHAT_MESSAGES);
        return STATUS_INVALID;
    }
    for (size_t i = 0; i < message_count; i++) {
        enum status status = judge_message(&messages[i], i, why);
        if (status != STATUS_OK)
            return status;
    }
    return STATUS_OK;
}

/* Appends what fits and counts all, so that one pass renders and another measures by the same code.
 */
static void put_bytes(struct chat_rendering *rendering, struct byte_view text)
{
    if (rendering->length <= rendering->capacity &&
        text.length <= rendering->capacity - rendering->length && text.length > 0)
        memcpy(rendering->bytes + rendering->length, text.bytes, text.length);
    rendering->length += text.length;
}

static void put_segment(struct chat_rendering *rendering, struct byte_view text, uint32_t token)
{
    size_t begin = rendering->length;
    put_bytes(rendering, text);
    if (rendering->segment_count < rendering->segment_capacity)
        rendering->segments[rendering->segment_count] =
            (struct chat_segment){.begin = begin, .end = rendering->length, .token = token};
    rendering->segment_count++;
}

/* A message is four segments at most: token, text, token, and the line break behind it. */
static void put_message(const struct chat_template *chat_template, struct byte_view role,
                        struct byte_view content, struct chat_rendering *rendering)
{
    put_segment(rendering, view_of(BEGIN_TEXT), chat_template->begin_token);
    size_t text_begin = rendering->segment_count;
    put_segment(rendering, role, VOCABULARY_NO_TOKEN);
    put_bytes(rendering, view_of("\n"));
    put_bytes(rendering, content);
    if (text_begin < rendering->segment_capacity)
        rendering->segments[text_begin].end = rendering->length;
    put_segment(rendering, view_of(END_TEXT), chat_template->end_token);
    put_segment(rendering, view_of("\n"), VOCABULARY_NO_TOKEN);
}

enum status chat_template_render(const struct chat_template *chat_template,
                                 const struct chat_turn *messages, size_t message_count,
                                 enum chat_ending ending, struct chat_rendering *rendering,
                                 struct text *why)
{
    CHECK(chat_template->kind == CHAT_TEMPLATE_SMOLLM2);
    enum status status = judge(messages, message_count, why);
    if (status != STATUS_OK)
        return status;
    rendering->length = 0;
    rendering->segment_count = 0;
    if (!view_equals(messages[0].role, "system"))
        put_message(chat_template, view_of("system"), view_of(DEFAULT_SYSTEM), rendering);
    for (size_t i = 0; i < message_count; i++)
        put_message(chat_template, messages[i].role, messages[i].content, rendering);
    if (ending == CHAT_ENDS_WITH_ANSWER_BEGUN) {
        put_segment(rendering, view_of(BEGIN_TEXT), chat_template->begin_token);
        put_segment(rendering, view_of("assistant\n"), VOCABULARY_NO_TOKEN);
    }
    if (rendering->length > rendering->capacity ||
        rendering->segment_count > rendering->segment_capacity) {
        text_set(why, "the rendered chat has %zu bytes; %zu fit", rendering->length,
                 rendering->capacity);
        return STATUS_TOO_LARGE;
    }
    return STATUS_OK;
}
