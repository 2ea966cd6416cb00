/* Messages as tables. A message is ONE list of fields (an X-macro); from it come the C struct, the
 * encoder, the decoder, the tables of docs/PROTOCOL.md and the generator of the tests. On the wire
 * a message is a msgpack map with small integer keys.
 *
 * Decoding has two steps. Skim: the whole frame is walked without allocation or recursion; depth,
 * declared counts, number of values and the full length are checked. Decode: fields are checked
 * against their table (type, bounds, presence, duplicates) and stored in a fixed struct. Nothing is
 * allocated; texts, blobs, lists and columns of a decoded struct BORROW from the frame, which must
 * stay unchanged as long as they are read.
 *
 * Strict decoding (requests of clients): keys may be the names of the fields, enums may be names,
 * an unknown field is an error that names it. Lenient decoding (worker link, answers): unknown keys
 * are skipped, an unknown enum number becomes 0 (UNKNOWN). Always: a field at most once; strict
 * UTF-8 in TEXT; integers are accepted where a float is expected; NaN and infinities are refused.
 */
#ifndef TANDEM_PROTO_WIRE_H
#define TANDEM_PROTO_WIRE_H

#include "common/id128.h"
#include "common/status.h"
#include "proto/limits.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* ---- Values ---- */

/* Bytes in the frame; not terminated. */
struct wire_text {
    const char *bytes;
    uint32_t length;
};

struct wire_text_list {
    struct wire_text items[LIMIT_STOP_STRINGS];
    uint32_t count;
};

/* Token ids. To encode: point `bytes` at uint32_t[count] and set `packed` (see wire_tokens_of).
 * Decoded: an unaligned little-endian run if `packed`, else the msgpack integers of an array; read
 * with wire_tokens_copy. Each id was checked to be < LIMIT_VOCABULARY. */
struct wire_tokens {
    const uint8_t *bytes;
    uint32_t count;
    bool packed;
    uint32_t encoded_bytes; /* of an array */
};

/* One column of a plan or result: `count` little-endian values, unaligned. Read with memcpy. */
struct wire_column {
    const uint8_t *bytes;
    uint32_t count;
};

/* A list of maps of one table. To encode: `items` is an array of `count` structs. Decoded: `items`
 * is NULL, every item was checked; walk them with wire_list_first and wire_list_next. */
struct wire_list {
    const void *items;
    const uint8_t *encoded;
    uint32_t encoded_bytes;
    uint32_t count;
};

/* ---- Tables ---- */

/* X(TYPE, name, what minimum and maximum bound). */
/* clang-format off */
#define WIRE_TYPE_LIST(X) \
    X(BOOL, "bool", "") \
    X(U32, "u32", "value") \
    X(U64, "u64", "value") \
    X(F32, "float", "value, both ends included") \
    X(F32_ABOVE, "float", "value, greater than the minimum") \
    X(F64, "number", "value, both ends included") \
    X(ENUM, "enum", "") \
    X(ID128, "bin of 16", "") \
    X(TEXT, "str, UTF-8", "bytes") \
    X(BLOB, "str or bin", "bytes") \
    X(TEXT_LIST, "array of str", "bytes of each") \
    X(TOKENS, "bin of u32 LE, or array", "count") \
    X(COLUMN_U32, "bin of u32 LE", "count") \
    X(COLUMN_F32, "bin of f32 LE", "count") \
    X(COLUMN_U64, "bin of u64 LE", "count") \
    X(GROUP, "map", "") \
    X(LIST, "array of maps", "count")
/* clang-format on */

enum wire_type {
    WIRE_TYPE_NONE = 0,
#define WIRE_TYPE_MEMBER(type, name, bounds) WIRE_TYPE_##type,
    WIRE_TYPE_LIST(WIRE_TYPE_MEMBER)
#undef WIRE_TYPE_MEMBER
        WIRE_TYPE_COUNT
};

/* REQUIRED: refused if absent. OPTIONAL: has_<name> tells. DEFAULT: zero if absent; always encoded.
 */
enum wire_presence { WIRE_REQUIRED = 1, WIRE_OPTIONAL, WIRE_DEFAULT };

/* Members of a message struct, from X(T, key, name, TYPE, of, PRESENCE, minimum, maximum, text).
 * `of` is the enum, group or item struct, `none` for other types. */
#define WIRE_C_BOOL(of)       bool
#define WIRE_C_U32(of)        uint32_t
#define WIRE_C_U64(of)        uint64_t
#define WIRE_C_F32(of)        float
#define WIRE_C_F32_ABOVE(of)  float
#define WIRE_C_F64(of)        double
#define WIRE_C_ENUM(of)       enum of
#define WIRE_C_ID128(of)      struct id128
#define WIRE_C_TEXT(of)       struct wire_text
#define WIRE_C_BLOB(of)       struct wire_text
#define WIRE_C_TEXT_LIST(of)  struct wire_text_list
#define WIRE_C_TOKENS(of)     struct wire_tokens
#define WIRE_C_COLUMN_U32(of) struct wire_column
#define WIRE_C_COLUMN_F32(of) struct wire_column
#define WIRE_C_COLUMN_U64(of) struct wire_column
#define WIRE_C_GROUP(of)      struct of
#define WIRE_C_LIST(of)       struct wire_list
#define WIRE_HAS_REQUIRED(name)
#define WIRE_HAS_OPTIONAL(name) bool has_##name;
#define WIRE_HAS_DEFAULT(name)
#define WIRE_MEMBER(T, key, name, TYPE, of, PRESENCE, minimum, maximum, text)                      \
    WIRE_HAS_##PRESENCE(name) WIRE_C_##TYPE(of) name;

