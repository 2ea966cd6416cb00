#include "common/gguf.h"

#include "common/random.h"
#include "support/gguf_sample.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Opens a copy of exactly `length` bytes, so that a sanitizer sees the first byte read beyond. */
static enum status open_copy(const uint8_t *bytes, size_t length, struct gguf **out_gguf,
                             uint8_t **out_copy, struct text *why)
{
    *out_copy = malloc(length == 0 ? 1 : length);
    assert_non_null(*out_copy);
    memcpy(*out_copy, bytes, length);
    *out_gguf = NULL;
    return gguf_open_memory(*out_copy, length, out_gguf, why);
}

/* Reads all that an opened file offers; a read outside is the sanitizer's to find. */
static uint64_t walk(const struct gguf *gguf)
{
    uint64_t sum = 0;
    for (uint32_t i = 0; i < gguf_key_count(gguf); i++) {
        const struct gguf_entry *entry = gguf_entry_at(gguf, i);
        for (size_t j = 0; j < entry->key.length; j++)
            sum += (uint8_t)entry->key.bytes[j];
        for (size_t j = 0; j < entry->value.length; j++)
            sum += (uint8_t)entry->value.bytes[j];
    }
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++) {
        const struct gguf_tensor *tensor = gguf_tensor_at(gguf, i);
        const uint8_t *bytes = gguf_tensor_bytes(gguf, tensor);
        for (uint64_t j = 0; j < tensor->bytes; j++)
            sum += bytes[j];
        assert_ptr_equal(gguf_find_tensor(gguf, tensor->name), tensor);
    }
    return sum;
}

static void places_tensors_at_the_alignment(void **state)
{
    (void)state;
    size_t length;
    uint8_t *file = sample_file(&length);
    struct gguf *gguf = NULL;
    assert_int_equal(gguf_open_memory(file, length, &gguf, NULL), STATUS_OK);
    assert_int_equal(gguf_tensor_count(gguf), 3);
    const struct gguf_tensor *first = gguf_find_tensor(gguf, "b.first");
    const struct gguf_tensor *second = gguf_find_tensor(gguf, "a.second");
    assert_ptr_equal(first, gguf_tensor_at(gguf, 0));
    assert_int_equal(first->bytes, 12);
    assert_int_equal(first->offset % 32, 0);
    assert_int_equal(second->offset, first->offset + 32);
    assert_int_equal(second->bytes, 36);
    assert_int_equal(second->extent[1], 2);
    assert_int_equal(second->extent[2], 1);
    assert_memory_equal(gguf_tensor_bytes(gguf, first), SAMPLE_VALUES, 12);
    assert_null(gguf_find_tensor(gguf, "b.firs"));
    assert_null(gguf_find_tensor(gguf, ""));
    gguf_close(gguf);
    free(file);
}

static void refuses_a_file_cut_anywhere(void **state)
{
    (void)state;
    size_t length;
    uint8_t *file = sample_file(&length);
    struct gguf *gguf = NULL;
    uint8_t *copy = NULL;
    /* Without the padding behind the last tensor, which nobody needs. */
    assert_int_equal(open_copy(file, length, &gguf, &copy, NULL), STATUS_OK);
    const struct gguf_tensor *last = gguf_tensor_at(gguf, 2);
    size_t needed = (size_t)(last->offset + last->bytes);
    gguf_close(gguf);
    free(copy);
    for (size_t cut = 0; cut < needed; cut++) {
        struct reason reason;
        assert_int_equal(open_copy(file, cut, &gguf, &copy, reason_init(&reason)), STATUS_BAD_FILE);
        assert_null(gguf);
        assert_true(reason.text.length > 0);
        free(copy);
    }
    assert_int_equal(open_copy(file, needed, &gguf, &copy, NULL), STATUS_OK);
    assert_true(walk(gguf) > 0);
    gguf_close(gguf);
    free(copy);
    free(file);
}

