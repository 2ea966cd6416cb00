#include "kernels/cpu/pool.h"

#include "common/check.h"
#include "common/clock.h"

#include <assert.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <xmmintrin.h>

enum {
    CACHE_LINE_BYTES = 64,
    SPIN_TURNS = 2000, /* of one pause each: 20 to 80 us, longer than the serial parts of a step */
    SHARE_ELEMENTS = 1024,  /* some 0.4 us of elementwise work: several times what a share costs */
    SHARES_PER_THREAD = 4,  /* of rows, where there are many: neighbours write the same lines */
    FETCH_LINES = 4,        /* between two looks for work: some ns */
    MXCSR_DEFAULT = 0x1F80, /* all exceptions masked, nearest even, no FTZ, no DAZ */
    MXCSR_CONTROL_MASK = 0xFFC0, /* without the sticky exception bits */
};

enum { CALLER = 0 }; /* its index among the threads */

/* What a thread that moves finds in its caches no more is worth some tens of microseconds; a slice
 * of the system's, which it may have to wait, some milliseconds. */
static const uint64_t LATE_NS = 100 * NS_PER_US;

struct job {
    pool_task task;
    const void *context;
    uint32_t items, grain, shares;
};

/* A thread's part of a job, in one cache line: shares first .. last - 1 are left of it. The thread
 * takes from the front; whoever has nothing left takes from the back of another one's. Both ends
 * are one word and a share is taken by a compare-and-swap, which succeeds on what stands there now:
 * so a thread that slept through a job takes a share of the present one, if any, and reads the
 * description after that. It stands still until every share of the job is done. */
struct part {
    _Alignas(CACHE_LINE_BYTES) _Atomic uint64_t left; /* first above, last below */
    struct job job;                                   /* written before `left` */
    struct pool_range behind;                         /* likewise; to fetch while waiting */

    _Alignas(CACHE_LINE_BYTES) _Atomic bool works; /* may hold a share; written by the thread */
    bool brought;                                  /* by the caller, as all below */
    clockid_t clock;                               /* of the time that the thread ran */
    uint64_t ran_ns;  /* when a wait for it began; UINT64_MAX: it did not work */
    cpu_set_t places; /* of a brought thread: where it may run otherwise */
};

static_assert(offsetof(struct part, works) == CACHE_LINE_BYTES, "a job needs one line of a part");

enum { LAST_BITS = 32 };
#define LAST_MASK ((UINT64_C(1) << LAST_BITS) - 1)

struct thread {
    struct pool *pool;
    uint32_t index;
    pthread_t handle;
};

struct pool {
    _Alignas(CACHE_LINE_BYTES) _Atomic uint32_t done; /* shares of the current job */
    _Alignas(CACHE_LINE_BYTES) _Atomic uint32_t sleepers;
    _Alignas(CACHE_LINE_BYTES) _Atomic bool caller_sleeps; /* read by all, seldom written */
    _Atomic bool closing;
    _Atomic int caller_processor; /* likewise; -1: no job yet */
    uint32_t threads;
    uint32_t started;
    struct thread *others; /* owned; threads - 1 */

    pthread_mutex_t mutex;
    pthread_cond_t work, finished;
    struct part parts[]; /* [thread] */
};

void float_environment_set(void)
{
    _mm_setcsr(MXCSR_DEFAULT);
}

static void float_environment_check(void)
{
    CHECK((_mm_getcsr() & MXCSR_CONTROL_MASK) == MXCSR_DEFAULT);
}

static uint64_t left_of(uint32_t first, uint32_t last)
{
    return (uint64_t)first << LAST_BITS | last;
}

static uint32_t first_of(uint64_t left)
{
    return (uint32_t)(left >> LAST_BITS);
}

static uint32_t last_of(uint64_t left)
{
    return (uint32_t)(left & LAST_MASK);
}

static bool part_is_empty(struct part *part)
{
    uint64_t left = atomic_load(&part->left);
    return first_of(left) == last_of(left);
}

