#include "common/check.h"

#include "common/exit_codes.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* How a child ends in which `condition` is checked: its wait status; its words in `out_words`. */
static int end_of_check(int condition, char *out_words, size_t capacity)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        dup2(ends[1], STDERR_FILENO);
        CHECK(condition == 1);
        _exit(0);
    }
    close(ends[1]);
    ssize_t length = read(ends[0], out_words, capacity - 1);
    out_words[length > 0 ? length : 0] = '\0';
    close(ends[0]);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return status;
}

static void a_true_condition_costs_nothing(void **state)
{
    (void)state;
    char words[512];
    assert_int_equal(end_of_check(1, words, sizeof words), 0);
    assert_string_equal(words, "");
}

static void a_false_condition_ends_the_process_and_names_the_place(void **state)
{
    (void)state;
    char words[512];
    int status = end_of_check(2, words, sizeof words);
    if (WIFEXITED(status)) {
        assert_int_equal(WEXITSTATUS(status), EXIT_CODE_INTERNAL);
    } else {
        assert_int_equal(WTERMSIG(status), SIGABRT);
    }
    assert_non_null(strstr(words, "event=check_failed"));
    assert_non_null(strstr(words, "check_test.c:"));
    assert_non_null(strstr(words, "condition == 1"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_true_condition_costs_nothing),
        cmocka_unit_test(a_false_condition_ends_the_process_and_names_the_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
