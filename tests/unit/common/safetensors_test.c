#include "common/safetensors.h"

#include "support/directory_builder.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static const float NUMBERS[12] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};

static enum status open_bytes(const void *bytes, size_t length, struct safetensors **file,
                              struct reason *reason)
{
    *file = NULL;
    enum status status = safetensors_open_memory(bytes, length, file, reason_init(reason));
    assert_int_equal(status == STATUS_OK, *file != NULL);
    return status;
}

/* A file out of one raw header and `data_bytes` bytes behind it. */
static enum status open_raw(const char *header, size_t data_bytes, struct reason *reason)
{
    struct builder_bytes bytes = {0};
    struct safetensors *file;
    uint8_t *data = calloc(data_bytes + 1, 1);
    builder_put_u64(&bytes, strlen(header));
    builder_put(&bytes, header, strlen(header));
    builder_put(&bytes, data, data_bytes);
    enum status status = open_bytes(bytes.bytes, bytes.length, &file, reason);
    safetensors_close(file);
    free(bytes.bytes);
    free(data);
    return status;
}

static void reads_names_types_shapes_and_bytes(void **state)
{
    (void)state;
    struct directory_builder builder = {0};
    struct safetensors *file;
    struct reason reason;
    size_t length;
    directory_raw(&builder, "\"__metadata__\":{\"format\":\"pt\"}");
    directory_tensor(&builder, "b.matrix", "F32", 2, 3, NUMBERS);
    directory_tensor(&builder, "a.vector", "BF16", 0, 4, NUMBERS);
    uint8_t *bytes = directory_finish(&builder, &length);
    assert_int_equal(open_bytes(bytes, length, &file, &reason), STATUS_OK);
    assert_int_equal(safetensors_file_bytes(file), length);
    assert_int_equal(safetensors_tensor_count(file), 2);
    const struct safetensors_tensor *matrix = safetensors_tensor_at(file, 0);
    const struct safetensors_tensor *vector = safetensors_tensor_at(file, 1);
    assert_string_equal(matrix->name, "b.matrix");
    assert_string_equal(matrix->type_name, "F32");
    assert_int_equal(matrix->type, SAFETENSORS_TYPE_F32);
    assert_int_equal(matrix->dimensions, 2);
    assert_true(matrix->extent[0] == 2 && matrix->extent[1] == 3 && matrix->extent[2] == 1);
    assert_int_equal(matrix->bytes, 24);
    assert_memory_equal(safetensors_tensor_bytes(file, matrix), NUMBERS, 24);
    assert_string_equal(vector->name, "a.vector");
    assert_int_equal(vector->type, SAFETENSORS_TYPE_BF16);
    assert_true(vector->dimensions == 1 && vector->extent[0] == 4 && vector->bytes == 8);
    assert_true(vector->offset == matrix->offset + matrix->bytes);
    assert_ptr_equal(safetensors_tensor_bytes(file, vector), bytes + vector->offset);
    safetensors_tensor_drop(file, matrix); /* borrowed memory stays */
    assert_memory_equal(safetensors_tensor_bytes(file, matrix), NUMBERS, 24);
    safetensors_close(file);
    directory_free(&builder);
    free(bytes);
}

/* The header may name them in any order; they lie as their offsets say. */
static void orders_tensors_by_place(void **state)
{
    (void)state;
    struct reason reason;
    assert_int_equal(open_raw("{\"late\":{\"dtype\":\"F16\",\"shape\":[1],\"data_offsets\":[4,6]},"
                              "\"early\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[0,4]}}",
                              6, &reason),
                     STATUS_OK);
    assert_int_equal(open_raw("{}  ", 0, &reason), STATUS_OK);
}

#define ENTRY(type, shape, offsets)                                                                \
    "{\"t\":{\"dtype\":" type ",\"shape\":" shape ",\"data_offsets\":" offsets "}}"
#define TWO(first, second)                                                                         \
    "{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" first "},"                         \
    "\"b\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":" second "}}"

