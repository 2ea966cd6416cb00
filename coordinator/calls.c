#include "coordinator/calls.h"

#include "common/check.h"

enum status calls_init(struct calls *calls, struct arena *arena, uint32_t capacity)
{
    CHECK(capacity > 0);
    struct calls made = {.capacity = capacity, .oldest = CALL_NONE, .newest = CALL_NONE};
    made.rows = arena_alloc_array(arena, capacity, sizeof *made.rows);
    if (made.rows == NULL)
        return STATUS_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < capacity; i++)
        made.rows[i].newer = i + 1 < capacity ? i + 1 : CALL_NONE;
    *calls = made;
    return STATUS_OK;
}

static void link_poll(struct calls *calls, uint32_t index)
{
    struct call *call = &calls->rows[index];
    call->older = calls->newest;
    call->newer = CALL_NONE;
    if (calls->newest != CALL_NONE)
        calls->rows[calls->newest].newer = index;
    else
        calls->oldest = index;
    calls->newest = index;
    calls->polls++;
}

static void unlink_poll(struct calls *calls, uint32_t index)
{
    struct call *call = &calls->rows[index];
    if (call->older != CALL_NONE)
        calls->rows[call->older].newer = call->newer;
    else
        calls->oldest = call->newer;
    if (call->newer != CALL_NONE)
        calls->rows[call->newer].older = call->older;
    else
        calls->newest = call->older;
    calls->polls--;
}

enum status calls_add(struct calls *calls, const struct call *call, uint32_t *first_of_request,
                      uint32_t *out_index)
{
    CHECK(call->kind != CALL_FREE);
    if (calls->count == calls->capacity)
        return STATUS_FULL;
    uint32_t index = calls->free_head;
    struct call *row = &calls->rows[index];
    CHECK(row->kind == CALL_FREE);
    calls->free_head = row->newer;
    calls->count++;
    *row = *call;
    row->previous = CALL_NONE;
    row->next = CALL_NONE;
    if (first_of_request != NULL) {
        row->next = *first_of_request;
        if (row->next != CALL_NONE)
            calls->rows[row->next].previous = index;
        *first_of_request = index;
    }
    if (row->kind == CALL_NEXT)
        link_poll(calls, index);
    *out_index = index;
    return STATUS_OK;
}

void calls_remove(struct calls *calls, uint32_t index, uint32_t *first_of_request)
{
    CHECK(index < calls->capacity);
    struct call *row = &calls->rows[index];
    CHECK(row->kind != CALL_FREE);
    if (row->kind == CALL_NEXT)
        unlink_poll(calls, index);
    if (row->next != CALL_NONE)
        calls->rows[row->next].previous = row->previous;
    if (row->previous != CALL_NONE)
        calls->rows[row->previous].next = row->next;
    else if (first_of_request != NULL)
        *first_of_request = row->next;
    *row = (struct call){.kind = CALL_FREE, .newer = calls->free_head};
    calls->free_head = index;
    calls->count--;
}

uint32_t calls_find(const struct calls *calls, uint64_t handle)
{
    for (uint32_t i = 0; i < calls->capacity; i++) {
        if (calls->rows[i].kind != CALL_FREE && calls->rows[i].handle == handle)
            return i;
    }
    return CALL_NONE;
}
