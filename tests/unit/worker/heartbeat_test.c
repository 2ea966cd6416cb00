/* Signs of life, and the judgement of a step that does not move. */
#include "worker/heartbeat.h"

#include "common/clock.h"
#include "proto/segment_memory.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static struct notify nobody = {.descriptor = -1};
static struct heartbeat heartbeat; /* its thread lives as long as the process */

static void pause_ms(long ms)
{
    struct timespec pause = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    nanosleep(&pause, NULL);
}

static void it_beats_into_the_segment_of_the_moment(void **state)
{
    (void)state;
    struct segment_identity identity = {.creator_pid = (uint64_t)getpid()};
    struct shm shm[2];
    struct worker_segment_writer writer[2];
    struct worker_segment_reader reader[2];
    struct reason why;
    assert_int_equal(heartbeat_start(&heartbeat, &nobody), STATUS_OK);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(worker_segment_create(&identity, &shm[i], &writer[i], reason_init(&why)),
                         STATUS_OK);
        assert_int_equal(
            worker_segment_open(&reader[i], shm[i].base, shm[i].bytes, reason_init(&why)),
            STATUS_OK);
    }
    heartbeat_set_segment(&heartbeat, &writer[0]);
    uint64_t first_ns = worker_segment_alive_ns(&reader[0]);
    assert_in_range(first_ns, clock_now_ns() - NS_PER_S, clock_now_ns()); /* at once */
    uint64_t end_ns = clock_now_ns() + 5 * NS_PER_S;
    while (worker_segment_alive_ns(&reader[0]) < first_ns + 200 * NS_PER_MS) {
        assert_true(clock_now_ns() < end_ns);
        pause_ms(10);
    }
    heartbeat_set_segment(&heartbeat, &writer[1]);
    uint64_t last_ns = worker_segment_alive_ns(&reader[0]);
    assert_true(worker_segment_alive_ns(&reader[1]) > last_ns);
    heartbeat_set_segment(&heartbeat, NULL);
    uint64_t end1_ns = worker_segment_alive_ns(&reader[1]);
    pause_ms(250);
    assert_int_equal(worker_segment_alive_ns(&reader[0]), last_ns);
    assert_int_equal(worker_segment_alive_ns(&reader[1]), end1_ns);
    shm_close(&shm[0]);
    shm_close(&shm[1]);
}

static void a_slow_model_is_given_more_time(void **state)
{
    (void)state;
    assert_int_equal(heartbeat_hang_limit_ns(0), 5 * NS_PER_S);
    assert_int_equal(heartbeat_hang_limit_ns(100 * NS_PER_MS), 5 * NS_PER_S);
    assert_int_equal(heartbeat_hang_limit_ns(NS_PER_S), 50 * NS_PER_S);
}

static void a_step_leaves_its_pace(void **state)
{
    (void)state;
    static struct heartbeat quiet; /* without a thread */
    uint64_t now_ns = 1000 * NS_PER_S;
    heartbeat_step_begin(&quiet, 7, now_ns);
    assert_int_equal(quiet.step, 7);
    assert_int_equal(quiet.moved_ns, now_ns);
    heartbeat_step_layer(&quiet, 1, now_ns += 80);
    assert_int_equal(quiet.layer_ns, 80);
    heartbeat_step_layer(&quiet, 2, now_ns += 160);
    assert_int_equal(quiet.layer_ns, 90); /* an eighth of the new one */
    assert_int_equal(quiet.layer, 2);
    assert_int_equal(quiet.moved_ns, now_ns);
    heartbeat_step_end(&quiet);
    assert_int_equal(quiet.moved_ns, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(it_beats_into_the_segment_of_the_moment),
        cmocka_unit_test(a_slow_model_is_given_more_time),
        cmocka_unit_test(a_step_leaves_its_pace),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
