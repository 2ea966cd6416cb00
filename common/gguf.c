#include "common/gguf.h"

#include "common/check.h"
#include "common/mapped_file.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Least size of one record in the file: a count beyond what the bytes can hold is refused before
 * memory is taken. */
enum {
    HEADER_BYTES = 24,
    KEY_RECORD_BYTES_MIN = 8 + 4 + 1,
    TENSOR_RECORD_BYTES_MIN = 8 + 4 + 8 + 4 + 8,
    STRING_RECORD_BYTES_MIN = 8,
    NAME_SHOWN = 64,
};

struct gguf {
    struct mapped_file file; /* zeroed over borrowed memory */
    const uint8_t *bytes;
    size_t length;
    uint32_t key_count;
    uint32_t tensor_count;
    struct gguf_entry *entries;         /* owned [key_count], ascending */
    struct gguf_tensor *tensors;        /* owned [tensor_count], as in the file */
    const struct gguf_tensor **by_name; /* owned [tensor_count], ascending */
};

/* Cursor over the header. */
struct reader {
    const uint8_t *bytes;
    size_t length;
    size_t position;
};

static const uint8_t VALUE_BYTES[GGUF_VALUE_TYPE_COUNT] = {
    [GGUF_VALUE_U8] = 1,  [GGUF_VALUE_I8] = 1,  [GGUF_VALUE_U16] = 2, [GGUF_VALUE_I16] = 2,
    [GGUF_VALUE_U32] = 4, [GGUF_VALUE_I32] = 4, [GGUF_VALUE_F32] = 4, [GGUF_VALUE_BOOL] = 1,
    [GGUF_VALUE_U64] = 8, [GGUF_VALUE_I64] = 8, [GGUF_VALUE_F64] = 8,
};

static const char *const VALUE_NAMES[] = {
    "u8", "i8", "u16", "i16", "u32", "i32", "f32", "bool", "string", "array", "u64", "i64", "f64",
};
_Static_assert(sizeof VALUE_NAMES / sizeof VALUE_NAMES[0] == GGUF_VALUE_TYPE_COUNT,
               "one name each");