static void a_truncated_tensor_is_named_with_both_sizes(void **state)
{
    (void)state;
    size_t length;
    uint8_t *file = sample_file(&length), *copy;
    struct gguf *gguf;
    struct reason reason;
    assert_int_equal(open_copy(file, length - 40, &gguf, &copy, reason_init(&reason)),
                     STATUS_BAD_FILE);
    char expected[128];
    snprintf(expected, sizeof expected, "needs the file to have %zu bytes, but it has %zu",
             length - 16, length - 40);
    assert_non_null(strstr(reason.storage, "tensor \"c.third\""));
    assert_non_null(strstr(reason.storage, expected));
    free(copy);
    free(file);
}

static void survives_any_flipped_bit_and_random_bytes(void **state)
{
    (void)state;
    size_t length;
    uint8_t *file = sample_file(&length);
    struct gguf *gguf;
    uint8_t *copy;
    uint32_t opened = 0;
    for (size_t bit = 0; bit < 8 * length; bit++) {
        file[bit / 8] ^= (uint8_t)(1u << bit % 8);
        if (open_copy(file, length, &gguf, &copy, NULL) == STATUS_OK) {
            walk(gguf);
            opened++;
        }
        gguf_close(gguf);
        free(copy);
        file[bit / 8] ^= (uint8_t)(1u << bit % 8);
    }
    assert_true(opened > 0);
    const uint64_t seed = 20261130;
    struct random random = {.state = seed};
    for (uint32_t round = 0; round < 20000; round++) {
        uint8_t saved[4];
        size_t place = random_below(&random, length - sizeof saved);
        memcpy(saved, file + place, sizeof saved);
        uint64_t bytes = random_next(&random);
        memcpy(file + place, &bytes, sizeof saved);
        if (open_copy(file, length, &gguf, &copy, NULL) == STATUS_OK)
            walk(gguf);
        gguf_close(gguf);
        free(copy);
        memcpy(file + place, saved, sizeof saved);
    }
    free(file);
}

/* One defect each; `why` must hold `says`. */
struct defect {
    const char *name;
    void (*plant)(struct gguf_builder *builder);
    enum status status;
    const char *says;
};

static void plant_raw(struct gguf_builder *builder, const char *name, uint32_t type,
                      const uint64_t *extents, uint32_t dimensions)
{
    builder_raw_tensor(builder, name, type, extents, dimensions, builder->tensors.length);
}

static void plant_negative_product(struct gguf_builder *builder)
{
    plant_raw(builder, "huge", GGUF_TENSOR_F32, (const uint64_t[]){INT64_MAX, 2}, 2);
}

static void plant_wrapping_product(struct gguf_builder *builder)
{
    plant_raw(builder, "huge", GGUF_TENSOR_F32,
              (const uint64_t[]){UINT64_C(1) << 32, UINT64_C(1) << 32}, 2);
}

static void plant_wrapping_bytes(struct gguf_builder *builder)
{
    plant_raw(builder, "huge", GGUF_TENSOR_F32, (const uint64_t[]){INT64_MAX}, 1);
}

static void plant_wrapping_end(struct gguf_builder *builder)
{
    plant_raw(builder, "huge", GGUF_TENSOR_F16, (const uint64_t[]){INT64_MAX}, 1);
}

static void plant_no_elements(struct gguf_builder *builder)
{
    plant_raw(builder, "none", GGUF_TENSOR_F32, (const uint64_t[]){0}, 1);
}

static void plant_no_dimensions(struct gguf_builder *builder)
{
    plant_raw(builder, "flat", GGUF_TENSOR_F32, NULL, 0);
}

static void plant_many_dimensions(struct gguf_builder *builder)
{
    plant_raw(builder, "deep", GGUF_TENSOR_F32, (const uint64_t[]){1, 1, 1, 1, 1}, 5);
}

static void plant_broken_block(struct gguf_builder *builder)
{
    plant_raw(builder, "odd", GGUF_TENSOR_Q8_0, (const uint64_t[]){33}, 1);
}

static void plant_unknown_type(struct gguf_builder *builder)
{
    plant_raw(builder, "odd", 4, (const uint64_t[]){32}, 1);
}

