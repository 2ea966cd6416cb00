#include "proto/wire.h"

#include "proto/error_codes.h"
#include "support/families.h"
#include "support/frame_editor.h"
#include "support/message_generator.h"

#include <math.h>
#include <stdlib.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

static struct arena arena;
static uint8_t frame[8 << 20], edited[8 << 20], value_bytes[8 << 20];
static uint64_t message[MESSAGE_BYTES_MAX / 8];

static int make_arena(void **state)
{
    (void)state;
    return arena_init(&arena, 1 << 20) == STATUS_OK ? 0 : -1;
}

static int drop_arena(void **state)
{
    (void)state;
    arena_free(&arena);
    return 0;
}

static enum status decode_as(const struct wire_family *family, enum wire_mode mode,
                             const uint8_t *bytes, size_t length, struct wire_error *error)
{
    struct wire_decoding decoding = {family, mode, bytes, length};
    const struct wire_table *table;
    memset(error, 0, sizeof *error);
    return wire_decode(&decoding, message, &table, NULL, error);
}

static void assert_refused(const struct wire_error *error, enum status status, const char *name)
{
    if (status != STATUS_BAD_MESSAGE)
        fail_msg("%s: accepted", name);
    if (error->code != ERROR_CODE_INVALID_REQUEST || strncmp(error->field, name, strlen(name)) != 0)
        fail_msg("%s: code %u field '%s': %s", name, error->code, error->field, error->message);
    if (strstr(error->message, name) == NULL)
        fail_msg("%s: does not name it: %s", name, error->message);
}

/* A message of `table` with every field present, and its pairs. */
static void make_full(const struct wire_table *table, struct frame_parts *parts)
{
    struct generator generator = {{table->number + 99}, &arena};
    size_t length = 0;
    do {
        arena_reset(&arena);
        generate_message(&generator, table, message);
        CHECK(wire_encode(table, WIRE_NUMBERED, message, frame, sizeof frame, &length) ==
              STATUS_OK);
        frame_split(frame, length, parts);
    } while (parts->count < table->field_count + 1);
}

typedef void (*field_test)(const struct wire_family *family, const struct wire_field *field,
                           const struct frame_parts *parts, uint32_t pair);

static void for_every_field(field_test test)
{
    for (uint32_t f = 0; f < FAMILY_COUNT; f++) {
        for (uint32_t t = 0; t < families[f]->count; t++) {
            const struct wire_table *table = families[f]->tables[t];
            struct frame_parts parts;
            make_full(table, &parts);
            for (uint32_t i = 0; i < table->field_count; i++) {
                uint32_t pair = frame_find(&parts, table->fields[i].key);
                assert_true(pair < parts.count);
                test(families[f], &table->fields[i], &parts, pair);
            }
        }
    }
}

static enum status decode_change(const struct wire_family *family, enum wire_mode mode,
                                 const struct frame_parts *parts, const struct frame_change *change,
                                 struct wire_error *error)
{
    size_t length = frame_join(parts, change, edited, sizeof edited);
    return decode_as(family, mode, edited, length, error);
}

/* ---- Missing, twice, unknown ---- */

static void drop_field(const struct wire_family *family, const struct wire_field *field,
                       const struct frame_parts *parts, uint32_t pair)
{
    struct frame_change change = {.gone = pair, .changed = EDITOR_NOBODY};
    struct wire_error error;
    enum status status = decode_change(family, WIRE_STRICT, parts, &change, &error);
    if (field->presence == WIRE_REQUIRED)
        assert_refused(&error, status, field->name);
    else
        assert_int_equal(status, STATUS_OK);
}

static void missing_fields_are_named(void **state)
{
    (void)state;
    for_every_field(drop_field);
}