/* Takes the first share of a part, or the last, into out_share; false when none is left. */
static bool take_share(struct part *part, bool front, uint32_t *out_share)
{
    uint64_t left = atomic_load_explicit(&part->left, memory_order_acquire);
    while (first_of(left) != last_of(left)) {
        uint32_t first = first_of(left), last = last_of(left);
        uint64_t rest = front ? left_of(first + 1, last) : left_of(first, last - 1);
        if (atomic_compare_exchange_weak_explicit(&part->left, &left, rest, memory_order_acquire,
                                                  memory_order_acquire)) {
            *out_share = front ? first : last - 1;
            return true;
        }
    }
    return false;
}

static void do_share(const struct job *job, uint32_t share)
{
    uint32_t begin = share * job->grain;
    uint32_t left = job->items - begin;
    float_environment_check();
    job->task(job->context, begin, begin + (left < job->grain ? left : job->grain));
}

static void wake_caller(struct pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->mutex);
}

/* After the last `done` of a job its description may change: `shares` is of the caller's copy. */
static void count_done(struct pool *pool, uint32_t count, uint32_t shares)
{
    if (atomic_fetch_add(&pool->done, count) + count == shares && atomic_load(&pool->caller_sleeps))
        wake_caller(pool);
}

/* Counted once, when the thread has done what is left of its part: the others want the line too.
 * What it is to fetch behind the job goes to out_behind. */
static void work_on_own(struct pool *pool, uint32_t self, struct pool_range *out_behind)
{
    struct part *part = &pool->parts[self];
    uint32_t share, count = 0, shares = 0;
    for (; take_share(part, true, &share); count++) {
        shares = part->job.shares;
        *out_behind = part->behind;
        do_share(&part->job, share);
    }
    if (count > 0)
        count_done(pool, count, shares);
}

static bool help_another(struct pool *pool, uint32_t self)
{
    for (uint32_t step = 1; step < pool->threads; step++) {
        struct part *part = &pool->parts[(self + step) % pool->threads];
        uint32_t share;
        if (take_share(part, false, &share)) {
            uint32_t shares = part->job.shares;
            do_share(&part->job, share);
            count_done(pool, 1, shares);
            return true;
        }
    }
    return false;
}

/* Works until no share is left; what to fetch behind that. */
static struct pool_range work(struct pool *pool, uint32_t self)
{
    struct pool_range behind = {0};
    atomic_store_explicit(&pool->parts[self].works, true, memory_order_relaxed);
    do {
        work_on_own(pool, self, &behind);
    } while (help_another(pool, self));
    atomic_store_explicit(&pool->parts[self].works, false, memory_order_relaxed);
    return behind;
}

/* A turn of a wait: the next lines of a range or, where nothing is left of it, a pause. */
static void wait_a_turn(struct pool_range *range)
{
    if (range->bytes == 0) {
        _mm_pause();
        return;
    }
    for (uint32_t line = 0; line < FETCH_LINES && range->bytes > 0; line++) {
        __builtin_prefetch(range->memory, 0, 2);
        range->memory += CACHE_LINE_BYTES;
        range->bytes -= range->bytes < CACHE_LINE_BYTES ? range->bytes : CACHE_LINE_BYTES;
    }
}

/* Another one's part does not call: the caller takes what is left of all. */
static bool work_arrived(struct pool *pool, uint32_t self)
{
    return !part_is_empty(&pool->parts[self]) || atomic_load(&pool->closing);
}