/* clang-format off */
static const struct gguf_tensor_layout LAYOUTS[] = {
    [GGUF_TENSOR_F32] = {"F32", 1, 4},    [GGUF_TENSOR_F16] = {"F16", 1, 2},
    [GGUF_TENSOR_Q4_0] = {"Q4_0", 32, 18}, [GGUF_TENSOR_Q4_1] = {"Q4_1", 32, 20},
    [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},      [GGUF_TENSOR_Q8_0] = {"Q8_0", 32, 34},
    [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},    [11] = {"Q3_K", 256, 110},
    [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},   [14] = {"Q6_K", 256, 210},
    [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66}, [17] = {"IQ2_XS", 256, 74},
    [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},   [20] = {"IQ4_NL", 32, 18},
    [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},   [23] = {"IQ4_XS", 256, 136},
    [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},        [26] = {"I32", 1, 4},
    [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},        [29] = {"IQ1_M", 256, 56},
    [GGUF_TENSOR_BF16] = {"BF16", 1, 2},
    [34] = {"TQ1_0", 256, 54},   [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
};
/* clang-format on */

uint32_t gguf_value_bytes(uint32_t type)
{
    return type < GGUF_VALUE_TYPE_COUNT ? VALUE_BYTES[type] : 0;
}

const char *gguf_value_name(uint32_t type)
{
    return type < GGUF_VALUE_TYPE_COUNT ? VALUE_NAMES[type] : "unknown";
}

const struct gguf_tensor_layout *gguf_tensor_layout(uint32_t type)
{
    if (type >= sizeof LAYOUTS / sizeof LAYOUTS[0] || LAYOUTS[type].name == NULL)
        return NULL;
    return &LAYOUTS[type];
}

enum status gguf_refuse(struct text *why, enum status status, const char *kind,
                        struct gguf_string name, const char *format, ...)
{
    char rest[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(rest, sizeof rest, format, arguments);
    va_end(arguments);
    CHECK(length >= 0);
    text_set(why, "%s ", kind);
    text_append_quoted(why, name.bytes, name.length, NAME_SHOWN);
    text_format(why, " %s", rest);
    return status;
}

static struct gguf_string string_of(const char *text)
{
    return (struct gguf_string){text, strlen(text)};
}

static size_t bytes_left(const struct reader *reader)
{
    return reader->length - reader->position;
}

/* Moves on by `count` bytes that the file has; false if it has not. */
static bool skip(struct reader *reader, uint64_t count)
{
    if (count > bytes_left(reader))
        return false;
    reader->position += (size_t)count;
    return true;
}

static bool read_u32(struct reader *reader, uint32_t *out_value)
{
    if (bytes_left(reader) < sizeof *out_value)
        return false;
    memcpy(out_value, reader->bytes + reader->position, sizeof *out_value);
    reader->position += sizeof *out_value;
    return true;
}

static bool read_u64(struct reader *reader, uint64_t *out_value)
{
    if (bytes_left(reader) < sizeof *out_value)
        return false;
    memcpy(out_value, reader->bytes + reader->position, sizeof *out_value);
    reader->position += sizeof *out_value;
    return true;
}

static bool read_string(struct reader *reader, struct gguf_string *out_value)
{
    uint64_t length;
    if (!read_u64(reader, &length))
        return false;
    const char *bytes = (const char *)reader->bytes + reader->position;
    if (!skip(reader, length))
        return false;
    *out_value = (struct gguf_string){bytes, (size_t)length};
    return true;
}

static enum status truncated(const struct reader *reader, const char *what, uint64_t index,
                             uint64_t count, struct text *why)
{
    text_set(why,
             "the file ends at byte %zu inside %s %" PRIu64 " of %" PRIu64
             ": it is damaged or was not downloaded completely",
             reader->length, what, index + 1, count);
    return STATUS_BAD_FILE;
}

static enum status skip_array(struct reader *reader, struct gguf_string key, struct text *why)
{
    uint32_t type;
    uint64_t count;
    if (!read_u32(reader, &type) || !read_u64(reader, &count))
        return gguf_refuse(why, STATUS_BAD_FILE, "key", key,
                           "is an array cut off by the end of the file");
    if (type >= GGUF_VALUE_TYPE_COUNT)
        return gguf_refuse(why, STATUS_BAD_FILE, "key", key, "is an array of unknown type %" PRIu32,
                           type);
    if (type == GGUF_VALUE_ARRAY)
        return gguf_refuse(why, STATUS_UNSUPPORTED, "key", key, "is an array of arrays");
    size_t element_bytes = type == GGUF_VALUE_STRING ? STRING_RECORD_BYTES_MIN : VALUE_BYTES[type];
    uint64_t bytes;
    if (count > GGUF_ARRAY_COUNT_MAX || __builtin_mul_overflow(count, element_bytes, &bytes) ||
        bytes > bytes_left(reader))
        return gguf_refuse(why, STATUS_BAD_FILE, "key", key,
                           "is an array of %" PRIu64
                           " %s, more than the %zu bytes left in the file hold",
                           count, VALUE_NAMES[type], bytes_left(reader));
    if (type != GGUF_VALUE_STRING) {
        CHECK(skip(reader, bytes));
        return STATUS_OK;
    }
    for (uint64_t i = 0; i < count; i++) {
        struct gguf_string element;
        if (!read_string(reader, &element))
            return gguf_refuse(why, STATUS_BAD_FILE, "key", key,
                               "has a string at index %" PRIu64 " that leaves the file", i);
    }
    return STATUS_OK;
}

/* Reads the value's extent, not its meaning. */
static enum status skip_value(struct reader *reader, struct gguf_string key, uint32_t type,
                              struct text *why)
{
    struct gguf_string string;
    if (type == GGUF_VALUE_ARRAY)
        return skip_array(reader, key, why);
    if (type >= GGUF_VALUE_TYPE_COUNT)
        return gguf_refuse(why, STATUS_BAD_FILE, "key", key, "has the unknown type %" PRIu32, type);
    bool complete =
        type == GGUF_VALUE_STRING ? read_string(reader, &string) : skip(reader, VALUE_BYTES[type]);
    if (!complete)
        return gguf_refuse(why, STATUS_BAD_FILE, "key", key, "has a value that leaves the file");
    return STATUS_OK;
}

int gguf_string_compare(struct gguf_string a, struct gguf_string b)
{
    size_t shorter = a.length < b.length ? a.length : b.length;
    int order = shorter == 0 ? 0 : memcmp(a.bytes, b.bytes, shorter);
    if (order != 0)
        return order;
    return (a.length > b.length) - (a.length < b.length);
}

static int compare_entries(const void *a, const void *b)
{
    const struct gguf_entry *left = a, *right = b;
    return gguf_string_compare(left->key, right->key);
}

static int compare_tensors(const void *a, const void *b)
{
    const struct gguf_tensor *const *left = a, *const *right = b;
    return strcmp((*left)->name, (*right)->name);
}

static enum status read_keys(struct gguf *gguf, struct reader *reader, uint64_t count,
                             struct text *why)
{
    if (count > GGUF_KEYS_MAX || count > bytes_left(reader) / KEY_RECORD_BYTES_MIN) {
        text_set(why, "the header announces %" PRIu64 " keys, more than %s", count,
                 count > GGUF_KEYS_MAX ? "any model has" : "the file can hold");
        return STATUS_BAD_FILE;
    }
    gguf->entries = calloc((size_t)count + 1, sizeof *gguf->entries);
    if (gguf->entries == NULL)
        return STATUS_OUT_OF_MEMORY;
    for (uint64_t i = 0; i < count; i++) {
        struct gguf_entry *entry = &gguf->entries[i];
        if (!read_string(reader, &entry->key) || !read_u32(reader, &entry->type))
            return truncated(reader, "key", i, count, why);
        if (entry->key.length == 0 || entry->key.length > GGUF_KEY_BYTES_MAX)
            return gguf_refuse(why, STATUS_BAD_FILE, "key", entry->key, "has a name of %zu bytes",
                               entry->key.length);
        size_t start = reader->position;
        enum status status = skip_value(reader, entry->key, entry->type, why);
        if (status != STATUS_OK)
            return status;
        entry->value =
            (struct gguf_string){(const char *)reader->bytes + start, reader->position - start};
    }
    gguf->key_count = (uint32_t)count;
    qsort(gguf->entries, gguf->key_count, sizeof *gguf->entries, compare_entries);
    for (uint32_t i = 1; i < gguf->key_count; i++)
        if (compare_entries(&gguf->entries[i - 1], &gguf->entries[i]) == 0)
            return gguf_refuse(why, STATUS_BAD_FILE, "key", gguf->entries[i].key, "occurs twice");
    return STATUS_OK;
}

/* Bytes of a tensor from its type and extents; both may be anything. */
static enum status size_tensor(struct gguf_tensor *tensor, struct text *why)
{
    struct gguf_string name = string_of(tensor->name);
    const struct gguf_tensor_layout *layout = gguf_tensor_layout(tensor->type);
    if (layout == NULL)
        return gguf_refuse(why, STATUS_UNSUPPORTED, "tensor", name,
                           "has the unknown type number %" PRIu32, tensor->type);
    uint64_t elements = 1;
    for (uint32_t i = 0; i < tensor->dimensions; i++) {
        if (tensor->extent[i] == 0)
            return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name, "has an extent of 0");
        if (__builtin_mul_overflow(elements, tensor->extent[i], &elements) || elements > INT64_MAX)
            return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name,
                               "has more elements than 63 bits can count");
    }
    if (tensor->extent[0] % layout->block_elements != 0)
        return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name,
                           "has rows of %" PRIu64 " elements, but %s comes in blocks of %" PRIu32,
                           tensor->extent[0], layout->name, layout->block_elements);
    if (__builtin_mul_overflow(elements / layout->block_elements, (uint64_t)layout->block_bytes,
                               &tensor->bytes))
        return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name,
                           "has more bytes than 64 bits can count");
    return STATUS_OK;
}