static void double_field(const struct wire_family *family, const struct wire_field *field,
                         const struct frame_parts *parts, uint32_t pair)
{
    struct wire_error error;
    struct frame_change change = {.gone = EDITOR_NOBODY,
                                  .changed = EDITOR_NOBODY,
                                  .extra_key = &parts->keys[pair],
                                  .extra_value = &parts->values[pair]};
    assert_refused(&error, decode_change(family, WIRE_LENIENT, parts, &change, &error),
                   field->name);
    /* The name is the same field as the number. */
    uint8_t name[80];
    struct msgpack_writer writer = {.out = name, .capacity = sizeof name};
    msgpack_write_str(&writer, field->name, strlen(field->name));
    struct raw_bytes named = {name, writer.length};
    change.extra_key = &named;
    assert_refused(&error, decode_change(family, WIRE_STRICT, parts, &change, &error), field->name);
}

static void fields_come_once(void **state)
{
    (void)state;
    for_every_field(double_field);
}

static void unknown_fields_are_named_or_skipped(void **state)
{
    (void)state;
    static const uint8_t number[] = {0x7f},
                         name[] = "\xa5"
                                  "tempo",
                         value[] = {0x92, 0x81, 0x01, 0x90, 0xc0};
    const struct raw_bytes numbered = {number, 1}, named = {name, 6}, skipped = {value, 5};
    for (uint32_t f = 0; f < FAMILY_COUNT; f++) {
        for (uint32_t t = 0; t < families[f]->count; t++) {
            struct frame_parts parts;
            make_full(families[f]->tables[t], &parts);
            struct frame_change change = {EDITOR_NOBODY, EDITOR_NOBODY, NULL, &numbered, &skipped};
            struct wire_error error;
            assert_refused(&error, decode_change(families[f], WIRE_STRICT, &parts, &change, &error),
                           "127");
            assert_int_equal(decode_change(families[f], WIRE_LENIENT, &parts, &change, &error),
                             STATUS_OK);
            change.extra_key = &named;
            assert_refused(&error, decode_change(families[f], WIRE_STRICT, &parts, &change, &error),
                           "tempo");
            assert_int_equal(decode_change(families[f], WIRE_LENIENT, &parts, &change, &error),
                             STATUS_OK);
        }
    }
}

/* ---- Wrong types ---- */

/* Kinds that a type may come as. */
static const uint32_t kinds_of[WIRE_TYPE_COUNT] = {
    [WIRE_TYPE_BOOL] = 1u << MSGPACK_BOOL,
    [WIRE_TYPE_U32] = 1u << MSGPACK_UNSIGNED,
    [WIRE_TYPE_U64] = 1u << MSGPACK_UNSIGNED,
    [WIRE_TYPE_F32] = 1u << MSGPACK_UNSIGNED | 1u << MSGPACK_NEGATIVE | 1u << MSGPACK_FLOAT,
    [WIRE_TYPE_F32_ABOVE] = 1u << MSGPACK_UNSIGNED | 1u << MSGPACK_NEGATIVE | 1u << MSGPACK_FLOAT,
    [WIRE_TYPE_F64] = 1u << MSGPACK_UNSIGNED | 1u << MSGPACK_NEGATIVE | 1u << MSGPACK_FLOAT,
    [WIRE_TYPE_ENUM] = 1u << MSGPACK_UNSIGNED | 1u << MSGPACK_STR,
    [WIRE_TYPE_ID128] = 1u << MSGPACK_BIN,
    [WIRE_TYPE_TEXT] = 1u << MSGPACK_STR,
    [WIRE_TYPE_BLOB] = 1u << MSGPACK_STR | 1u << MSGPACK_BIN,
    [WIRE_TYPE_TEXT_LIST] = 1u << MSGPACK_ARRAY,
    [WIRE_TYPE_TOKENS] = 1u << MSGPACK_ARRAY | 1u << MSGPACK_BIN,
    [WIRE_TYPE_COLUMN_U32] = 1u << MSGPACK_BIN,
    [WIRE_TYPE_COLUMN_F32] = 1u << MSGPACK_BIN,
    [WIRE_TYPE_COLUMN_U64] = 1u << MSGPACK_BIN,
    [WIRE_TYPE_GROUP] = 1u << MSGPACK_MAP,
    [WIRE_TYPE_LIST] = 1u << MSGPACK_ARRAY,
};

