/* Random messages from the tables of fields, for tests and fuzz seeds: values within their bounds,
 * often exactly at them. Also deep comparison of two messages of one table. */
#ifndef TANDEM_TESTS_SUPPORT_MESSAGE_GENERATOR_H
#define TANDEM_TESTS_SUPPORT_MESSAGE_GENERATOR_H

#include "common/arena.h"
#include "common/check.h"
#include "common/random.h"
#include "common/utf8.h"
#include "proto/wire.h"

#include <stdbool.h>
#include <string.h>

enum { GENERATED_BYTES_MAX = 200, GENERATED_COUNT_MAX = 40 };

struct generator {
    struct random random;
    struct arena *arena; /* texts and lists live here */
};

/* Uniform over [minimum, maximum], with the ends and small values drawn often. */
static inline uint64_t generate_between(struct generator *generator, uint64_t minimum,
                                        uint64_t maximum)
{
    uint32_t way = random_below(&generator->random, 8);
    uint64_t span = maximum - minimum;
    if (way == 0)
        return minimum;
    if (way == 1)
        return maximum;
    if (way < 5)
        return minimum +
               (span == 0 ? 0 : random_next(&generator->random) % (span < 300 ? span : 300));
    return minimum + (span == UINT64_MAX ? random_next(&generator->random)
                                         : random_next(&generator->random) % (span + 1));
}

static inline uint32_t generate_count(struct generator *generator, uint64_t minimum,
                                      uint64_t maximum, uint32_t cap)
{
    uint64_t end = maximum < cap ? maximum : cap;
    return (uint32_t)(minimum >= end ? minimum : generate_between(generator, minimum, end));
}

/* `length` bytes of well-formed UTF-8, characters of all four lengths. */
static inline struct wire_text generate_text(struct generator *generator, uint32_t length)
{
    char *bytes = arena_alloc(generator->arena, length + 1);
    CHECK(bytes != NULL);
    uint32_t at = 0;
    while (at < length) {
        static const uint32_t ends[] = {0x80, 0x800, 0x10000, 0x110000};
        uint32_t point =
            random_below(&generator->random, ends[random_below(&generator->random, 4)]);
        char character[UTF8_BYTES_MAX];
        if (point >= 0xd800 && point < 0xe000)
            continue;
        size_t count = utf8_encode(point, character);
        if (at + count > length)
            point = (uint32_t)'a', count = utf8_encode(point, character);
        memcpy(bytes + at, character, count);
        at += (uint32_t)count;
    }
    struct wire_text text = {bytes, length};
    return text;
}

static inline struct wire_text generate_blob(struct generator *generator, uint32_t length)
{
    struct wire_text text = generate_text(generator, length);
    if (length > 0 && random_below(&generator->random, 4) == 0)
        ((char *)(uintptr_t)text.bytes)[length - 1] = (char)0xff;
    return text;
}

static inline float generate_float(struct generator *generator, const struct wire_field *field)
{
    double share = (double)random_below(&generator->random, 1001) / 1000;
    float value = (float)(field->low + share * (field->high - field->low));
    if (field->type == WIRE_TYPE_F32_ABOVE && (double)value <= field->low)
        value = (float)field->high;
    return value;
}

static inline const uint8_t *generate_bytes(struct generator *generator, size_t length)
{
    uint8_t *bytes = arena_alloc(generator->arena, length + 1);
    CHECK(bytes != NULL);
    for (size_t i = 0; i < length; i++)
        bytes[i] = (uint8_t)random_next(&generator->random);
    return bytes;
}

static inline struct wire_tokens generate_tokens(struct generator *generator, uint32_t count)
{
    uint32_t *ids = arena_alloc_array(generator->arena, count + 1, sizeof *ids);
    CHECK(ids != NULL);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (uint32_t)generate_between(generator, 0, LIMIT_VOCABULARY - 1);
    return wire_tokens_of(ids, count);
}

