#include "proto/client_messages.h"

#include "proto/msgpack_writer.h"

#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static uint8_t frame[1 << 16];
static struct client_request request;
static struct wire_error error;

static struct client_request simple_submit(void)
{
    struct client_request made = {.type = CLIENT_SUBMIT};
    made.submit.id = wire_text_of("job-1");
    made.submit.has_prompt = true;
    made.submit.prompt = wire_text_of("Once upon a time");
    return made;
}

static enum status send_request(const struct client_request *made)
{
    size_t length;
    assert_int_equal(client_request_encode(made, frame, sizeof frame, &length), STATUS_OK);
    return client_request_decode(frame, length, &request, &error);
}

/* ---- A client of a few lines in another language: names for keys ---- */

static void names_are_understood_and_answered_with_names(void **state)
{
    (void)state;
    struct msgpack_writer writer = {.out = frame, .capacity = sizeof frame};
    msgpack_write_map(&writer, 5);
    msgpack_write_str(&writer, "type", 4);
    msgpack_write_str(&writer, "submit", 6);
    msgpack_write_str(&writer, "id", 2);
    msgpack_write_str(&writer, "a", 1);
    msgpack_write_str(&writer, "ids", 3);
    msgpack_write_array(&writer, 3);
    for (uint32_t i = 0; i < 3; i++)
        msgpack_write_unsigned(&writer, 1000 * i);
    msgpack_write_str(&writer, "temperature", 11);
    msgpack_write_unsigned(&writer, 1);
    msgpack_write_str(&writer, "seed", 4);
    msgpack_write_unsigned(&writer, UINT64_MAX);
    assert_int_equal(client_request_decode(frame, writer.length, &request, &error), STATUS_OK);
    assert_true(request.named);
    assert_int_equal(request.type, CLIENT_SUBMIT);
    assert_true(request.submit.has_seed && request.submit.seed == UINT64_MAX);
    assert_true(request.submit.temperature == 1.0F);
    assert_false(request.submit.has_top_p);
    assert_false(request.submit.ignore_eos);
    uint32_t ids[3];
    assert_int_equal(wire_tokens_copy(&request.submit.ids, ids, 3), 3);
    assert_int_equal(ids[2], 2000);

    struct client_answer answer = {.type = CLIENT_ANSWER_OUTPUT, .named = request.named};
    answer.output.id = request.submit.id;
    answer.output.state = REQUEST_STATE_RUNNING;
    answer.output.text = wire_text_of("Hi");
    static uint8_t reply[4096];
    size_t length;
    assert_int_equal(client_answer_encode(&answer, reply, sizeof reply, &length), STATUS_OK);
    static const uint8_t state_by_name[] = "\xa5state\xa7running";
    bool found = false;
    for (size_t i = 0; i + sizeof state_by_name - 1 <= length && !found; i++)
        found = memcmp(reply + i, state_by_name, sizeof state_by_name - 1) == 0;
    assert_true(found);
}

/* ---- The table of a client's mistakes ---- */