static void plant_overlap(struct gguf_builder *builder)
{
    builder_raw_tensor(builder, "over", GGUF_TENSOR_F32, (const uint64_t[]){1}, 1, 0);
}

static void plant_gap(struct gguf_builder *builder)
{
    builder_raw_tensor(builder, "gap", GGUF_TENSOR_F32, (const uint64_t[]){1}, 1,
                       builder->tensors.length + 32);
}

static void plant_unaligned(struct gguf_builder *builder)
{
    builder_raw_tensor(builder, "crooked", GGUF_TENSOR_F32, (const uint64_t[]){1}, 1,
                       builder->tensors.length + 4);
}

static void plant_tensor_twice(struct gguf_builder *builder)
{
    builder_tensor(builder, "b.first", GGUF_TENSOR_F32, 3, 0, SAMPLE_VALUES);
}

static void plant_key_twice(struct gguf_builder *builder)
{
    builder_u32(builder, "number", 1);
}

static void plant_long_name(struct gguf_builder *builder)
{
    char name[GGUF_TENSOR_NAME_BYTES_MAX + 2];
    memset(name, 'n', sizeof name);
    name[sizeof name - 1] = '\0';
    builder_tensor(builder, name, GGUF_TENSOR_F32, 3, 0, SAMPLE_VALUES);
}

static void plant_empty_key(struct gguf_builder *builder)
{
    builder_u32(builder, "", 1);
}

static void plant_unknown_value(struct gguf_builder *builder)
{
    builder_key(builder, "strange", 13);
}

static void plant_nested_array(struct gguf_builder *builder)
{
    builder_array(builder, "nested", GGUF_VALUE_ARRAY, 1);
}

static void plant_unknown_element(struct gguf_builder *builder)
{
    builder_array(builder, "strange", 77, 1);
}

static void plant_endless_array(struct gguf_builder *builder)
{
    builder_array(builder, "endless", GGUF_VALUE_U64, UINT64_C(1) << 61);
}

static void plant_endless_strings(struct gguf_builder *builder)
{
    builder_array(builder, "endless", GGUF_VALUE_STRING, GGUF_ARRAY_COUNT_MAX);
}

static void plant_endless_string(struct gguf_builder *builder)
{
    builder_key(builder, "endless", GGUF_VALUE_STRING);
    builder_put_u64(&builder->keys, UINT64_MAX - 8);
}

/* Longer than the rest of the file, not than the file. */
static void plant_long_string(struct gguf_builder *builder)
{
    builder_key(builder, "long", GGUF_VALUE_STRING);
    builder_put_u64(&builder->keys, 500);
}

static void plant_many_keys(struct gguf_builder *builder)
{
    builder->key_count = UINT64_C(1) << 60;
}

static void plant_many_tensors(struct gguf_builder *builder)
{
    builder->tensor_count = UINT64_C(1) << 60;
}

static void plant_more_keys(struct gguf_builder *builder)
{
    builder->key_count = 60000;
}

static void plant_more_tensors(struct gguf_builder *builder)
{
    builder->tensor_count = 60000;
}

static void plant_text_alignment(struct gguf_builder *builder)
{
    builder_string(builder, "general.alignment", "32");
}

static void plant_odd_alignment(struct gguf_builder *builder)
{
    builder_u32(builder, "general.alignment", 48);
}

static void plant_no_alignment(struct gguf_builder *builder)
{
    builder_u32(builder, "general.alignment", 0);
}

static void plant_huge_alignment(struct gguf_builder *builder)
{
    builder_u32(builder, "general.alignment", UINT32_C(1) << 31);
}

static void plant_old_version(struct gguf_builder *builder)
{
    builder->version = 1;
}

static void plant_other_byte_order(struct gguf_builder *builder)
{
    builder->version = UINT32_C(3) << 24;
}

