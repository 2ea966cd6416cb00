#include "proto/wire.h"

#include "proto/wire_table.h"
#include "support/families.h"
#include "support/message_generator.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

enum { ROUNDS = 300 };

static struct arena arena;
static uint8_t frame[1 << 20];

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

static void round_trip(struct generator *generator, const struct wire_family *family,
                       const struct wire_table *table, enum wire_style style)
{
    uint64_t made[MESSAGE_BYTES_MAX / 8], read[MESSAGE_BYTES_MAX / 8];
    assert_true(table->struct_bytes <= sizeof made);
    arena_reset(&arena);
    generate_message(generator, table, made);
    size_t length = 0, measured = 0;
    assert_int_equal(wire_encode(table, style, made, frame, sizeof frame, &length), STATUS_OK);
    assert_int_equal(wire_encode(table, style, made, NULL, 0, &measured), STATUS_OK);
    assert_int_equal(length, measured);
    for (int mode = WIRE_LENIENT; mode <= WIRE_STRICT; mode++) {
        struct wire_decoding decoding = {family, (enum wire_mode)mode, frame, length};
        const struct wire_table *found = NULL;
        bool named = style != WIRE_NAMED;
        struct wire_error error;
        enum status status = wire_decode(&decoding, read, &found, &named, &error);
        if (status != STATUS_OK)
            fail_msg("%s: %s: %s", table->name, error.field, error.message);
        assert_ptr_equal(found, table);
        assert_int_equal(named, style == WIRE_NAMED);
        const char *different = message_difference(table, made, read);
        if (different != NULL)
            fail_msg("%s: %s came back changed", table->name, different);
    }
}

static void every_message_comes_back_as_it_was(void **state)
{
    (void)state;
    struct generator generator = {{20261130}, &arena};
    for (uint32_t f = 0; f < FAMILY_COUNT; f++)
        for (uint32_t t = 0; t < families[f]->count; t++)
            for (int i = 0; i < ROUNDS; i++)
                round_trip(&generator, families[f], families[f]->tables[t],
                           i % 2 == 0 ? WIRE_NUMBERED : WIRE_NAMED);
}

static void a_small_buffer_is_full_and_never_overrun(void **state)
{
    (void)state;
    struct generator generator = {{7}, &arena};
    uint64_t made[MESSAGE_BYTES_MAX / 8];
    for (uint32_t f = 0; f < FAMILY_COUNT; f++) {
        for (uint32_t t = 0; t < families[f]->count; t++) {
            const struct wire_table *table = families[f]->tables[t];
            arena_reset(&arena);
            generate_message(&generator, table, made);
            size_t length = 0;
            assert_int_equal(wire_encode(table, WIRE_NUMBERED, made, NULL, 0, &length), STATUS_OK);
            for (size_t capacity = 0; capacity < length && capacity < 400; capacity++) {
                size_t untouched = 12345;
                frame[capacity] = 0xa5;
                assert_int_equal(
                    wire_encode(table, WIRE_NUMBERED, made, frame, capacity, &untouched),
                    STATUS_FULL);
                assert_int_equal(untouched, 12345);
                assert_int_equal(frame[capacity], 0xa5);
            }
        }
    }
}

static void append_bytes(void *context, const void *bytes, size_t length)
{
    size_t *at = context;
    memcpy(frame + *at, bytes, length);
    *at += length;
}

static void a_sink_gets_the_bytes_of_the_buffer(void **state)
{
    (void)state;
    struct generator generator = {{8}, &arena};
    static uint8_t direct[1 << 16];
    uint64_t made[MESSAGE_BYTES_MAX / 8];
    for (int i = 0; i < ROUNDS; i++) {
        arena_reset(&arena);
        generate_message(&generator, &client_submit_table, made);
        size_t length = 0, streamed = 0;
        assert_int_equal(
            wire_encode(&client_submit_table, WIRE_NUMBERED, made, direct, sizeof direct, &length),
            STATUS_OK);
        wire_encode_to(&client_submit_table, WIRE_NUMBERED, made, append_bytes, &streamed);
        assert_int_equal(streamed, length);
        assert_memory_equal(frame, direct, length);
    }
}

/* ---- The tables themselves ---- */

