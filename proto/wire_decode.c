/* The decoding half of wire.h. */
#include "proto/wire.h"

#include "common/check.h"
#include "common/text.h"
#include "common/utf8.h"
#include "proto/msgpack_reader.h"
#include "proto/wire_reasons.h"

#include <math.h>
#include <string.h>

enum { PATH_BYTES = LIMIT_ERROR_FIELD_BYTES };

struct level {
    const struct wire_table *table;
    uint8_t *base;
    uint64_t seen;                   /* bit i: field i came */
    uint32_t pairs_left;             /* of the map at hand */
    uint32_t next_field;             /* most senders keep the order of the table */
    const struct wire_field *origin; /* field of the level above; NULL on the first */
    bool is_list;
    uint32_t item_count, items_begun;
};

struct decoder {
    struct msgpack_reader reader;
    const struct wire_family *family; /* NULL while a list is walked again */
    enum wire_mode mode;
    struct wire_error *error;
    bool type_seen;
    uint32_t depth;
    struct level levels[WIRE_LEVELS_MAX];
    uint64_t item[WIRE_ITEM_BYTES_MAX / sizeof(uint64_t)]; /* list items are checked here */
};

/* ---- Refusals ---- */

static void write_path(const struct decoder *decoder, const char *name, struct text *path)
{
    for (uint32_t i = 1; i < decoder->depth; i++) {
        const struct level *level = &decoder->levels[i];
        text_format(path, "%s%s", i > 1 ? "." : "", level->origin->name);
        if (level->is_list)
            text_format(path, "[%u]", level->items_begun - 1);
    }
    if (decoder->depth > 1)
        text_append(path, ".", 1);
    text_append(path, name, strlen(name));
}

static bool refuse_value(const struct decoder *decoder, const struct wire_field *field,
                         const struct msgpack_item *item)
{
    char storage[PATH_BYTES];
    struct text path;
    text_init(&path, storage, sizeof storage);
    write_path(decoder, field->name, &path);
    wire_refuse_value(decoder->error, storage, field, item);
    return false;
}

/* One element of a list of plain values: it is judged as `element`, a field of its own. */
static bool refuse_element(const struct decoder *decoder, const struct wire_field *element,
                           uint32_t index, const struct msgpack_item *item)
{
    char storage[PATH_BYTES];
    struct text path;
    text_init(&path, storage, sizeof storage);
    write_path(decoder, element->name, &path);
    text_format(&path, "[%u]", index);
    wire_refuse_value(decoder->error, storage, element, item);
    return false;
}

static bool refuse_broken(struct decoder *decoder)
{
    wire_refuse_structure(decoder->error, MSGPACK_CUT, 0);
    return false;
}

static bool refuse_missing(const struct decoder *decoder, const struct wire_field *field)
{
    char storage[PATH_BYTES];
    struct text path;
    text_init(&path, storage, sizeof storage);
    write_path(decoder, field->name, &path);
    wire_refuse_missing(decoder->error, storage, field);
    return false;
}

static bool refuse_repeated(const struct decoder *decoder, const char *name)
{
    char storage[PATH_BYTES];
    struct text path;
    text_init(&path, storage, sizeof storage);
    write_path(decoder, name, &path);
    wire_refuse_repeated(decoder->error, storage);
    return false;
}

static bool refuse_unknown(const struct decoder *decoder, const struct wire_table *table,
                           const struct msgpack_item *key)
{
    char storage[PATH_BYTES];
    struct text path;
    text_init(&path, storage, sizeof storage);
    write_path(decoder, "", &path);
    wire_refuse_unknown(decoder->error, storage, table, decoder->family, key);
    return false;
}

/* ---- Values: each stores a checked value in `member`, or refuses ---- */

static bool store_bool(struct decoder *decoder, const struct wire_field *field,
                       const struct msgpack_item *item, uint8_t *member)
{
    if (item->kind != MSGPACK_BOOL)
        return refuse_value(decoder, field, item);
    memcpy(member, &item->truth, sizeof(bool));
    return true;
}

