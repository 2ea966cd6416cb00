#include "common/log.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <string.h>
#include <unistd.h>

struct capture {
    int reader, kept;
};

/* Sends stderr into a pipe until end_capture(). */
static struct capture begin_capture(void)
{
    int ends[2];
    assert_int_equal(pipe(ends), 0);
    struct capture capture = {.reader = ends[0], .kept = dup(STDERR_FILENO)};
    dup2(ends[1], STDERR_FILENO);
    close(ends[1]);
    return capture;
}

static void end_capture(struct capture capture, char *out_words, size_t capacity)
{
    dup2(capture.kept, STDERR_FILENO);
    close(capture.kept);
    size_t length = 0;
    for (ssize_t got; (got = read(capture.reader, out_words + length, capacity - 1 - length)) > 0;)
        length += (size_t)got;
    out_words[length] = '\0';
    close(capture.reader);
}

static void a_line_has_stamp_level_service_event_and_pairs(void **state)
{
    (void)state;
    char words[4096];
    log_open("tester", LOG_LEVEL_INFO);
    struct capture capture = begin_capture();
    log_warn("worker_lost", "epoch=%d", 3);
    end_capture(capture, words, sizeof words);
    assert_int_equal(strncmp(words, "t=", 2), 0);
    assert_non_null(strstr(words, " level=warn service=tester event=worker_lost epoch=3\n"));
}

static int evaluations;

static int count_evaluation(void)
{
    return ++evaluations;
}

static void a_level_that_is_off_evaluates_nothing(void **state)
{
    (void)state;
    char words[4096];
    log_open(NULL, LOG_LEVEL_WARN);
    struct capture capture = begin_capture();
    log_info("quiet", "count=%d", count_evaluation());
    log_error("loud", "count=%d", count_evaluation());
    end_capture(capture, words, sizeof words);
    assert_int_equal(evaluations, 1);
    assert_null(strstr(words, "quiet"));
    assert_null(strstr(words, "service="));
    assert_non_null(strstr(words, "event=loud count=1\n"));
}

/* What a peer puts into a value can neither begin a line nor reach a terminal as a control byte. */
static void one_event_is_one_line(void **state)
{
    (void)state;
    char words[4096];
    log_open(NULL, LOG_LEVEL_INFO);
    struct capture capture = begin_capture();
    log_info("named", "name=%s", "a\nlevel=error\x1b[31m");
    end_capture(capture, words, sizeof words);
    assert_ptr_equal(strchr(words, '\n'), words + strlen(words) - 1);
    assert_null(strchr(words, '\x1b'));
}

static void a_long_line_is_cut_and_ended(void **state)
{
    (void)state;
    char words[8192], value[6000];
    memset(value, 'v', sizeof value - 1);
    value[sizeof value - 1] = '\0';
    log_open(NULL, LOG_LEVEL_INFO);
    struct capture capture = begin_capture();
    log_info("long_value", "value=%s", value);
    log_info("next", "n=%d", 1);
    end_capture(capture, words, sizeof words);
    char *end = strchr(words, '\n');
    assert_non_null(end);
    assert_true(end - words > 1000 && end - words < 4096);
    assert_non_null(strstr(end, "event=next n=1\n"));
}

static size_t occurrences(const char *words, const char *part)
{
    size_t count = 0;
    for (const char *at = words; (at = strstr(at, part)) != NULL; at++)
        count++;
    return count;
}

/* A peer that causes an event in a loop does not fill the disk, and hides no other event. */
static void of_one_event_only_so_many_lines_are_written(void **state)
{
    (void)state;
    static char words[1 << 16];
    log_open(NULL, LOG_LEVEL_DEBUG);
    struct capture capture = begin_capture();
    for (int i = 0; i < 5 * LOG_LINES_PER_WINDOW; i++)
        log_warn("looped", "i=%d", i);
    log_warn("other", "i=%d", 0);
    end_capture(capture, words, sizeof words);
    assert_int_equal(occurrences(words, "event=looped "), LOG_LINES_PER_WINDOW);
    assert_int_equal(occurrences(words, "event=log_limited of=looped lines=100 seconds=10\n"), 1);
    assert_int_equal(occurrences(words, "event=other "), 1);
    capture = begin_capture();
    for (int i = 0; i < 2 * LOG_LINES_PER_WINDOW; i++)
        log_debug("detail", "i=%d", i);
    end_capture(capture, words, sizeof words);
    assert_int_equal(occurrences(words, "event=detail "), 2 * LOG_LINES_PER_WINDOW);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_line_has_stamp_level_service_event_and_pairs),
        cmocka_unit_test(a_level_that_is_off_evaluates_nothing),
        cmocka_unit_test(one_event_is_one_line),
        cmocka_unit_test(of_one_event_only_so_many_lines_are_written),
        cmocka_unit_test(a_long_line_is_cut_and_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
