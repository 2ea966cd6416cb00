#include "common/json_input.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdlib.h>
#include <string.h>

static json_t *parsed(const char *text)
{
    json_t *root = NULL;
    struct reason reason;
    if (json_input_parse(text, strlen(text), "file", &root, reason_init(&reason)) != STATUS_OK)
        fail_msg("%s", reason.storage);
    return root;
}

static void reads_each_type_within_its_bounds(void **state)
{
    (void)state;
    json_t *root = parsed(
        "{\"i\": 7, \"r\": 0.5, \"b\": true, \"off\": false, \"s\": \"text\", \"o\": {\"x\": 1},"
        " \"n\": null, \"big\": 9223372036854775807, \"minus\": -1}");
    const struct json_input input = {root, "file"};
    struct json_input object;
    uint64_t integer = 99;
    double number = 99;
    bool set = false;
    const char *text = NULL;
    assert_int_equal(json_input_integer(&input, "i", 7, 7, &integer, NULL), STATUS_OK);
    assert_int_equal(integer, 7);
    assert_int_equal(json_input_integer(&input, "big", 0, UINT64_MAX, &integer, NULL), STATUS_OK);
    assert_true(integer == INT64_MAX);
    assert_int_equal(json_input_number(&input, "r", 0, 1, &number, NULL), STATUS_OK);
    assert_true(number == 0.5);
    assert_int_equal(json_input_number(&input, "i", 0, 10, &number, NULL), STATUS_OK);
    assert_true(number == 7);
    assert_int_equal(json_input_bool(&input, "b", &set, NULL), STATUS_OK);
    assert_true(set);
    assert_int_equal(json_input_string(&input, "s", &text, NULL), STATUS_OK);
    assert_string_equal(text, "text");
    assert_int_equal(json_input_object(&input, "o", &object, NULL), STATUS_OK);
    assert_int_equal(json_input_integer(&object, "x", 0, 1, &integer, NULL), STATUS_OK);
    assert_int_equal(json_input_bool(&input, "off", &set, NULL), STATUS_OK);
    assert_false(set);
    assert_true(json_input_has(&input, "i"));
    assert_false(json_input_has(&input, "n"));
    assert_false(json_input_has(&input, "absent"));
    json_decref(root);
}

static void names_what_is_wrong_and_leaves_the_default(void **state)
{
    (void)state;
    json_t *root = parsed("{\"i\": 7, \"r\": 0.5, \"s\": \"text\", \"n\": null, \"minus\": -1,"
                          " \"huge\": 1e300}");
    const struct json_input input = {root, "file"};
    struct reason reason;
    struct text *why = reason_init(&reason);
    uint64_t integer = 99;
    double number = 99;
    bool set = true;
    const char *text = "default";
    assert_int_equal(json_input_integer(&input, "i", 8, 9, &integer, why), STATUS_BAD_FILE);
    assert_string_equal(reason.storage, "file: key \"i\" holds 7, expected 8 to 9");
    assert_int_equal(json_input_integer(&input, "i", 0, 6, &integer, why), STATUS_BAD_FILE);
    assert_int_equal(json_input_integer(&input, "minus", 0, UINT64_MAX, &integer, why),
                     STATUS_BAD_FILE);
    assert_non_null(strstr(reason.storage, "holds -1"));
    assert_int_equal(json_input_integer(&input, "r", 0, 9, &integer, why), STATUS_BAD_FILE);
    assert_string_equal(reason.storage, "file: key \"r\" is a fraction, expected an integer");
    assert_int_equal(json_input_integer(&input, "n", 0, 9, &integer, why), STATUS_NOT_FOUND);
    assert_string_equal(reason.storage, "file: key \"n\" is missing");
    assert_int_equal(json_input_number(&input, "huge", 0, 1e12, &number, why), STATUS_BAD_FILE);
    assert_string_equal(reason.storage, "file: key \"huge\" holds 1e+300, expected 0 to 1e+12");
    assert_int_equal(json_input_number(&input, "r", 0.6, 1, &number, why), STATUS_BAD_FILE);
    assert_int_equal(json_input_number(&input, "s", 0, 1, &number, why), STATUS_BAD_FILE);
    assert_int_equal(json_input_bool(&input, "i", &set, why), STATUS_BAD_FILE);
    assert_int_equal(json_input_string(&input, "i", &text, why), STATUS_BAD_FILE);
    assert_string_equal(reason.storage, "file: key \"i\" is an integer, expected a string");
    assert_true(integer == 99 && number == 99 && set);
    assert_string_equal(text, "default");
    json_decref(root);
}

static void refuses_documents_by_name(void **state)
{
    (void)state;
    const struct {
        const char *text;
        enum status status;
        const char *says;
    } cases[] = {
        {"", STATUS_BAD_FILE, "file: no valid JSON at line"},
        {"{", STATUS_BAD_FILE, "no valid JSON"},
        {"{\"a\": 1}x", STATUS_BAD_FILE, "no valid JSON"},
        {"{\"a\": 1, \"a\": 2}", STATUS_BAD_FILE, "duplicate"},
        {"{\"a\": 99999999999999999999}", STATUS_BAD_FILE, "no valid JSON"},
        {"{\"a\": 1e999}", STATUS_BAD_FILE, "no valid JSON"},
        {"{\"a\": \"\xff\"}", STATUS_BAD_FILE, "no valid JSON"},
        {"{\"a\": NaN}", STATUS_BAD_FILE, "no valid JSON"},
        {"[1]", STATUS_BAD_FILE, "file: is no JSON object"},
        {"{\"a\":[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]}", STATUS_TOO_LARGE,
         "nested 17 deep; at most 16"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *root = NULL;
        struct reason reason;
        enum status status = json_input_parse(cases[i].text, strlen(cases[i].text), "file", &root,
                                              reason_init(&reason));
        if (status != cases[i].status || strstr(reason.storage, cases[i].says) == NULL)
            fail_msg("case %zu: %s: %s", i, status_text(status), reason.storage);
        assert_null(root);
    }
}

/* Depth and number of values, in brackets that are text and in brackets that are not. */
static void counts_before_it_builds(void **state)
{
    (void)state;
    json_t *root = parsed("{\"[[[[[[[[[[[[[[[[[[[[[\": \"{{{{{{{{{{{{{{{{{{{{{\\\"[[[[[[[[\"}");
    json_decref(root);
    size_t length = (size_t)4 << 20;
    char *bomb = malloc(length);
    assert_non_null(bomb);
    struct reason reason;
    memset(bomb, '[', length);
    assert_int_equal(json_input_parse(bomb, length, "file", &root, reason_init(&reason)),
                     STATUS_TOO_LARGE);
    assert_non_null(strstr(reason.storage, "nested 4194304 deep"));
    for (size_t i = 0; i < length; i++)
        bomb[i] = i % 2 == 0 ? ',' : '1';
    memcpy(bomb, "{\"a\":[1", 7);
    assert_int_equal(json_input_parse(bomb, length, "file", &root, reason_init(&reason)),
                     STATUS_TOO_LARGE);
    assert_non_null(strstr(reason.storage, "values; at most 1048576"));
    free(bomb);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_each_type_within_its_bounds),
        cmocka_unit_test(names_what_is_wrong_and_leaves_the_default),
        cmocka_unit_test(refuses_documents_by_name),
        cmocka_unit_test(counts_before_it_builds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