static const struct {
    enum msgpack_kind kind;
    const char *bytes;
    size_t length;
} samples[] = {
    {MSGPACK_NIL, "\xc0", 1},
    {MSGPACK_BOOL, "\xc3", 1},
    {MSGPACK_UNSIGNED, "\x01", 1},
    {MSGPACK_NEGATIVE, "\xff", 1},
    {MSGPACK_NEGATIVE, "\xd3\x80\0\0\0\0\0\0\0", 9},
    {MSGPACK_FLOAT, "\xca\x3f\xc0\0\0", 5},
    {MSGPACK_STR, "\xa1x", 2},
    {MSGPACK_BIN, "\xc4\x01x", 3},
    {MSGPACK_EXT, "\xd4\x05x", 3},
    {MSGPACK_ARRAY, "\x90", 1},
    {MSGPACK_MAP, "\x80", 1},
};

static enum status decode_value(const struct wire_family *family, const struct frame_parts *parts,
                                uint32_t pair, struct raw_bytes value, struct wire_error *error)
{
    struct frame_change change = {.gone = EDITOR_NOBODY, .changed = pair, .value = &value};
    return decode_change(family, WIRE_STRICT, parts, &change, error);
}

static void mistype_field(const struct wire_family *family, const struct wire_field *field,
                          const struct frame_parts *parts, uint32_t pair)
{
    for (size_t i = 0; i < sizeof samples / sizeof samples[0]; i++) {
        if ((kinds_of[field->type] >> samples[i].kind & 1) != 0)
            continue;
        struct wire_error error;
        struct raw_bytes value = {(const uint8_t *)samples[i].bytes, samples[i].length};
        assert_refused(&error, decode_value(family, parts, pair, value, &error), field->name);
        assert_non_null(strstr(error.message, "must be"));
    }
}

static void wrong_types_are_named(void **state)
{
    (void)state;
    for_every_field(mistype_field);
}

/* ---- Out of bounds ---- */

static struct raw_bytes made_value(const struct msgpack_writer *writer)
{
    CHECK(writer->length <= sizeof value_bytes);
    struct raw_bytes value = {value_bytes, writer->length};
    return value;
}

struct bad_value_case {
    const struct wire_family *family;
    const struct wire_field *field;
    const struct frame_parts *parts;
    uint32_t pair;
};

/* The value just written is refused, and with `limit` >= 0 that bound is told. */
static void expect_bad(const struct bad_value_case *here, const struct msgpack_writer *writer,
                       double limit)
{
    struct wire_error error;
    assert_refused(&error,
                   decode_value(here->family, here->parts, here->pair, made_value(writer), &error),
                   here->field->name);
    if (limit < 0)
        return;
    if (!error.has_limit || error.limit != limit)
        fail_msg("%s: limit %g, expected %g: %s", here->field->name, error.limit, limit,
                 error.message);
}

static struct msgpack_writer writer_over(void)
{
    struct msgpack_writer writer = {.out = value_bytes, .capacity = sizeof value_bytes};
    return writer;
}

static void bad_integers(const struct bad_value_case *here)
{
    const struct wire_field *field = here->field;
    if (field->maximum < UINT64_MAX) {
        struct msgpack_writer writer = writer_over();
        msgpack_write_unsigned(&writer, field->maximum + 1);
        expect_bad(here, &writer, (double)field->maximum);
    }
    if (field->minimum > 0) {
        struct msgpack_writer writer = writer_over();
        msgpack_write_unsigned(&writer, field->minimum - 1);
        expect_bad(here, &writer, (double)field->minimum);
    }
    struct msgpack_writer writer = writer_over();
    msgpack_write_negative(&writer, -7);
    expect_bad(here, &writer, (double)field->minimum);
}