static bool is_integer_within(const struct wire_field *field, const struct msgpack_item *item)
{
    return item->kind == MSGPACK_UNSIGNED && item->number >= field->minimum &&
           item->number <= field->maximum;
}

static bool store_u32(struct decoder *decoder, const struct wire_field *field,
                      const struct msgpack_item *item, uint8_t *member)
{
    if (!is_integer_within(field, item) || item->number > UINT32_MAX)
        return refuse_value(decoder, field, item);
    uint32_t value = (uint32_t)item->number;
    memcpy(member, &value, sizeof value);
    return true;
}

static bool store_u64(struct decoder *decoder, const struct wire_field *field,
                      const struct msgpack_item *item, uint8_t *member)
{
    if (!is_integer_within(field, item))
        return refuse_value(decoder, field, item);
    memcpy(member, &item->number, sizeof item->number);
    return true;
}

/* Any number as a double; false for what is none. */
static bool real_of(const struct msgpack_item *item, double *out_value)
{
    if (item->kind == MSGPACK_FLOAT)
        *out_value = item->real;
    else if (item->kind == MSGPACK_UNSIGNED)
        *out_value = (double)item->number;
    else if (item->kind == MSGPACK_NEGATIVE)
        *out_value = (double)item->negative;
    else
        return false;
    return isfinite(*out_value);
}

static bool store_f32(struct decoder *decoder, const struct wire_field *field,
                      const struct msgpack_item *item, uint8_t *member)
{
    double real;
    if (!real_of(item, &real) || !(real >= field->low && real <= field->high))
        return refuse_value(decoder, field, item);
    float value = (float)real;
    if (field->type == WIRE_TYPE_F32_ABOVE && !((double)value > field->low))
        return refuse_value(decoder, field, item);
    memcpy(member, &value, sizeof value);
    return true;
}

static bool store_f64(struct decoder *decoder, const struct wire_field *field,
                      const struct msgpack_item *item, uint8_t *member)
{
    double real;
    if (!real_of(item, &real) || !(real >= field->low && real <= field->high))
        return refuse_value(decoder, field, item);
    memcpy(member, &real, sizeof real);
    return true;
}

static bool find_enum_number(const struct wire_enum *names, const struct msgpack_item *item,
                             uint32_t *out_number)
{
    for (uint32_t i = 0; i < names->count; i++) {
        const struct wire_enum_value *value = &names->values[i];
        bool found = item->kind == MSGPACK_UNSIGNED
                         ? item->number == value->number
                         : item->count == strlen(value->name) &&
                               memcmp(item->bytes, value->name, item->count) == 0;
        if (found) {
            *out_number = value->number;
            return true;
        }
    }
    return false;
}

static bool store_enum(struct decoder *decoder, const struct wire_field *field,
                       const struct msgpack_item *item, uint8_t *member)
{
    uint32_t number = 0;
    if (item->kind != MSGPACK_UNSIGNED && item->kind != MSGPACK_STR)
        return refuse_value(decoder, field, item);
    if (!find_enum_number(field->of_enum, item, &number) && decoder->mode == WIRE_STRICT)
        return refuse_value(decoder, field, item);
    memcpy(member, &number, sizeof number);
    return true;
}

static bool store_id128(struct decoder *decoder, const struct wire_field *field,
                        const struct msgpack_item *item, uint8_t *member)
{
    if (item->kind != MSGPACK_BIN || item->count != sizeof(struct id128))
        return refuse_value(decoder, field, item);
    memcpy(member, item->bytes, sizeof(struct id128));
    return true;
}

static bool is_text_within(const struct wire_field *field, const struct msgpack_item *item)
{
    return item->kind == MSGPACK_STR && item->count >= field->minimum &&
           item->count <= field->maximum && utf8_valid((const char *)item->bytes, item->count);
}