static void judge_table(const struct wire_table *table)
{
    assert_true(table->field_count <= WIRE_FIELDS_MAX);
    assert_true(strlen(table->text) > 0);
    for (uint32_t i = 0; i < table->field_count; i++) {
        const struct wire_field *field = &table->fields[i];
        assert_true(strlen(field->text) > 0);
        assert_true(field->key > (table->number != 0 ? WIRE_KEY_TYPE : 0));
        assert_true(field->key < 128); /* one byte on the wire */
        assert_true(field->type > WIRE_TYPE_NONE && field->type < WIRE_TYPE_COUNT);
        assert_true(field->minimum <= field->maximum && field->low <= field->high);
        assert_true(strlen(field->name) < LIMIT_ERROR_FIELD_BYTES / 2);
        assert_int_equal(field->type == WIRE_TYPE_ENUM, field->of_enum != NULL);
        assert_int_equal(field->type == WIRE_TYPE_GROUP || field->type == WIRE_TYPE_LIST,
                         field->of_table != NULL);
        for (uint32_t j = 0; j < i; j++) {
            assert_int_not_equal(field->key, table->fields[j].key);
            assert_string_not_equal(field->name, table->fields[j].name);
        }
    }
}

static void judge_item(const struct wire_table *item)
{
    judge_table(item);
    assert_true(item->struct_bytes <= WIRE_ITEM_BYTES_MAX);
    for (uint32_t i = 0; i < item->field_count; i++)
        assert_null(item->fields[i].of_table);
}

static void tables_are_well_formed(void **state)
{
    (void)state;
    for (uint32_t f = 0; f < FAMILY_COUNT; f++) {
        for (uint32_t t = 0; t < families[f]->count; t++) {
            const struct wire_table *open[16] = {families[f]->tables[t]};
            assert_true(open[0]->number > 0 && open[0]->number < 128);
            for (uint32_t other = 0; other < t; other++)
                assert_int_not_equal(open[0]->number, families[f]->tables[other]->number);
            for (uint32_t count = 1; count > 0;) {
                const struct wire_table *table = open[--count];
                judge_table(table);
                for (uint32_t i = 0; i < table->field_count; i++) {
                    if (table->fields[i].type == WIRE_TYPE_LIST)
                        judge_item(table->fields[i].of_table);
                    if (table->fields[i].type == WIRE_TYPE_GROUP)
                        open[count++] = table->fields[i].of_table;
                }
            }
        }
    }
}

/* ---- Views ---- */

static void tokens_are_copied_from_both_forms(void **state)
{
    (void)state;
    static const uint8_t array[] = {0x05, 0xcd, 0x01, 0x00, 0xce, 0x00, 0x0f, 0xff, 0xff};
    const uint32_t due[] = {5, 256, 1048575};
    struct wire_tokens of_array = {.bytes = array, .count = 3, .encoded_bytes = sizeof array};
    struct wire_tokens of_bin = wire_tokens_of(due, 3);
    uint32_t out[4] = {9, 9, 9, 9};
    assert_int_equal(wire_tokens_copy(&of_array, out, 4), 3);
    assert_memory_equal(out, due, sizeof due);
    assert_int_equal(out[3], 9);
    memset(out, 0, sizeof out);
    assert_int_equal(wire_tokens_copy(&of_bin, out, 2), 2);
    assert_memory_equal(out, due, 8);
    assert_int_equal(out[2], 0);
    struct wire_tokens none = {0};
    assert_int_equal(wire_tokens_copy(&none, NULL, 0), 0);
}

static void enum_numbers_have_names(void **state)
{
    (void)state;
    assert_string_equal(wire_enum_name(&finish_reason_enum, FINISH_REASON_LENGTH), "length");
    assert_string_equal(wire_enum_name(&finish_reason_enum, 0), "unknown");
    assert_string_equal(wire_enum_name(&finish_reason_enum, 99), "unknown");
    assert_ptr_equal(wire_family_table(&client_answer_family, CLIENT_ANSWER_OUTPUT),
                     &client_output_table);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_message_comes_back_as_it_was),
        cmocka_unit_test(a_small_buffer_is_full_and_never_overrun),
        cmocka_unit_test(a_sink_gets_the_bytes_of_the_buffer),
        cmocka_unit_test(tables_are_well_formed),
        cmocka_unit_test(tokens_are_copied_from_both_forms),
        cmocka_unit_test(enum_numbers_have_names),
    };
    return cmocka_run_group_tests(tests, make_arena, drop_arena);
}
