#include "common/message_queue.h"

#include "common/clock.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <sched.h>

static void first_in_first_out_until_full(void **state)
{
    (void)state;
    struct message_queue queue;
    assert_int_equal(message_queue_init(&queue, 3, sizeof(uint32_t), NULL), STATUS_OK);
    uint32_t item, next_in = 0, next_out = 0;
    assert_false(message_queue_pop(&queue, &item));
    /* Several rounds, so that the ring runs around. */
    for (int round = 0; round < 5; round++) {
        while (queue.count < 3) {
            assert_int_equal(message_queue_push(&queue, &next_in), STATUS_OK);
            next_in++;
        }
        assert_int_equal(message_queue_push(&queue, &next_in), STATUS_FULL);
        for (int i = 0; i < 2; i++) {
            assert_true(message_queue_pop(&queue, &item));
            assert_int_equal(item, next_out++);
        }
    }
    assert_true(message_queue_pop(&queue, &item));
    assert_int_equal(item, next_out);
    assert_false(message_queue_pop(&queue, &item));
    message_queue_free(&queue);
}

enum { PRODUCERS = 4, ITEMS = 20000 };

struct item {
    uint32_t producer, number;
};

struct producer {
    struct message_queue *queue;
    uint32_t number;
};

static void *produce(void *context)
{
    struct producer *producer = context;
    for (uint32_t i = 0; i < ITEMS; i++) {
        struct item item = {producer->number, i};
        while (message_queue_push(producer->queue, &item) == STATUS_FULL)
            sched_yield();
    }
    return NULL;
}

static void many_producers_keep_their_own_order(void **state)
{
    (void)state;
    struct message_queue queue;
    assert_int_equal(message_queue_init(&queue, 64, sizeof(struct item), NULL), STATUS_OK);
    struct producer producers[PRODUCERS];
    pthread_t threads[PRODUCERS];
    for (uint32_t i = 0; i < PRODUCERS; i++) {
        producers[i] = (struct producer){&queue, i};
        assert_int_equal(pthread_create(&threads[i], NULL, produce, &producers[i]), 0);
    }
    uint32_t expected[PRODUCERS] = {0}, taken = 0;
    while (taken < PRODUCERS * ITEMS) {
        struct item item;
        if (!message_queue_pop(&queue, &item)) {
            sched_yield();
            continue;
        }
        assert_true(item.producer < PRODUCERS);
        assert_int_equal(item.number, expected[item.producer]++);
        taken++;
    }
    for (uint32_t i = 0; i < PRODUCERS; i++)
        pthread_join(threads[i], NULL);
    message_queue_free(&queue);
}

/* The reader sleeps whenever the queue is empty: a lost wake would keep it there. */
static void no_wake_is_lost(void **state)
{
    (void)state;
    struct event_loop loop;
    struct message_queue queue;
    assert_int_equal(event_loop_open(&loop), STATUS_OK);
    assert_int_equal(message_queue_init(&queue, 64, sizeof(struct item), &loop), STATUS_OK);
    struct producer producer = {&queue, 0};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, produce, &producer), 0);
    uint64_t end_ns = clock_now_ns() + 60 * NS_PER_S;
    for (uint32_t taken = 0; taken < ITEMS;) {
        assert_int_equal(event_loop_wait(&loop, end_ns), STATUS_OK);
        assert_true(clock_now_ns() < end_ns);
        struct item item;
        while (message_queue_pop(&queue, &item))
            taken++;
    }
    pthread_join(thread, NULL);
    message_queue_free(&queue);
    event_loop_close(&loop);
}

static void a_zeroed_queue_may_be_freed(void **state)
{
    (void)state;
    struct message_queue queue = {0};
    message_queue_free(&queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(first_in_first_out_until_full),
        cmocka_unit_test(many_producers_keep_their_own_order),
        cmocka_unit_test(no_wake_is_lost),
        cmocka_unit_test(a_zeroed_queue_may_be_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