static void set_text(uint8_t *member, const struct msgpack_item *item)
{
    struct wire_text text = {(const char *)item->bytes, item->count};
    memcpy(member, &text, sizeof text);
}

static bool store_text(struct decoder *decoder, const struct wire_field *field,
                       const struct msgpack_item *item, uint8_t *member)
{
    if (!is_text_within(field, item))
        return refuse_value(decoder, field, item);
    set_text(member, item);
    return true;
}

static bool store_blob(struct decoder *decoder, const struct wire_field *field,
                       const struct msgpack_item *item, uint8_t *member)
{
    if ((item->kind != MSGPACK_STR && item->kind != MSGPACK_BIN) || item->count < field->minimum ||
        item->count > field->maximum)
        return refuse_value(decoder, field, item);
    set_text(member, item);
    return true;
}

static bool store_text_list(struct decoder *decoder, const struct wire_field *field,
                            const struct msgpack_item *item, uint8_t *member)
{
    struct wire_text_list *list = (struct wire_text_list *)member;
    if (item->kind != MSGPACK_ARRAY || item->count > LIMIT_STOP_STRINGS)
        return refuse_value(decoder, field, item);
    struct wire_field element = *field;
    element.type = WIRE_TYPE_TEXT;
    for (uint32_t i = 0; i < item->count; i++) {
        struct msgpack_item text;
        if (!msgpack_read(&decoder->reader, &text))
            return refuse_broken(decoder);
        if (!is_text_within(&element, &text))
            return refuse_element(decoder, &element, i, &text);
        set_text((uint8_t *)&list->items[i], &text);
    }
    list->count = item->count;
    return true;
}

static bool store_token_array(struct decoder *decoder, const struct wire_field *field,
                              const struct msgpack_item *item, struct wire_tokens *tokens)
{
    struct wire_field element = *field;
    element.type = WIRE_TYPE_U32;
    element.minimum = 0;
    element.maximum = LIMIT_VOCABULARY - 1;
    const uint8_t *begin = decoder->reader.next;
    for (uint32_t i = 0; i < item->count; i++) {
        struct msgpack_item token;
        if (!msgpack_read(&decoder->reader, &token))
            return refuse_broken(decoder);
        if (!is_integer_within(&element, &token))
            return refuse_element(decoder, &element, i, &token);
    }
    *tokens = (struct wire_tokens){.bytes = begin,
                                   .count = item->count,
                                   .encoded_bytes = (uint32_t)(decoder->reader.next - begin)};
    return true;
}

static bool store_tokens(struct decoder *decoder, const struct wire_field *field,
                         const struct msgpack_item *item, uint8_t *member)
{
    struct wire_tokens *tokens = (struct wire_tokens *)member;
    uint32_t count = item->kind == MSGPACK_BIN ? item->count / 4 : item->count;
    if ((item->kind != MSGPACK_ARRAY && item->kind != MSGPACK_BIN) || count < field->minimum ||
        count > field->maximum || (item->kind == MSGPACK_BIN && item->count % 4 != 0))
        return refuse_value(decoder, field, item);
    if (item->kind == MSGPACK_ARRAY)
        return store_token_array(decoder, field, item, tokens);
    for (uint32_t i = 0; i < count; i++) {
        uint32_t token;
        memcpy(&token, item->bytes + (size_t)i * sizeof token, sizeof token);
        if (token >= LIMIT_VOCABULARY) {
            struct wire_field element = *field;
            element.type = WIRE_TYPE_U32;
            element.minimum = 0;
            element.maximum = LIMIT_VOCABULARY - 1;
            struct msgpack_item found = {.kind = MSGPACK_UNSIGNED, .number = token};
            return refuse_element(decoder, &element, i, &found);
        }
    }
    *tokens = (struct wire_tokens){.bytes = item->bytes, .count = count, .packed = true};
    return true;
}

