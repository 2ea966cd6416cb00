#include "kernels/cpu/pool.h"

#include "common/clock.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>
#include <xmmintrin.h>
#include <cmocka.h>

enum { ITEMS_MAX = 5000 };

struct tally {
    _Atomic uint32_t *visits;
    uint32_t items, grain;
    _Atomic uint32_t too_long;
};

static void visit(const void *context, uint32_t begin, uint32_t end)
{
    struct tally *tally = (struct tally *)(uintptr_t)context;
    if (end - begin > tally->grain || end > tally->items || begin >= end)
        atomic_fetch_add(&tally->too_long, 1);
    for (uint32_t i = begin; i < end; i++)
        atomic_fetch_add(&tally->visits[i], 1);
}

static struct pool *open_pool(uint32_t threads)
{
    struct pool *pool = NULL;
    assert_int_equal(pool_open(threads, &pool), STATUS_OK);
    assert_int_equal(pool_threads(pool), threads);
    return pool;
}

/* For jobs that wait for another thread. */
static struct pool *open_pool_without_rest(uint32_t threads)
{
    struct pool *pool = open_pool(threads);
    pool_set_patience(pool, (struct pool_patience){.late_ns = UINT64_MAX});
    return pool;
}

static void every_item_is_visited_once(void **state)
{
    static _Atomic uint32_t visits[ITEMS_MAX];
    static const uint32_t counts[] = {0, 1, 2, 3, 7, 64, 1000, ITEMS_MAX};
    static const uint32_t grains[] = {1, 3, 64, ITEMS_MAX};
    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads++) {
        struct pool *pool = open_pool(threads);
        for (size_t c = 0; c < sizeof counts / sizeof *counts; c++) {
            for (size_t g = 0; g < sizeof grains / sizeof *grains; g++) {
                struct tally tally = {visits, counts[c], grains[g], 0};
                if (threads == 1) /* one call may do everything */
                    tally.grain = ITEMS_MAX;
                memset((void *)visits, 0, sizeof visits);
                pool_run(pool, visit, &tally, counts[c], grains[g]);
                for (uint32_t i = 0; i < ITEMS_MAX; i++)
                    assert_int_equal(visits[i], i < counts[c] ? 1 : 0);
                assert_int_equal(tally.too_long, 0);
            }
        }
        pool_close(pool);
    }
}

/* Jobs back to back: a thread that is late for one job must not touch the next one's description.
 */
static void jobs_in_quick_succession_stay_apart(void **state)
{
    static _Atomic uint32_t visits[2][64];
    (void)state;
    struct pool *pool = open_pool(4);
    for (uint32_t turn = 0; turn < 20000; turn++) {
        struct tally tally = {visits[turn % 2], 2 + turn % 60, 1, 0};
        memset((void *)visits[turn % 2], 0, sizeof visits[0]);
        pool_run(pool, visit, &tally, tally.items, 1);
        for (uint32_t i = 0; i < 64; i++)
            assert_int_equal(visits[turn % 2][i], i < tally.items ? 1 : 0);
        assert_int_equal(tally.too_long, 0);
    }
    pool_close(pool);
}

static void parts_follow_each_other(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads++) {
        struct pool *pool = open_pool(threads);
        for (uint32_t shares = 1; shares < 20; shares++) {
            assert_int_equal(pool_first_share(pool, shares, 0), 0);
            assert_int_equal(pool_first_share(pool, shares, threads), shares);
            for (uint32_t i = 0; i < threads; i++) {
                uint32_t count =
                    pool_first_share(pool, shares, i + 1) - pool_first_share(pool, shares, i);
                assert_in_range(count, shares / threads, (shares + threads - 1) / threads);
            }
        }
        pool_close(pool);
    }
}

/* Ranges of any length and alignment, one that ends with its mapping, and none: threads fetch no
 * byte that could fault, and do their shares. */
static void waiting_threads_fetch(void **state)
{
    static _Atomic uint32_t visits[64];
    static const uint8_t memory[1000];
    const struct pool_range ranges[] = {{memory, sizeof memory}, {memory + 7, 1}, {NULL, 0}};
    (void)state;
    struct pool *pool = open_pool(3);
    for (uint32_t turn = 0; turn < 2000; turn++) {
        struct tally tally = {visits, 2 + turn % 60, 1, 0};
        memset((void *)visits, 0, sizeof visits);
        pool_run_fetching(pool, visit, &tally, tally.items, 1, ranges);
        for (uint32_t i = 0; i < 64; i++)
            assert_int_equal(visits[i], i < tally.items ? 1 : 0);
    }
    pool_close(pool);
}

