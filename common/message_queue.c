#include "common/message_queue.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

enum status message_queue_init(struct message_queue *queue, uint32_t capacity, size_t item_bytes,
                               struct event_loop *loop)
{
    CHECK(capacity > 0 && item_bytes > 0);
    *queue = (struct message_queue){.loop = loop, .item_bytes = item_bytes, .capacity = capacity};
    uint8_t *items = calloc(capacity, item_bytes);
    if (items == NULL)
        return STATUS_OUT_OF_MEMORY;
    if (pthread_mutex_init(&queue->mutex, NULL) != 0) {
        free(items);
        return STATUS_OUT_OF_MEMORY;
    }
    queue->items = items;
    return STATUS_OK;
}

void message_queue_free(struct message_queue *queue)
{
    if (queue->items == NULL)
        return;
    pthread_mutex_destroy(&queue->mutex);
    free(queue->items);
    *queue = (struct message_queue){0};
}

enum status message_queue_push(struct message_queue *queue, const void *item)
{
    pthread_mutex_lock(&queue->mutex);
    enum status status = queue->count == queue->capacity ? STATUS_FULL : STATUS_OK;
    if (status == STATUS_OK) {
        uint32_t at = (queue->first + queue->count) % queue->capacity;
        memcpy(queue->items + at * queue->item_bytes, item, queue->item_bytes);
        queue->count++;
    }
    pthread_mutex_unlock(&queue->mutex);
    if (status == STATUS_OK && queue->loop != NULL)
        event_loop_wake(queue->loop);
    return status;
}

bool message_queue_pop(struct message_queue *queue, void *out_item)
{
    pthread_mutex_lock(&queue->mutex);
    bool found = queue->count > 0;
    if (found) {
        memcpy(out_item, queue->items + queue->first * queue->item_bytes, queue->item_bytes);
        queue->first = (queue->first + 1) % queue->capacity;
        queue->count--;
    }
    pthread_mutex_unlock(&queue->mutex);
    return found;
}