/* clang-format off */
static const struct defect DEFECTS[] = {
    {"negative product", plant_negative_product, STATUS_BAD_FILE, "tensor \"huge\" has more elements"},
    {"wrapping product", plant_wrapping_product, STATUS_BAD_FILE, "tensor \"huge\" has more elements"},
    {"wrapping bytes", plant_wrapping_bytes, STATUS_BAD_FILE, "tensor \"huge\" has more bytes"},
    {"wrapping end", plant_wrapping_end, STATUS_BAD_FILE, "tensor \"huge\""},
    {"no elements", plant_no_elements, STATUS_BAD_FILE, "tensor \"none\" has an extent of 0"},
    {"no dimensions", plant_no_dimensions, STATUS_BAD_FILE, "tensor \"flat\" has 0 dimensions"},
    {"many dimensions", plant_many_dimensions, STATUS_BAD_FILE, "tensor \"deep\" has 5 dimensions"},
    {"broken block", plant_broken_block, STATUS_BAD_FILE, "rows of 33 elements, but Q8_0 comes in blocks of 32"},
    {"unknown type", plant_unknown_type, STATUS_UNSUPPORTED, "tensor \"odd\" has the unknown type number 4"},
    {"overlap", plant_overlap, STATUS_BAD_FILE, "tensor \"over\" starts at offset 0 of the data, expected 128"},
    {"gap", plant_gap, STATUS_BAD_FILE, "tensor \"gap\" starts at offset 160 of the data, expected 128"},
    {"unaligned", plant_unaligned, STATUS_BAD_FILE, "tensor \"crooked\" starts at offset 132"},
    {"tensor twice", plant_tensor_twice, STATUS_BAD_FILE, "tensor \"b.first\" occurs twice"},
    {"key twice", plant_key_twice, STATUS_BAD_FILE, "key \"number\" occurs twice"},
    {"long name", plant_long_name, STATUS_BAD_FILE, "has a name of 64 bytes"},
    {"empty key", plant_empty_key, STATUS_BAD_FILE, "has a name of 0 bytes"},
    {"unknown value", plant_unknown_value, STATUS_BAD_FILE, "key \"strange\" has the unknown type 13"},
    {"nested array", plant_nested_array, STATUS_UNSUPPORTED, "key \"nested\" is an array of arrays"},
    {"unknown element", plant_unknown_element, STATUS_BAD_FILE, "key \"strange\" is an array of unknown type 77"},
    {"endless array", plant_endless_array, STATUS_BAD_FILE, "key \"endless\" is an array of 2305843009213693952"},
    {"endless strings", plant_endless_strings, STATUS_BAD_FILE, "key \"endless\" is an array of 1073741824"},
    {"endless string", plant_endless_string, STATUS_BAD_FILE, "key \"endless\" has a value that leaves the file"},
    {"long string", plant_long_string, STATUS_BAD_FILE, "key \"long\" has a value that leaves the file"},
    {"many keys", plant_many_keys, STATUS_BAD_FILE, "keys, more than any model has"},
    {"many tensors", plant_many_tensors, STATUS_BAD_FILE, "tensors, more than any model has"},
    {"more keys", plant_more_keys, STATUS_BAD_FILE, "60000 keys, more than the file can hold"},
    {"more tensors", plant_more_tensors, STATUS_BAD_FILE, "60000 tensors, more than the file can hold"},
    {"text alignment", plant_text_alignment, STATUS_BAD_FILE, "key \"general.alignment\" is of type string"},
    {"odd alignment", plant_odd_alignment, STATUS_BAD_FILE, "key \"general.alignment\" holds 48"},
    {"no alignment", plant_no_alignment, STATUS_BAD_FILE, "key \"general.alignment\" holds 0"},
    {"huge alignment", plant_huge_alignment, STATUS_BAD_FILE, "key \"general.alignment\" holds 2147483648"},
    {"old version", plant_old_version, STATUS_UNSUPPORTED, "GGUF version 1;"},
    {"other byte order", plant_other_byte_order, STATUS_UNSUPPORTED, "GGUF version 3 in big-endian byte order"},
};
/* clang-format on */