/* All values of plain fields; groups and lists are left to generate_message. */
static inline void generate_plain(struct generator *generator, const struct wire_field *field,
                                  uint8_t *member)
{
    uint64_t number = generate_between(generator, field->minimum, field->maximum);
    uint32_t count = generate_count(generator, field->minimum, field->maximum, GENERATED_BYTES_MAX);
    struct wire_text_list *list = (struct wire_text_list *)(void *)member;
    struct wire_column column = {NULL, count};
    switch (field->type) {
    case WIRE_TYPE_BOOL:
        *(bool *)member = random_below(&generator->random, 2) == 1;
        break;
    case WIRE_TYPE_U32:
        *(uint32_t *)(void *)member = (uint32_t)number;
        break;
    case WIRE_TYPE_U64:
        *(uint64_t *)(void *)member = number;
        break;
    case WIRE_TYPE_F32:
    case WIRE_TYPE_F32_ABOVE:
        *(float *)(void *)member = generate_float(generator, field);
        break;
    case WIRE_TYPE_F64:
        *(double *)(void *)member = number % 2 == 0 ? (double)(number % 1000) : 0.25;
        break;
    case WIRE_TYPE_ENUM:
        *(uint32_t *)(void *)member =
            field->of_enum->values[random_below(&generator->random, field->of_enum->count)].number;
        break;
    case WIRE_TYPE_ID128:
        memcpy(member, generate_bytes(generator, 16), 16);
        break;
    case WIRE_TYPE_TEXT:
        *(struct wire_text *)(void *)member = generate_text(generator, count);
        break;
    case WIRE_TYPE_BLOB:
        *(struct wire_text *)(void *)member = generate_blob(generator, count);
        break;
    case WIRE_TYPE_TEXT_LIST:
        list->count = random_below(&generator->random, LIMIT_STOP_STRINGS + 1);
        for (uint32_t i = 0; i < list->count; i++)
            list->items[i] = generate_text(
                generator, generate_count(generator, field->minimum, field->maximum, 64));
        break;
    case WIRE_TYPE_TOKENS:
        *(struct wire_tokens *)(void *)member = generate_tokens(generator, count);
        break;
    case WIRE_TYPE_COLUMN_U32:
    case WIRE_TYPE_COLUMN_F32:
    case WIRE_TYPE_COLUMN_U64:
        column.bytes = generate_bytes(generator, (size_t)count * 8);
        *(struct wire_column *)(void *)member = column;
        break;
    default:
        CHECK(!"a group or list is no plain field");
    }
}

static inline bool generate_presence(struct generator *generator, const struct wire_field *field,
                                     uint8_t *base)
{
    bool present = field->presence == WIRE_REQUIRED || random_below(&generator->random, 3) != 0;
    if (field->presence == WIRE_OPTIONAL)
        *(bool *)(base + field->has_offset) = present;
    return present;
}

/* Items of a list are flat: no groups, no lists in them. */
static inline struct wire_list generate_list(struct generator *generator,
                                             const struct wire_field *field)
{
    const struct wire_table *table = field->of_table;
    struct wire_list list = {
        .count = generate_count(generator, field->minimum, field->maximum, GENERATED_COUNT_MAX)};
    uint8_t *items = arena_alloc_array(generator->arena, list.count + 1, table->struct_bytes);
    CHECK(items != NULL);
    list.items = items;
    for (uint32_t i = 0; i < list.count; i++)
        for (uint32_t f = 0; f < table->field_count; f++)
            if (generate_presence(generator, &table->fields[f], items + i * table->struct_bytes))
                generate_plain(generator, &table->fields[f],
                               items + i * table->struct_bytes + table->fields[f].offset);
    return list;
}

/* Fills `message`, a struct of `table`. Groups are walked with an own stack. */
static inline void generate_message(struct generator *generator, const struct wire_table *table,
                                    void *message)
{
    struct {
        const struct wire_table *table;
        uint8_t *base;
    } open[32] = {{table, message}};
    uint32_t count = 1;
    memset(message, 0, table->struct_bytes);
    while (count > 0) {
        const struct wire_table *at = open[--count].table;
        uint8_t *base = open[count].base;
        for (uint32_t f = 0; f < at->field_count; f++) {
            const struct wire_field *field = &at->fields[f];
            if (!generate_presence(generator, field, base))
                continue;
            if (field->type == WIRE_TYPE_GROUP) {
                CHECK(count < 32);
                open[count].table = field->of_table;
                open[count++].base = base + field->offset;
            } else if (field->type == WIRE_TYPE_LIST) {
                *(struct wire_list *)(void *)(base + field->offset) =
                    generate_list(generator, field);
            } else {
                generate_plain(generator, field, base + field->offset);
            }
        }
    }
}

/* ---- Comparison ---- */

