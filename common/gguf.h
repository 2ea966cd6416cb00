/* Reader of the header and metadata of a GGUF file (versions 2 and 3, little-endian).
 * Invariants: (1) after gguf_open every count, length, offset and size of the file was checked
 * against the bytes that are there, so no lookup can leave the file; (2) no key and no tensor name
 * occurs twice; (3) tensors follow each other in the order of the directory, each at the next
 * multiple of the alignment, and end inside the file; (4) opening takes memory in proportion to the
 * directory, never to a number in the file. Strings are views into the file and not terminated. A
 * file that another process shortens while it is open raises SIGBUS: who lives long copies what is
 * needed and closes. */
#ifndef TANDEM_COMMON_GGUF_H
#define TANDEM_COMMON_GGUF_H

#include "common/status.h"
#include "common/text.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    GGUF_KEYS_MAX = 65536,
    GGUF_TENSORS_MAX = 65536,
    GGUF_KEY_BYTES_MAX = 65535,
    GGUF_TENSOR_NAME_BYTES_MAX = 63,
    GGUF_DIMENSIONS_MAX = 4,
    GGUF_ARRAY_COUNT_MAX = 1 << 30,
    GGUF_ALIGNMENT_DEFAULT = 32,
    GGUF_ALIGNMENT_MAX = 1 << 20,
};

/* Numbers of the format. */
enum gguf_value_type {
    GGUF_VALUE_U8 = 0,
    GGUF_VALUE_I8 = 1,
    GGUF_VALUE_U16 = 2,
    GGUF_VALUE_I16 = 3,
    GGUF_VALUE_U32 = 4,
    GGUF_VALUE_I32 = 5,
    GGUF_VALUE_F32 = 6,
    GGUF_VALUE_BOOL = 7,
    GGUF_VALUE_STRING = 8,
    GGUF_VALUE_ARRAY = 9,
    GGUF_VALUE_U64 = 10,
    GGUF_VALUE_I64 = 11,
    GGUF_VALUE_F64 = 12,
    GGUF_VALUE_TYPE_COUNT
};

/* Numbers of the format; those that Tandem computes with. Others are known by name and size only.
 */
enum gguf_tensor_type {
    GGUF_TENSOR_F32 = 0,
    GGUF_TENSOR_F16 = 1,
    GGUF_TENSOR_Q4_0 = 2,
    GGUF_TENSOR_Q4_1 = 3,
    GGUF_TENSOR_Q8_0 = 8,
    GGUF_TENSOR_BF16 = 30,
};

/* A tensor is stored as blocks of `block_elements` values in `block_bytes` bytes, along its first
 * dimension. */
struct gguf_tensor_layout {
    const char *name;
    uint32_t block_elements;
    uint32_t block_bytes;
};

struct gguf_string {
    const char *bytes; /* borrowed from the file, not terminated */
    size_t length;
};

struct gguf_tensor {
    char name[GGUF_TENSOR_NAME_BYTES_MAX + 1]; /* terminated; holds no NUL before */
    uint32_t dimensions;                       /* 1 to GGUF_DIMENSIONS_MAX */
    uint32_t type;                             /* enum gguf_tensor_type or another known number */
    uint64_t extent[GGUF_DIMENSIONS_MAX];      /* extent[0] is contiguous; 1 beyond `dimensions` */
    uint64_t offset;                           /* from the start of the file */
    uint64_t bytes;
};

/* Cursor over an array value; the elements were checked at open. */
struct gguf_array {
    const uint8_t *next; /* borrowed from the file */
    uint64_t remaining;  /* elements that were not read yet; right after a lookup the whole count */
    uint32_t type;       /* enum gguf_value_type of the elements; never GGUF_VALUE_ARRAY */
};

struct gguf; /* opaque; immutable after opening, so any number of threads may read it */

/* Maps the file and checks it as a whole. STATUS_NOT_FOUND, STATUS_PERMISSION, STATUS_SYSTEM,
 * STATUS_OUT_OF_MEMORY, STATUS_BAD_FILE (damaged, truncated, no GGUF) or STATUS_UNSUPPORTED
 * (version, byte order, tensor type unknown by name); `why` says what is wrong where. Close with
 * gguf_close(). */