static void mistakes_are_told_with_field_and_bound(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
        enum error_code code;
        const char *field, *word;
        double limit; /* -1: none */
    } cases[] = {
#define FRAME(text) text, sizeof text - 1
        {FRAME("\x82\x01\x01\x04\xa1p"), ERROR_CODE_INVALID_REQUEST, "id", "missing", -1},
        {FRAME("\x82\x01\x01\x03\xa1i"), ERROR_CODE_INVALID_REQUEST, "prompt", "0 of", -1},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\x05\x91\x01"), ERROR_CODE_INVALID_REQUEST, "prompt",
         "2 of", -1},
        {FRAME("\x83\x01\x01\x03\xa1i\x04\xa0"), ERROR_CODE_INVALID_REQUEST, "prompt", "1 to", 1},
        {FRAME("\x83\x01\x01\x03\xa1i\x05\x90"), ERROR_CODE_INVALID_REQUEST, "ids", "1 to", 1},
        {FRAME("\x83\x01\x01\x03\xa0\x04\xa1p"), ERROR_CODE_INVALID_REQUEST, "id", "1 to 64", 1},
        {FRAME("\x83\x01\x01\x03\xa1i\x04\xa2\xc3\x28"), ERROR_CODE_INVALID_REQUEST, "prompt",
         "not UTF-8 at byte 0", -1},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\x08\xca\x7f\xc0\0\0"), ERROR_CODE_INVALID_REQUEST,
         "temperature", "nan", -1},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\x08\xff"), ERROR_CODE_INVALID_REQUEST, "temperature",
         "is -1", 0},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\x08\xcc\xc8"), ERROR_CODE_INVALID_REQUEST,
         "temperature", "from 0 to 100", 100},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\x0a\x00"), ERROR_CODE_INVALID_REQUEST, "top_p",
         "above 0", 0},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\x07\x00"), ERROR_CODE_INVALID_REQUEST, "max_tokens",
         "is 0", 1},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\x07\xa2ten"), ERROR_CODE_INVALID_REQUEST, "",
         "behind", -1},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\x07\xa3ten"), ERROR_CODE_INVALID_REQUEST,
         "max_tokens", "\"ten\"", -1},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\x07\xca\x41\x20\0\0"), ERROR_CODE_INVALID_REQUEST,
         "max_tokens", "the float 10", -1},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\xa8logprobs\x05"), ERROR_CODE_INVALID_REQUEST,
         "logprobs", "not supported", -1},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\xabtemperatur"
               "e\xc0"),
         ERROR_CODE_INVALID_REQUEST, "temperature", "is nil", -1},
        {FRAME("\x84\x01\x01\x03\xa1i\x04\xa1p\xa5top_q\x01"), ERROR_CODE_INVALID_REQUEST, "top_q",
         "its fields are version, id, prompt", -1},
        {FRAME("\x83\x01\x06\x02\x02\x02\x01"), ERROR_CODE_INVALID_REQUEST, "version", "twice", -1},
        {FRAME("\x82\x01\x06\x02\x02"), ERROR_CODE_UNSUPPORTED_VERSION, "version", "speaks 1 to 1",
         1},
        {FRAME("\x82\x01\x06\x02\x00"), ERROR_CODE_UNSUPPORTED_VERSION, "version", "speaks 1 to 1",
         1},
        {FRAME("\x81\x01\x08"), ERROR_CODE_INVALID_REQUEST, "prompt", "`messages`", -1},
        {FRAME("\x83\x01\x02\x03\xa1i\x07\xcd\x4e\x21"), ERROR_CODE_INVALID_REQUEST, "max_wait_ms",
         "20001", 20000},
        {FRAME("\x82\x01\x09\x05\xc4\x03\x01\x02\x03"), ERROR_CODE_INVALID_REQUEST, "ids",
         "bin of 3 bytes", -1},
#undef FRAME
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(client_request_decode((const uint8_t *)cases[i].bytes, cases[i].length,
                                               &request, &error),
                         STATUS_BAD_MESSAGE);
        if (error.code != cases[i].code || strcmp(error.field, cases[i].field) != 0 ||
            strstr(error.message, cases[i].word) == NULL ||
            error.has_limit != (cases[i].limit >= 0) ||
            (error.has_limit && error.limit != cases[i].limit))
            fail_msg("case %zu: code %u field '%s' limit %g: %s", i, error.code, error.field,
                     error.limit, error.message);
    }
}

static void a_refusal_becomes_an_answer(void **state)
{
    (void)state;
    struct client_request made = simple_submit();
    made.submit.has_max_tokens = true;
    made.submit.max_tokens = LIMIT_CONTEXT_TOKENS + 1;
    assert_int_equal(send_request(&made), STATUS_BAD_MESSAGE);
    struct client_answer answer = client_answer_refusal(&error, true), read;
    size_t length;
    assert_int_equal(client_answer_encode(&answer, frame, sizeof frame, &length), STATUS_OK);
    struct wire_error none;
    assert_int_equal(client_answer_decode(frame, length, &read, &none), STATUS_OK);
    assert_int_equal(read.type, CLIENT_ANSWER_ERROR);
    assert_int_equal(read.error.code, ERROR_CODE_INVALID_REQUEST);
    assert_memory_equal(read.error.field.bytes, "max_tokens", 10);
    assert_true(read.error.has_limit && read.error.limit == LIMIT_CONTEXT_TOKENS);
    memset(&error, 0, sizeof error);
    error.code = ERROR_CODE_INTERNAL;
    answer = client_answer_refusal(&error, false);
    assert_false(answer.error.has_field || answer.error.has_limit);
}