/* clang-format off */
static const struct {
    const char *header;
    size_t data_bytes;
    enum status status;
    const char *says;
} DEFECTS[] = {
    {"[]", 0, STATUS_BAD_FILE, "header: is no JSON object"},
    {"{\"t\":1}", 0, STATUS_BAD_FILE, "tensor \"t\" has no object as its entry"},
    {"{\"t\":{}}", 0, STATUS_BAD_FILE, "has no dtype"},
    {"{\"\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4, STATUS_TOO_LARGE, "a name of 0 bytes"},
    {ENTRY("7", "[1]", "[0,4]"), 4, STATUS_BAD_FILE, "has no dtype"},
    {ENTRY("\"F31\"", "[1]", "[0,4]"), 4, STATUS_UNSUPPORTED, "has the unknown dtype \"F31\""},
    {ENTRY("\"F32\"", "1", "[0,4]"), 4, STATUS_BAD_FILE, "has no shape"},
    {ENTRY("\"F32\"", "{}", "[0,4]"), 4, STATUS_BAD_FILE, "has no shape"},
    {ENTRY("\"F32\"", "[\"1\"]", "[0,4]"), 4, STATUS_BAD_FILE, "no positive integer"},
    {ENTRY("\"F32\"", "[1]", "[\"0\",4]"), 4, STATUS_BAD_FILE, "no two ascending data_offsets"},
    {ENTRY("\"F32\"", "[1]", "4"), 4, STATUS_BAD_FILE, "no two ascending data_offsets"},
    {ENTRY("\"F32\"", "[0]", "[0,0]"), 4, STATUS_BAD_FILE, "no positive integer"},
    {ENTRY("\"F32\"", "[-1]", "[0,4]"), 4, STATUS_BAD_FILE, "no positive integer"},
    {ENTRY("\"F32\"", "[1.0]", "[0,4]"), 4, STATUS_BAD_FILE, "no positive integer"},
    {ENTRY("\"F32\"", "[1,1,1,1,1]", "[0,4]"), 4, STATUS_TOO_LARGE, "has 5 dimensions; at most 4"},
    {ENTRY("\"F32\"", "[4294967296,4294967296]", "[0,0]"), 4, STATUS_BAD_FILE, "63 bits"},
    {ENTRY("\"F32\"", "[4294967296,2147483648]", "[0,0]"), 4, STATUS_BAD_FILE, "63 bits"},
    {ENTRY("\"F32\"", "[9223372036854775807]", "[0,0]"), 4, STATUS_BAD_FILE, "64 bits"},
    {ENTRY("\"F32\"", "[4611686018427387905]", "[0,4]"), 4, STATUS_BAD_FILE, "64 bits"},
    {ENTRY("\"F32\"", "[1]", "[0]"), 4, STATUS_BAD_FILE, "no two ascending data_offsets"},
    {ENTRY("\"F32\"", "[1]", "[0,4,8]"), 4, STATUS_BAD_FILE, "no two ascending"},
    {ENTRY("\"F32\"", "[1]", "[4,0]"), 4, STATUS_BAD_FILE, "no two ascending"},
    {ENTRY("\"F32\"", "[1]", "[-4,0]"), 4, STATUS_BAD_FILE, "no two ascending"},
    {ENTRY("\"F32\"", "[1]", "[0,4.0]"), 4, STATUS_BAD_FILE, "no two ascending"},
    {ENTRY("\"F32\"", "[1]", "[0,5]"), 4, STATUS_BAD_FILE, "ends at byte 5 of the data, but the file has 4"},
    {ENTRY("\"F32\"", "[1]", "[9223372036854775803,9223372036854775807]"), 4, STATUS_BAD_FILE, "but the file has 4"},
    {ENTRY("\"F32\"", "[1]", "[0,3]"), 4, STATUS_BAD_FILE, "has 3 bytes, but its shape and dtype F32 need 4"},
    {ENTRY("\"F32\"", "[2]", "[0,4]"), 4, STATUS_BAD_FILE, "need 8"},
    {ENTRY("\"F32\"", "[1]", "[0,8]"), 8, STATUS_BAD_FILE, "has 8 bytes, but its shape and dtype F32 need 4"},
    {ENTRY("\"F32\"", "[1]", "[4,8]"), 8, STATUS_BAD_FILE, "starts at byte 4 of the data, expected 0"},
    {ENTRY("\"F32\"", "[1]", "[0,4]"), 5, STATUS_BAD_FILE, "but its tensors end at byte"},
    {TWO("[0,4]", "[0,4]"), 8, STATUS_BAD_FILE, "starts at byte 0 of the data, expected 4"},
    {TWO("[0,4]", "[2,6]"), 6, STATUS_BAD_FILE, "starts at byte 2 of the data, expected 4"},
    {TWO("[0,4]", "[6,10]"), 10, STATUS_BAD_FILE, "starts at byte 6 of the data, expected 4"},
    {"{\"a\":{},\"a\":{}}", 0, STATUS_BAD_FILE, "duplicate"},
};
/* clang-format on */

static void refuses_each_defect_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof DEFECTS / sizeof DEFECTS[0]; i++) {
        struct reason reason;
        enum status status = open_raw(DEFECTS[i].header, DEFECTS[i].data_bytes, &reason);
        if (status != DEFECTS[i].status || strstr(reason.storage, DEFECTS[i].says) == NULL)
            fail_msg("case %zu: %s: %s", i, status_text(status), reason.storage);
    }
}

