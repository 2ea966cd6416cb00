#include "proto/wire.h"

#include "common/check.h"
#include "common/utf8.h"
#include "proto/msgpack_reader.h"
#include "proto/msgpack_writer.h"

#include <math.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
               "columns and token ids are copied as they lie in memory");

struct wire_text wire_text_of(const char *string)
{
    size_t length = strlen(string);
    CHECK(length <= UINT32_MAX);
    struct wire_text text = {string, (uint32_t)length};
    return text;
}

struct wire_tokens wire_tokens_of(const uint32_t *ids, uint32_t count)
{
    struct wire_tokens tokens = {.bytes = (const uint8_t *)ids, .count = count, .packed = true};
    return tokens;
}

const struct wire_table *wire_family_table(const struct wire_family *family, uint32_t number)
{
    for (uint32_t i = 0; i < family->count; i++)
        if (family->tables[i]->number == number)
            return family->tables[i];
    CHECK(!"a message without type");
    return NULL;
}

const char *wire_enum_name(const struct wire_enum *names, uint32_t number)
{
    for (uint32_t i = 0; i < names->count; i++)
        if (names->values[i].number == number)
            return names->values[i].name;
    return "unknown";
}

uint32_t wire_tokens_copy(const struct wire_tokens *tokens, uint32_t *out, uint32_t capacity)
{
    uint32_t count = tokens->count < capacity ? tokens->count : capacity;
    if (count == 0)
        return 0;
    if (tokens->packed) {
        memcpy(out, tokens->bytes, (size_t)count * sizeof *out);
        return count;
    }
    struct msgpack_reader reader = {tokens->bytes, tokens->bytes + tokens->encoded_bytes};
    for (uint32_t i = 0; i < count; i++) {
        struct msgpack_item item;
        CHECK(msgpack_read(&reader, &item) && item.kind == MSGPACK_UNSIGNED);
        out[i] = (uint32_t)item.number;
    }
    return count;
}

/* ---- Encoder ---- */

struct level {
    const struct wire_table *table;
    const uint8_t *base;
    uint32_t next_field;
    const struct wire_list *list; /* NULL: a group or the message itself */
    uint32_t item_index;
    const uint8_t *cursor; /* of a decoded list */
};

struct encoder {
    struct msgpack_writer writer;
    enum wire_style style;
    struct level levels[WIRE_LEVELS_MAX];
    uint32_t depth;
    uint64_t item[WIRE_ITEM_BYTES_MAX / sizeof(uint64_t)]; /* of a decoded list */
};

static bool is_present(const struct wire_field *field, const uint8_t *base)
{
    return field->presence != WIRE_OPTIONAL || *(const bool *)(base + field->has_offset);
}

static void write_name(struct msgpack_writer *writer, const char *name)
{
    msgpack_write_str(writer, name, strlen(name));
}

static void write_map_head(struct encoder *encoder, const struct wire_table *table,
                           const uint8_t *base)
{
    bool typed = encoder->depth == 1 && table->number != 0; /* a message may also be a group */
    uint32_t pairs = typed ? 1 : 0;
    for (uint32_t i = 0; i < table->field_count; i++)
        pairs += is_present(&table->fields[i], base) ? 1 : 0;
    msgpack_write_map(&encoder->writer, pairs);
    if (!typed)
        return;
    if (encoder->style == WIRE_NAMED) {
        write_name(&encoder->writer, "type");
        write_name(&encoder->writer, table->name);
    } else {
        msgpack_write_unsigned(&encoder->writer, WIRE_KEY_TYPE);
        msgpack_write_unsigned(&encoder->writer, table->number);
    }
}

static void push(struct encoder *encoder, const struct wire_table *table, const uint8_t *base)
{
    CHECK(encoder->depth < WIRE_LEVELS_MAX);
    encoder->levels[encoder->depth++] = (struct level){.table = table, .base = base};
    write_map_head(encoder, table, base);
}

/* Points the level at the next item of its list; false at the end. */
static bool next_item(struct encoder *encoder, struct level *level)
{
    const struct wire_list *list = level->list;
    if (list->items != NULL) {
        if (level->item_index == list->count)
            return false;
        level->base =
            (const uint8_t *)list->items + (size_t)level->item_index * level->table->struct_bytes;
    } else {
        if (!wire_list_next(list, level->table, &level->cursor, encoder->item))
            return false;
        level->base = (const uint8_t *)encoder->item;
    }
    level->item_index++;
    level->next_field = 0;
    write_map_head(encoder, level->table, level->base);
    return true;
}

static void push_list(struct encoder *encoder, const struct wire_table *table,
                      const struct wire_list *list)
{
    CHECK(encoder->depth < WIRE_LEVELS_MAX);
    CHECK(table->struct_bytes <= sizeof encoder->item);
    msgpack_write_array(&encoder->writer, list->count);
    struct level *level = &encoder->levels[encoder->depth++];
    *level = (struct level){.table = table, .list = list, .cursor = list->encoded};
    if (!next_item(encoder, level))
        encoder->depth--;
}

static void write_enum(struct encoder *encoder, const struct wire_field *field, uint32_t number)
{
    if (encoder->style == WIRE_NAMED)
        write_name(&encoder->writer, wire_enum_name(field->of_enum, number));
    else
        msgpack_write_unsigned(&encoder->writer, number);
}

static void write_real(struct msgpack_writer *writer, double value)
{
    if (value >= 0 && value < 0x1p53 && value == floor(value))
        msgpack_write_unsigned(writer, (uint64_t)value);
    else
        msgpack_write_double(writer, value);
}