/* The caller's thread does the first share, which waits until another thread has begun the second:
 * so a second thread takes part even after all of them slept. */
static void wait_for_company(const void *context, uint32_t begin, uint32_t end)
{
    struct tally *tally = (struct tally *)(uintptr_t)context;
    (void)begin;
    (void)end;
    uint64_t deadline = clock_now_ns() + 5 * NS_PER_S;
    atomic_fetch_add(&tally->visits[0], 1);
    while (atomic_load(&tally->visits[0]) < 2 && clock_now_ns() < deadline)
        _mm_pause();
}

static void sleeping_threads_are_woken(void **state)
{
    static _Atomic uint32_t visits[1];
    struct timespec nap = {0, 20 * 1000 * 1000};
    (void)state;
    struct pool *pool = open_pool_without_rest(3);
    for (int turn = 0; turn < 5; turn++) {
        struct tally tally = {visits, 2, 1, 0};
        visits[0] = 0;
        nanosleep(&nap, NULL);
        uint64_t start = clock_now_ns();
        pool_run(pool, wait_for_company, &tally, 2, 1);
        assert_int_equal(visits[0], 2);
        assert_true(clock_now_ns() - start < 4 * NS_PER_S);
    }
    pool_close(pool);
}

/* Item 0 does not end before all others have: with a fixed split the rest of its thread's part
 * would wait behind it. */
static void outlast_the_others(const void *context, uint32_t begin, uint32_t end)
{
    struct tally *tally = (struct tally *)(uintptr_t)context;
    uint64_t deadline = clock_now_ns() + 10 * NS_PER_S;
    while (begin == 0 && atomic_load(&tally->visits[0]) < tally->items - 1) {
        if (clock_now_ns() > deadline) {
            atomic_fetch_add(&tally->too_long, 1);
            return;
        }
    }
    atomic_fetch_add(&tally->visits[0], end - begin);
}

static void a_slow_share_does_not_hold_the_others(void **state)
{
    static _Atomic uint32_t visits[1];
    (void)state;
    for (uint32_t threads = 2; threads <= 4; threads++) {
        struct pool *pool = open_pool(threads);
        struct tally tally = {visits, 100, 1, 0};
        visits[0] = 0;
        pool_run(pool, outlast_the_others, &tally, tally.items, 1);
        assert_int_equal(visits[0], 100);
        assert_int_equal(tally.too_long, 0);
        pool_close(pool);
    }
}

/* The first of two items belongs to the caller's thread, the second to the other one. Neither ends
 * before both have begun, so nobody helps; but a thread that is late may come from the job before
 * and still be looking for somebody to help. */
struct halves {
    _Atomic uint32_t begun, strangers;
    pthread_t caller;
};

static void note_thread(const void *context, uint32_t begin, uint32_t end)
{
    struct halves *halves = (struct halves *)(uintptr_t)context;
    bool callers = begin == 0;
    (void)end;
    if ((pthread_equal(pthread_self(), halves->caller) != 0) != callers)
        atomic_fetch_add(&halves->strangers, 1);
    uint64_t deadline = clock_now_ns() + 5 * NS_PER_S;
    atomic_fetch_add(&halves->begun, 1);
    while (atomic_load(&halves->begun) < 2 && clock_now_ns() < deadline)
        _mm_pause();
}

static void a_thread_begins_with_its_own_part(void **state)
{
    (void)state;
    struct pool *pool = open_pool_without_rest(2);
    uint32_t turns_of_strangers = 0;
    for (int turn = 0; turn < 100; turn++) {
        struct halves halves = {.caller = pthread_self()};
        pool_run(pool, note_thread, &halves, 2, 1);
        assert_int_equal(halves.begun, 2);
        turns_of_strangers += halves.strangers != 0 ? 1 : 0;
    }
    assert_true(turns_of_strangers < 50);
    pool_close(pool);
}

/* Of two shares the other thread's sleeps, as one does that the system keeps from running; the
 * caller's waits until it has begun. */
struct company {
    pthread_t caller;
    uint64_t deadline_ns;
    _Atomic uint32_t others, items;
};