static inline bool tokens_equal(const struct wire_tokens *a, const struct wire_tokens *b)
{
    static uint32_t ids[2][LIMIT_CLIENT_FRAME_BYTES];
    uint32_t count = wire_tokens_copy(a, ids[0], LIMIT_CLIENT_FRAME_BYTES);
    return count == wire_tokens_copy(b, ids[1], LIMIT_CLIENT_FRAME_BYTES) &&
           memcmp(ids[0], ids[1], count * sizeof(uint32_t)) == 0;
}

static inline bool texts_equal(const struct wire_text *a, const struct wire_text *b)
{
    return a->length == b->length && (a->length == 0 || memcmp(a->bytes, b->bytes, a->length) == 0);
}

static inline bool text_lists_equal(const struct wire_text_list *a, const struct wire_text_list *b)
{
    bool equal = a->count == b->count;
    for (uint32_t i = 0; equal && i < a->count; i++)
        equal = texts_equal(&a->items[i], &b->items[i]);
    return equal;
}

static inline bool columns_equal(const struct wire_column *a, const struct wire_column *b,
                                 size_t value_bytes)
{
    return a->count == b->count &&
           (a->count == 0 || memcmp(a->bytes, b->bytes, a->count * value_bytes) == 0);
}

static inline bool plain_equal(const struct wire_field *field, const void *a, const void *b)
{
    switch (field->type) {
    case WIRE_TYPE_BOOL:
        return *(const bool *)a == *(const bool *)b;
    case WIRE_TYPE_U64:
    case WIRE_TYPE_F64:
        return memcmp(a, b, 8) == 0;
    case WIRE_TYPE_ID128:
        return memcmp(a, b, 16) == 0;
    case WIRE_TYPE_TEXT:
    case WIRE_TYPE_BLOB:
        return texts_equal(a, b);
    case WIRE_TYPE_TEXT_LIST:
        return text_lists_equal(a, b);
    case WIRE_TYPE_TOKENS:
        return tokens_equal(a, b);
    case WIRE_TYPE_COLUMN_U32:
    case WIRE_TYPE_COLUMN_F32:
        return columns_equal(a, b, 4);
    case WIRE_TYPE_COLUMN_U64:
        return columns_equal(a, b, 8);
    default:
        return memcmp(a, b, 4) == 0;
    }
}

/* `made` was generated, `read` was decoded. */
static inline bool lists_equal(const struct wire_table *table, const struct wire_list *made,
                               const struct wire_list *read)
{
    uint64_t item[2 * WIRE_ITEM_BYTES_MAX / sizeof(uint64_t)]; /* spare: no type is larger */
    const uint8_t *cursor = read->encoded;
    uint32_t seen = 0;
    while (wire_list_next(read, table, &cursor, item)) {
        const uint8_t *due = (const uint8_t *)made->items + seen * table->struct_bytes;
        if (seen++ >= made->count)
            return false;
        for (uint32_t f = 0; f < table->field_count; f++)
            if (!plain_equal(&table->fields[f], due + table->fields[f].offset,
                             (const uint8_t *)item + table->fields[f].offset))
                return false;
    }
    return seen == made->count && read->count == made->count;
}

/* Name of the first field that differs between a generated and a decoded message, NULL if none
 * does. */
static inline const char *message_difference(const struct wire_table *table, const void *made,
                                             const void *read)
{
    struct {
        const struct wire_table *table;
        const uint8_t *made, *read;
    } open[32] = {{table, made, read}};
    uint32_t count = 1;
    while (count > 0) {
        const struct wire_table *at = open[--count].table;
        const uint8_t *a = open[count].made, *b = open[count].read;
        for (uint32_t f = 0; f < at->field_count; f++) {
            const struct wire_field *field = &at->fields[f];
            const uint8_t *left = a + field->offset, *right = b + field->offset;
            if (field->presence == WIRE_OPTIONAL) {
                bool has = *(const bool *)(a + field->has_offset);
                if (has != *(const bool *)(b + field->has_offset))
                    return field->name;
                if (!has)
                    continue;
            }
            if (field->type == WIRE_TYPE_GROUP) {
                CHECK(count < 32);
                open[count].table = field->of_table;
                open[count].made = left;
                open[count++].read = right;
            } else if (field->type == WIRE_TYPE_LIST) {
                if (!lists_equal(field->of_table, (const void *)left, (const void *)right))
                    return field->name;
            } else if (!plain_equal(field, left, right)) {
                return field->name;
            }
        }
    }
    return NULL;
}

#endif
