/* Typed lookups over an opened file: everything they read was checked when it was opened. */
#include "common/gguf.h"

#include "common/check.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static struct gguf_string string_of(const char *text)
{
    return (struct gguf_string){text, strlen(text)};
}

static const struct gguf_entry *find_entry(const struct gguf *gguf, const char *key)
{
    uint32_t low = 0, high = gguf_key_count(gguf);
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        int order = gguf_string_compare(gguf_entry_at(gguf, middle)->key, string_of(key));
        if (order == 0)
            return gguf_entry_at(gguf, middle);
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

/* The entry, or NULL and `why`. */
static const struct gguf_entry *need_entry(const struct gguf *gguf, const char *key,
                                           struct text *why)
{
    const struct gguf_entry *entry = find_entry(gguf, key);
    if (entry == NULL)
        (void)gguf_refuse(why, STATUS_NOT_FOUND, "key", string_of(key), "is missing");
    return entry;
}

static enum status wrong_type(const struct gguf_entry *entry, const char *expected,
                              struct text *why)
{
    return gguf_refuse(why, STATUS_BAD_FILE, "key", entry->key, "is of type %s, expected %s",
                       gguf_value_name(entry->type), expected);
}

/* Integer types only; other types give false. The bytes were checked at open. */
static bool integer_value(uint32_t type, const void *bytes, int64_t *out_value, bool *out_above)
{
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } raw;
    memcpy(&raw, bytes, gguf_value_bytes(type));
    *out_above = false;
    switch (type) {
    case GGUF_VALUE_U8:
        *out_value = raw.u8;
        return true;
    case GGUF_VALUE_I8:
        *out_value = raw.i8;
        return true;
    case GGUF_VALUE_U16:
        *out_value = raw.u16;
        return true;
    case GGUF_VALUE_I16:
        *out_value = raw.i16;
        return true;
    case GGUF_VALUE_U32:
        *out_value = raw.u32;
        return true;
    case GGUF_VALUE_I32:
        *out_value = raw.i32;
        return true;
    case GGUF_VALUE_U64:
        *out_above = raw.u64 > INT64_MAX;
        *out_value = (int64_t)raw.u64;
        return true;
    case GGUF_VALUE_I64:
        *out_value = raw.i64;
        return true;
    default:
        return false;
    }
}

enum status gguf_find_integer(const struct gguf *gguf, const char *key, uint64_t maximum,
                              uint64_t *out_value, struct text *why)
{
    const struct gguf_entry *entry = need_entry(gguf, key, why);
    if (entry == NULL)
        return STATUS_NOT_FOUND;
    int64_t value;
    bool above;
    if (!integer_value(entry->type, entry->value.bytes, &value, &above))
        return wrong_type(entry, "an integer", why);
    bool negative = value < 0 && !above;
    if (above || negative || (uint64_t)value > maximum)
        return gguf_refuse(why, STATUS_BAD_FILE, "key", entry->key,
                           "holds %s%" PRIu64 ", expected 0 to %" PRIu64, negative ? "-" : "",
                           negative ? -(uint64_t)value : (uint64_t)value, maximum);
    *out_value = (uint64_t)value;
    return STATUS_OK;
}

static bool float_value(uint32_t type, const void *bytes, double *out_value)
{
    float single;
    if (type == GGUF_VALUE_F64) {
        memcpy(out_value, bytes, sizeof *out_value);
        return true;
    }
    if (type != GGUF_VALUE_F32)
        return false;
    memcpy(&single, bytes, sizeof single);
    *out_value = (double)single;
    return true;
}

enum status gguf_find_float(const struct gguf *gguf, const char *key, double *out_value,
                            struct text *why)
{
    const struct gguf_entry *entry = need_entry(gguf, key, why);
    if (entry == NULL)
        return STATUS_NOT_FOUND;
    double value;
    if (!float_value(entry->type, entry->value.bytes, &value))
        return wrong_type(entry, "a float", why);
    if (!isfinite(value))
        return gguf_refuse(why, STATUS_BAD_FILE, "key", entry->key,
                           "holds a value that is not finite");
    *out_value = value;
    return STATUS_OK;
}