static enum status read_tensor(struct reader *reader, struct gguf_tensor *tensor, uint64_t index,
                               uint64_t count, struct text *why)
{
    struct gguf_string name;
    if (!read_string(reader, &name) || !read_u32(reader, &tensor->dimensions))
        return truncated(reader, "the entry of tensor", index, count, why);
    if (name.length == 0 || name.length > GGUF_TENSOR_NAME_BYTES_MAX ||
        memchr(name.bytes, '\0', name.length) != NULL)
        return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name,
                           "has a name of %zu bytes; 1 to %d without NUL are allowed", name.length,
                           GGUF_TENSOR_NAME_BYTES_MAX);
    memcpy(tensor->name, name.bytes, name.length);
    if (tensor->dimensions < 1 || tensor->dimensions > GGUF_DIMENSIONS_MAX)
        return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name,
                           "has %" PRIu32 " dimensions; 1 to %d are allowed", tensor->dimensions,
                           GGUF_DIMENSIONS_MAX);
    for (uint32_t i = 0; i < GGUF_DIMENSIONS_MAX; i++)
        tensor->extent[i] = 1;
    for (uint32_t i = 0; i < tensor->dimensions; i++)
        if (!read_u64(reader, &tensor->extent[i]))
            return truncated(reader, "the entry of tensor", index, count, why);
    if (!read_u32(reader, &tensor->type) || !read_u64(reader, &tensor->offset))
        return truncated(reader, "the entry of tensor", index, count, why);
    return size_tensor(tensor, why);
}