static bool store_column(struct decoder *decoder, const struct wire_field *field,
                         const struct msgpack_item *item, uint8_t *member)
{
    uint32_t value_bytes = field->type == WIRE_TYPE_COLUMN_U64 ? 8 : 4;
    uint32_t count = item->count / value_bytes;
    if (item->kind != MSGPACK_BIN || item->count % value_bytes != 0 || count < field->minimum ||
        count > field->maximum)
        return refuse_value(decoder, field, item);
    struct wire_column column = {item->bytes, count};
    memcpy(member, &column, sizeof column);
    return true;
}

/* ---- Maps ---- */

static void push_level(struct decoder *decoder, const struct wire_table *table, uint8_t *base,
                       uint32_t pairs, const struct wire_field *origin)
{
    CHECK(decoder->depth < WIRE_LEVELS_MAX && table->field_count <= WIRE_FIELDS_MAX);
    decoder->levels[decoder->depth++] =
        (struct level){.table = table, .base = base, .pairs_left = pairs, .origin = origin};
}

static bool store_group(struct decoder *decoder, const struct wire_field *field,
                        const struct msgpack_item *item, uint8_t *member)
{
    if (item->kind != MSGPACK_MAP)
        return refuse_value(decoder, field, item);
    push_level(decoder, field->of_table, member, item->count, field);
    return true;
}

/* Begins the next item of the list on top; its level is left by end_of_map. */
static bool begin_item(struct decoder *decoder, struct level *level)
{
    struct msgpack_item head;
    if (!msgpack_read(&decoder->reader, &head))
        return refuse_broken(decoder);
    if (head.kind != MSGPACK_MAP) {
        struct wire_field element = *level->origin;
        element.type = WIRE_TYPE_GROUP;
        uint32_t index = level->items_begun;
        decoder->depth--;
        return refuse_element(decoder, &element, index, &head);
    }
    memset(decoder->item, 0, level->table->struct_bytes);
    level->items_begun++;
    level->pairs_left = head.count;
    level->seen = 0;
    level->next_field = 0;
    return true;
}

static bool store_list(struct decoder *decoder, const struct wire_field *field,
                       const struct msgpack_item *item, uint8_t *member)
{
    if (item->kind != MSGPACK_ARRAY || item->count < field->minimum || item->count > field->maximum)
        return refuse_value(decoder, field, item);
    struct wire_list *list = (struct wire_list *)member;
    *list = (struct wire_list){.encoded = decoder->reader.next, .count = item->count};
    /* The whole list was skimmed, so its end is known before its items are judged. */
    struct msgpack_reader copy = decoder->reader;
    for (uint32_t i = 0; i < item->count; i++)
        if (!msgpack_skip(&copy))
            return refuse_broken(decoder);
    list->encoded_bytes = (uint32_t)(copy.next - decoder->reader.next);
    if (item->count == 0)
        return true;
    CHECK(field->of_table->struct_bytes <= sizeof decoder->item);
    push_level(decoder, field->of_table, (uint8_t *)decoder->item, 0, field);
    struct level *level = &decoder->levels[decoder->depth - 1];
    level->is_list = true;
    level->item_count = item->count;
    return begin_item(decoder, level);
}

typedef bool (*store_function)(struct decoder *decoder, const struct wire_field *field,
                               const struct msgpack_item *item, uint8_t *member);

static const store_function stores[WIRE_TYPE_COUNT] = {
    [WIRE_TYPE_BOOL] = store_bool,
    [WIRE_TYPE_U32] = store_u32,
    [WIRE_TYPE_U64] = store_u64,
    [WIRE_TYPE_F32] = store_f32,
    [WIRE_TYPE_F32_ABOVE] = store_f32,
    [WIRE_TYPE_F64] = store_f64,
    [WIRE_TYPE_ENUM] = store_enum,
    [WIRE_TYPE_ID128] = store_id128,
    [WIRE_TYPE_TEXT] = store_text,
    [WIRE_TYPE_BLOB] = store_blob,
    [WIRE_TYPE_TEXT_LIST] = store_text_list,
    [WIRE_TYPE_TOKENS] = store_tokens,
    [WIRE_TYPE_COLUMN_U32] = store_column,
    [WIRE_TYPE_COLUMN_F32] = store_column,
    [WIRE_TYPE_COLUMN_U64] = store_column,
    [WIRE_TYPE_GROUP] = store_group,
    [WIRE_TYPE_LIST] = store_list,
};