static void refuses_each_defect_by_name(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof DEFECTS / sizeof DEFECTS[0]; i++) {
        struct gguf_builder builder;
        struct reason reason;
        size_t length;
        build_sample(&builder);
        DEFECTS[i].plant(&builder);
        uint8_t *file = builder_finish(&builder, &length), *copy;
        struct gguf *gguf;
        enum status status = open_copy(file, length, &gguf, &copy, reason_init(&reason));
        if (status != DEFECTS[i].status || strstr(reason.storage, DEFECTS[i].says) == NULL)
            fail_msg("%s: %s: %s", DEFECTS[i].name, status_text(status), reason.storage);
        assert_null(gguf);
        builder_free(&builder);
        free(copy);
        free(file);
    }
}

static void accepts_a_larger_alignment(void **state)
{
    (void)state;
    struct gguf_builder builder;
    builder_init(&builder);
    builder.alignment = 64;
    builder_u32(&builder, "general.alignment", 64);
    builder_tensor(&builder, "one", GGUF_TENSOR_F32, 3, 0, SAMPLE_VALUES);
    builder_tensor(&builder, "two", GGUF_TENSOR_F32, 3, 0, SAMPLE_VALUES);
    size_t length;
    uint8_t *file = builder_finish(&builder, &length);
    struct gguf *gguf = NULL;
    assert_int_equal(gguf_open_memory(file, length, &gguf, NULL), STATUS_OK);
    assert_int_equal(gguf_tensor_at(gguf, 1)->offset - gguf_tensor_at(gguf, 0)->offset, 64);
    gguf_close(gguf);
    builder_free(&builder);
    free(file);
}

static void names_what_is_wrong_with_a_path(void **state)
{
    (void)state;
    char folder[] = "/tmp/gguf_test.XXXXXX";
    assert_non_null(mkdtemp(folder));
    char path[64];
    struct gguf *gguf = NULL;
    struct reason reason;
    snprintf(path, sizeof path, "%s/model", folder);
    assert_int_equal(gguf_open(path, &gguf, reason_init(&reason)), STATUS_NOT_FOUND);
    assert_string_equal(reason.storage, "cannot be opened: No such file or directory");
    assert_int_equal(gguf_open(folder, &gguf, reason_init(&reason)), STATUS_BAD_FILE);
    assert_string_equal(reason.storage, "not a regular file");
    assert_int_equal(mkfifo(path, 0600), 0);
    assert_int_equal(gguf_open(path, &gguf, reason_init(&reason)), STATUS_BAD_FILE);
    assert_int_equal(unlink(path), 0);
    int descriptor = open(path, O_CREAT | O_WRONLY, 0600);
    assert_true(descriptor >= 0);
    assert_int_equal(gguf_open(path, &gguf, reason_init(&reason)), STATUS_BAD_FILE);
    assert_string_equal(reason.storage, "the file is empty");
    size_t length;
    uint8_t *file = sample_file(&length);
    assert_int_equal(write(descriptor, file, length), length);
    assert_int_equal(close(descriptor), 0);
    assert_int_equal(gguf_open(path, &gguf, reason_init(&reason)), STATUS_OK);
    assert_int_equal(gguf_file_bytes(gguf), length);
    uint64_t sum = walk(gguf);
    for (uint32_t i = 0; i < gguf_tensor_count(gguf); i++)
        gguf_tensor_drop(gguf, gguf_tensor_at(gguf, i));
    assert_int_equal(walk(gguf), sum);
    gguf_close(gguf);
    free(file);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(rmdir(folder), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_tensors_at_the_alignment),
        cmocka_unit_test(refuses_a_file_cut_anywhere),
        cmocka_unit_test(a_truncated_tensor_is_named_with_both_sizes),
        cmocka_unit_test(survives_any_flipped_bit_and_random_bytes),
        cmocka_unit_test(refuses_each_defect_by_name),
        cmocka_unit_test(accepts_a_larger_alignment),
        cmocka_unit_test(names_what_is_wrong_with_a_path),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