enum status gguf_find_bool(const struct gguf *gguf, const char *key, bool *out_value,
                           struct text *why)
{
    const struct gguf_entry *entry = need_entry(gguf, key, why);
    if (entry == NULL)
        return STATUS_NOT_FOUND;
    if (entry->type != GGUF_VALUE_BOOL)
        return wrong_type(entry, "bool", why);
    uint8_t value = (uint8_t)entry->value.bytes[0];
    if (value > 1)
        return gguf_refuse(why, STATUS_BAD_FILE, "key", entry->key, "holds %u, expected 0 or 1",
                           (unsigned)value);
    *out_value = value == 1;
    return STATUS_OK;
}

enum status gguf_find_string(const struct gguf *gguf, const char *key,
                             struct gguf_string *out_value, struct text *why)
{
    const struct gguf_entry *entry = need_entry(gguf, key, why);
    if (entry == NULL)
        return STATUS_NOT_FOUND;
    if (entry->type != GGUF_VALUE_STRING)
        return wrong_type(entry, "string", why);
    uint64_t length;
    CHECK(entry->value.length >= sizeof length);
    memcpy(&length, entry->value.bytes, sizeof length);
    *out_value = (struct gguf_string){entry->value.bytes + sizeof length, (size_t)length};
    return STATUS_OK;
}

enum element_class { CLASS_INTEGER = 1, CLASS_FLOAT, CLASS_STRING, CLASS_BOOL };

static enum element_class class_of(uint32_t type)
{
    if (type == GGUF_VALUE_STRING)
        return CLASS_STRING;
    if (type == GGUF_VALUE_BOOL)
        return CLASS_BOOL;
    return type == GGUF_VALUE_F32 || type == GGUF_VALUE_F64 ? CLASS_FLOAT : CLASS_INTEGER;
}

enum status gguf_find_array(const struct gguf *gguf, const char *key,
                            enum gguf_value_type element_type, struct gguf_array *out_array,
                            struct text *why)
{
    CHECK(element_type < GGUF_VALUE_TYPE_COUNT && element_type != GGUF_VALUE_ARRAY);
    const struct gguf_entry *entry = need_entry(gguf, key, why);
    if (entry == NULL)
        return STATUS_NOT_FOUND;
    if (entry->type != GGUF_VALUE_ARRAY)
        return wrong_type(entry, "array", why);
    struct gguf_array array;
    size_t head_bytes = sizeof array.type + sizeof array.remaining;
    CHECK(entry->value.length >= head_bytes);
    memcpy(&array.type, entry->value.bytes, sizeof array.type);
    memcpy(&array.remaining, entry->value.bytes + sizeof array.type, sizeof array.remaining);
    if (class_of(array.type) != class_of(element_type))
        return gguf_refuse(why, STATUS_BAD_FILE, "key", entry->key,
                           "is an array of %s, expected of %s", gguf_value_name(array.type),
                           gguf_value_name(element_type));
    array.next = (const uint8_t *)entry->value.bytes + head_bytes;
    *out_array = array;
    return STATUS_OK;
}

bool gguf_has(const struct gguf *gguf, const char *key, enum gguf_value_type *out_type)
{
    const struct gguf_entry *entry = find_entry(gguf, key);
    if (entry != NULL)
        *out_type = (enum gguf_value_type)entry->type;
    return entry != NULL;
}

bool gguf_next_string(struct gguf_array *array, struct gguf_string *out_value)
{
    if (array->type != GGUF_VALUE_STRING || array->remaining == 0)
        return false;
    uint64_t length;
    memcpy(&length, array->next, sizeof length);
    *out_value = (struct gguf_string){(const char *)array->next + sizeof length, (size_t)length};
    array->next += sizeof length + length;
    array->remaining--;
    return true;
}

bool gguf_next_float(struct gguf_array *array, double *out_value)
{
    if (array->remaining == 0 || !float_value(array->type, array->next, out_value))
        return false;
    array->next += gguf_value_bytes(array->type);
    array->remaining--;
    return true;
}

bool gguf_next_integer(struct gguf_array *array, int64_t *out_value)
{
    bool above;
    if (array->remaining == 0 || !integer_value(array->type, array->next, out_value, &above))
        return false;
    if (above)
        *out_value =
            INT64_MAX; /* saturates: no caller has a use for larger ones but to refuse them */
    array->next += gguf_value_bytes(array->type);
    array->remaining--;
    return true;
}

bool gguf_string_equal(struct gguf_string string, const char *text)
{
    return gguf_string_compare(string, string_of(text)) == 0;
}
