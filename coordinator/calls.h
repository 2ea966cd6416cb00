/* Client calls that wait for their answer inside the core: a submit for its ids, a `next` for news,
 * a `tokenize` for its ids. Every call belongs to one list of its request (but tokenize); the
 * parked polls are also listed by age, so that the oldest can be answered when room is short. */
#ifndef TANDEM_COORDINATOR_CALLS_H
#define TANDEM_COORDINATOR_CALLS_H

#include "common/arena.h"
#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

#define CALL_NONE UINT32_MAX

enum call_kind { CALL_FREE = 0, CALL_SUBMIT, CALL_NEXT, CALL_TOKENIZE };

struct call {
    enum call_kind kind;
    bool named;  /* the client's style of keys */
    bool is_due; /* waited long enough: answered with the event, news or not */
    uint64_t handle;
    uint32_t request;    /* index; unused by CALL_TOKENIZE */
    uint64_t ticket;     /* of CALL_TOKENIZE */
    uint64_t from_token; /* cursors and hold of CALL_NEXT */
    uint64_t from_byte;
    uint64_t hold_tokens;
    uint32_t previous, next; /* of the same request */
    uint32_t older, newer;   /* of the polls; `newer` also links the free ones */
};

struct calls {
    struct call *rows; /* [capacity] */
    uint32_t capacity, count, polls;
    uint32_t free_head, oldest, newest;
};

/* Memory is the arena's. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status calls_init(struct calls *calls, struct arena *arena, uint32_t capacity);

/* Takes a free entry, fills it from `call` and links it. `first_of_request` is the head of its
 * request's list (NULL for CALL_TOKENIZE). STATUS_FULL. */
MUST_USE enum status calls_add(struct calls *calls, const struct call *call,
                               uint32_t *first_of_request, uint32_t *out_index);

/* The call is over. */
void calls_remove(struct calls *calls, uint32_t index, uint32_t *first_of_request);

/* CALL_NONE if there is none. O(capacity): for clients that went away, never for a step. */
uint32_t calls_find(const struct calls *calls, uint64_t handle);

#endif