MUST_USE enum status gguf_open(const char *path, struct gguf **out_gguf, struct text *why);

/* The same over memory, which the result borrows. */
MUST_USE enum status gguf_open_memory(const void *bytes, size_t length, struct gguf **out_gguf,
                                      struct text *why);

/* Accepts NULL. */
void gguf_close(struct gguf *gguf);

size_t gguf_file_bytes(const struct gguf *gguf);

/* Typed lookups. STATUS_OK; STATUS_NOT_FOUND if the key is absent (`why` says so); STATUS_BAD_FILE
 * if it holds another type or a value out of range. The out-parameter is written on STATUS_OK only,
 * so it may hold a default before. Integers of all widths are accepted (writers differ), negative
 * ones are out of range. */
MUST_USE enum status gguf_find_integer(const struct gguf *gguf, const char *key, uint64_t maximum,
                                       uint64_t *out_value, struct text *why);
MUST_USE enum status gguf_find_float(const struct gguf *gguf, const char *key, double *out_value,
                                     struct text *why);
MUST_USE enum status gguf_find_bool(const struct gguf *gguf, const char *key, bool *out_value,
                                    struct text *why);
MUST_USE enum status gguf_find_string(const struct gguf *gguf, const char *key,
                                      struct gguf_string *out_value, struct text *why);

/* `element_type` stands for its class: integers, floats, strings or bool; widths may differ. */
MUST_USE enum status gguf_find_array(const struct gguf *gguf, const char *key,
                                     enum gguf_value_type element_type,
                                     struct gguf_array *out_array, struct text *why);

/* Whether the key exists, of whatever type; its type then. */
bool gguf_has(const struct gguf *gguf, const char *key, enum gguf_value_type *out_type);

/* Next element; false at the end. Strings for arrays of strings, floats for F32 and F64, integers
 * for the others. */
bool gguf_next_string(struct gguf_array *array, struct gguf_string *out_value);
bool gguf_next_float(struct gguf_array *array, double *out_value);
bool gguf_next_integer(struct gguf_array *array, int64_t *out_value);

bool gguf_string_equal(struct gguf_string string, const char *text);

/* Order of the bytes, as memcmp: negative, 0 or positive. */
int gguf_string_compare(struct gguf_string a, struct gguf_string b);

/* Keys in ascending order of their bytes, index < gguf_key_count(). `value` is the raw value after
 * its type number. */
struct gguf_entry {
    struct gguf_string key;
    struct gguf_string value;
    uint32_t type; /* enum gguf_value_type */
};
uint32_t gguf_key_count(const struct gguf *gguf);
const struct gguf_entry *gguf_entry_at(const struct gguf *gguf, uint32_t index);

/* Tensors in the order of the directory; NULL if there is none of that name. */
uint32_t gguf_tensor_count(const struct gguf *gguf);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint32_t index);
const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name);

/* The tensor's `bytes` bytes, borrowed from the file. */
const uint8_t *gguf_tensor_bytes(const struct gguf *gguf, const struct gguf_tensor *tensor);

/* Tells the system that the pages of a tensor are not needed any more; reading them again still
 * works. */
void gguf_tensor_drop(const struct gguf *gguf, const struct gguf_tensor *tensor);

/* Layout of a tensor type, NULL for an unknown number. */
const struct gguf_tensor_layout *gguf_tensor_layout(uint32_t type);

/* Name of a value type, for messages, and its bytes (0 for strings, arrays and unknown numbers). */
const char *gguf_value_name(uint32_t type);
uint32_t gguf_value_bytes(uint32_t type);

/* Sets `why` to: kind "name" and the formatted rest. Returns `status`. For all who judge what a
 * file holds. */
enum status gguf_refuse(struct text *why, enum status status, const char *kind,
                        struct gguf_string name, const char *format, ...)
    __attribute__((format(printf, 5, 6)));

#endif
