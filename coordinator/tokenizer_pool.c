#include "coordinator/tokenizer_pool.h"

#include "common/check.h"
#include "common/message_queue.h"
#include "coordinator/tokenizer/tokenizer.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { THREADS_MAX = 16 };

/* Ids of a chat beyond one per byte of its texts: what the template puts around one message, at
 * most. */
enum { TEMPLATE_IDS_MAX = 64 };

/* What a thread owns; taken at start, where running out of memory still has an answer. */
struct tokenizer_thread {
    struct tokenizer_pool *pool;
    pthread_t id;
    struct tokenizer_scratch scratch;
};

struct tokenizer_pool {
    const struct tokenizer *tokenizer;
    struct message_queue results; /* struct tokenized_text */
    pthread_mutex_t mutex;        /* guards what follows */
    pthread_cond_t changed;
    struct core_tokenize *orders; /* ring */
    uint32_t capacity, first, count;
    uint32_t outstanding; /* orders whose result was not taken; loop's thread only */
    bool stop;
    uint32_t thread_count;            /* that run */
    struct tokenizer_thread *threads; /* owned */
};

/* Ids that the order may need at most, its own bound included. */
static size_t ids_wanted(const struct core_tokenize *order)
{
    size_t wanted = TEMPLATE_IDS_MAX + order->text.length;
    struct chat_message message;
    const uint8_t *cursor = order->messages.encoded;
    while (order->messages.count > 0 && chat_message_next(&order->messages, &cursor, &message))
        wanted += TEMPLATE_IDS_MAX + message.content.length + message.role.length;
    return wanted < order->ids_max ? wanted : order->ids_max;
}

static struct byte_view view_of(const struct wire_text *text)
{
    return (struct byte_view){.bytes = text->bytes, .length = text->length};
}

static enum status encode_chat(const struct tokenizer_pool *pool, struct tokenizer_scratch *scratch,
                               const struct core_tokenize *order, struct token_list *out,
                               struct text *why)
{
    struct chat_turn *turns = calloc(order->messages.count, sizeof *turns);
    if (turns == NULL) {
        text_set(why, "out of memory for the messages of the chat");
        return STATUS_OUT_OF_MEMORY;
    }
    struct chat_message message;
    const uint8_t *cursor = order->messages.encoded;
    uint32_t count = 0;
    while (count < order->messages.count && chat_message_next(&order->messages, &cursor, &message))
        turns[count++] = (struct chat_turn){.role = view_of(&message.role),
                                            .content = view_of(&message.content)};
    enum status status = tokenizer_encode_chat(pool->tokenizer, scratch, turns, count, out, why);
    free(turns);
    return status;
}

static void carry_out(const struct tokenizer_pool *pool, struct tokenizer_scratch *scratch,
                      const struct core_tokenize *order, struct tokenized_text *out)
{
    struct text *why = reason_init(&out->why);
    struct token_list list = {.capacity = ids_wanted(order)};
    out->ticket = order->ticket;
    out->ids = NULL;
    out->count = 0;
    list.tokens = malloc((list.capacity + 1) * sizeof *list.tokens);
    if (list.tokens == NULL) {
        text_set(why, "out of memory for the tokens of the text");
        out->status = STATUS_OUT_OF_MEMORY;
        return;
    }
    if (order->text.bytes != NULL) {
        enum special_tokens_use use =
            order->parse_special ? SPECIAL_TOKENS_PARSED : SPECIAL_TOKENS_AS_TEXT;
        out->status = tokenizer_encode_prompt(pool->tokenizer, scratch, view_of(&order->text), use,
                                              &list, why);
    } else {
        out->status = encode_chat(pool, scratch, order, &list, why);
    }
    if (out->status != STATUS_OK) {
        free(list.tokens);
        return;
    }
    out->ids = list.tokens;
    out->count = (uint32_t)list.count;
}