static void bad_reals(const struct bad_value_case *here)
{
    const struct wire_field *field = here->field;
    const struct {
        double value, limit;
    } cases[] = {
        {(double)NAN, -1},
        {(double)INFINITY, -1},
        {-(double)INFINITY, -1},
        {field->high * 1.5, field->high},
        {field->low - 0.5, field->low},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct msgpack_writer writer = writer_over();
        msgpack_write_double(&writer, cases[i].value);
        expect_bad(here, &writer, cases[i].limit);
        writer = writer_over();
        if (field->high < 1e30)
            msgpack_write_float(&writer, (float)cases[i].value);
        else
            msgpack_write_double(&writer, cases[i].value);
        expect_bad(here, &writer, cases[i].limit);
    }
    if (field->type == WIRE_TYPE_F32_ABOVE) {
        struct msgpack_writer writer = writer_over();
        msgpack_write_double(&writer, 1e-60); /* 0 as a float */
        expect_bad(here, &writer, -1);
        writer = writer_over();
        msgpack_write_unsigned(&writer, (uint64_t)field->low);
        expect_bad(here, &writer, field->low);
    }
}

static void bad_lengths(const struct bad_value_case *here)
{
    const struct wire_field *field = here->field;
    static char bytes[1024];
    memset(bytes, 'a', sizeof bytes);
    if (field->maximum < sizeof bytes) {
        struct msgpack_writer writer = writer_over();
        msgpack_write_str(&writer, bytes, (size_t)field->maximum + 1);
        expect_bad(here, &writer, (double)field->maximum);
    }
    if (field->minimum > 0) {
        struct msgpack_writer writer = writer_over();
        msgpack_write_str(&writer, bytes, (size_t)field->minimum - 1);
        expect_bad(here, &writer, (double)field->minimum);
    }
    static const char *const broken[] = {"\xc0\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",    "\xff",
                                         "\xe2\x82", "ok\x80",       "\xf8\x88\x80\x80\x80"};
    for (size_t i = 0; field->type == WIRE_TYPE_TEXT && i < sizeof broken / sizeof broken[0]; i++) {
        struct msgpack_writer writer = writer_over();
        msgpack_write_str(&writer, broken[i], strlen(broken[i]));
        expect_bad(here, &writer, -1);
    }
}

static void bad_text_lists(const struct bad_value_case *here)
{
    static char bytes[1024];
    memset(bytes, 'a', sizeof bytes);
    struct msgpack_writer writer = writer_over();
    msgpack_write_array(&writer, LIMIT_STOP_STRINGS + 1);
    for (int i = 0; i <= LIMIT_STOP_STRINGS; i++)
        msgpack_write_str(&writer, "s", 1);
    expect_bad(here, &writer, LIMIT_STOP_STRINGS);
    writer = writer_over();
    msgpack_write_array(&writer, 2);
    msgpack_write_str(&writer, "s", 1);
    msgpack_write_str(&writer, bytes, (size_t)here->field->maximum + 1);
    expect_bad(here, &writer, (double)here->field->maximum);
    writer = writer_over();
    msgpack_write_array(&writer, 2);
    msgpack_write_str(&writer, "s", 1);
    msgpack_write_unsigned(&writer, 5);
    expect_bad(here, &writer, -1);
}

static void bad_tokens(const struct bad_value_case *here)
{
    uint32_t beyond[] = {1, LIMIT_VOCABULARY};
    struct msgpack_writer writer = writer_over();
    msgpack_write_bin(&writer, beyond, sizeof beyond);
    expect_bad(here, &writer, here->field->maximum >= 2 ? LIMIT_VOCABULARY - 1 : -1);
    writer = writer_over();
    msgpack_write_array(&writer, 2);
    msgpack_write_unsigned(&writer, 1);
    msgpack_write_unsigned(&writer, LIMIT_VOCABULARY);
    expect_bad(here, &writer, here->field->maximum >= 2 ? LIMIT_VOCABULARY - 1 : -1);
    writer = writer_over();
    msgpack_write_bin(&writer, beyond, 7);
    expect_bad(here, &writer, -1);
    if (here->field->maximum < (1 << 18)) {
        writer = writer_over();
        msgpack_write_array(&writer, (uint32_t)here->field->maximum + 1);
        for (uint64_t i = 0; i <= here->field->maximum; i++)
            msgpack_write_unsigned(&writer, 1);
        expect_bad(here, &writer, (double)here->field->maximum);
    }
}

