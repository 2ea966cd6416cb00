#include "proto/wire_reasons.h"

#include "common/check.h"
#include "common/utf8.h"
#include "proto/error_codes.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { SHOWN_BYTES = 40 };

static struct text begin(struct wire_error *error, uint32_t code, const char *path)
{
    memset(error, 0, sizeof *error);
    error->code = code;
    struct text field;
    text_init(&field, error->field, sizeof error->field);
    text_append(&field, path, strlen(path));
    struct text message;
    text_init(&message, error->message, sizeof error->message);
    return message;
}

static void set_limit(struct wire_error *error, double limit)
{
    error->has_limit = true;
    error->limit = limit;
}

void wire_refuse(struct wire_error *error, uint32_t code, const char *path, const char *format, ...)
{
    struct text message = begin(error, code, path);
    char storage[LIMIT_ERROR_MESSAGE_BYTES];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(storage, sizeof storage, format, arguments);
    va_end(arguments);
    text_append(&message, storage, length < 0 ? 0 : strlen(storage));
}

static void describe_count(struct text *text, const struct wire_field *field, const char *unit)
{
    if (field->minimum == field->maximum)
        text_format(text, "%" PRIu64 " %s", field->minimum, unit);
    else if (field->minimum == 0)
        text_format(text, "at most %" PRIu64 " %s", field->maximum, unit);
    else
        text_format(text, "%" PRIu64 " to %" PRIu64 " %s", field->minimum, field->maximum, unit);
}

static void describe_integer(struct text *text, const struct wire_field *field)
{
    text_format(text, "an integer from %" PRIu64 " to %" PRIu64, field->minimum, field->maximum);
}

static void describe_enum(struct text *text, const struct wire_enum *names)
{
    text_format(text, "one of");
    for (uint32_t i = 0; i < names->count; i++)
        text_format(text, "%s %s (%" PRIu32 ")", i == 0 ? "" : ",", names->values[i].name,
                    names->values[i].number);
}

void wire_describe_bounds(struct text *text, const struct wire_field *field)
{
    switch (field->type) {
    case WIRE_TYPE_BOOL:
        text_format(text, "true or false");
        break;
    case WIRE_TYPE_U32:
    case WIRE_TYPE_U64:
        describe_integer(text, field);
        break;
    case WIRE_TYPE_F32_ABOVE:
        text_format(text, "a number above %.9g and at most %.9g", field->low, field->high);
        break;
    case WIRE_TYPE_F32:
    case WIRE_TYPE_F64:
        text_format(text, "a number from %.9g to %.9g", field->low, field->high);
        break;
    case WIRE_TYPE_ENUM:
        describe_enum(text, field->of_enum);
        break;
    case WIRE_TYPE_ID128:
        text_format(text, "a bin of 16 bytes");
        break;
    case WIRE_TYPE_TEXT:
        text_format(text, "a str of ");
        describe_count(text, field, "bytes, valid UTF-8");
        break;
    case WIRE_TYPE_BLOB:
        text_format(text, "a str or bin of ");
        describe_count(text, field, "bytes");
        break;
    case WIRE_TYPE_TEXT_LIST:
        text_format(text, "an array of at most %d str, each of ", LIMIT_STOP_STRINGS);
        describe_count(text, field, "bytes, valid UTF-8");
        break;
    case WIRE_TYPE_TOKENS:
        describe_count(text, field, "token ids");
        text_format(text, " below %d, as array or as bin of u32 little endian", LIMIT_VOCABULARY);
        break;
    case WIRE_TYPE_COLUMN_U32:
    case WIRE_TYPE_COLUMN_F32:
        text_format(text, "a bin of ");
        describe_count(text, field, "values of 4 bytes");
        break;
    case WIRE_TYPE_COLUMN_U64:
        text_format(text, "a bin of ");
        describe_count(text, field, "values of 8 bytes");
        break;
    case WIRE_TYPE_GROUP:
        text_format(text, "a map");
        break;
    case WIRE_TYPE_LIST:
        text_format(text, "an array of ");
        describe_count(text, field, "maps");
        break;
    default:
        CHECK(!"a type without description");
    }
}

