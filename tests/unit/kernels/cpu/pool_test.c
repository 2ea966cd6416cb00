#include "kernels/cpu/pool.h"

#include "common/clock.h"

#include <pthread.h>
#include <sched.h>
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
    struct pool *pool = open_pool(3);
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
    struct pool *pool = open_pool(2);
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

/* Where threads run. The pool asks and moves through the functions below (--wrap of the linker):
 * while `told` is on, all threads hear the processor that is told. */
int __real_sched_getcpu(void);
int __real_sched_setaffinity(pid_t thread, size_t bytes, const cpu_set_t *places);
int __real_pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *places);
int __wrap_sched_getcpu(void);
int __wrap_sched_setaffinity(pid_t thread, size_t bytes, const cpu_set_t *places);
int __wrap_pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *places);

static struct {
    _Atomic bool on;
    pthread_t caller;
    _Atomic int callers, others;
} told;

static _Atomic uint32_t moves; /* of a thread by another one */
static _Thread_local uint32_t own_moves;
static _Thread_local cpu_set_t own_first; /* of them */

int __wrap_sched_getcpu(void)
{
    if (!atomic_load(&told.on))
        return __real_sched_getcpu();
    return pthread_equal(pthread_self(), told.caller) != 0 ? told.callers : told.others;
}

int __wrap_sched_setaffinity(pid_t thread, size_t bytes, const cpu_set_t *places)
{
    if (own_moves++ == 0)
        own_first = *places;
    return __real_sched_setaffinity(thread, bytes, places);
}

int __wrap_pthread_setaffinity_np(pthread_t thread, size_t bytes, const cpu_set_t *places)
{
    atomic_fetch_add(&moves, 1);
    return __real_pthread_setaffinity_np(thread, bytes, places);
}

/* Of two shares the other thread's sleeps, as one does that the system keeps from running, or
 * computes, and then notes where it may run; the caller's waits until it has begun. */
struct company {
    pthread_t caller;
    uint64_t nap_ns, compute_ns;
    _Atomic uint32_t others, items;
    uint32_t own_moves;
    cpu_set_t own_first, places;
};

static void note_places(const void *context, uint32_t begin, uint32_t end)
{
    struct company *company = (struct company *)(uintptr_t)context;
    const struct timespec nap = {0, (long)company->nap_ns};
    uint64_t deadline_ns = clock_now_ns() + 5 * NS_PER_S;
    atomic_fetch_add(&company->items, end - begin);
    if (pthread_equal(pthread_self(), company->caller) != 0) {
        while (atomic_load(&company->others) == 0 && clock_now_ns() < deadline_ns)
            _mm_pause();
        return;
    }
    bool notes = atomic_fetch_add(&company->others, 1) == 0; /* the caller may be late itself */
    if (notes) {
        company->own_moves = own_moves;
        company->own_first = own_first;
    }
    own_moves = 0;
    if (company->nap_ns > 0)
        nanosleep(&nap, NULL);
    uint64_t until_ns = clock_now_ns() + company->compute_ns;
    while (clock_now_ns() < until_ns)
        _mm_pause();
    if (notes)
        sched_getaffinity(0, sizeof company->places, &company->places);
}

static struct company run_in_company(struct pool *pool, uint64_t nap_ns, uint64_t compute_ns)
{
    struct company company = {.caller = pthread_self(), .nap_ns = nap_ns, .compute_ns = compute_ns};
    pool_run(pool, note_places, &company, 2, 1);
    assert_int_equal(company.items, 2);
    assert_int_not_equal(company.others, 0);
    return company;
}

/* Where this process may run, the first such processor and the last; they may be one. */
static cpu_set_t own_places(int *out_first, int *out_last)
{
    cpu_set_t places;
    int first = -1, last = -1;
    assert_int_equal(sched_getaffinity(0, sizeof places, &places), 0);
    for (int i = 0; i < CPU_SETSIZE; i++) {
        if (!CPU_ISSET((size_t)i, &places))
            continue;
        first = first == -1 ? i : first;
        last = i;
    }
    *out_first = first;
    *out_last = last;
    return places;
}

static cpu_set_t only(int processor)
{
    cpu_set_t places;
    CPU_ZERO(&places);
    CPU_SET((size_t)processor, &places);
    return places;
}

enum { TURNS = 20 }; /* other processes may spoil one, and a thread that is late the next one */

