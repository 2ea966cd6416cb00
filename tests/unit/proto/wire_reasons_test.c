#include "proto/wire_reasons.h"

#include "proto/client_messages.h"
#include "proto/worker_messages.h"

#include <math.h>
#include <string.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static const struct wire_field *field_named(const struct wire_table *table, const char *name)
{
    for (uint32_t i = 0; i < table->field_count; i++)
        if (strcmp(table->fields[i].name, name) == 0)
            return &table->fields[i];
    fail_msg("no field %s", name);
    return NULL;
}

static void bounds_are_sentences(void **state)
{
    (void)state;
    static const struct {
        const struct wire_table *table;
        const char *field, *sentence;
    } cases[] = {
        {&client_submit_table, "max_tokens", "an integer from 1 to 131072"},
        {&client_submit_table, "temperature", "a number from 0 to 100"},
        {&client_submit_table, "top_p", "a number above 0 and at most 1"},
        {&client_submit_table, "ignore_eos", "true or false"},
        {&client_submit_table, "id", "a str or bin of 1 to 64 bytes"},
        {&client_submit_table, "prompt", "a str of 1 to 2097152 bytes, valid UTF-8"},
        {&client_submit_table, "stop",
         "an array of at most 16 str, each of 1 to 64 bytes, valid UTF-8"},
        {&client_submit_table, "stop_token_ids",
         "at most 64 token ids below 1048576, as array or as bin of u32 little endian"},
        {&client_submit_table, "messages", "an array of 1 to 4096 maps"},
        {&client_output_table, "finish", "a map"},
        {&client_accepted_table, "instance", "a bin of 16 bytes"},
        {&client_accepted_table, "durability", "one of none (1), written (2), synced (3)"},
        {&worker_plan_table, "slot", "a bin of at most 1024 values of 4 bytes"},
        {&worker_result_table, "logits_hash", "a bin of at most 1024 values of 8 bytes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char storage[200];
        struct text text;
        text_init(&text, storage, sizeof storage);
        wire_describe_bounds(&text, field_named(cases[i].table, cases[i].field));
        assert_string_equal(storage, cases[i].sentence);
    }
}

static void values_are_shown_and_long_ones_cut(void **state)
{
    (void)state;
    char text[300];
    memset(text, 'x', sizeof text);
    text[1] = '\n';
    struct wire_error error;
    struct msgpack_item item = {
        .kind = MSGPACK_STR, .count = sizeof text, .bytes = (const uint8_t *)text};
    wire_refuse_value(&error, "id", field_named(&client_submit_table, "id"), &item);
    assert_non_null(strstr(error.message, "a str of 300 bytes, \"x\\x0axxx"));
    assert_non_null(strstr(error.message, "must be a str or bin of 1 to 64 bytes"));
    assert_true(error.has_limit && error.limit == 64);
    assert_true(strlen(error.message) < 200);

    static const struct {
        struct msgpack_item item;
        const char *shown;
    } cases[] = {
        {{.kind = MSGPACK_NIL}, "is nil;"},
        {{.kind = MSGPACK_BOOL, .truth = true}, "is true;"},
        {{.kind = MSGPACK_NEGATIVE, .negative = -5}, "is -5;"},
        {{.kind = MSGPACK_FLOAT, .real = 2.5}, "is the float 2.5;"},
        {{.kind = MSGPACK_BIN, .count = 7}, "is a bin of 7 bytes;"},
        {{.kind = MSGPACK_EXT, .count = 8}, "is an ext of 8 bytes;"},
        {{.kind = MSGPACK_ARRAY, .count = 9}, "is an array of 9 values;"},
        {{.kind = MSGPACK_MAP, .count = 2}, "is a map of 2 pairs;"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        wire_refuse_value(&error, "seed", field_named(&client_submit_table, "seed"),
                          &cases[i].item);
        assert_non_null(strstr(error.message, cases[i].shown));
        assert_string_equal(error.field, "seed");
    }
}

/* However long a path or a list of names: what is stored is cut and terminated, and encodes as an
 * answer. */
static void sentences_never_outgrow_their_place(void **state)
{
    (void)state;
    char path[500];
    memset(path, 'p', sizeof path - 1);
    path[sizeof path - 1] = '\0';
    struct wire_error error;
    wire_refuse_repeated(&error, path);
    assert_int_equal(strlen(error.field), sizeof error.field - 1);
    assert_int_equal(strlen(error.message), sizeof error.message - 1);
    struct client_answer answer = client_answer_refusal(&error, false), read;
    uint8_t frame[2048];
    size_t length;
    assert_int_equal(client_answer_encode(&answer, frame, sizeof frame, &length), STATUS_OK);
    assert_int_equal(client_answer_decode(frame, length, &read, &error), STATUS_OK);

    /* A name of the client's is cut between two characters. */
    char name[200];
    for (size_t i = 0; i + 1 < sizeof name; i += 2)
        memcpy(name + i, "\xc3\xa9", 2);
    struct msgpack_item key = {
        .kind = MSGPACK_STR, .count = sizeof name, .bytes = (const uint8_t *)name};
    wire_refuse_unknown(&error, "x", &client_submit_table, &client_request_family, &key);
    answer = client_answer_refusal(&error, false);
    assert_int_equal(client_answer_encode(&answer, frame, sizeof frame, &length), STATUS_OK);
    assert_int_equal(client_answer_decode(frame, length, &read, &error), STATUS_OK);
}

static void structure_is_told_with_its_bound(void **state)
{
    (void)state;
    struct wire_error error;
    wire_refuse_structure(&error, MSGPACK_CROWDED, 77);
    assert_non_null(strstr(error.message, "byte 77"));
    assert_true(error.has_limit && error.limit == LIMIT_WIRE_NODES);
    wire_refuse_structure(&error, MSGPACK_DEEP, 9);
    assert_true(error.has_limit && error.limit == LIMIT_WIRE_DEPTH);
    wire_refuse_structure(&error, MSGPACK_TRAILING, 9);
    assert_false(error.has_limit);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bounds_are_sentences),
        cmocka_unit_test(values_are_shown_and_long_ones_cut),
        cmocka_unit_test(sentences_never_outgrow_their_place),
        cmocka_unit_test(structure_is_told_with_its_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
