/* Orders to the tokenizer pool that are not answered yet. An order owns its text, because the pool
 * reads it until the answer, even if the request or call behind it ended meanwhile. */
#ifndef TANDEM_COORDINATOR_ORDERS_H
#define TANDEM_COORDINATOR_ORDERS_H

#include "common/arena.h"
#include "coordinator/core.h"
#include "coordinator/request.h"

struct order {
    uint64_t ticket;             /* 0 = free */
    struct request_name request; /* whose prompt; index REQUEST_NONE: of a `tokenize` call */
    uint64_t call_handle;        /* of that call */
    char *text;                  /* owned */
    uint64_t bytes;
    uint32_t next_free;
};

struct orders {
    struct order *rows; /* [capacity] */
    uint32_t capacity, count, free_head;
    uint32_t serial;
    uint64_t bytes; /* of all texts */
    void *(*reallocate)(void *memory, size_t bytes);
};

#define ORDER_NONE UINT32_MAX

/* Memory of the table is the arena's. STATUS_OUT_OF_MEMORY. */
MUST_USE enum status orders_init(struct orders *orders, struct arena *arena, uint32_t capacity,
                                 void *(*reallocate)(void *memory, size_t bytes));
void orders_free(struct orders *orders);

/* Copies what `tokenize` points at, sets its pointers to the copy and its ticket. `owner` says for
 * whom (its text and ticket are ignored). STATUS_FULL, STATUS_OUT_OF_MEMORY. */
MUST_USE enum status orders_add(struct orders *orders, const struct order *owner,
                                struct core_tokenize *tokenize);

/* The order of a ticket is answered: hands out for whom it was and frees its text.
 * STATUS_NOT_FOUND for a ticket that is not out. */
MUST_USE enum status orders_take(struct orders *orders, uint64_t ticket, struct order *out_owner);

#endif