static void a_thread_leaves_the_processor_of_the_caller(void **state)
{
    int first, last;
    cpu_set_t places = own_places(&first, &last), others = places;
    uint32_t left = 0, stayed = 0;
    (void)state;
    CPU_CLR((size_t)first, &others);
    told.caller = pthread_self();
    told.callers = first;
    told.others = first;
    atomic_store(&told.on, true);
    struct pool *pool = open_pool(2);
    for (int turn = 0; turn < TURNS; turn++) {
        struct company company = run_in_company(pool, 0, 0);
        left += company.own_moves > 0 && CPU_EQUAL(&company.own_first, &others) &&
                CPU_EQUAL(&company.places, &places);
    }
    told.others = first + 1;
    for (int turn = 0; turn < TURNS; turn++)
        stayed += run_in_company(pool, 0, 0).own_moves == 0;
    atomic_store(&told.on, false);
    pool_close(pool);
    assert_in_range(left, TURNS / 2, TURNS);
    assert_in_range(stayed, TURNS / 2, TURNS);
}

/* Also one that has a processor of its own, to which it returns. */
static void a_late_thread_gets_the_processor_of_the_caller(void **state)
{
    int first, last;
    cpu_set_t places = own_places(&first, &last), callers = only(last);
    (void)state;
    for (int kept = 0; kept < 2; kept++) {
        cpu_set_t otherwise = kept != 0 ? only(first) : places;
        uint32_t back = 0;
        struct pool *pool = open_pool(2);
        if (kept != 0)
            pool_keep(pool, 1, &otherwise);
        assert_int_equal(sched_setaffinity(0, sizeof callers, &callers), 0);
        struct company late = run_in_company(pool, 80 * NS_PER_MS, 0);
        for (int turn = 0; turn < TURNS; turn++) {
            struct company company = run_in_company(pool, 0, 0);
            back += CPU_EQUAL(&company.places, &otherwise);
        }
        assert_int_equal(sched_setaffinity(0, sizeof places, &places), 0);
        pool_close(pool);
        assert_true(CPU_EQUAL(&late.places, &callers));
        assert_in_range(back, TURNS / 2, TURNS);
    }
}

/* Not a thread that computes, unless the caller itself keeps it from that on the only processor,
 * nor the third one, which sleeps and has no share. */
static void only_a_late_thread_is_moved(void **state)
{
    uint32_t of_computing = 0, of_sleeping = 0;
    int first, last;
    (void)own_places(&first, &last);
    (void)state;
    struct pool *pool = open_pool(3);
    for (int turn = 0; turn < TURNS && (of_computing == 0 || of_sleeping == 0); turn++) {
        atomic_store(&moves, 0);
        run_in_company(pool, 5 * NS_PER_MS, 0);
        of_sleeping += atomic_load(&moves) == 2; /* there and back */
        atomic_store(&moves, 0);
        run_in_company(pool, 0, 80 * NS_PER_MS);
        of_computing += atomic_load(&moves) == 0;
    }
    pool_close(pool);
    assert_true(of_computing != 0 || first == last);
    assert_int_not_equal(of_sleeping, 0);
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
static int exit_code_after(void (*spoil)(struct pool *pool))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        static _Atomic uint32_t visits[4];
        struct tally tally = {visits, 4, 1, 0};
        struct pool *pool = NULL;
        if (pool_open(2, &pool) != STATUS_OK)
            _exit(1);
        spoil(pool);
        pool_run(pool, visit, &tally, 4, 1);
        _exit(0);
    }
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static void set_nothing(struct pool *pool)
{
    (void)pool;
}

static void set_flush_to_zero(struct pool *pool)
{
    (void)pool;
    _mm_setcsr(_mm_getcsr() | 0x8000u);
}

static void set_rounding_up(struct pool *pool)
{
    (void)pool;
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

static void keep_on_first(struct pool *pool)
{
    cpu_set_t first = only(0);
    pool_keep(pool, 1, &first);
}

static void keep_after_a_job(struct pool *pool)
{
    static _Atomic uint32_t visits[4];
    struct tally tally = {visits, 4, 1, 0};
    pool_run(pool, visit, &tally, 4, 1);
    keep_on_first(pool);
}

/* Later a thread may be moving, and would put back the mask that it had before. */
static void threads_are_kept_somewhere_before_the_first_job(void **state)
{
    (void)state;
    assert_int_equal(exit_code_after(keep_on_first), 0);
    assert_int_not_equal(exit_code_after(keep_after_a_job), 0);
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
        cmocka_unit_test(a_thread_leaves_the_processor_of_the_caller),
        cmocka_unit_test(a_late_thread_gets_the_processor_of_the_caller),
        cmocka_unit_test(only_a_late_thread_is_moved),
        cmocka_unit_test(an_idle_pool_costs_nothing),
        cmocka_unit_test(a_foreign_float_environment_is_refused),
        cmocka_unit_test(threads_are_kept_somewhere_before_the_first_job),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