static enum status read_tensors(struct gguf *gguf, struct reader *reader, uint64_t count,
                                struct text *why)
{
    if (count > GGUF_TENSORS_MAX || count > bytes_left(reader) / TENSOR_RECORD_BYTES_MIN) {
        text_set(why, "the header announces %" PRIu64 " tensors, more than %s", count,
                 count > GGUF_TENSORS_MAX ? "any model has" : "the file can hold");
        return STATUS_BAD_FILE;
    }
    gguf->tensors = calloc((size_t)count + 1, sizeof *gguf->tensors);
    gguf->by_name = calloc((size_t)count + 1, sizeof *gguf->by_name);
    if (gguf->tensors == NULL || gguf->by_name == NULL)
        return STATUS_OUT_OF_MEMORY;
    for (uint64_t i = 0; i < count; i++) {
        enum status status = read_tensor(reader, &gguf->tensors[i], i, count, why);
        if (status != STATUS_OK)
            return status;
        gguf->by_name[i] = &gguf->tensors[i];
    }
    gguf->tensor_count = (uint32_t)count;
    qsort(gguf->by_name, gguf->tensor_count, sizeof(void *), compare_tensors);
    for (uint32_t i = 1; i < gguf->tensor_count; i++)
        if (compare_tensors(&gguf->by_name[i - 1], &gguf->by_name[i]) == 0)
            return gguf_refuse(why, STATUS_BAD_FILE, "tensor", string_of(gguf->by_name[i]->name),
                               "occurs twice");
    return STATUS_OK;
}

/* `alignment` is a power of two; false if the sum leaves 64 bits. */
static bool align_up(uint64_t value, uint64_t alignment, uint64_t *out_value)
{
    uint64_t sum;
    if (__builtin_add_overflow(value, alignment - 1, &sum))
        return false;
    *out_value = sum & ~(alignment - 1);
    return true;
}

static enum status read_alignment(const struct gguf *gguf, uint64_t *out_alignment,
                                  struct text *why)
{
    uint64_t alignment = GGUF_ALIGNMENT_DEFAULT;
    enum status status =
        gguf_find_integer(gguf, "general.alignment", GGUF_ALIGNMENT_MAX, &alignment, why);
    if (status != STATUS_OK && status != STATUS_NOT_FOUND)
        return status;
    if (alignment < 8 || (alignment & (alignment - 1)) != 0)
        return gguf_refuse(why, STATUS_BAD_FILE, "key", string_of("general.alignment"),
                           "holds %" PRIu64 ", which is not a power of two from 8 on", alignment);
    *out_alignment = alignment;
    return STATUS_OK;
}

/* Turns the offsets into offsets from the start of the file and checks that the tensors lie as the
 * format orders: one after the other, without overlap, inside the file. */
static enum status place_tensors(struct gguf *gguf, size_t header_end, uint64_t alignment,
                                 struct text *why)
{
    uint64_t start, expected = 0;
    if (!align_up(header_end, alignment, &start))
        return STATUS_BAD_FILE;
    for (uint32_t i = 0; i < gguf->tensor_count; i++) {
        struct gguf_tensor *tensor = &gguf->tensors[i];
        struct gguf_string name = string_of(tensor->name);
        if (tensor->offset != expected)
            return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name,
                               "starts at offset %" PRIu64 " of the data, expected %" PRIu64,
                               tensor->offset, expected);
        uint64_t end;
        if (__builtin_add_overflow(start, tensor->offset, &tensor->offset) ||
            __builtin_add_overflow(tensor->offset, tensor->bytes, &end))
            return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name, "ends beyond 64 bits");
        if (end > gguf->length)
            return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name,
                               "needs the file to have %" PRIu64
                               " bytes, but it has %zu: it is damaged or was "
                               "not downloaded completely",
                               end, gguf->length);
        if (!align_up(end - start, alignment, &expected))
            return gguf_refuse(why, STATUS_BAD_FILE, "tensor", name, "ends beyond 64 bits");
    }
    return STATUS_OK;
}

