#include "common/safetensors.h"

#include "common/check.h"
#include "common/json_input.h"
#include "common/mapped_file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "numbers are read as they lie");

enum { LENGTH_BYTES = 8, EXTENT_MAX_BITS = 63 };

static const char METADATA_KEY[] = "__metadata__";
static const char HEADER[] = "header";

struct safetensors {
    struct mapped_file file; /* zeroed over borrowed memory */
    const uint8_t *bytes;
    size_t length;
    json_t *header; /* owned; holds the names */
    uint32_t tensor_count;
    struct safetensors_tensor *tensors; /* owned [tensor_count], by offset */
};

/* clang-format off */
static const struct {
    const char *name;
    enum safetensors_type type;
    uint32_t bytes;
} TYPES[] = {
    {"F32", SAFETENSORS_TYPE_F32, 4},       {"F16", SAFETENSORS_TYPE_F16, 2},
    {"BF16", SAFETENSORS_TYPE_BF16, 2},     {"F64", SAFETENSORS_TYPE_OTHER, 8},
    {"I64", SAFETENSORS_TYPE_OTHER, 8},     {"I32", SAFETENSORS_TYPE_OTHER, 4},
    {"I16", SAFETENSORS_TYPE_OTHER, 2},     {"I8", SAFETENSORS_TYPE_OTHER, 1},
    {"U64", SAFETENSORS_TYPE_OTHER, 8},     {"U32", SAFETENSORS_TYPE_OTHER, 4},
    {"U16", SAFETENSORS_TYPE_OTHER, 2},     {"U8", SAFETENSORS_TYPE_OTHER, 1},
    {"BOOL", SAFETENSORS_TYPE_OTHER, 1},    {"F8_E4M3", SAFETENSORS_TYPE_OTHER, 1},
    {"F8_E5M2", SAFETENSORS_TYPE_OTHER, 1}, {"F8_E8M0", SAFETENSORS_TYPE_OTHER, 1},
};
/* clang-format on */

static enum status refuse(struct text *why, const struct safetensors_tensor *tensor,
                          const char *what)
{
    return text_refuse(why, STATUS_BAD_FILE, "tensor", tensor->name, "%s", what);
}

/* Sets the type; *out_element_bytes is what one value takes. */
static enum status read_type(const struct json_input *entry, struct safetensors_tensor *tensor,
                             uint32_t *out_element_bytes, struct text *why)
{
    const char *name = NULL;
    if (json_input_string(entry, "dtype", &name, NULL) != STATUS_OK)
        return refuse(why, tensor, "has no dtype");
    for (size_t i = 0; i < sizeof TYPES / sizeof TYPES[0]; i++)
        if (strcmp(TYPES[i].name, name) == 0) {
            tensor->type = TYPES[i].type;
            tensor->type_name = TYPES[i].name;
            *out_element_bytes = TYPES[i].bytes;
            return STATUS_OK;
        }
    text_refuse(why, STATUS_UNSUPPORTED, "tensor", tensor->name, "has the unknown dtype ");
    if (why != NULL)
        text_append_quoted(why, name, strlen(name), 32);
    return STATUS_UNSUPPORTED;
}

/* Sets the extents; *out_elements is their product. */
static enum status read_shape(const struct json_input *entry, struct safetensors_tensor *tensor,
                              uint64_t *out_elements, struct text *why)
{
    const json_t *shape = json_object_get(entry->object, "shape");
    size_t dimensions = json_array_size(shape);
    if (!json_is_array(shape))
        return refuse(why, tensor, "has no shape");
    if (dimensions > SAFETENSORS_DIMENSIONS_MAX)
        return text_refuse(why, STATUS_TOO_LARGE, "tensor", tensor->name,
                           "has %zu dimensions; at most %d are read", dimensions,
                           SAFETENSORS_DIMENSIONS_MAX);
    uint64_t elements = 1;
    for (size_t i = 0; i < SAFETENSORS_DIMENSIONS_MAX; i++)
        tensor->extent[i] = 1;
    for (size_t i = 0; i < dimensions; i++) {
        const json_t *extent = json_array_get(shape, i);
        if (!json_is_integer(extent) || json_integer_value(extent) < 1)
            return refuse(why, tensor, "has an extent that is no positive integer");
        tensor->extent[i] = (uint64_t)json_integer_value(extent);
        if (__builtin_mul_overflow(elements, tensor->extent[i], &elements) ||
            elements > (UINT64_MAX >> (64 - EXTENT_MAX_BITS)))
            return refuse(why, tensor, "has more elements than 63 bits can count");
    }
    tensor->dimensions = (uint32_t)dimensions;
    *out_elements = elements;
    return STATUS_OK;
}