/* A refused frame still tells in which style the client wants its answer. */
static void the_style_is_known_of_a_refused_request(void **state)
{
    (void)state;
    static const uint8_t named[] = "\x82\xa4type\xa4next\xa2id\x05";
    assert_int_equal(client_request_decode(named, sizeof named - 1, &request, &error),
                     STATUS_BAD_MESSAGE);
    assert_true(request.named);
    static const uint8_t untyped[] = "\x81\xa2id\xa1x"; /* the other names tell it */
    request.named = false;
    assert_int_equal(client_request_decode(untyped, sizeof untyped - 1, &request, &error),
                     STATUS_BAD_MESSAGE);
    assert_true(request.named);
    static const uint8_t numbered[] = "\x82\x01\x02\x03\x05";
    assert_int_equal(client_request_decode(numbered, sizeof numbered - 1, &request, &error),
                     STATUS_BAD_MESSAGE);
    assert_false(request.named);
}

/* ---- Lists ---- */

static void messages_are_walked(void **state)
{
    (void)state;
    const struct chat_message messages[] = {
        {wire_text_of("system"), wire_text_of("Be brief.")},
        {wire_text_of("user"), wire_text_of("")},
        {wire_text_of("assistant"), wire_text_of("\xf0\x9f\xa6\x80")},
    };
    struct client_request made = simple_submit();
    made.submit.has_prompt = false;
    made.submit.has_messages = true;
    made.submit.messages = (struct wire_list){.items = messages, .count = 3};
    assert_int_equal(send_request(&made), STATUS_OK);
    assert_int_equal(request.submit.messages.count, 3);
    const uint8_t *cursor = request.submit.messages.encoded;
    struct chat_message message;
    for (int i = 0; i < 3; i++) {
        assert_true(chat_message_next(&request.submit.messages, &cursor, &message));
        assert_int_equal(message.role.length, messages[i].role.length);
        assert_memory_equal(message.role.bytes, messages[i].role.bytes, message.role.length);
        assert_int_equal(message.content.length, messages[i].content.length);
    }
    assert_false(chat_message_next(&request.submit.messages, &cursor, &message));
}

static void models_are_walked(void **state)
{
    (void)state;
    const struct client_model model = {.name = wire_text_of("tiny"),
                                       .architecture = wire_text_of("llama"),
                                       .context = 2048,
                                       .vocabulary = 49152,
                                       .chat_template = true};
    struct client_answer answer = {.type = CLIENT_ANSWER_MODELS}, read;
    answer.models.models = (struct wire_list){.items = &model, .count = 1};
    size_t length;
    assert_int_equal(client_answer_encode(&answer, frame, sizeof frame, &length), STATUS_OK);
    assert_int_equal(client_answer_decode(frame, length, &read, &error), STATUS_OK);
    const uint8_t *cursor = read.models.models.encoded;
    struct client_model found;
    assert_true(client_model_next(&read.models.models, &cursor, &found));
    assert_int_equal(found.vocabulary, 49152);
    assert_true(found.chat_template);
    assert_false(client_model_next(&read.models.models, &cursor, &found));
}

/* ---- Body hash: what makes two submits the same request ---- */

static struct id128 hash_of(const struct client_request *made)
{
    assert_int_equal(send_request(made), STATUS_OK);
    return client_submit_body_hash(&request.submit);
}

