#include "common/json_input.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { KEY_SHOWN = 64, PARSER_SHOWN = 160 };

/* What the parser would have to build, counted without building it. A document that is none may be
 * counted wrong; the parser refuses it anyway. */
struct extent {
    uint32_t depth;
    size_t values;
};

static struct extent measure(const char *bytes, size_t length)
{
    struct extent extent = {.values = 1};
    uint32_t depth = 0;
    bool in_string = false;
    for (size_t i = 0; i < length; i++) {
        char byte = bytes[i];
        if (in_string) {
            i += byte == '\\'; /* what follows is part of the string */
            in_string = byte != '"';
            continue;
        }
        in_string = byte == '"';
        if (byte == '{' || byte == '[') {
            depth++;
            extent.values++;
            extent.depth = depth > extent.depth ? depth : extent.depth;
        } else if ((byte == '}' || byte == ']') && depth > 0) {
            depth--;
        }
        extent.values += byte == ',' || byte == ':';
    }
    return extent;
}

/* Whether an allocation of the parse at hand failed. The parser reports most of them as a mistake
 * in the text, and its allocator has no argument to carry this. */
static _Thread_local bool out_of_memory;

static void *allocate(size_t bytes)
{
    void *memory = malloc(bytes);
    out_of_memory = out_of_memory || memory == NULL;
    return memory;
}

static void release(void *memory)
{
    free(memory);
}

enum status json_input_parse(const void *bytes, size_t length, const char *where, json_t **out_root,
                             struct text *why)
{
    struct extent extent = measure(bytes, length);
    if (extent.depth > JSON_INPUT_DEPTH_MAX) {
        text_set(why, "%s: nested %" PRIu32 " deep; at most %d are read", where, extent.depth,
                 JSON_INPUT_DEPTH_MAX);
        return STATUS_TOO_LARGE;
    }
    if (extent.values > JSON_INPUT_VALUES_MAX) {
        text_set(why, "%s: holds %zu values; at most %d are read", where, extent.values,
                 JSON_INPUT_VALUES_MAX);
        return STATUS_TOO_LARGE;
    }
    json_error_t error = {0};
    json_set_alloc_funcs(allocate, release); /* malloc and free, watched */
    out_of_memory = false;
    json_t *root = json_loadb(bytes, length, JSON_REJECT_DUPLICATES, &error);
    if (out_of_memory) {
        json_decref(root);
        text_set(why, "%s: out of memory", where);
        return STATUS_OUT_OF_MEMORY;
    }
    if (root == NULL) {
        text_set(why, "%s: no valid JSON at line %d, column %d: ", where, error.line, error.column);
        text_append_quoted(why, error.text, strlen(error.text), PARSER_SHOWN);
        return STATUS_BAD_FILE;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        text_set(why, "%s: is no JSON object", where);
        return STATUS_BAD_FILE;
    }
    *out_root = root;
    return STATUS_OK;
}

enum status json_input_refuse(const struct json_input *input, enum status status, const char *key,
                              struct text *why, const char *format, ...)
{
    if (why == NULL)
        return status;
    text_set(why, "%s: key ", input->where);
    text_append_quoted(why, key, strlen(key), KEY_SHOWN);
    text_append(why, " ", 1);
    va_list arguments;
    va_start(arguments, format);
    text_format_list(why, format, arguments);
    va_end(arguments);
    return status;
}

/* NULL where it is absent or null. */
static const json_t *value_of(const struct json_input *input, const char *key)
{
    const json_t *value = json_object_get(input->object, key);
    return value != NULL && !json_is_null(value) ? value : NULL;
}

bool json_input_has(const struct json_input *input, const char *key)
{
    return value_of(input, key) != NULL;
}

static const char *type_name(const json_t *value)
{
    static const char *const names[] = {
        [JSON_OBJECT] = "an object",   [JSON_ARRAY] = "an array",  [JSON_STRING] = "a string",
        [JSON_INTEGER] = "an integer", [JSON_REAL] = "a fraction", [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",        [JSON_NULL] = "null",
    };
    return names[json_typeof(value)];
}

/* STATUS_OK with the value, which is of one of the types. `expected` names them. */
static enum status find(const struct json_input *input, const char *key, unsigned types,
                        const char *expected, const json_t **out_value, struct text *why)
{
    const json_t *value = value_of(input, key);
    if (value == NULL)
        return json_input_refuse(input, STATUS_NOT_FOUND, key, why, "is missing");
    if ((types & (1u << json_typeof(value))) == 0)
        return json_input_refuse(input, STATUS_BAD_FILE, key, why, "is %s, expected %s",
                                 type_name(value), expected);
    *out_value = value;
    return STATUS_OK;
}

enum status json_input_integer(const struct json_input *input, const char *key, uint64_t minimum,
                               uint64_t maximum, uint64_t *out_value, struct text *why)
{
    const json_t *value = NULL;
    enum status status = find(input, key, 1u << JSON_INTEGER, "an integer", &value, why);
    if (status != STATUS_OK)
        return status;
    json_int_t read = json_integer_value(value);
    if (read < 0 || (uint64_t)read < minimum || (uint64_t)read > maximum)
        return json_input_refuse(input, STATUS_BAD_FILE, key, why,
                                 "holds %" JSON_INTEGER_FORMAT ", expected %" PRIu64 " to %" PRIu64,
                                 read, minimum, maximum);
    *out_value = (uint64_t)read;
    return STATUS_OK;
}

enum status json_input_number(const struct json_input *input, const char *key, double minimum,
                              double maximum, double *out_value, struct text *why)
{
    const json_t *value = NULL;
    enum status status =
        find(input, key, 1u << JSON_INTEGER | 1u << JSON_REAL, "a number", &value, why);
    if (status != STATUS_OK)
        return status;
    double read = json_number_value(value);
    if (!(isfinite(read) && read >= minimum && read <= maximum))
        return json_input_refuse(input, STATUS_BAD_FILE, key, why, "holds %g, expected %g to %g",
                                 read, minimum, maximum);
    *out_value = read;
    return STATUS_OK;
}

enum status json_input_bool(const struct json_input *input, const char *key, bool *out_value,
                            struct text *why)
{
    const json_t *value = NULL;
    enum status status =
        find(input, key, 1u << JSON_TRUE | 1u << JSON_FALSE, "true or false", &value, why);
    if (status == STATUS_OK)
        *out_value = json_is_true(value);
    return status;
}

enum status json_input_string(const struct json_input *input, const char *key,
                              const char **out_value, struct text *why)
{
    const json_t *value = NULL;
    enum status status = find(input, key, 1u << JSON_STRING, "a string", &value, why);
    if (status == STATUS_OK)
        *out_value = json_string_value(value);
    return status;
}

enum status json_input_object(const struct json_input *input, const char *key,
                              struct json_input *out_object, struct text *why)
{
    const json_t *value = NULL;
    enum status status = find(input, key, 1u << JSON_OBJECT, "an object", &value, why);
    if (status == STATUS_OK)
        *out_object = (struct json_input){value, input->where};
    return status;
}
