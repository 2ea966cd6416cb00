/* The exit code and the sentence of a start that fails. */
#include "common/start_failure.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* What a start with an unreadable model writes, and its code. */
static int fail_with(enum status status, const char *because, char *out_line, size_t bytes)
{
    struct reason why;
    text_set(reason_init(&why), "%s", because);
    FILE *file = tmpfile();
    assert_non_null(file);
    int kept = dup(STDERR_FILENO);
    assert_int_equal(dup2(fileno(file), STDERR_FILENO), STDERR_FILENO);
    int code = start_failure_of_model("program", "a.gguf", &why, status);
    assert_int_equal(dup2(kept, STDERR_FILENO), STDERR_FILENO);
    close(kept);
    rewind(file);
    assert_non_null(fgets(out_line, (int)bytes, file));
    (void)fclose(file);
    return code;
}

static void a_model_that_cannot_be_opened_ends_with_its_code(void **state)
{
    (void)state;
    static const struct {
        enum status status;
        enum exit_code code;
        const char *because, *line;
    } cases[] = {
        {STATUS_INVALID, EXIT_CODE_USAGE, "--context: 9", "program: --context: 9\n"},
        {STATUS_NOT_FOUND, EXIT_CODE_NO_MODEL, "gone", "program: --model \"a.gguf\": gone\n"},
        {STATUS_BAD_FILE, EXIT_CODE_NO_MODEL, "cut", "program: --model \"a.gguf\": cut\n"},
        {STATUS_PERMISSION, EXIT_CODE_PERMISSION, "no", "program: --model \"a.gguf\": no\n"},
        {STATUS_OUT_OF_MEMORY, EXIT_CODE_TEMPORARY, "full", "program: --model \"a.gguf\": full\n"},
        {STATUS_SYSTEM, EXIT_CODE_SYSTEM, "EIO", "program: --model \"a.gguf\": EIO\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char line[256];
        assert_int_equal(fail_with(cases[i].status, cases[i].because, line, sizeof line),
                         cases[i].code);
        assert_string_equal(line, cases[i].line);
    }
}

static void without_a_reason_the_status_speaks(void **state)
{
    (void)state;
    char line[256];
    assert_int_equal(fail_with(STATUS_OUT_OF_MEMORY, "", line, sizeof line), EXIT_CODE_TEMPORARY);
    assert_non_null(strstr(line, status_text(STATUS_OUT_OF_MEMORY)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_model_that_cannot_be_opened_ends_with_its_code),
        cmocka_unit_test(without_a_reason_the_status_speaks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