/* Sets offset and bytes, which must be what type and extents need and lie in `room` bytes. The
 * offset still counts from the end of the header. */
static enum status read_place(const struct json_input *entry, uint64_t needed, uint64_t room,
                              struct safetensors_tensor *tensor, struct text *why)
{
    const json_t *offsets = json_object_get(entry->object, "data_offsets");
    const json_t *first = json_array_get(offsets, 0), *last = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(first) || !json_is_integer(last) ||
        json_integer_value(first) < 0 || json_integer_value(last) < json_integer_value(first))
        return refuse(why, tensor, "has no two ascending data_offsets");
    uint64_t begin = (uint64_t)json_integer_value(first), end = (uint64_t)json_integer_value(last);
    if (end > room)
        return text_refuse(why, STATUS_BAD_FILE, "tensor", tensor->name,
                           "ends at byte %" PRIu64 " of the data, but the file has %" PRIu64
                           ": it is damaged or was not downloaded completely",
                           end, room);
    if (end - begin != needed)
        return text_refuse(why, STATUS_BAD_FILE, "tensor", tensor->name,
                           "has %" PRIu64 " bytes, but its shape and dtype %s need %" PRIu64,
                           end - begin, tensor->type_name, needed);
    tensor->offset = begin;
    tensor->bytes = needed;
    return STATUS_OK;
}

static enum status read_tensor(const json_t *value, uint64_t room,
                               struct safetensors_tensor *tensor, struct text *why)
{
    const struct json_input entry = {value, HEADER};
    uint64_t elements = 0, needed = 0;
    uint32_t element_bytes = 0;
    size_t name_bytes = strlen(tensor->name);
    if (name_bytes == 0 || name_bytes > SAFETENSORS_NAME_BYTES_MAX)
        return text_refuse(why, STATUS_TOO_LARGE, "tensor", tensor->name,
                           "has a name of %zu bytes; 1 to %d are read", name_bytes,
                           SAFETENSORS_NAME_BYTES_MAX);
    if (!json_is_object(value))
        return refuse(why, tensor, "has no object as its entry");
    enum status status = read_type(&entry, tensor, &element_bytes, why);
    if (status == STATUS_OK)
        status = read_shape(&entry, tensor, &elements, why);
    if (status == STATUS_OK && __builtin_mul_overflow(elements, element_bytes, &needed))
        return refuse(why, tensor, "has more bytes than 64 bits can count");
    return status == STATUS_OK ? read_place(&entry, needed, room, tensor, why) : status;
}

static int compare_places(const void *a, const void *b)
{
    const struct safetensors_tensor *left = a, *right = b;
    return (left->offset > right->offset) - (left->offset < right->offset);
}

/* Every byte behind the header belongs to exactly one tensor. Turns the offsets into offsets from
 * the start of the file. */
static enum status place_tensors(struct safetensors *file, uint64_t start, struct text *why)
{
    uint64_t expected = 0;
    if (file->tensor_count > 0)
        qsort(file->tensors, file->tensor_count, sizeof *file->tensors, compare_places);
    for (uint32_t i = 0; i < file->tensor_count; i++) {
        struct safetensors_tensor *tensor = &file->tensors[i];
        if (tensor->offset != expected)
            return text_refuse(why, STATUS_BAD_FILE, "tensor", tensor->name,
                               "starts at byte %" PRIu64 " of the data, expected %" PRIu64
                               ": tensors may neither overlap nor leave gaps",
                               tensor->offset, expected);
        expected += tensor->bytes;
        tensor->offset += start;
    }
    if (start + expected != file->length) {
        text_set(why, "the file has %zu bytes, but its tensors end at byte %" PRIu64, file->length,
                 start + expected);
        return STATUS_BAD_FILE;
    }
    return STATUS_OK;
}

