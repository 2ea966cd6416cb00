/* A frame that is shown is read whole or not at all. */
#include "proto/shown_result.h"

#include "common/duration.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

static struct {
    uint8_t *memory;
    struct worker_segment_writer writer;
    struct worker_segment_reader reader;
    struct shown_result shown;
} fixture;

static int set_up(void **state)
{
    (void)state;
    const struct segment_identity identity = {.creator_pid = 1};
    fixture.memory = aligned_alloc(4096, worker_segment_bytes());
    assert_non_null(fixture.memory);
    memset(fixture.memory, 0, worker_segment_bytes());
    worker_segment_format(&fixture.writer, fixture.memory, &identity);
    assert_int_equal(
        worker_segment_open(&fixture.reader, fixture.memory, worker_segment_bytes(), NULL),
        STATUS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    free(fixture.memory);
    return 0;
}

static void show(uint64_t step, const char *frame)
{
    worker_segment_show_result(&fixture.writer, step, 1000 + step, (const uint8_t *)frame,
                               strlen(frame));
}

static void assert_shown(uint64_t step, const char *frame)
{
    assert_true(worker_segment_shows_result(&fixture.reader, step));
    assert_int_equal(worker_segment_read_result(&fixture.reader, step, &fixture.shown), STATUS_OK);
    assert_int_equal(fixture.shown.step, step);
    assert_int_equal(fixture.shown.bytes, strlen(frame));
    assert_memory_equal(fixture.shown.frame, frame, strlen(frame));
    assert_int_equal(worker_segment_shown_ns(&fixture.reader, step), 1000 + step);
}

static void assert_not_shown(uint64_t step)
{
    assert_false(worker_segment_shows_result(&fixture.reader, step));
    assert_int_equal(worker_segment_read_result(&fixture.reader, step, &fixture.shown),
                     STATUS_AGAIN);
    assert_int_equal(worker_segment_shown_ns(&fixture.reader, step), 0);
}

static void the_last_two_steps_are_shown(void **state)
{
    (void)state;
    assert_not_shown(1);
    show(1, "of one");
    assert_shown(1, "of one");
    assert_not_shown(3);
    show(2, "more than eight bytes");
    assert_shown(1, "of one");
    assert_shown(2, "more than eight bytes");
    show(3, "");
    assert_shown(3, "");
    assert_not_shown(1);
}

static void the_longest_frame_fits_and_no_longer_one(void **state)
{
    (void)state;
    static uint8_t frame[SHOWN_RESULT_BYTES + 1];
    memset(frame, 7, sizeof frame);
    worker_segment_show_result(&fixture.writer, 4, 1, frame, SHOWN_RESULT_BYTES);
    assert_int_equal(worker_segment_read_result(&fixture.reader, 4, &fixture.shown), STATUS_OK);
    assert_memory_equal(fixture.shown.frame, frame, SHOWN_RESULT_BYTES);
    worker_segment_show_result(&fixture.writer, 6, 1, frame, sizeof frame);
    assert_not_shown(6);
}

static void a_length_that_cannot_be_is_no_result(void **state)
{
    (void)state;
    show(1, "honest");
    uint64_t *cell =
        (uint64_t *)(void *)(fixture.memory + SEGMENT_OFFSET_RESULTS + SEGMENT_RESULT_STRIDE);
    assert_int_equal(cell[0], 1);
    for (int i = 0; i < 2; i++) {
        cell[2] = i == 0 ? SHOWN_RESULT_BYTES + 1 : UINT64_MAX;
        assert_int_equal(worker_segment_read_result(&fixture.reader, 1, &fixture.shown),
                         STATUS_AGAIN);
    }
}

enum { STEPS = 200000, FRAME_BYTES = 400 };

static atomic_bool finished;

static void *show_many(void *context)
{
    (void)context;
    uint8_t frame[FRAME_BYTES];
    for (uint64_t step = 1; step <= STEPS; step++) {
        memset(frame, (int)(step % 251), sizeof frame);
        worker_segment_show_result(&fixture.writer, step, step, frame, sizeof frame);
    }
    atomic_store(&finished, true);
    return NULL;
}

static void no_frame_is_read_half_written(void **state)
{
    (void)state;
    pthread_t thread;
    uint64_t step = 1, whole = 0;
    assert_int_equal(pthread_create(&thread, NULL, show_many, NULL), 0);
    for (; !atomic_load(&finished) || whole == 0; step = step % STEPS + 1) {
        if (worker_segment_read_result(&fixture.reader, step, &fixture.shown) != STATUS_OK)
            continue;
        whole++;
        assert_int_equal(fixture.shown.bytes, FRAME_BYTES);
        for (uint32_t i = 0; i < FRAME_BYTES; i++)
            assert_int_equal(fixture.shown.frame[i], step % 251);
    }
    pthread_join(thread, NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(the_last_two_steps_are_shown, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_longest_frame_fits_and_no_longer_one, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(a_length_that_cannot_be_is_no_result, set_up, tear_down),
        cmocka_unit_test_setup_teardown(no_frame_is_read_half_written, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