static void bad_bins(const struct bad_value_case *here)
{
    static const uint8_t zeros[(LIMIT_SLOTS + 1) * 8];
    struct msgpack_writer writer = writer_over();
    msgpack_write_bin(&writer, zeros, here->field->type == WIRE_TYPE_ID128 ? 15 : 7);
    expect_bad(here, &writer, -1);
    writer = writer_over();
    if (here->field->type == WIRE_TYPE_ID128) {
        msgpack_write_bin(&writer, zeros, 17);
        expect_bad(here, &writer, -1);
        return;
    }
    msgpack_write_bin(&writer, zeros,
                      (here->field->type == WIRE_TYPE_COLUMN_U64 ? 8 : 4) *
                          ((size_t)here->field->maximum + 1));
    expect_bad(here, &writer, (double)here->field->maximum);
}

static void bad_lists(const struct bad_value_case *here)
{
    struct msgpack_writer writer = writer_over();
    msgpack_write_array(&writer, (uint32_t)here->field->maximum + 1);
    for (uint64_t i = 0; i <= here->field->maximum; i++)
        msgpack_write_map(&writer, 0);
    expect_bad(here, &writer, (double)here->field->maximum);
    writer = writer_over();
    msgpack_write_array(&writer, 1);
    msgpack_write_unsigned(&writer, 5);
    expect_bad(here, &writer, -1);
    writer = writer_over();
    msgpack_write_array(&writer, 1);
    msgpack_write_map(&writer, 0); /* every item has a required field */
    expect_bad(here, &writer, -1);
}

static void bad_enums(const struct bad_value_case *here)
{
    struct msgpack_writer writer = writer_over();
    msgpack_write_unsigned(&writer, 9999);
    expect_bad(here, &writer, -1);
    writer = writer_over();
    msgpack_write_str(&writer, "nobody", 6);
    expect_bad(here, &writer, -1);
    struct raw_bytes value = made_value(&writer);
    struct frame_change change = {EDITOR_NOBODY, here->pair, &value, NULL, NULL};
    struct wire_error error;
    assert_int_equal(decode_change(here->family, WIRE_LENIENT, here->parts, &change, &error),
                     STATUS_OK);
    uint32_t number = 77;
    memcpy(&number, (const uint8_t *)message + here->field->offset, sizeof number);
    assert_int_equal(number, 0);
}

static void exceed_field(const struct wire_family *family, const struct wire_field *field,
                         const struct frame_parts *parts, uint32_t pair)
{
    static void (*const tests[WIRE_TYPE_COUNT])(const struct bad_value_case *) = {
        [WIRE_TYPE_U32] = bad_integers,    [WIRE_TYPE_U64] = bad_integers,
        [WIRE_TYPE_F32] = bad_reals,       [WIRE_TYPE_F32_ABOVE] = bad_reals,
        [WIRE_TYPE_F64] = bad_reals,       [WIRE_TYPE_ENUM] = bad_enums,
        [WIRE_TYPE_ID128] = bad_bins,      [WIRE_TYPE_TEXT] = bad_lengths,
        [WIRE_TYPE_BLOB] = bad_lengths,    [WIRE_TYPE_TEXT_LIST] = bad_text_lists,
        [WIRE_TYPE_TOKENS] = bad_tokens,   [WIRE_TYPE_COLUMN_U32] = bad_bins,
        [WIRE_TYPE_COLUMN_F32] = bad_bins, [WIRE_TYPE_COLUMN_U64] = bad_bins,
        [WIRE_TYPE_LIST] = bad_lists,
    };
    struct bad_value_case here = {family, field, parts, pair};
    if (tests[field->type] != NULL)
        tests[field->type](&here);
}

static void bounds_are_kept_and_told(void **state)
{
    (void)state;
    for_every_field(exceed_field);
}

/* ---- Structure ---- */