static bool is_key(const struct msgpack_item *item, uint32_t key, const char *name)
{
    if (item->kind == MSGPACK_UNSIGNED)
        return item->number == key;
    return item->kind == MSGPACK_STR && item->count == strlen(name) &&
           memcmp(item->bytes, name, item->count) == 0;
}

/* Index of the field with this key, or field_count; begins where the last one was found. */
static uint32_t find_field(struct level *level, const struct msgpack_item *key)
{
    const struct wire_table *table = level->table;
    for (uint32_t i = 0; i < table->field_count; i++) {
        uint32_t index = level->next_field + i;
        if (index >= table->field_count)
            index -= table->field_count;
        if (is_key(key, table->fields[index].key, table->fields[index].name)) {
            level->next_field = index + 1 < table->field_count ? index + 1 : 0;
            return index;
        }
    }
    return table->field_count;
}

static bool decode_pair(struct decoder *decoder, struct level *level)
{
    struct msgpack_item key, value;
    level->pairs_left--;
    if (!msgpack_read(&decoder->reader, &key))
        return refuse_broken(decoder);
    if (decoder->depth == 1 && level->table->number != 0 && is_key(&key, WIRE_KEY_TYPE, "type")) {
        if (decoder->type_seen)
            return refuse_repeated(decoder, "type");
        decoder->type_seen = true;
        return msgpack_skip(&decoder->reader) || refuse_broken(decoder);
    }
    uint32_t index = find_field(level, &key);
    if (index == level->table->field_count) {
        if (decoder->mode == WIRE_STRICT)
            return refuse_unknown(decoder, level->table, &key);
        /* A key may be a container itself: what is left of it goes too. */
        for (uint64_t left = key.kind == MSGPACK_ARRAY ? key.count
                             : key.kind == MSGPACK_MAP ? 2 * (uint64_t)key.count
                                                       : 0;
             left > 0; left--)
            if (!msgpack_skip(&decoder->reader))
                return refuse_broken(decoder);
        return msgpack_skip(&decoder->reader) || refuse_broken(decoder);
    }
    const struct wire_field *field = &level->table->fields[index];
    if ((level->seen >> index & 1) != 0)
        return refuse_repeated(decoder, field->name);
    level->seen |= UINT64_C(1) << index;
    if (!msgpack_read(&decoder->reader, &value))
        return refuse_broken(decoder);
    if (field->presence == WIRE_OPTIONAL)
        *(bool *)(level->base + field->has_offset) = true;
    return stores[field->type](decoder, field, &value, level->base + field->offset);
}

/* All pairs of the map on top were read: judges what is missing, then goes on with the next item or
 * leaves the level. */
static bool end_of_map(struct decoder *decoder, struct level *level)
{
    for (uint32_t i = 0; i < level->table->field_count; i++)
        if (level->table->fields[i].presence == WIRE_REQUIRED && (level->seen >> i & 1) == 0)
            return refuse_missing(decoder, &level->table->fields[i]);
    if (level->is_list && level->items_begun < level->item_count)
        return begin_item(decoder, level);
    decoder->depth--;
    return true;
}

static bool decode_map(struct decoder *decoder, const struct wire_table *table, uint8_t *base,
                       uint32_t pairs)
{
    decoder->depth = 0;
    push_level(decoder, table, base, pairs, NULL);
    while (decoder->depth > 0) {
        struct level *level = &decoder->levels[decoder->depth - 1];
        bool done = level->pairs_left == 0;
        if (!(done ? end_of_map(decoder, level) : decode_pair(decoder, level)))
            return false;
    }
    return true;
}