static void describe_item(struct text *text, const struct msgpack_item *item)
{
    switch (item->kind) {
    case MSGPACK_NIL:
        text_format(text, "nil");
        break;
    case MSGPACK_BOOL:
        text_format(text, "%s", item->truth ? "true" : "false");
        break;
    case MSGPACK_UNSIGNED:
        text_format(text, "%" PRIu64, item->number);
        break;
    case MSGPACK_NEGATIVE:
        text_format(text, "%" PRId64, item->negative);
        break;
    case MSGPACK_FLOAT:
        text_format(text, "the float %.9g", item->real);
        break;
    case MSGPACK_STR:
        text_format(text, "a str of %" PRIu32 " bytes, ", item->count);
        text_append_quoted(text, (const char *)item->bytes, item->count, SHOWN_BYTES);
        break;
    case MSGPACK_BIN:
        text_format(text, "a bin of %" PRIu32 " bytes", item->count);
        break;
    case MSGPACK_EXT:
        text_format(text, "an ext of %" PRIu32 " bytes", item->count);
        break;
    case MSGPACK_ARRAY:
        text_format(text, "an array of %" PRIu32 " values", item->count);
        break;
    case MSGPACK_MAP:
        text_format(text, "a map of %" PRIu32 " pairs", item->count);
        break;
    default:
        CHECK(!"an item without kind");
    }
}

void wire_refuse_structure(struct wire_error *error, enum msgpack_flaw flaw, size_t offset)
{
    static const char *const reasons[] = {
        [MSGPACK_SOUND] = "is sound",
        [MSGPACK_CUT] = "declares more than its bytes hold",
        [MSGPACK_UNKNOWN] = "holds the byte 0xc1, which msgpack does not use",
        [MSGPACK_DEEP] = "is nested too deeply",
        [MSGPACK_CROWDED] = "holds too many values",
        [MSGPACK_TRAILING] = "goes on behind its map",
    };
    wire_refuse(error, ERROR_CODE_INVALID_REQUEST, "",
                "the message %s (at byte %zu); send one msgpack map", reasons[flaw], offset);
    if (flaw == MSGPACK_DEEP)
        set_limit(error, LIMIT_WIRE_DEPTH);
    if (flaw == MSGPACK_CROWDED)
        set_limit(error, LIMIT_WIRE_NODES);
}

void wire_refuse_frame(struct wire_error *error, const struct msgpack_item *item)
{
    struct text message = begin(error, ERROR_CODE_INVALID_REQUEST, "");
    text_format(&message, "the message is ");
    describe_item(&message, item);
    text_format(&message, "; send one msgpack map");
}

void wire_refuse_type(struct wire_error *error, const struct wire_family *family,
                      const struct msgpack_item *item)
{
    struct text message = begin(error, ERROR_CODE_INVALID_REQUEST, "type");
    text_format(&message, "`type` is ");
    if (item == NULL)
        text_format(&message, "missing");
    else
        describe_item(&message, item);
    text_format(&message, "; it must be one of");
    for (uint32_t i = 0; i < family->count; i++)
        text_format(&message, "%s %s (%" PRIu32 ")", i == 0 ? "" : ",", family->tables[i]->name,
                    family->tables[i]->number);
}

