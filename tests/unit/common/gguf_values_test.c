#include "common/gguf.h"

#include "support/gguf_sample.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static void reads_values_of_every_type(void **state)
{
    (void)state;
    size_t length;
    uint8_t *file = sample_file(&length);
    struct gguf *gguf = NULL;
    struct reason reason;
    struct text *why = reason_init(&reason);
    assert_int_equal(gguf_open_memory(file, length, &gguf, why), STATUS_OK);
    uint64_t integer = 0;
    assert_int_equal(gguf_find_integer(gguf, "number", 4096, &integer, why), STATUS_OK);
    assert_int_equal(integer, 4096);
    assert_int_equal(gguf_find_integer(gguf, "byte", UINT64_MAX, &integer, why), STATUS_OK);
    assert_int_equal(integer, 7);
    assert_int_equal(gguf_find_integer(gguf, "short", UINT64_MAX, &integer, why), STATUS_OK);
    assert_int_equal(integer, 0x3c00);
    double number = 0;
    assert_int_equal(gguf_find_float(gguf, "float", &number, why), STATUS_OK);
    assert_true(number == 1.5);
    assert_int_equal(gguf_find_float(gguf, "wide", &number, why), STATUS_OK);
    assert_true(number == 0.25);
    bool yes = false;
    assert_int_equal(gguf_find_bool(gguf, "yes", &yes, why), STATUS_OK);
    assert_true(yes);
    struct gguf_string string;
    assert_int_equal(gguf_find_string(gguf, "general.architecture", &string, why), STATUS_OK);
    assert_true(gguf_string_equal(string, "llama"));
    assert_false(gguf_string_equal(string, "llam"));
    enum gguf_value_type type = GGUF_VALUE_U8;
    assert_true(gguf_has(gguf, "words", &type));
    assert_int_equal(type, GGUF_VALUE_ARRAY);
    assert_false(gguf_has(gguf, "word", &type));
    gguf_close(gguf);
    free(file);
}

static void reads_arrays_element_by_element(void **state)
{
    (void)state;
    size_t length;
    uint8_t *file = sample_file(&length);
    struct gguf *gguf = NULL;
    struct gguf_array array;
    struct gguf_string string;
    int64_t integer;
    double number;
    assert_int_equal(gguf_open_memory(file, length, &gguf, NULL), STATUS_OK);
    assert_int_equal(gguf_find_array(gguf, "words", GGUF_VALUE_STRING, &array, NULL), STATUS_OK);
    assert_int_equal(array.remaining, 3);
    const char *const words[] = {"one", "", "three"};
    for (size_t i = 0; i < 3; i++) {
        assert_true(gguf_next_string(&array, &string));
        assert_true(gguf_string_equal(string, words[i]));
    }
    assert_false(gguf_next_string(&array, &string));
    assert_int_equal(gguf_find_array(gguf, "integers", GGUF_VALUE_U32, &array, NULL), STATUS_OK);
    assert_false(gguf_next_string(&array, &string));
    assert_true(gguf_next_integer(&array, &integer));
    assert_int_equal(integer, -1);
    assert_true(gguf_next_integer(&array, &integer));
    assert_int_equal(integer, 9);
    assert_false(gguf_next_integer(&array, &integer));
    assert_int_equal(gguf_find_array(gguf, "floats", GGUF_VALUE_F64, &array, NULL), STATUS_OK);
    assert_false(gguf_next_integer(&array, &integer));
    assert_true(gguf_next_float(&array, &number));
    assert_true(number == 1);
    assert_int_equal(gguf_find_array(gguf, "words", GGUF_VALUE_F32, &array, NULL), STATUS_BAD_FILE);
    assert_int_equal(gguf_find_array(gguf, "number", GGUF_VALUE_F32, &array, NULL),
                     STATUS_BAD_FILE);
    gguf_close(gguf);
    free(file);
}

static void lookups_name_the_key_and_what_it_holds(void **state)
{
    (void)state;
    size_t length;
    uint8_t *file = sample_file(&length);
    struct gguf *gguf = NULL;
    struct reason reason;
    struct text *why = reason_init(&reason);
    assert_int_equal(gguf_open_memory(file, length, &gguf, why), STATUS_OK);
    uint64_t integer = 1;
    double number = 1;
    bool yes = true;
    struct gguf_string string;
    assert_int_equal(gguf_find_integer(gguf, "none", 9, &integer, why), STATUS_NOT_FOUND);
    assert_string_equal(why->bytes, "key \"none\" is missing");
    assert_int_equal(gguf_find_integer(gguf, "number", 4095, &integer, why), STATUS_BAD_FILE);
    assert_string_equal(why->bytes, "key \"number\" holds 4096, expected 0 to 4095");
    assert_int_equal(gguf_find_integer(gguf, "below", 9, &integer, why), STATUS_BAD_FILE);
    assert_string_equal(why->bytes, "key \"below\" holds -5, expected 0 to 9");
    assert_int_equal(gguf_find_integer(gguf, "above", 9, &integer, why), STATUS_BAD_FILE);
    assert_string_equal(why->bytes, "key \"above\" holds 18446744073709551615, expected 0 to 9");
    assert_int_equal(gguf_find_integer(gguf, "float", 9, &integer, why), STATUS_BAD_FILE);
    assert_string_equal(why->bytes, "key \"float\" is of type f32, expected an integer");
    assert_int_equal(gguf_find_float(gguf, "number", &number, why), STATUS_BAD_FILE);
    assert_int_equal(gguf_find_bool(gguf, "odd", &yes, why), STATUS_BAD_FILE);
    assert_string_equal(why->bytes, "key \"odd\" holds 7, expected 0 or 1");
    assert_int_equal(gguf_find_bool(gguf, "number", &yes, why), STATUS_BAD_FILE);
    assert_int_equal(gguf_find_string(gguf, "number", &string, why), STATUS_BAD_FILE);
    assert_true(integer == 1 && number == 1 && yes);
    gguf_close(gguf);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_values_of_every_type),
        cmocka_unit_test(reads_arrays_element_by_element),
        cmocka_unit_test(lookups_name_the_key_and_what_it_holds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