static void every_truncation_is_refused(void **state)
{
    (void)state;
    for (uint32_t f = 0; f < FAMILY_COUNT; f++) {
        for (uint32_t t = 0; t < families[f]->count; t++) {
            struct generator generator = {{t + 5}, &arena};
            arena_reset(&arena);
            generate_message(&generator, families[f]->tables[t], message);
            size_t length = 0;
            assert_int_equal(wire_encode(families[f]->tables[t], WIRE_NUMBERED, message, frame,
                                         sizeof frame, &length),
                             STATUS_OK);
            for (size_t cut = 0; cut < length; cut++) {
                struct wire_error error;
                uint8_t *exact = malloc(cut + 1); /* so that a sanitizer sees a read beyond */
                assert_non_null(exact);
                memcpy(exact, frame, cut);
                assert_int_equal(decode_as(families[f], WIRE_LENIENT, exact, cut, &error),
                                 STATUS_BAD_MESSAGE);
                assert_true(strlen(error.message) > 0);
                free(exact);
            }
            frame[length] = 0xc0;
            struct wire_error error;
            assert_int_equal(decode_as(families[f], WIRE_LENIENT, frame, length + 1, &error),
                             STATUS_BAD_MESSAGE);
            assert_non_null(strstr(error.message, "behind"));
        }
    }
}

static void the_order_of_pairs_is_free(void **state)
{
    (void)state;
    struct frame_parts parts, turned;
    make_full(&client_submit_table, &parts);
    uint64_t due[MESSAGE_BYTES_MAX / 8];
    memcpy(due, message, sizeof due);
    turned.count = parts.count;
    for (uint32_t i = 0; i < parts.count; i++) {
        turned.keys[i] = parts.keys[parts.count - 1 - i];
        turned.values[i] = parts.values[parts.count - 1 - i];
    }
    struct frame_change none = {EDITOR_NOBODY, EDITOR_NOBODY, NULL, NULL, NULL};
    struct wire_error error;
    assert_int_equal(decode_change(&client_request_family, WIRE_STRICT, &turned, &none, &error),
                     STATUS_OK); /* `type` comes last here */
    assert_null(message_difference(&client_submit_table, due, message));
}

static void hostile_frames_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t length;
        const char *word;
    } cases[] = {
        {"", 0, "declares more"},
        {"\xdd\x0f\0\0\0", 5, "declares more"},
        {"\x90", 1, "array of 0"},
        {"\x05", 1, "the message is 5"},
        {"\x80", 1, "`type` is missing"},
        {"\x81\x01\x63", 3, "`type` is 99"},
        {"\x81\x01\xc0", 3, "`type` is nil"},
        {"\x82\x01\x06\x01\x06", 5, "given twice"},
        {"\x82\xa4type\x06\x01\x06", 9, "given twice"},
        {"\x81\x01\xc1", 3, "0xc1"},
        {"\x82\x01\x06\xc0\x05", 5, "the key nil"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire_error error;
        assert_int_equal(decode_as(&client_request_family, WIRE_STRICT,
                                   (const uint8_t *)cases[i].bytes, cases[i].length, &error),
                         STATUS_BAD_MESSAGE);
        if (strstr(error.message, cases[i].word) == NULL)
            fail_msg("case %zu: %s", i, error.message);
    }
    static uint8_t deep[10000];
    memset(deep, 0x91, sizeof deep);
    struct wire_error error;
    assert_int_equal(decode_as(&client_request_family, WIRE_STRICT, deep, sizeof deep, &error),
                     STATUS_BAD_MESSAGE);
    assert_non_null(strstr(error.message, "deep"));
    assert_true(error.has_limit && error.limit == LIMIT_WIRE_DEPTH);
}

/* A container as a key is skipped with all that is in it. */
static void lenient_skip_takes_odd_keys(void **state)
{
    (void)state;
    static const uint8_t bytes[] = {0x83, 0x01, 0x05, 0x92, 0x01, 0x81, 0x02,
                                    0x03, 0xa1, 'v',  0x81, 0x01, 0x02, 0x90};
    struct wire_error error;
    assert_int_equal(decode_as(&client_request_family, WIRE_LENIENT, bytes, sizeof bytes, &error),
                     STATUS_OK);
    assert_int_equal(decode_as(&client_request_family, WIRE_STRICT, bytes, sizeof bytes, &error),
                     STATUS_BAD_MESSAGE);
}

