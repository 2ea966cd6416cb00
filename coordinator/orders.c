#include "coordinator/orders.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

enum status orders_init(struct orders *orders, struct arena *arena, uint32_t capacity,
                        void *(*reallocate)(void *memory, size_t bytes))
{
    struct orders made = {.capacity = capacity, .reallocate = reallocate};
    made.rows = arena_alloc_array(arena, capacity, sizeof *made.rows);
    if (made.rows == NULL)
        return STATUS_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < capacity; i++)
        made.rows[i].next_free = i + 1 < capacity ? i + 1 : ORDER_NONE;
    *orders = made;
    return STATUS_OK;
}

void orders_free(struct orders *orders)
{
    for (uint32_t i = 0; i < orders->capacity; i++)
        free(orders->rows[i].text);
    *orders = (struct orders){0};
}

enum status orders_add(struct orders *orders, const struct order *owner,
                       struct core_tokenize *tokenize)
{
    if (orders->count == orders->capacity)
        return STATUS_FULL;
    bool is_text = tokenize->text.bytes != NULL;
    const void *source =
        is_text ? (const void *)tokenize->text.bytes : (const void *)tokenize->messages.encoded;
    size_t bytes = is_text ? tokenize->text.length : tokenize->messages.encoded_bytes;
    char *text = orders->reallocate(NULL, bytes + 1);
    if (text == NULL)
        return STATUS_OUT_OF_MEMORY;
    if (bytes > 0)
        memcpy(text, source, bytes);
    if (is_text)
        tokenize->text.bytes = text;
    else
        tokenize->messages.encoded = (const uint8_t *)text;
    uint32_t index = orders->free_head;
    struct order *order = &orders->rows[index];
    orders->free_head = order->next_free;
    orders->count++;
    orders->serial++;
    orders->bytes += bytes;
    *order = (struct order){
        .ticket = (uint64_t)orders->serial << 32 | (index + 1),
        .request = owner->request,
        .call_handle = owner->call_handle,
        .text = text,
        .bytes = bytes,
    };
    tokenize->ticket = order->ticket;
    return STATUS_OK;
}

enum status orders_take(struct orders *orders, uint64_t ticket, struct order *out_owner)
{
    uint32_t index = (uint32_t)ticket - 1;
    if (ticket == 0 || index >= orders->capacity || orders->rows[index].ticket != ticket)
        return STATUS_NOT_FOUND;
    struct order *order = &orders->rows[index];
    *out_owner = *order;
    out_owner->text = NULL;
    free(order->text);
    orders->bytes -= order->bytes;
    *order = (struct order){.next_free = orders->free_head};
    orders->free_head = index;
    orders->count--;
    return STATUS_OK;
}