static enum status read_tensors(struct safetensors *file, uint64_t start, struct text *why)
{
    const char *name;
    json_t *value;
    size_t entries = json_object_size(file->header);
    if (entries > SAFETENSORS_TENSORS_MAX) {
        text_set(why, "the header has %zu entries; at most %d are read", entries,
                 SAFETENSORS_TENSORS_MAX);
        return STATUS_TOO_LARGE;
    }
    file->tensors = calloc(entries + 1, sizeof *file->tensors);
    if (file->tensors == NULL)
        return STATUS_OUT_OF_MEMORY;
    json_object_foreach(file->header, name, value)
    {
        if (strcmp(name, METADATA_KEY) == 0)
            continue;
        struct safetensors_tensor *tensor = &file->tensors[file->tensor_count];
        tensor->name = name;
        enum status status = read_tensor(value, file->length - start, tensor, why);
        if (status != STATUS_OK)
            return status;
        file->tensor_count++;
    }
    return place_tensors(file, start, why);
}

static enum status parse(struct safetensors *file, struct text *why)
{
    uint64_t header_bytes;
    if (file->length < LENGTH_BYTES) {
        text_set(why, "not a safetensors file: it has %zu bytes and no header", file->length);
        return STATUS_BAD_FILE;
    }
    memcpy(&header_bytes, file->bytes, sizeof header_bytes);
    if (header_bytes > SAFETENSORS_HEADER_BYTES_MAX) {
        text_set(why,
                 "not a safetensors file: its first bytes announce a header of %" PRIu64
                 " bytes; at most %d are read",
                 header_bytes, SAFETENSORS_HEADER_BYTES_MAX);
        return STATUS_TOO_LARGE;
    }
    if (header_bytes > file->length - LENGTH_BYTES) {
        text_set(why,
                 "the file ends at byte %zu inside its header of %" PRIu64
                 " bytes: it is damaged or was not downloaded completely",
                 file->length, header_bytes);
        return STATUS_BAD_FILE;
    }
    enum status status = json_input_parse(file->bytes + LENGTH_BYTES, (size_t)header_bytes, HEADER,
                                          &file->header, why);
    return status == STATUS_OK ? read_tensors(file, LENGTH_BYTES + header_bytes, why) : status;
}

/* Takes over `mapped`, also on failure. */
static enum status open_bytes(const uint8_t *bytes, size_t length, struct mapped_file mapped,
                              struct safetensors **out_file, struct text *why)
{
    struct safetensors *file = calloc(1, sizeof *file);
    if (file == NULL) {
        mapped_file_close(&mapped);
        return STATUS_OUT_OF_MEMORY;
    }
    *file = (struct safetensors){.file = mapped, .bytes = bytes, .length = length};
    enum status status = parse(file, why);
    if (status != STATUS_OK) {
        safetensors_close(file);
        return status;
    }
    *out_file = file;
    return STATUS_OK;
}

enum status safetensors_open_memory(const void *bytes, size_t length, struct safetensors **out_file,
                                    struct text *why)
{
    const struct mapped_file borrowed = {0};
    return open_bytes(bytes, length, borrowed, out_file, why);
}

enum status safetensors_open(const char *path, struct safetensors **out_file, struct text *why)
{
    struct mapped_file mapped;
    enum status status = mapped_file_open(path, &mapped, why);
    return status == STATUS_OK ? open_bytes(mapped.bytes, mapped.length, mapped, out_file, why)
                               : status;
}

void safetensors_close(struct safetensors *file)
{
    if (file == NULL)
        return;
    mapped_file_close(&file->file);
    json_decref(file->header);
    free(file->tensors);
    free(file);
}

size_t safetensors_file_bytes(const struct safetensors *file)
{
    return file->length;
}

uint32_t safetensors_tensor_count(const struct safetensors *file)
{
    return file->tensor_count;
}

const struct safetensors_tensor *safetensors_tensor_at(const struct safetensors *file,
                                                       uint32_t index)
{
    CHECK(index < file->tensor_count);
    return &file->tensors[index];
}

const uint8_t *safetensors_tensor_bytes(const struct safetensors *file,
                                        const struct safetensors_tensor *tensor)
{
    return file->bytes + tensor->offset;
}

void safetensors_tensor_drop(const struct safetensors *file,
                             const struct safetensors_tensor *tensor)
{
    if (file->file.bytes != NULL)
        mapped_file_drop(&file->file, (size_t)tensor->offset, (size_t)tensor->bytes);
}