static void refuses_a_name_that_is_too_long(void **state)
{
    (void)state;
    char header[512];
    struct reason reason;
    for (int length = SAFETENSORS_NAME_BYTES_MAX; length < SAFETENSORS_NAME_BYTES_MAX + 2;
         length++) {
        snprintf(header, sizeof header,
                 "{\"%0*d\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}", length, 0);
        bool fits = length == SAFETENSORS_NAME_BYTES_MAX;
        assert_int_equal(open_raw(header, 4, &reason), fits ? STATUS_OK : STATUS_TOO_LARGE);
        if (!fits)
            assert_non_null(strstr(reason.storage, "has a name of 256 bytes; 1 to 255 are read"));
    }
}

static void judges_the_length_of_the_header(void **state)
{
    (void)state;
    const struct {
        uint64_t announced;
        size_t bytes; /* of the file */
        enum status status;
        const char *says;
    } cases[] = {
        {2, 0, STATUS_BAD_FILE, "has 0 bytes and no header"},
        {2, 7, STATUS_BAD_FILE, "has 7 bytes and no header"},
        {2, 8, STATUS_BAD_FILE, "ends at byte 8 inside its header of 2 bytes"},
        {3, 10, STATUS_BAD_FILE, "ends at byte 10 inside its header of 3 bytes"},
        {0, 8, STATUS_BAD_FILE, "no valid JSON"},
        {UINT64_MAX, 10, STATUS_TOO_LARGE, "announce a header of 18446744073709551615 bytes"},
        {UINT64_MAX - 7, 10, STATUS_TOO_LARGE, "announce a header"},
        {SAFETENSORS_HEADER_BYTES_MAX + 1, 10, STATUS_TOO_LARGE, "at most 16777216 are read"},
        {SAFETENSORS_HEADER_BYTES_MAX, 10, STATUS_BAD_FILE, "inside its header"},
        {2, 10, STATUS_OK, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        uint8_t bytes[10];
        struct safetensors *file;
        struct reason reason;
        memcpy(bytes, &cases[i].announced, 8);
        memcpy(bytes + 8, "{}", 2);
        enum status status = open_bytes(bytes, cases[i].bytes, &file, &reason);
        if (status != cases[i].status || strstr(reason.storage, cases[i].says) == NULL)
            fail_msg("case %zu: %s: %s", i, status_text(status), reason.storage);
        safetensors_close(file);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_names_types_shapes_and_bytes),
        cmocka_unit_test(orders_tensors_by_place),
        cmocka_unit_test(refuses_each_defect_by_name),
        cmocka_unit_test(refuses_a_name_that_is_too_long),
        cmocka_unit_test(judges_the_length_of_the_header),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