/* The bound that a value of the right kind passed; nothing for a value of another kind. */
static void set_value_limit(struct wire_error *error, const struct wire_field *field,
                            const struct msgpack_item *item)
{
    bool measured = field->type == WIRE_TYPE_F32 || field->type == WIRE_TYPE_F32_ABOVE ||
                    field->type == WIRE_TYPE_F64;
    bool is_float = item->kind == MSGPACK_FLOAT && isfinite(item->real);
    bool is_integer = item->kind == MSGPACK_UNSIGNED || item->kind == MSGPACK_NEGATIVE;
    if (measured && (is_float || is_integer)) {
        double value = is_float                         ? item->real
                       : item->kind == MSGPACK_UNSIGNED ? (double)item->number
                                                        : (double)item->negative;
        set_limit(error, value > field->high ? field->high : field->low);
    } else if (field->type == WIRE_TYPE_U32 || field->type == WIRE_TYPE_U64) {
        if (is_integer)
            set_limit(error, item->kind == MSGPACK_UNSIGNED && item->number > field->maximum
                                 ? (double)field->maximum
                                 : (double)field->minimum);
    } else if (field->type == WIRE_TYPE_TEXT_LIST) {
        if (item->kind == MSGPACK_ARRAY)
            set_limit(error, LIMIT_STOP_STRINGS);
    } else if (field->maximum > 0) {
        uint64_t count = item->count;
        if (item->kind == MSGPACK_BIN &&
            (field->type == WIRE_TYPE_TOKENS || field->type == WIRE_TYPE_COLUMN_U32 ||
             field->type == WIRE_TYPE_COLUMN_F32))
            count /= 4;
        if (count > field->maximum)
            set_limit(error, (double)field->maximum);
        else if (count < field->minimum)
            set_limit(error, (double)field->minimum);
    }
}

void wire_refuse_value(struct wire_error *error, const char *path, const struct wire_field *field,
                       const struct msgpack_item *item)
{
    struct text message = begin(error, ERROR_CODE_INVALID_REQUEST, path);
    text_format(&message, "`%s` is ", path);
    describe_item(&message, item);
    if (field->type == WIRE_TYPE_TEXT && item->kind == MSGPACK_STR) {
        size_t valid = utf8_valid_prefix((const char *)item->bytes, item->count);
        if (valid < item->count)
            text_format(&message, ", not UTF-8 at byte %zu", valid);
    }
    text_format(&message, "; it must be ");
    wire_describe_bounds(&message, field);
    set_value_limit(error, field, item);
}

void wire_refuse_missing(struct wire_error *error, const char *path, const struct wire_field *field)
{
    struct text message = begin(error, ERROR_CODE_INVALID_REQUEST, path);
    text_format(&message, "`%s` is missing; it must be ", path);
    wire_describe_bounds(&message, field);
}

void wire_refuse_repeated(struct wire_error *error, const char *path)
{
    wire_refuse(error, ERROR_CODE_INVALID_REQUEST, path, "`%s` is given twice; give it once", path);
}

static bool is_named(const struct msgpack_item *item, const char *name)
{
    return item->kind == MSGPACK_STR && item->count == strlen(name) &&
           memcmp(item->bytes, name, item->count) == 0;
}

void wire_refuse_unknown(struct wire_error *error, const char *path, const struct wire_table *table,
                         const struct wire_family *family, const struct msgpack_item *item)
{
    struct text message = begin(error, ERROR_CODE_INVALID_REQUEST, path);
    struct text field = {error->field, sizeof error->field, strlen(error->field), false};
    if (item->kind == MSGPACK_STR && utf8_valid((const char *)item->bytes, item->count)) {
        text_append(&field, (const char *)item->bytes,
                    utf8_valid_prefix((const char *)item->bytes,
                                      item->count < SHOWN_BYTES ? item->count : SHOWN_BYTES));
    } else if (item->kind == MSGPACK_UNSIGNED) {
        text_format(&field, "%" PRIu64, item->number);
    }
    for (uint32_t i = 0; family->unsupported != NULL && family->unsupported[i] != NULL; i++) {
        if (is_named(item, family->unsupported[i])) {
            text_format(&message, "`%s` is not supported in version %d; leave it out",
                        family->unsupported[i], PROTOCOL_VERSION_MAX);
            return;
        }
    }
    text_format(&message, "the key ");
    describe_item(&message, item);
    text_format(&message, " is no field of %s; its fields are", table->name);
    for (uint32_t i = 0; i < table->field_count; i++)
        text_format(&message, "%s %s", i == 0 ? "" : ",", table->fields[i].name);
}
