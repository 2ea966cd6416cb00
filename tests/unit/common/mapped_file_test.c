#include "common/mapped_file.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { FILE_BYTES = 10000 };

static char folder[] = "/tmp/mapped_file_test.XXXXXX";
static char path[64], pipe_path[64], empty_path[64];

static int make_files(void **state)
{
    (void)state;
    if (mkdtemp(folder) == NULL)
        return -1;
    snprintf(path, sizeof path, "%s/file", folder);
    snprintf(pipe_path, sizeof pipe_path, "%s/pipe", folder);
    snprintf(empty_path, sizeof empty_path, "%s/empty", folder);
    FILE *file = fopen(path, "wb"), *empty = fopen(empty_path, "wb");
    for (int i = 0; i < FILE_BYTES; i++)
        (void)fputc(i % 251, file);
    return fclose(file) | fclose(empty) | mkfifo(pipe_path, 0600);
}

static int remove_files(void **state)
{
    (void)state;
    return unlink(path) | unlink(pipe_path) | unlink(empty_path) | rmdir(folder);
}

static void maps_and_drops_and_reads_again(void **state)
{
    (void)state;
    struct mapped_file file = {0};
    assert_int_equal(mapped_file_open(path, &file, NULL), STATUS_OK);
    assert_int_equal(file.length, FILE_BYTES);
    mapped_file_drop(&file, 5000, 5000);
    mapped_file_drop(&file, 0, 1);
    mapped_file_drop(&file, FILE_BYTES, 0);
    for (int i = 0; i < FILE_BYTES; i++)
        assert_int_equal(file.bytes[i], i % 251);
    mapped_file_close(&file);
    assert_null(file.bytes);
    mapped_file_close(&file);
}

static void refuses_what_is_no_file_by_name(void **state)
{
    (void)state;
    const struct {
        const char *path;
        enum status status;
        const char *says;
    } cases[] = {
        {"/nowhere/at/all", STATUS_NOT_FOUND, "cannot be opened: No such file"},
        {folder, STATUS_BAD_FILE, "not a regular file"},
        {pipe_path, STATUS_BAD_FILE, "not a regular file"},
        {"/dev/null", STATUS_BAD_FILE, "not a regular file"},
        {empty_path, STATUS_BAD_FILE, "the file is empty"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct mapped_file file = {0};
        struct reason reason;
        assert_int_equal(mapped_file_open(cases[i].path, &file, reason_init(&reason)),
                         cases[i].status);
        assert_non_null(strstr(reason.storage, cases[i].says));
        assert_null(file.bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(maps_and_drops_and_reads_again),
        cmocka_unit_test(refuses_what_is_no_file_by_name),
    };
    return cmocka_run_group_tests(tests, make_files, remove_files);
}
