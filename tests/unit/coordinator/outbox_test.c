/* Outputs of an event: order, memory until the next event, bounds. */
#include "coordinator/outbox.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct arena arena;
static struct outbox outbox;

static int set_up(void **state)
{
    (void)state;
    assert_int_equal(arena_init(&arena, 1 << 20), STATUS_OK);
    assert_int_equal(outbox_init(&outbox, &arena, 100, realloc), STATUS_OK);
    outbox_begin(&outbox);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    outbox_free(&outbox);
    arena_free(&arena);
    return 0;
}

static void outputs_come_in_order(void **state)
{
    (void)state;
    outbox_add(&outbox, CORE_OUTPUT_STANDBY)->standby.connection = 1;
    outbox_add(&outbox, CORE_OUTPUT_DRAINED);
    struct core_output output;
    assert_true(outbox_take(&outbox, &output));
    assert_int_equal(output.kind, CORE_OUTPUT_STANDBY);
    assert_int_equal(output.standby.connection, 1);
    assert_true(outbox_take(&outbox, &output));
    assert_int_equal(output.kind, CORE_OUTPUT_DRAINED);
    assert_false(outbox_take(&outbox, &output));
    outbox_begin(&outbox);
    assert_false(outbox_take(&outbox, &output));
}

static void texts_live_side_by_side_until_the_next_event(void **state)
{
    (void)state;
    const char *first = outbox_format(&outbox, "a=%d", 1);
    const char *second = outbox_format(&outbox, "b=%s", "two");
    assert_string_equal(first, "a=1");
    assert_string_equal(second, "b=two");
}

static void more_text_than_there_is_room_for_is_cut(void **state)
{
    (void)state;
    char *long_text = malloc(OUTBOX_TEXT_BYTES);
    assert_non_null(long_text);
    memset(long_text, 'x', OUTBOX_TEXT_BYTES - 1);
    long_text[OUTBOX_TEXT_BYTES - 1] = '\0';
    assert_string_equal(outbox_format(&outbox, "%s", "short"), "short");
    assert_int_equal(strlen(outbox_format(&outbox, "%s", long_text)),
                     OUTBOX_TEXT_BYTES - sizeof "short" - 1);
    assert_string_equal(outbox_format(&outbox, "%s", "nothing left"), "");
    outbox_begin(&outbox);
    assert_string_equal(outbox_format(&outbox, "%s", "again"), "again");
    free(long_text);
}

static void log_lines_beyond_the_bound_are_counted(void **state)
{
    (void)state;
    for (int i = 0; i < OUTBOX_LOG_LINES_MAX + 5; i++)
        outbox_log(&outbox, LOG_LEVEL_INFO, "event", "i=%d", i);
    assert_int_equal(outbox.count, OUTBOX_LOG_LINES_MAX);
    assert_int_equal(outbox.log_lines_dropped, 5);
    assert_string_equal(outbox.items[3].log.text, "i=3");
}

static void memory_for_answers_is_given_or_refused(void **state)
{
    (void)state;
    uint32_t *numbers = outbox_allocate(&outbox, 1000 * sizeof *numbers);
    assert_non_null(numbers);
    memset(numbers, 1, 1000 * sizeof *numbers);
    assert_null(outbox_allocate(&outbox, SIZE_MAX));
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(outputs_come_in_order),
        CASE(texts_live_side_by_side_until_the_next_event),
        CASE(more_text_than_there_is_room_for_is_cut),
        CASE(log_lines_beyond_the_bound_are_counted),
        CASE(memory_for_answers_is_given_or_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
