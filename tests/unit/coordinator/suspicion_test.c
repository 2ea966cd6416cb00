/* Blame: what clears, what convicts. */
#include "coordinator/suspicion.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

static void one_crash_is_no_suspicion(void **state)
{
    (void)state;
    struct suspicion suspicion = {0};
    suspicion_crashed(&suspicion, 10, 20);
    assert_false(suspicion_wants_trial(&suspicion, 10));
    assert_int_equal(suspicion_clip(&suspicion, 0, 30), 30);
}

static void two_crashes_in_a_range_want_a_trial_of_the_range_alone(void **state)
{
    (void)state;
    struct suspicion suspicion = {0};
    suspicion_crashed(&suspicion, 10, 20);
    suspicion_crashed(&suspicion, 0, 30);
    assert_false(suspicion_wants_trial(&suspicion, 9));
    assert_true(suspicion_wants_trial(&suspicion, 10));
    assert_true(suspicion_wants_trial(&suspicion, 19));
    assert_false(suspicion_wants_trial(&suspicion, 20));
    assert_int_equal(suspicion_clip(&suspicion, 0, 30), 10);
    assert_int_equal(suspicion_clip(&suspicion, 10, 30), 10);
    assert_int_equal(suspicion_clip(&suspicion, 15, 3), 3);
    assert_int_equal(suspicion_clip(&suspicion, 20, 5), 5);
}

static void getting_past_the_range_clears(void **state)
{
    (void)state;
    struct suspicion suspicion = {0};
    suspicion_crashed(&suspicion, 10, 20);
    suspicion_crashed(&suspicion, 10, 20);
    assert_false(suspicion_crashed_alone(&suspicion, 10, 20, SUSPICION_WORKER_WORKED));
    suspicion_passed(&suspicion, 20);
    assert_int_equal(suspicion.crashes, 0);
    assert_int_equal(suspicion.evidence, 0);
    assert_false(suspicion_wants_trial(&suspicion, 10));
}

static void progress_inside_the_range_narrows_it_and_takes_evidence_back(void **state)
{
    (void)state;
    struct suspicion suspicion = {0};
    suspicion_crashed(&suspicion, 10, 20);
    suspicion_crashed(&suspicion, 10, 20);
    assert_false(suspicion_crashed_alone(&suspicion, 10, 20, SUSPICION_WORKER_WORKED));
    suspicion_passed(&suspicion, 10); /* on the way to it: nothing new */
    assert_int_equal(suspicion.evidence, SUSPICION_EVIDENCE_STRONG);
    suspicion_passed(&suspicion, 15);
    assert_int_equal(suspicion.evidence, 0);
    assert_int_equal(suspicion.first, 15);
    assert_true(suspicion_wants_trial(&suspicion, 15));
}

/* Two poisoned requests take turns at ending workers: neither may wipe what is known of the other.
 */
static void a_crash_on_the_way_to_the_range_changes_nothing(void **state)
{
    (void)state;
    struct suspicion suspicion = {0};
    suspicion_crashed(&suspicion, 10, 20);
    suspicion_crashed(&suspicion, 10, 20);
    assert_false(suspicion_crashed_alone(&suspicion, 10, 20, SUSPICION_WORKER_WORKED));
    const struct suspicion before = suspicion;
    suspicion_crashed(&suspicion, 0, 10);
    assert_memory_equal(&suspicion, &before, sizeof before);
}

static uint32_t trials_until_verdict(enum suspicion_worker worker)
{
    struct suspicion suspicion = {0};
    suspicion_crashed(&suspicion, 5, 6);
    suspicion_crashed(&suspicion, 5, 6);
    for (uint32_t trials = 1; trials < 100; trials++) {
        if (suspicion_crashed_alone(&suspicion, 5, 6, worker))
            return trials;
    }
    return 100;
}

static void a_verdict_takes_five_deaths_alone_or_ten_of_workers_that_did_nothing_else(void **state)
{
    (void)state;
    assert_int_equal(trials_until_verdict(SUSPICION_WORKER_WORKED), 5);
    assert_int_equal(trials_until_verdict(SUSPICION_WORKER_UNKNOWN), 10);
    assert_int_equal(trials_until_verdict(SUSPICION_WORKER_DOUBTFUL), 46);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_crash_is_no_suspicion),
        cmocka_unit_test(two_crashes_in_a_range_want_a_trial_of_the_range_alone),
        cmocka_unit_test(getting_past_the_range_clears),
        cmocka_unit_test(progress_inside_the_range_narrows_it_and_takes_evidence_back),
        cmocka_unit_test(a_crash_on_the_way_to_the_range_changes_nothing),
        cmocka_unit_test(a_verdict_takes_five_deaths_alone_or_ten_of_workers_that_did_nothing_else),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
