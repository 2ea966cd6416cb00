/* Chats of any roles and contents, against a rendering by plain concatenation: what a message says
 * stays text, control tokens come from the template alone.
 * Input: messages, each a byte for the role (an index, or 0xff and a length for free bytes), two
 * bytes of length and so many bytes of content. */
#include "coordinator/tokenizer/tokenizer.h"

#include "support/small_tokenizer.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { INPUT_BYTES_MAX = 1 << 14, MESSAGES_MAX = 64, ROLE_BYTES_ASKED = 40, FREE_ROLE = 0xff };
/* A message adds its role, its content and at most 24 bytes; the default system message is 96. */
enum { TEXT_BYTES_MAX = 2 * INPUT_BYTES_MAX + MESSAGES_MAX * 64 + 256 };

static const char *const roles[] = {"user", "assistant", "system", "tool", "<|im_start|>", "", "a"};

struct chat {
    struct chat_turn messages[MESSAGES_MAX];
    size_t count;
};

struct fixture {
    struct tokenizer tokenizer;
    struct tokenizer_scratch scratch;
    struct chat chat;
    struct chat_segment segments[5 * (MESSAGES_MAX + 2)];
    char rendered[TEXT_BYTES_MAX], expected[TEXT_BYTES_MAX];
    size_t expected_length;
    uint32_t tokens[TEXT_BYTES_MAX];
};

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

static struct byte_view take(const uint8_t **at, const uint8_t *end, size_t wanted)
{
    size_t rest = (size_t)(end - *at);
    struct byte_view view = {(const char *)*at, wanted < rest ? wanted : rest};
    *at += view.length;
    return view;
}

static size_t take_number(const uint8_t **at, const uint8_t *end, size_t width)
{
    struct byte_view view = take(at, end, width);
    size_t number = 0;
    for (size_t i = 0; i < view.length; i++)
        number |= (size_t)(uint8_t)view.bytes[i] << (8 * i);
    return number;
}

static void read_chat(const uint8_t *at, const uint8_t *end, struct chat *out)
{
    out->count = 0;
    while (at < end && out->count < MESSAGES_MAX) {
        struct chat_turn *turn = &out->messages[out->count++];
        size_t role = take_number(&at, end, 1);
        if (role == FREE_ROLE) {
            turn->role = take(&at, end, take_number(&at, end, 1) % (ROLE_BYTES_ASKED + 1));
        } else {
            const char *text = roles[role % (sizeof roles / sizeof roles[0])];
            turn->role = (struct byte_view){text, strlen(text)};
        }
        turn->content = take(&at, end, take_number(&at, end, 2));
    }
}

/* The rules of chat_turn, written a second time. */
static bool turn_is_valid(const struct chat_turn *turn)
{
    static const char allowed[] = "abcdefghijklmnopqrstuvwxyz0123456789_-";
    for (size_t i = 0; i < turn->role.length; i++)
        if (turn->role.bytes[i] == '\0' || strchr(allowed, turn->role.bytes[i]) == NULL)
            return false;
    return turn->role.length >= 1 && turn->role.length <= LIMIT_CHAT_ROLE_BYTES &&
           utf8_valid(turn->content.bytes, turn->content.length);
}

static void expect(struct fixture *fixture, const char *text, size_t length)
{
    CHECK(length <= sizeof fixture->expected - fixture->expected_length);
    if (length > 0)
        memcpy(fixture->expected + fixture->expected_length, text, length);
    fixture->expected_length += length;
}

static void expect_text(struct fixture *fixture, const char *text)
{
    expect(fixture, text, strlen(text));
}

static bool has_default_system(const struct chat *chat)
{
    struct byte_view role = chat->messages[0].role;
    return role.length != strlen("system") || memcmp(role.bytes, "system", role.length) != 0;
}