static void write_blob(struct msgpack_writer *writer, const struct wire_text *text)
{
    if (utf8_valid(text->bytes, text->length))
        msgpack_write_str(writer, text->bytes, text->length);
    else
        msgpack_write_bin(writer, text->bytes, text->length);
}

static void write_text_list(struct msgpack_writer *writer, const struct wire_text_list *list)
{
    CHECK(list->count <= LIMIT_STOP_STRINGS);
    msgpack_write_array(writer, list->count);
    for (uint32_t i = 0; i < list->count; i++)
        msgpack_write_str(writer, list->items[i].bytes, list->items[i].length);
}

/* Ids that came as an array are written as bin all the same: one form for equal bodies. */
static void write_tokens(struct msgpack_writer *writer, const struct wire_tokens *tokens)
{
    if (tokens->packed || tokens->count == 0) {
        msgpack_write_bin(writer, tokens->bytes, (size_t)tokens->count * sizeof(uint32_t));
        return;
    }
    msgpack_write_bin_head(writer, (size_t)tokens->count * sizeof(uint32_t));
    struct msgpack_reader reader = {tokens->bytes, tokens->bytes + tokens->encoded_bytes};
    for (uint32_t i = 0; i < tokens->count; i++) {
        struct msgpack_item item;
        CHECK(msgpack_read(&reader, &item) && item.kind == MSGPACK_UNSIGNED);
        uint32_t id = (uint32_t)item.number;
        msgpack_write_raw(writer, &id, sizeof id);
    }
}

static void write_column(struct msgpack_writer *writer, const struct wire_column *column,
                         size_t value_bytes)
{
    msgpack_write_bin(writer, column->bytes, column->count * value_bytes);
}

static void write_value(struct encoder *encoder, const struct wire_field *field,
                        const uint8_t *member)
{
    struct msgpack_writer *writer = &encoder->writer;
    switch (field->type) {
    case WIRE_TYPE_BOOL:
        msgpack_write_bool(writer, *(const bool *)member);
        break;
    case WIRE_TYPE_U32:
        msgpack_write_unsigned(writer, *(const uint32_t *)member);
        break;
    case WIRE_TYPE_U64:
        msgpack_write_unsigned(writer, *(const uint64_t *)member);
        break;
    case WIRE_TYPE_F32:
    case WIRE_TYPE_F32_ABOVE:
        msgpack_write_float(writer, *(const float *)member);
        break;
    case WIRE_TYPE_F64:
        write_real(writer, *(const double *)member);
        break;
    case WIRE_TYPE_ENUM:
        write_enum(encoder, field, *(const uint32_t *)member);
        break;
    case WIRE_TYPE_ID128:
        msgpack_write_bin(writer, member, sizeof(struct id128));
        break;
    case WIRE_TYPE_TEXT:
        msgpack_write_str(writer, ((const struct wire_text *)member)->bytes,
                          ((const struct wire_text *)member)->length);
        break;
    case WIRE_TYPE_BLOB:
        write_blob(writer, (const struct wire_text *)member);
        break;
    case WIRE_TYPE_TEXT_LIST:
        write_text_list(writer, (const struct wire_text_list *)member);
        break;
    case WIRE_TYPE_TOKENS:
        write_tokens(writer, (const struct wire_tokens *)member);
        break;
    case WIRE_TYPE_COLUMN_U32:
    case WIRE_TYPE_COLUMN_F32:
        write_column(writer, (const struct wire_column *)member, 4);
        break;
    case WIRE_TYPE_COLUMN_U64:
        write_column(writer, (const struct wire_column *)member, 8);
        break;
    case WIRE_TYPE_GROUP:
        push(encoder, field->of_table, member);
        break;
    case WIRE_TYPE_LIST:
        push_list(encoder, field->of_table, (const struct wire_list *)member);
        break;
    default:
        CHECK(!"a type without encoding");
    }
}

static void encode(struct encoder *encoder, const struct wire_table *table, const void *message)
{
    push(encoder, table, message);
    while (encoder->depth > 0) {
        struct level *level = &encoder->levels[encoder->depth - 1];
        if (level->next_field == level->table->field_count) {
            if (level->list == NULL || !next_item(encoder, level))
                encoder->depth--;
            continue;
        }
        const struct wire_field *field = &level->table->fields[level->next_field++];
        if (!is_present(field, level->base))
            continue;
        if (encoder->style == WIRE_NAMED)
            write_name(&encoder->writer, field->name);
        else
            msgpack_write_unsigned(&encoder->writer, field->key);
        write_value(encoder, field, level->base + field->offset);
    }
}

enum status wire_encode(const struct wire_table *table, enum wire_style style, const void *message,
                        uint8_t *out, size_t capacity, size_t *out_bytes)
{
    struct encoder encoder;
    encoder.writer = (struct msgpack_writer){.out = out, .capacity = capacity};
    encoder.style = style;
    encoder.depth = 0;
    encode(&encoder, table, message);
    if (out != NULL && encoder.writer.length > capacity)
        return STATUS_FULL;
    *out_bytes = encoder.writer.length;
    return STATUS_OK;
}

void wire_encode_to(const struct wire_table *table, enum wire_style style, const void *message,
                    wire_sink sink, void *context)
{
    struct encoder encoder;
    encoder.writer = (struct msgpack_writer){.sink = sink, .sink_context = context};
    encoder.style = style;
    encoder.depth = 0;
    encode(&encoder, table, message);
}