static bool take_order(struct tokenizer_pool *pool, struct core_tokenize *out_order)
{
    pthread_mutex_lock(&pool->mutex);
    while (pool->count == 0 && !pool->stop)
        pthread_cond_wait(&pool->changed, &pool->mutex);
    bool found = !pool->stop;
    if (found) {
        *out_order = pool->orders[pool->first];
        pool->first = (pool->first + 1) % pool->capacity;
        pool->count--;
    }
    pthread_mutex_unlock(&pool->mutex);
    return found;
}

static void *work(void *context)
{
    struct tokenizer_thread *thread = context;
    struct tokenizer_pool *pool = thread->pool;
    struct core_tokenize order;
    struct tokenized_text result;
    while (take_order(pool, &order)) {
        carry_out(pool, &thread->scratch, &order, &result);
        enum status status = message_queue_push(&pool->results, &result);
        CHECK(status == STATUS_OK); /* as many places as orders */
    }
    return NULL;
}

static enum status start_threads(struct tokenizer_pool *pool, uint32_t threads)
{
    while (pool->thread_count < threads) {
        struct tokenizer_thread *thread = &pool->threads[pool->thread_count];
        thread->pool = pool;
        if (pthread_create(&thread->id, NULL, work, thread) != 0)
            return STATUS_SYSTEM;
        pool->thread_count++;
    }
    return STATUS_OK;
}

enum status tokenizer_pool_open(const struct tokenizer *tokenizer, uint32_t threads,
                                uint32_t orders_max, struct event_loop *loop,
                                struct tokenizer_pool **out_pool)
{
    CHECK(threads >= 1 && threads <= THREADS_MAX && orders_max > 0);
    struct tokenizer_pool *pool = calloc(1, sizeof *pool);
    if (pool == NULL)
        return STATUS_OUT_OF_MEMORY;
    pool->tokenizer = tokenizer;
    pool->capacity = orders_max;
    pthread_mutex_init(&pool->mutex, NULL);
    pthread_cond_init(&pool->changed, NULL);
    pool->orders = calloc(orders_max, sizeof *pool->orders);
    pool->threads = calloc(threads, sizeof *pool->threads);
    enum status status =
        pool->orders != NULL && pool->threads != NULL ? STATUS_OK : STATUS_OUT_OF_MEMORY;
    if (status == STATUS_OK)
        status =
            message_queue_init(&pool->results, orders_max, sizeof(struct tokenized_text), loop);
    if (status == STATUS_OK)
        status = start_threads(pool, threads);
    if (status != STATUS_OK) {
        tokenizer_pool_close(pool);
        return status;
    }
    *out_pool = pool;
    return STATUS_OK;
}

void tokenizer_pool_close(struct tokenizer_pool *pool)
{
    if (pool == NULL)
        return;
    pthread_mutex_lock(&pool->mutex);
    pool->stop = true;
    pthread_cond_broadcast(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
    for (uint32_t i = 0; i < pool->thread_count; i++)
        pthread_join(pool->threads[i].id, NULL);
    struct tokenized_text left;
    while (pool->results.items != NULL && message_queue_pop(&pool->results, &left))
        free(left.ids);
    message_queue_free(&pool->results);
    pthread_cond_destroy(&pool->changed);
    pthread_mutex_destroy(&pool->mutex);
    free(pool->orders);
    free(pool->threads);
    free(pool);
}

void tokenizer_pool_order(struct tokenizer_pool *pool, const struct core_tokenize *order)
{
    CHECK(pool->outstanding < pool->capacity);
    pool->outstanding++;
    pthread_mutex_lock(&pool->mutex);
    pool->orders[(pool->first + pool->count) % pool->capacity] = *order;
    pool->count++;
    pthread_cond_signal(&pool->changed);
    pthread_mutex_unlock(&pool->mutex);
}

bool tokenizer_pool_next(struct tokenizer_pool *pool, struct tokenized_text *out_tokenized)
{
    if (!message_queue_pop(&pool->results, out_tokenized))
        return false;
    pool->outstanding--;
    out_tokenized->why.text.bytes =
        out_tokenized->why.storage; /* it was copied through the queue */
    return true;
}