static void spelling_does_not_change_the_body(void **state)
{
    (void)state;
    struct client_request made = simple_submit();
    struct id128 due = hash_of(&made), found;
    made.submit.id = wire_text_of("another id");
    made.submit.has_version = true;
    made.submit.version = 1;
    found = hash_of(&made);
    assert_true(id128_equal(&due, &found));
    made.named = true;
    found = hash_of(&made);
    assert_true(id128_equal(&due, &found));
    made.submit.has_top_p = made.submit.has_parse_special = true;
    made.submit.top_p = 1;
    made.submit.parse_special = true;
    found = hash_of(&made);
    assert_true(id128_equal(&due, &found));

    /* Ids as an array or as bin. */
    static const uint32_t ids[] = {1, 300, 70000};
    made = simple_submit();
    made.submit.has_prompt = false;
    made.submit.has_ids = true;
    made.submit.ids = wire_tokens_of(ids, 3);
    due = hash_of(&made);
    static const uint8_t array[] =
        "\x83\x01\x01\x03\xa1x\x05\x93\x01\xcd\x01\x2c\xce\x00\x01\x11\x70";
    assert_int_equal(client_request_decode(array, sizeof array - 1, &request, &error), STATUS_OK);
    found = client_submit_body_hash(&request.submit);
    assert_true(id128_equal(&due, &found));
}

static void every_field_changes_the_body(void **state)
{
    (void)state;
    struct client_request variants[14];
    const struct chat_message message = {wire_text_of("user"), wire_text_of("Once upon a time")};
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++)
        variants[i] = simple_submit();
    variants[1].submit.prompt = wire_text_of("Once upon a tim");
    variants[2].submit.max_tokens = 5, variants[2].submit.has_max_tokens = true;
    variants[3].submit.temperature = 1;
    variants[4].submit.top_k = 5;
    variants[5].submit.top_p = 0.5F, variants[5].submit.has_top_p = true;
    variants[6].submit.min_p = 0.5F;
    variants[7].submit.has_seed = true;
    variants[8].submit.stop.items[0] = wire_text_of("x"), variants[8].submit.stop.count = 1;
    variants[9].submit.stop_token_ids = wire_tokens_of((const uint32_t[]){3}, 1);
    variants[10].submit.ignore_eos = true;
    variants[11].submit.has_deadline_ms = true, variants[11].submit.deadline_ms = 9;
    variants[12].submit.has_parse_special = true;
    variants[13].submit.has_prompt = false, variants[13].submit.has_messages = true;
    variants[13].submit.messages = (struct wire_list){.items = &message, .count = 1};
    struct id128 hashes[sizeof variants / sizeof variants[0]];
    for (size_t i = 0; i < sizeof variants / sizeof variants[0]; i++) {
        hashes[i] = hash_of(&variants[i]);
        for (size_t j = 0; j < i; j++)
            if (id128_equal(&hashes[i], &hashes[j]))
                fail_msg("variants %zu and %zu have one hash", i, j);
    }
}

/* Bytes that are no text stay what they are: a token may be half a character. */
static void broken_text_comes_as_bin(void **state)
{
    (void)state;
    struct client_answer answer = {.type = CLIENT_ANSWER_TEXT}, read;
    answer.text.text = (struct wire_text){"a\xff\0b", 4};
    size_t length;
    assert_int_equal(client_answer_encode(&answer, frame, sizeof frame, &length), STATUS_OK);
    assert_int_equal(frame[length - 6], 0xc4);
    assert_int_equal(client_answer_decode(frame, length, &read, &error), STATUS_OK);
    assert_int_equal(read.text.text.length, 4);
    assert_memory_equal(read.text.text.bytes, "a\xff\0b", 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_are_understood_and_answered_with_names),
        cmocka_unit_test(mistakes_are_told_with_field_and_bound),
        cmocka_unit_test(a_refusal_becomes_an_answer),
        cmocka_unit_test(the_style_is_known_of_a_refused_request),
        cmocka_unit_test(messages_are_walked),
        cmocka_unit_test(models_are_walked),
        cmocka_unit_test(spelling_does_not_change_the_body),
        cmocka_unit_test(every_field_changes_the_body),
        cmocka_unit_test(broken_text_comes_as_bin),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