static void expect_all(struct fixture *fixture, enum chat_ending ending)
{
    const struct chat *chat = &fixture->chat;
    fixture->expected_length = 0;
    if (has_default_system(chat))
        expect_text(fixture, "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, "
                             "trained by Hugging Face<|im_end|>\n");
    for (size_t i = 0; i < chat->count; i++) {
        expect_text(fixture, "<|im_start|>");
        expect(fixture, chat->messages[i].role.bytes, chat->messages[i].role.length);
        expect_text(fixture, "\n");
        expect(fixture, chat->messages[i].content.bytes, chat->messages[i].content.length);
        expect_text(fixture, "<|im_end|>\n");
    }
    if (ending == CHAT_ENDS_WITH_ANSWER_BEGUN)
        expect_text(fixture, "<|im_start|>assistant\n");
}

/* Segments follow each other without a gap, and name the two tokens of the template only. */
static void check_segments(const struct fixture *fixture, const struct chat_rendering *rendering)
{
    const struct chat_template *chat_template = &fixture->tokenizer.chat_template;
    size_t at = 0;
    for (size_t i = 0; i < rendering->segment_count; i++) {
        const struct chat_segment *segment = &rendering->segments[i];
        CHECK(segment->begin == at && segment->end >= at);
        CHECK(segment->token == VOCABULARY_NO_TOKEN ||
              segment->token == chat_template->begin_token ||
              segment->token == chat_template->end_token);
        at = segment->end;
    }
    CHECK(at == rendering->length);
}

static void check_rendering(struct fixture *fixture, enum chat_ending ending, bool valid)
{
    const struct chat *chat = &fixture->chat;
    const struct chat_template *chat_template = &fixture->tokenizer.chat_template;
    struct chat_rendering measured = {0};
    struct reason reason;
    enum status status = chat_template_render(chat_template, chat->messages, chat->count, ending,
                                              &measured, reason_init(&reason));
    CHECK(status == (valid ? STATUS_TOO_LARGE : STATUS_INVALID));
    CHECK(valid || reason.text.length > 0);
    if (!valid)
        return;
    struct chat_rendering rendering = {
        .bytes = fixture->rendered,
        .capacity = sizeof fixture->rendered,
        .segments = fixture->segments,
        .segment_capacity = sizeof fixture->segments / sizeof fixture->segments[0],
    };
    status =
        chat_template_render(chat_template, chat->messages, chat->count, ending, &rendering, NULL);
    CHECK(status == STATUS_OK);
    CHECK(rendering.length == measured.length && rendering.segment_count == measured.segment_count);
    expect_all(fixture, ending);
    CHECK(rendering.length == fixture->expected_length);
    CHECK(memcmp(rendering.bytes, fixture->expected, rendering.length) == 0);
    check_segments(fixture, &rendering);
}

static void check_tokens(struct fixture *fixture, bool valid)
{
    const struct chat *chat = &fixture->chat;
    const struct vocabulary *vocabulary = &fixture->tokenizer.vocabulary;
    struct token_list list = {.tokens = fixture->tokens, .capacity = TEXT_BYTES_MAX};
    enum status status = tokenizer_encode_chat(&fixture->tokenizer, &fixture->scratch,
                                               chat->messages, chat->count, &list, NULL);
    CHECK(status == (valid ? STATUS_OK : STATUS_INVALID));
    CHECK(valid || list.count == 0);
    size_t controls = 0;
    for (size_t i = 0; i < list.count; i++)
        controls += vocabulary->types[list.tokens[i]] == TOKEN_TYPE_CONTROL;
    CHECK(!valid || controls == 2 * (chat->count + has_default_system(chat)) + 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    if (length > INPUT_BYTES_MAX)
        return 0;
    struct fixture *used = fixture();
    read_chat(bytes, bytes + length, &used->chat);
    bool valid = used->chat.count >= 1;
    for (size_t i = 0; i < used->chat.count; i++)
        valid = valid && turn_is_valid(&used->chat.messages[i]);
    check_rendering(used, CHAT_ENDS_WITH_MESSAGE, valid);
    check_rendering(used, CHAT_ENDS_WITH_ANSWER_BEGUN, valid);
    check_tokens(used, valid);
    return 0;
}