static void paths_lead_into_groups_and_lists(void **state)
{
    (void)state;
    static const uint8_t second_role[] =
        "\x83\x01\x01\x03\xa1i\x06\x92\x82\x01\xa4user\x02\xa0\x82\x01\x05\x02\xa0";
    static const uint8_t no_content[] = "\x83\x01\x01\x03\xa1i\x06\x91\x81\x01\xa4user";
    static const uint8_t no_map[] = "\x83\x01\x01\x03\xa1i\x06\x92\x82\x01\xa4user\x02\xa0\x07";
    static const uint8_t strange[] =
        "\x83\x01\x01\x03\xa1i\x06\x91\x83\x01\xa4user\x02\xa0\xa4mood\x01";
    static const uint8_t stop[] = "\x83\x01\x01\x03\xa1i\x0d\x92\xa1x\xa0";
    static const struct {
        const uint8_t *bytes;
        size_t length;
        const char *field;
    } cases[] = {
        {second_role, sizeof second_role - 1, "messages[1].role"},
        {no_content, sizeof no_content - 1, "messages[0].content"},
        {no_map, sizeof no_map - 1, "messages[1]"},
        {strange, sizeof strange - 1, "messages[0].mood"},
        {stop, sizeof stop - 1, "stop[1]"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct wire_error error;
        assert_int_equal(
            decode_as(&client_request_family, WIRE_STRICT, cases[i].bytes, cases[i].length, &error),
            STATUS_BAD_MESSAGE);
        assert_string_equal(error.field, cases[i].field);
    }
}

/* Random bytes over a valid message: never a crash, and what is accepted is encoded again. */
static void damaged_frames_never_harm(void **state)
{
    (void)state;
    struct random random = {4711};
    for (uint32_t round = 0; round < 60000; round++) {
        const struct wire_family *family = families[round % FAMILY_COUNT];
        const struct wire_table *table = family->tables[random_below(&random, family->count)];
        static uint8_t source[1 << 16];
        static size_t length;
        static const struct wire_table *of;
        if (round % 64 < FAMILY_COUNT || of != table) {
            struct generator generator = {{round}, &arena};
            arena_reset(&arena);
            generate_message(&generator, table, message);
            assert_int_equal(
                wire_encode(table, WIRE_NUMBERED, message, source, sizeof source, &length),
                STATUS_OK);
            of = table;
        }
        memcpy(edited, source, length);
        for (uint32_t i = 0; i <= random_below(&random, 4); i++)
            edited[random_below(&random, length)] = (uint8_t)random_next(&random);
        struct wire_decoding decoding = {family, WIRE_STRICT, edited, length};
        const struct wire_table *found;
        struct wire_error error;
        if (wire_decode(&decoding, message, &found, NULL, &error) == STATUS_OK) {
            size_t again = 0;
            assert_int_equal(
                wire_encode(found, WIRE_NUMBERED, message, frame, sizeof frame, &again), STATUS_OK);
        } else {
            assert_true(strlen(error.message) > 0);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(missing_fields_are_named),
        cmocka_unit_test(fields_come_once),
        cmocka_unit_test(unknown_fields_are_named_or_skipped),
        cmocka_unit_test(wrong_types_are_named),
        cmocka_unit_test(bounds_are_kept_and_told),
        cmocka_unit_test(every_truncation_is_refused),
        cmocka_unit_test(the_order_of_pairs_is_free),
        cmocka_unit_test(hostile_frames_are_refused),
        cmocka_unit_test(lenient_skip_takes_odd_keys),
        cmocka_unit_test(paths_lead_into_groups_and_lists),
        cmocka_unit_test(damaged_frames_never_harm),
    };
    return cmocka_run_group_tests(tests, make_arena, drop_arena);
}
