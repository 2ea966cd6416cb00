/* Threads that turn text into ids, so that a long prompt never delays a step. Orders come from the
 * core, go back to it through tokenizer_pool_next. Bounded: the owner says how many orders there
 * can be at the same time. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_POOL_H
#define TANDEM_COORDINATOR_TOKENIZER_POOL_H

#include "common/event_loop.h"
#include "common/status.h"
#include "common/text.h"
#include "coordinator/core.h"

#include <stdbool.h>
#include <stdint.h>

struct tokenizer;
struct tokenizer_pool; /* opaque; all functions belong to the loop's thread */

struct tokenized_text {
    uint64_t ticket;
    enum status status;
    uint32_t *ids; /* owned by the receiver: free() */
    uint32_t count;
    struct reason why; /* set unless the status is STATUS_OK */
};

/* `tokenizer` is borrowed. STATUS_OUT_OF_MEMORY, STATUS_SYSTEM. */
MUST_USE enum status tokenizer_pool_open(const struct tokenizer *tokenizer, uint32_t threads,
                                         uint32_t orders_max, struct event_loop *loop,
                                         struct tokenizer_pool **out_pool);

/* Waits for the orders being worked on; the others are dropped. Accepts NULL. */
void tokenizer_pool_close(struct tokenizer_pool *pool);

/* What the order points at stays in place until its result was taken. CHECKs orders_max. */
void tokenizer_pool_order(struct tokenizer_pool *pool, const struct core_tokenize *order);

/* The next finished order, or false. */
MUST_USE bool tokenizer_pool_next(struct tokenizer_pool *pool,
                                  struct tokenized_text *out_tokenized);

#endif