static void sleep_until_work(struct pool *pool, uint32_t self)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!work_arrived(pool, self))
        pthread_cond_wait(&pool->work, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

/* On the caller's processor a thread is of no use: one of the two waits. So it goes to another one
 * before it takes a share, even if it has to wait there behind a foreign process, and may come back
 * when the system sees fit. It does not work yet, so the caller does not move it meanwhile. */
static void leave_the_caller(const struct pool *pool)
{
    int processor = atomic_load_explicit(&pool->caller_processor, memory_order_relaxed);
    cpu_set_t places, others;
    if (sched_getcpu() != processor || sched_getaffinity(0, sizeof places, &places) != 0)
        return;
    others = places;
    CPU_CLR((size_t)processor, &others);
    (void)sched_setaffinity(0, sizeof others, &others); /* refused where there is no other */
    (void)sched_setaffinity(0, sizeof places, &places);
}

static void *thread_main(void *argument)
{
    const struct thread *thread = argument;
    struct pool *pool = thread->pool;
    uint32_t self = thread->index;
    float_environment_set();
    while (!atomic_load(&pool->closing)) {
        leave_the_caller(pool);
        struct pool_range behind = work(pool, self);
        for (int turn = 0; turn < SPIN_TURNS && !work_arrived(pool, self); turn++)
            wait_a_turn(&behind);
        if (!work_arrived(pool, self))
            sleep_until_work(pool, self);
    }
    return NULL;
}

/* Sleepers count themselves before they look at their part, and the parts are written before the
 * count is read. Both change the count's word, so one of the two sees the other. */
static void wake_sleepers(struct pool *pool)
{
    if (atomic_fetch_add(&pool->sleepers, 0) == 0)
        return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
}

static bool all_done(struct pool *pool, uint32_t shares)
{
    return atomic_load(&pool->done) == shares;
}

static void sleep_until_done(struct pool *pool, uint32_t shares)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, true);
    while (!all_done(pool, shares))
        pthread_cond_wait(&pool->finished, &pool->mutex);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->mutex);
}

static void begin_watch(struct pool *pool)
{
    for (uint32_t i = 1; i < pool->threads; i++) {
        struct part *part = &pool->parts[i];
        part->ran_ns = atomic_load(&part->works) ? clock_ran_ns(part->clock) : UINT64_MAX;
    }
}

/* Brings the threads that hold a share and did not run for most of `waited_ns` to the processor of
 * the caller, which is about to sleep. */
static void bring_late(struct pool *pool, uint64_t waited_ns)
{
    cpu_set_t here;
    CPU_ZERO(&here);
    CPU_SET((size_t)sched_getcpu(), &here);
    for (uint32_t i = 1; i < pool->threads; i++) {
        struct part *part = &pool->parts[i];
        pthread_t thread = pool->others[i - 1].handle;
        bool awaited = part->ran_ns != UINT64_MAX && atomic_load(&part->works);
        if (!awaited || clock_ran_ns(part->clock) - part->ran_ns > waited_ns / 2)
            continue;
        part->brought = pthread_getaffinity_np(thread, sizeof part->places, &part->places) == 0 &&
                        pthread_setaffinity_np(thread, sizeof here, &here) == 0;
    }
}

static void release_brought(struct pool *pool)
{
    for (uint32_t i = 1; i < pool->threads; i++) {
        struct part *part = &pool->parts[i];
        if (!part->brought)
            continue;
        part->brought = false;
        (void)pthread_setaffinity_np(pool->others[i - 1].handle, sizeof part->places,
                                     &part->places);
    }
}

static void wait_for_the_rest(struct pool *pool, uint32_t shares, struct pool_range behind)
{
    for (int turn = 0; turn < SPIN_TURNS; turn++) {
        if (all_done(pool, shares))
            return;
        wait_a_turn(&behind);
    }
    uint64_t since_ns = clock_now_ns(), waited_ns = 0;
    begin_watch(pool);
    while (waited_ns < LATE_NS) {
        if (all_done(pool, shares))
            return;
        _mm_pause();
        waited_ns = clock_now_ns() - since_ns;
    }
    bring_late(pool, waited_ns);
    sleep_until_done(pool, shares);
    release_brought(pool);
}

static uint32_t share_of(uint32_t shares, uint32_t part, uint32_t parts)
{
    return (uint32_t)(((uint64_t)shares * part + parts - 1) / parts);
}

uint32_t pool_first_share(const struct pool *pool, uint32_t shares, uint32_t thread)
{
    return share_of(shares, thread, pool->threads);
}