/* ---- Entry points ---- */

enum status wire_skim(const uint8_t *frame, size_t length, struct wire_error *out_error)
{
    size_t offset;
    enum msgpack_flaw flaw = msgpack_skim(frame, length, &offset);
    if (flaw == MSGPACK_SOUND)
        return STATUS_OK;
    wire_refuse_structure(out_error, flaw, offset);
    return STATUS_BAD_MESSAGE;
}

/* Looks for `type` among the pairs of the top map: it is first by custom, but maps have no order.
 * Without one, the other keys tell the style of the answer. */
static bool find_type(struct msgpack_reader reader, uint32_t pairs, struct msgpack_item *out_type,
                      bool *out_named)
{
    for (uint32_t i = 0; i < pairs; i++) {
        struct msgpack_reader value = reader;
        struct msgpack_item key;
        if (!msgpack_read(&value, &key))
            return false;
        *out_named = key.kind == MSGPACK_STR;
        if (is_key(&key, WIRE_KEY_TYPE, "type"))
            return msgpack_read(&value, out_type);
        if (!msgpack_skip(&reader) || !msgpack_skip(&reader))
            return false;
    }
    return false;
}

static const struct wire_table *find_table(const struct wire_family *family,
                                           const struct msgpack_item *type)
{
    for (uint32_t i = 0; i < family->count; i++)
        if (is_key(type, family->tables[i]->number, family->tables[i]->name))
            return family->tables[i];
    return NULL;
}

enum status wire_decode(const struct wire_decoding *decoding, void *out_message,
                        const struct wire_table **out_table, bool *out_named,
                        struct wire_error *out_error)
{
    bool unused_named, *named = out_named != NULL ? out_named : &unused_named;
    *named = false;
    if (wire_skim(decoding->frame, decoding->length, out_error) != STATUS_OK)
        return STATUS_BAD_MESSAGE;
    struct decoder decoder;
    decoder.reader = (struct msgpack_reader){decoding->frame, decoding->frame + decoding->length};
    decoder.family = decoding->family;
    decoder.mode = decoding->mode;
    decoder.error = out_error;
    decoder.type_seen = false;
    struct msgpack_item head, type;
    CHECK(msgpack_read(&decoder.reader, &head)); /* skimmed: it is there */
    if (head.kind != MSGPACK_MAP) {
        wire_refuse_frame(out_error, &head);
        return STATUS_BAD_MESSAGE;
    }
    bool found = find_type(decoder.reader, head.count, &type, named);
    const struct wire_table *table = found ? find_table(decoding->family, &type) : NULL;
    if (table == NULL) {
        wire_refuse_type(out_error, decoding->family, found ? &type : NULL);
        return STATUS_BAD_MESSAGE;
    }
    memset(out_message, 0, table->struct_bytes);
    if (!decode_map(&decoder, table, out_message, head.count))
        return STATUS_BAD_MESSAGE;
    *out_table = table;
    return STATUS_OK;
}

bool wire_list_next(const struct wire_list *list, const struct wire_table *table,
                    const uint8_t **cursor, void *out_item)
{
    const uint8_t *end = list->encoded + list->encoded_bytes;
    if (list->count == 0 || *cursor == end)
        return false;
    struct wire_error unused_error;
    struct decoder decoder;
    decoder.reader = (struct msgpack_reader){*cursor, end};
    decoder.family = NULL;
    decoder.mode = WIRE_LENIENT; /* it was judged before */
    decoder.error = &unused_error;
    decoder.type_seen = false;
    struct msgpack_item head;
    CHECK(msgpack_read(&decoder.reader, &head) && head.kind == MSGPACK_MAP);
    memset(out_item, 0, table->struct_bytes);
    CHECK(decode_map(&decoder, table, out_item, head.count));
    *cursor = decoder.reader.next;
    return true;
}