/* From a list of messages, X(number, struct, member, name, FIELDS, text). */
#define WIRE_DECLARE_TABLE(number, tag, member, name, FIELDS, text)                                \
    extern const struct wire_table tag##_table;
#define WIRE_UNION_MEMBER(number, tag, member, name, FIELDS, text) struct tag member;

/* Members of an enum, from X(enumerator, number, name, text). Number 0 is UNKNOWN. */
#define WIRE_ENUM_MEMBER(enumerator, number, name, text) enumerator = (number),

struct wire_enum_value {
    uint32_t number;
    const char *name, *text;
};

struct wire_enum {
    const char *name;
    const struct wire_enum_value *values;
    uint32_t count;
};

struct wire_table;

struct wire_field {
    uint32_t key;
    enum wire_type type;
    enum wire_presence presence;
    uint32_t offset;           /* of the member in its struct */
    uint32_t has_offset;       /* of has_<name>; OPTIONAL only */
    double low, high;          /* bounds of floats */
    uint64_t minimum, maximum; /* bounds of all others */
    const char *name, *text;
    const struct wire_enum *of_enum;   /* ENUM only */
    const struct wire_table *of_table; /* GROUP and LIST only */
};

struct wire_table {
    const char *name; /* name of the message on the wire, or of the group in the documents */
    const char *text;
    uint32_t number; /* value of key 1, `type`; 0 for groups and items, which have no such key */
    uint32_t field_count;
    uint32_t struct_bytes;
    const struct wire_field *fields;
};

/* Items of lists are small, groups are not nested deeply, a bit of 64 tells which fields came. */
enum { WIRE_ITEM_BYTES_MAX = 256, WIRE_LEVELS_MAX = 5, WIRE_FIELDS_MAX = 64 };

/* Key of `type` in every message; the keys of a table start at 2. */
enum { WIRE_KEY_TYPE = 1 };

/* Messages that may arrive at one place: which of them it is, `type` says. */
struct wire_family {
    const char *name;
    /* Field names known elsewhere and refused here by name; ends with NULL; may be NULL. */
    const char *const *unsupported;

    const struct wire_table *const *tables;
    uint32_t count;
};

/* The table with this number, which must be one of the family's. */
const struct wire_table *wire_family_table(const struct wire_family *family, uint32_t number);

/* Name of an enum number, "unknown" if there is none. */
const char *wire_enum_name(const struct wire_enum *names, uint32_t number);

/* ---- Decode ---- */

/* Why a message was refused, fit to be answered to its sender. */
struct wire_error {
    uint32_t code;                       /* enum error_code */
    char field[LIMIT_ERROR_FIELD_BYTES]; /* path such as `stop[3]` or `messages[0].role`, or "" */
    char message[LIMIT_ERROR_MESSAGE_BYTES]; /* one sentence: field, value, bound, what to do */
    bool has_limit;
    double limit;
};

enum wire_mode { WIRE_LENIENT = 0, WIRE_STRICT = 1 };

/* Structure only: one map, depth <= LIMIT_WIRE_DEPTH, counts <= bytes left, <= LIMIT_WIRE_NODES
 * values, nothing behind it. STATUS_OK or STATUS_BAD_MESSAGE with `out_error` filled (its first
 * three members). */
MUST_USE enum status wire_skim(const uint8_t *frame, size_t length, struct wire_error *out_error);

/* Skims `frame`, finds out by `type` which table of `family` it is, and decodes into `out_message`,
 * which must be large enough for any struct of the family (it is zeroed first). `out_named` (may be
 * NULL): whether the keys came as names, on failure too as far as it could be seen. STATUS_OK or
 * STATUS_BAD_MESSAGE with `out_error` filled; then out_message is undefined. */
struct wire_decoding {
    const struct wire_family *family;
    enum wire_mode mode;
    const uint8_t *frame;
    size_t length;
};
MUST_USE enum status wire_decode(const struct wire_decoding *decoding, void *out_message,
                                 const struct wire_table **out_table, bool *out_named,
                                 struct wire_error *out_error);

/* Copies at most `capacity` ids in host order; returns how many. */
uint32_t wire_tokens_copy(const struct wire_tokens *tokens, uint32_t *out, uint32_t capacity);

/* Walk over a decoded list: `*cursor` starts at list->encoded. Fills `out_item` (a struct of
 * `table`); false at the end. */
bool wire_list_next(const struct wire_list *list, const struct wire_table *table,
                    const uint8_t **cursor, void *out_item);

/* ---- Encode ---- */

/* Values go as they are: bounds are judged by who receives. */
enum wire_style {
    WIRE_NUMBERED = 0, /* integer keys, enum numbers */
    WIRE_NAMED = 1,    /* names for both: the answer to a client that asked with names */
};

/* Encodes into `out`; with `out` NULL only measures. STATUS_OK or STATUS_FULL (capacity too small;
 * *out_bytes untouched). */
MUST_USE enum status wire_encode(const struct wire_table *table, enum wire_style style,
                                 const void *message, uint8_t *out, size_t capacity,
                                 size_t *out_bytes);

/* The same into a sink, for hashing. */
typedef void (*wire_sink)(void *context, const void *bytes, size_t length);
void wire_encode_to(const struct wire_table *table, enum wire_style style, const void *message,
                    wire_sink sink, void *context);

/* Views for encoding; they borrow. wire_text_of takes a NUL-terminated string. */
struct wire_text wire_text_of(const char *string);
struct wire_tokens wire_tokens_of(const uint32_t *ids, uint32_t count);

#endif