/* An even part of the shares for each thread, in their order. */
static void deal(struct pool *pool, const struct job *job, const struct pool_range *ranges)
{
    uint32_t last = job->shares;
    atomic_store(&pool->done, 0);
    for (uint32_t i = pool->threads; i-- > 0;) {
        struct part *part = &pool->parts[i];
        uint32_t first = pool_first_share(pool, job->shares, i);
        part->job = *job;
        part->behind = ranges != NULL ? ranges[i] : (struct pool_range){0};
        atomic_store_explicit(&part->left, left_of(first, last), memory_order_release);
        last = first;
    }
}

static void show_processor(struct pool *pool)
{
    int processor = sched_getcpu();
    if (processor != atomic_load_explicit(&pool->caller_processor, memory_order_relaxed))
        atomic_store_explicit(&pool->caller_processor, processor, memory_order_relaxed);
}

void pool_run(struct pool *pool, pool_task task, const void *context, uint32_t items,
              uint32_t grain)
{
    pool_run_fetching(pool, task, context, items, grain, NULL);
}

void pool_run_fetching(struct pool *pool, pool_task task, const void *context, uint32_t items,
                       uint32_t grain, const struct pool_range *ranges)
{
    CHECK(grain >= 1);
    float_environment_check();
    if (items <= grain || pool->threads == 1) {
        if (items != 0)
            task(context, 0, items);
        return;
    }
    uint32_t shares = items / grain + (items % grain != 0 ? 1u : 0u);
    const struct job job = {task, context, items, grain, shares};
    show_processor(pool);
    deal(pool, &job, ranges);
    wake_sleepers(pool);
    struct pool_range behind = work(pool, CALLER);
    wait_for_the_rest(pool, shares, behind);
}

uint32_t pool_row_grain(const struct pool *pool, uint32_t rows, uint32_t columns)
{
    uint32_t least = columns >= SHARE_ELEMENTS ? 1 : SHARE_ELEMENTS / (columns + 1) + 1;
    uint32_t even = rows / (pool->threads * SHARES_PER_THREAD);
    return even > least ? even : least;
}

/* Signals are the business of the thread that opened the pool. */
static bool start_threads(struct pool *pool)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    bool good = true;
    while (good && pool->started + 1 < pool->threads) {
        struct thread *thread = &pool->others[pool->started];
        thread->pool = pool;
        thread->index = pool->started + 1;
        good = pthread_create(&thread->handle, NULL, thread_main, thread) == 0;
        pool->started += good ? 1 : 0;
        good =
            good && pthread_getcpuclockid(thread->handle, &pool->parts[thread->index].clock) == 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return good;
}

uint32_t pool_threads(const struct pool *pool)
{
    return pool->threads;
}

void pool_keep(struct pool *pool, uint32_t thread, const cpu_set_t *processors)
{
    CHECK(thread > CALLER && thread < pool->threads);
    CHECK(atomic_load(&pool->caller_processor) == -1);
    (void)pthread_setaffinity_np(pool->others[thread - 1].handle, sizeof *processors, processors);
}

enum status pool_open(uint32_t threads, struct pool **out_pool)
{
    CHECK(threads >= 1 && threads <= POOL_THREADS_MAX);
    uint64_t bytes = sizeof(struct pool) + threads * sizeof(struct part);
    struct pool *pool = aligned_alloc(CACHE_LINE_BYTES, bytes);
    if (pool == NULL)
        return STATUS_OUT_OF_MEMORY;
    memset(pool, 0, bytes);
    pool->threads = threads;
    atomic_store(&pool->caller_processor, -1);
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pool->others = calloc(threads, sizeof *pool->others);
    if (pool->others == NULL) {
        pool_close(pool);
        return STATUS_OUT_OF_MEMORY;
    }
    float_environment_set();
    if (!start_threads(pool)) {
        pool_close(pool);
        return STATUS_SYSTEM;
    }
    *out_pool = pool;
    return STATUS_OK;
}

void pool_close(struct pool *pool)
{
    if (pool == NULL)
        return;
    atomic_store(&pool->closing, true);
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->started; i++)
        pthread_join(pool->others[i].handle, NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->others);
    free(pool);
}