static enum status parse(struct gguf *gguf, struct text *why)
{
    struct reader reader = {.bytes = gguf->bytes, .length = gguf->length};
    if (gguf->length < HEADER_BYTES || memcmp(gguf->bytes, "GGUF", 4) != 0) {
        text_set(why, "not a GGUF file: it has %zu bytes and %s", gguf->length,
                 gguf->length < HEADER_BYTES ? "no header" : "does not start with GGUF");
        return STATUS_BAD_FILE;
    }
    uint32_t version;
    uint64_t tensor_count, key_count;
    reader.position = 4;
    CHECK(read_u32(&reader, &version) && read_u64(&reader, &tensor_count) &&
          read_u64(&reader, &key_count));
    if (version != 2 && version != 3) {
        bool swapped = version != 0 && (version & 0xffffu) == 0;
        text_set(why, "GGUF version %" PRIu32 "%s; versions 2 and 3 are supported",
                 swapped ? __builtin_bswap32(version) : version,
                 swapped ? " in big-endian byte order" : "");
        return STATUS_UNSUPPORTED;
    }
    uint64_t alignment = GGUF_ALIGNMENT_DEFAULT;
    enum status status = read_keys(gguf, &reader, key_count, why);
    if (status == STATUS_OK)
        status = read_tensors(gguf, &reader, tensor_count, why);
    if (status == STATUS_OK)
        status = read_alignment(gguf, &alignment, why);
    if (status == STATUS_OK)
        status = place_tensors(gguf, reader.position, alignment, why);
    return status;
}

/* Takes over `file`, also on failure. */
static enum status open_bytes(const uint8_t *bytes, size_t length, struct mapped_file file,
                              struct gguf **out_gguf, struct text *why)
{
    struct gguf *gguf = calloc(1, sizeof *gguf);
    if (gguf == NULL) {
        mapped_file_close(&file);
        return STATUS_OUT_OF_MEMORY;
    }
    *gguf = (struct gguf){.file = file, .bytes = bytes, .length = length};
    enum status status = parse(gguf, why);
    if (status != STATUS_OK) {
        gguf_close(gguf);
        return status;
    }
    *out_gguf = gguf;
    return STATUS_OK;
}

enum status gguf_open_memory(const void *bytes, size_t length, struct gguf **out_gguf,
                             struct text *why)
{
    const struct mapped_file borrowed = {0};
    return open_bytes(bytes, length, borrowed, out_gguf, why);
}

enum status gguf_open(const char *path, struct gguf **out_gguf, struct text *why)
{
    struct mapped_file file;
    enum status status = mapped_file_open(path, &file, why);
    return status == STATUS_OK ? open_bytes(file.bytes, file.length, file, out_gguf, why) : status;
}

void gguf_close(struct gguf *gguf)
{
    if (gguf == NULL)
        return;
    mapped_file_close(&gguf->file);
    free(gguf->entries);
    free(gguf->tensors);
    free(gguf->by_name);
    free(gguf);
}

size_t gguf_file_bytes(const struct gguf *gguf)
{
    return gguf->length;
}

uint32_t gguf_key_count(const struct gguf *gguf)
{
    return gguf->key_count;
}

const struct gguf_entry *gguf_entry_at(const struct gguf *gguf, uint32_t index)
{
    CHECK(index < gguf->key_count);
    return &gguf->entries[index];
}

uint32_t gguf_tensor_count(const struct gguf *gguf)
{
    return gguf->tensor_count;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint32_t index)
{
    CHECK(index < gguf->tensor_count);
    return &gguf->tensors[index];
}

const struct gguf_tensor *gguf_find_tensor(const struct gguf *gguf, const char *name)
{
    size_t low = 0, high = gguf->tensor_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        int order = strcmp(gguf->by_name[middle]->name, name);
        if (order == 0)
            return gguf->by_name[middle];
        if (order < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

const uint8_t *gguf_tensor_bytes(const struct gguf *gguf, const struct gguf_tensor *tensor)
{
    return gguf->bytes + tensor->offset;
}

void gguf_tensor_drop(const struct gguf *gguf, const struct gguf_tensor *tensor)
{
    if (gguf->file.bytes != NULL)
        mapped_file_drop(&gguf->file, (size_t)tensor->offset, (size_t)tensor->bytes);
}
