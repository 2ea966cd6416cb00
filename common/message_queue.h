/* Bounded queue of fixed-size items from many threads (callbacks of nng, pools) to the loop that
 * reads it. A push wakes the loop. Order of one producer is kept. */
#ifndef TANDEM_COMMON_MESSAGE_QUEUE_H
#define TANDEM_COMMON_MESSAGE_QUEUE_H

#include "common/event_loop.h"
#include "common/status.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct message_queue {
    pthread_mutex_t mutex;
    struct event_loop *loop; /* borrowed; NULL = nobody is woken */
    uint8_t *items;          /* owned */
    size_t item_bytes;
    uint32_t capacity, first, count;
};

/* STATUS_OUT_OF_MEMORY. A zeroed queue may be freed; what is still queued is lost. */
MUST_USE enum status message_queue_init(struct message_queue *queue, uint32_t capacity,
                                        size_t item_bytes, struct event_loop *loop);
void message_queue_free(struct message_queue *queue);

/* Any thread. Copies the item; STATUS_FULL leaves the queue as it was. */
MUST_USE enum status message_queue_push(struct message_queue *queue, const void *item);

/* The oldest item, or false. */
MUST_USE bool message_queue_pop(struct message_queue *queue, void *out_item);

#endif
