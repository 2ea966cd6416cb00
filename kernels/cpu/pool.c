#include "kernels/cpu/pool.h"

#include "common/check.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <xmmintrin.h>

enum {
    CACHE_LINE_BYTES = 64,
    SPIN_TURNS = 2000, /* of one pause each: 20 to 80 us, longer than the serial parts of a step */
    SHARE_ELEMENTS = 1024,  /* some 0.4 us of elementwise work: several times what a share costs */
    SHARES_PER_THREAD = 4,  /* of rows, where there are many: neighbours write the same lines */
    MXCSR_DEFAULT = 0x1F80, /* all exceptions masked, nearest even, no FTZ, no DAZ */
    MXCSR_CONTROL_MASK = 0xFFC0, /* without the sticky exception bits */
};

/* The whole state of handing out shares is one word: the job's number above, the shares not yet
 * taken below. Taking a share is a compare-and-swap that lowers the count, so a thread that slept
 * through a job can never take a share of a job whose description it has not seen: the description
 * stands still until every share of it is done. */
enum { LEFT_BITS = 32 };
#define LEFT_MASK ((UINT64_C(1) << LEFT_BITS) - 1)

struct pool {
    _Alignas(CACHE_LINE_BYTES) _Atomic uint64_t ticket;
    _Alignas(CACHE_LINE_BYTES) _Atomic uint32_t done;
    _Alignas(CACHE_LINE_BYTES) _Atomic uint32_t sleepers;
    _Atomic bool caller_sleeps;
    _Atomic bool closing;

    /* The current job: written by the caller before the ticket, read after a share was taken. */
    pool_task task;
    const void *context;
    uint32_t items, grain, shares;

    pthread_mutex_t mutex;
    pthread_cond_t work, finished;
    uint32_t threads;
    uint32_t started;
    pthread_t *handles; /* owned; threads - 1 */
};

void float_environment_set(void)
{
    _mm_setcsr(MXCSR_DEFAULT);
}

static void float_environment_check(void)
{
    CHECK((_mm_getcsr() & MXCSR_CONTROL_MASK) == MXCSR_DEFAULT);
}

static uint64_t shares_left(uint64_t ticket)
{
    return ticket & LEFT_MASK;
}

/* Takes one share into out_share; false when none is left. */
static bool take_share(struct pool *pool, uint32_t *out_share)
{
    uint64_t ticket = atomic_load_explicit(&pool->ticket, memory_order_acquire);
    while (shares_left(ticket) != 0) {
        if (atomic_compare_exchange_weak_explicit(&pool->ticket, &ticket, ticket - 1,
                                                  memory_order_acquire, memory_order_acquire)) {
            *out_share = pool->shares - (uint32_t)shares_left(ticket);
            return true;
        }
    }
    return false;
}

static void wake_caller(struct pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_signal(&pool->finished);
    pthread_mutex_unlock(&pool->mutex);
}

/* Works until no share is left. After the last `done` of a job its description may change, so what
 * is needed after a share was counted is copied before. */
static void work(struct pool *pool)
{
    uint32_t share;
    while (take_share(pool, &share)) {
        uint32_t shares = pool->shares;
        uint32_t begin = share * pool->grain;
        uint32_t left = pool->items - begin;
        float_environment_check();
        pool->task(pool->context, begin, begin + (left < pool->grain ? left : pool->grain));
        if (atomic_fetch_add(&pool->done, 1) + 1 == shares && atomic_load(&pool->caller_sleeps))
            wake_caller(pool);
    }
}

static bool work_arrived(struct pool *pool)
{
    return shares_left(atomic_load(&pool->ticket)) != 0 || atomic_load(&pool->closing);
}

static void sleep_until_work(struct pool *pool)
{
    pthread_mutex_lock(&pool->mutex);
    atomic_fetch_add(&pool->sleepers, 1);
    while (!work_arrived(pool))
        pthread_cond_wait(&pool->work, &pool->mutex);
    atomic_fetch_sub(&pool->sleepers, 1);
    pthread_mutex_unlock(&pool->mutex);
}

static void *thread_main(void *argument)
{
    struct pool *pool = argument;
    float_environment_set();
    while (!atomic_load(&pool->closing)) {
        work(pool);
        for (int turn = 0; turn < SPIN_TURNS && !work_arrived(pool); turn++)
            _mm_pause();
        if (!work_arrived(pool))
            sleep_until_work(pool);
    }
    return NULL;
}

/* Sleepers count themselves before they look at the ticket, and the ticket is written before the
 * count is read: one of the two sees the other. */
static void wake_sleepers(struct pool *pool)
{
    if (atomic_load(&pool->sleepers) == 0)
        return;
    pthread_mutex_lock(&pool->mutex);
    pthread_cond_broadcast(&pool->work);
    pthread_mutex_unlock(&pool->mutex);
}

static bool all_done(struct pool *pool)
{
    return atomic_load(&pool->done) == pool->shares;
}

static void wait_for_the_rest(struct pool *pool)
{
    for (int turn = 0; turn < SPIN_TURNS; turn++) {
        if (all_done(pool))
            return;
        _mm_pause();
    }
    pthread_mutex_lock(&pool->mutex);
    atomic_store(&pool->caller_sleeps, true);
    while (!all_done(pool))
        pthread_cond_wait(&pool->finished, &pool->mutex);
    atomic_store(&pool->caller_sleeps, false);
    pthread_mutex_unlock(&pool->mutex);
}

void pool_run(struct pool *pool, pool_task task, const void *context, uint32_t items,
              uint32_t grain)
{
    CHECK(grain >= 1);
    float_environment_check();
    if (items <= grain || pool->threads == 1) {
        if (items != 0)
            task(context, 0, items);
        return;
    }
    pool->task = task;
    pool->context = context;
    pool->items = items;
    pool->grain = grain;
    pool->shares = items / grain + (items % grain != 0 ? 1u : 0u);
    atomic_store(&pool->done, 0);
    uint64_t job = (atomic_load(&pool->ticket) >> LEFT_BITS) + 1;
    atomic_store(&pool->ticket, job << LEFT_BITS | pool->shares);
    wake_sleepers(pool);
    work(pool);
    wait_for_the_rest(pool);
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
        good = pthread_create(&pool->handles[pool->started], NULL, thread_main, pool) == 0;
        pool->started += good ? 1 : 0;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return good;
}

uint32_t pool_threads(const struct pool *pool)
{
    return pool->threads;
}

void pool_pin(struct pool *pool, const uint32_t *processors, uint32_t count)
{
    CHECK(count >= 1);
    for (uint32_t i = 0; i < pool->started; i++) {
        cpu_set_t set;
        CPU_ZERO(&set);
        CPU_SET(processors[(i + 1) % count], &set);
        (void)pthread_setaffinity_np(pool->handles[i], sizeof set, &set);
    }
}

enum status pool_open(uint32_t threads, struct pool **out_pool)
{
    CHECK(threads >= 1 && threads <= POOL_THREADS_MAX);
    struct pool *pool = aligned_alloc(CACHE_LINE_BYTES, sizeof *pool);
    if (pool == NULL)
        return STATUS_OUT_OF_MEMORY;
    *pool = (struct pool){.threads = threads};
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->work, NULL);
    pthread_cond_init(&pool->finished, NULL);
    pool->handles = calloc(threads, sizeof *pool->handles);
    if (pool->handles == NULL) {
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
        pthread_join(pool->handles[i], NULL);
    pthread_cond_destroy(&pool->finished);
    pthread_cond_destroy(&pool->work);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->handles);
    free(pool);
}
