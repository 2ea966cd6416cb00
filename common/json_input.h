/* JSON that others wrote, read with bounds: depth and number of values are counted before anything
 * is allocated, a key that occurs twice is refused, numbers are compared with their range. Every
 * reason begins with `where`, the name of the file. Parsing sets the allocator of jansson, for the
 * whole process, to malloc and free. */
#ifndef TANDEM_COMMON_JSON_INPUT_H
#define TANDEM_COMMON_JSON_INPUT_H

#include "common/status.h"
#include "common/text.h"

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    JSON_INPUT_DEPTH_MAX = 16,
    JSON_INPUT_VALUES_MAX = 1 << 20, /* keys counted too; about 100 bytes of memory each */
};

/* An object that is looked into. */
struct json_input {
    const json_t *object; /* borrowed */
    const char *where;    /* borrowed */
};

/* The document, whose root must be an object. STATUS_BAD_FILE, STATUS_TOO_LARGE (nested deeper or
 * more values than the bounds) or STATUS_OUT_OF_MEMORY. Free with json_decref(). */
MUST_USE enum status json_input_parse(const void *bytes, size_t length, const char *where,
                                      json_t **out_root, struct text *why);

/* Whether the key is there; null counts as absent. */
bool json_input_has(const struct json_input *input, const char *key);

/* Typed lookups. STATUS_OK; STATUS_NOT_FOUND if the key is absent (`why` says so); STATUS_BAD_FILE
 * if it holds another type or a value out of range. The out-parameter is written on STATUS_OK only,
 * so it may hold a default before. Bounds are inclusive; a number must be finite. */
MUST_USE enum status json_input_integer(const struct json_input *input, const char *key,
                                        uint64_t minimum, uint64_t maximum, uint64_t *out_value,
                                        struct text *why);
MUST_USE enum status json_input_number(const struct json_input *input, const char *key,
                                       double minimum, double maximum, double *out_value,
                                       struct text *why);
MUST_USE enum status json_input_bool(const struct json_input *input, const char *key,
                                     bool *out_value, struct text *why);
/* Borrowed from the document. */
MUST_USE enum status json_input_string(const struct json_input *input, const char *key,
                                       const char **out_value, struct text *why);
/* The object has the same `where`. */
MUST_USE enum status json_input_object(const struct json_input *input, const char *key,
                                       struct json_input *out_object, struct text *why);

/* The rest of a reason about one key. Returns `status`. */
enum status json_input_refuse(const struct json_input *input, enum status status, const char *key,
                              struct text *why, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#endif
