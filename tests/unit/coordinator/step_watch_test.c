/* When a result is expected, and what the loop sees then. */
#include "coordinator/step_watch.h"

#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct step_watch watch;
static uint64_t begin_ns, end_ns;

/* `count` results, `gap_ns` apart, each followed by a plan. Returns the time of the last. */
static uint64_t results(uint64_t from_ns, uint64_t gap_ns, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++, from_ns += gap_ns)
        step_watch_result(&watch, NULL, i + 1, true, from_ns);
    return from_ns - gap_ns;
}

static void open_watch(void)
{
    step_watch_open(&watch);
    watch.allowed = true;
}

static void even_steps_are_expected_around_their_time(void **state)
{
    (void)state;
    open_watch();
    assert_false(step_watch_window(&watch, &begin_ns, &end_ns));
    results(NS_PER_S, 700 * NS_PER_US, 1);
    assert_false(step_watch_window(&watch, &begin_ns, &end_ns)); /* of one no interval is known */
    uint64_t last_ns = results(2 * NS_PER_S, 700 * NS_PER_US, 20);
    assert_true(step_watch_window(&watch, &begin_ns, &end_ns));
    assert_true(begin_ns < last_ns + 700 * NS_PER_US && last_ns + 700 * NS_PER_US < end_ns);
    assert_true(end_ns - begin_ns <= 50 * NS_PER_US);
}

static void another_kind_of_step_is_learnt_at_once(void **state)
{
    (void)state;
    open_watch();
    results(NS_PER_S, 700 * NS_PER_US, 20);
    uint64_t last_ns = results(2 * NS_PER_S, 2 * NS_PER_MS, 3);
    assert_true(step_watch_window(&watch, &begin_ns, &end_ns));
    assert_true(begin_ns < last_ns + 2 * NS_PER_MS && last_ns + 2 * NS_PER_MS < end_ns);
}

static void nothing_is_watched_when_it_cannot_pay(void **state)
{
    (void)state;
    open_watch();
    results(NS_PER_S, 100 * NS_PER_US, 20); /* too short */
    assert_false(step_watch_window(&watch, &begin_ns, &end_ns));
    results(2 * NS_PER_S, 300 * NS_PER_MS, 20); /* too long */
    assert_false(step_watch_window(&watch, &begin_ns, &end_ns));
    uint64_t last_ns = results(20 * NS_PER_S, NS_PER_MS, 20);
    assert_true(step_watch_window(&watch, &begin_ns, &end_ns));
    watch.allowed = false;
    assert_false(step_watch_window(&watch, &begin_ns, &end_ns));
    watch.allowed = true;
    step_watch_result(&watch, NULL, 21, false, last_ns + NS_PER_MS); /* no plan is out */
    assert_false(step_watch_window(&watch, &begin_ns, &end_ns));
}

static void what_is_shown_in_time_is_seen(void **state)
{
    (void)state;
    const struct segment_identity identity = {.creator_pid = 1};
    struct event_loop loop;
    struct worker_segment_writer writer;
    struct worker_segment_reader reader;
    void *memory = aligned_alloc(4096, worker_segment_bytes());
    assert_non_null(memory);
    memset(memory, 0, worker_segment_bytes());
    worker_segment_format(&writer, memory, &identity);
    assert_int_equal(worker_segment_open(&reader, memory, worker_segment_bytes(), NULL), STATUS_OK);
    assert_int_equal(event_loop_open(&loop), STATUS_OK);
    open_watch();

    /* Long before it is due the loop may sleep until then, not longer. */
    uint64_t last_ns = clock_now_ns();
    results(last_ns - 5 * 90 * NS_PER_MS, 90 * NS_PER_MS, 6);
    uint64_t deadline_ns = EVENT_LOOP_NO_DEADLINE;
    assert_false(step_watch_look(&watch, &loop, &reader, 7, &deadline_ns));
    assert_true(step_watch_window(&watch, &begin_ns, &end_ns));
    assert_true(deadline_ns == begin_ns);
    deadline_ns = 1;
    assert_false(step_watch_look(&watch, &loop, &reader, 7, &deadline_ns));
    assert_true(deadline_ns == 1); /* what is due earlier stays */

    /* In its time: only what is shown; a wake ends the look; then it is over. */
    worker_segment_show_result(&writer, 7, 5, (const uint8_t *)"result", 6);
    watch.last_ns = clock_now_ns() - watch.interval_ns + STEP_WATCH_NS / 2;
    assert_true(step_watch_look(&watch, &loop, &reader, 7, &deadline_ns));
    watch.last_ns = clock_now_ns() - watch.interval_ns + STEP_WATCH_NS / 2;
    uint64_t now_ns = clock_now_ns();
    assert_false(step_watch_look(&watch, &loop, &reader, 8, &deadline_ns));
    assert_true(clock_now_ns() >= now_ns + STEP_WATCH_NS / 4);
    assert_false(step_watch_look(&watch, &loop, NULL, 7, &deadline_ns));
    assert_false(step_watch_look(&watch, &loop, &reader, 0, &deadline_ns));
    event_loop_wake(&loop);
    assert_true(event_loop_is_woken(&loop));
    watch.last_ns = clock_now_ns() - watch.interval_ns + STEP_WATCH_NS / 2;
    assert_false(step_watch_look(&watch, &loop, &reader, 7, &deadline_ns));
    assert_int_equal(event_loop_wait(&loop, EVENT_LOOP_NO_DEADLINE), STATUS_OK);
    assert_false(event_loop_is_woken(&loop));

    /* The time is the writer's, unless that is none. */
    worker_segment_show_result(&writer, 9, 3 * NS_PER_S, (const uint8_t *)"result", 6);
    watch.last_ns = 2 * NS_PER_S;
    step_watch_result(&watch, &reader, 9, true, 4 * NS_PER_S);
    assert_true(watch.last_ns == 3 * NS_PER_S);
    worker_segment_show_result(&writer, 11, 9 * NS_PER_S, (const uint8_t *)"result", 6);
    step_watch_result(&watch, &reader, 11, true, 4 * NS_PER_S);
    assert_true(watch.last_ns == 4 * NS_PER_S);
    event_loop_close(&loop);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(even_steps_are_expected_around_their_time),
        cmocka_unit_test(another_kind_of_step_is_learnt_at_once),
        cmocka_unit_test(nothing_is_watched_when_it_cannot_pay),
        cmocka_unit_test(what_is_shown_in_time_is_seen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