static void sleep_elsewhere(const void *context, uint32_t begin, uint32_t end)
{
    struct company *company = (struct company *)(uintptr_t)context;
    const struct timespec nap = {0, 80 * 1000 * 1000}; /* longer than a loaded machine makes wait */
    if (end - begin != 1) /* also where the caller is alone for a while */
        atomic_fetch_add(&company->items, 100);
    atomic_fetch_add(&company->items, end - begin);
    if (pthread_equal(pthread_self(), company->caller) == 0) {
        atomic_fetch_add(&company->others, 1);
        nanosleep(&nap, NULL);
    }
    while (atomic_load(&company->others) == 0 && clock_now_ns() < company->deadline_ns)
        _mm_pause();
}

static uint32_t run_in_company(struct pool *pool, uint64_t patience_ns)
{
    struct company company = {.caller = pthread_self(),
                              .deadline_ns = clock_now_ns() + patience_ns};
    pool_run(pool, sleep_elsewhere, &company, 2, 1);
    assert_int_equal(company.items, 2);
    return company.others;
}

/* Late once is no reason yet; a pool may be closed while one rests. */
static void a_thread_that_is_kept_from_running_rests_for_a_while(void **state)
{
    const struct pool_patience patience = {NS_PER_MS, 60 * NS_PER_S, 2000 * NS_PER_MS};
    const struct timespec rest = {2, 100 * 1000 * 1000};
    (void)state;
    struct pool *pool = open_pool(2);
    pool_set_patience(pool, patience);
    assert_int_equal(run_in_company(pool, 5 * NS_PER_S), 1);
    assert_int_equal(run_in_company(pool, 5 * NS_PER_S), 1);
    assert_int_equal(run_in_company(pool, 100 * NS_PER_MS), 0);
    nanosleep(&rest, NULL);
    assert_int_equal(run_in_company(pool, 5 * NS_PER_S), 1);
    pool_close(pool);
}

static uint64_t process_cpu_ns(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return ((uint64_t)usage.ru_utime.tv_sec + (uint64_t)usage.ru_stime.tv_sec) * NS_PER_S +
           ((uint64_t)usage.ru_utime.tv_usec + (uint64_t)usage.ru_stime.tv_usec) * NS_PER_US;
}

static void an_idle_pool_costs_nothing(void **state)
{
    static _Atomic uint32_t visits[64];
    struct timespec settle = {0, 50 * 1000 * 1000}, nap = {0, 300 * 1000 * 1000};
    struct tally tally = {visits, 64, 1, 0};
    (void)state;
    struct pool *pool = open_pool(4);
    pool_run(pool, visit, &tally, 64, 1);
    nanosleep(&settle, NULL);
    uint64_t before = process_cpu_ns();
    nanosleep(&nap, NULL);
    assert_true(process_cpu_ns() - before < 2 * NS_PER_MS);
    pool_close(pool);
}

/* Runs one job after `spoil` in a child process; returns its exit code. */
static int exit_code_after(void (*spoil)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static _Atomic uint32_t visits[4];
        struct tally tally = {visits, 4, 1, 0};
        struct pool *pool = NULL;
        if (pool_open(1, &pool) != STATUS_OK)
            _exit(1);
        spoil();
        pool_run(pool, visit, &tally, 4, 1);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void set_nothing(void)
{
}

static void set_flush_to_zero(void)
{
    _mm_setcsr(_mm_getcsr() | 0x8000u);
}

static void set_rounding_up(void)
{
    _mm_setcsr(_mm_getcsr() | 0x4000u);
}

/* A library that switches denormals off or changes rounding would change bits unseen: the pool ends
 * the process. */
static void a_foreign_float_environment_is_refused(void **state)
{
    (void)state;
    assert_int_equal(exit_code_after(set_nothing), 0);
    assert_int_not_equal(exit_code_after(set_flush_to_zero), 0);
    assert_int_not_equal(exit_code_after(set_rounding_up), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_item_is_visited_once),
        cmocka_unit_test(jobs_in_quick_succession_stay_apart),
        cmocka_unit_test(parts_follow_each_other),
        cmocka_unit_test(waiting_threads_fetch),
        cmocka_unit_test(sleeping_threads_are_woken),
        cmocka_unit_test(a_slow_share_does_not_hold_the_others),
        cmocka_unit_test(a_thread_begins_with_its_own_part),
        cmocka_unit_test(a_thread_that_is_kept_from_running_rests_for_a_while),
        cmocka_unit_test(an_idle_pool_costs_nothing),
        cmocka_unit_test(a_foreign_float_environment_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
