/* All requests that the coordinator knows: by index, by id, and the finished ones by age. Counts
 * heap memory: live_bytes is bounded by admission, kept_bytes by eviction. Invariants: (1) an id is
 * there once; (2) live + kept = requests in the table; (3) the bytes of the live ones sum up to
 * live_bytes, those of the finished to kept_bytes. */
#ifndef TANDEM_COORDINATOR_REQUESTS_H
#define TANDEM_COORDINATOR_REQUESTS_H

#include "common/arena.h"
#include "coordinator/request.h"

enum { REQUESTS_STATES = REQUEST_STATE_FINISHED + 1 };

/* Finished requests, oldest first. */
struct kept_list {
    uint32_t oldest, newest; /* REQUEST_NONE when empty */
};

struct requests {
    struct request **rows; /* [capacity], NULL = free */
    uint32_t *free_list;
    struct request **buckets; /* [bucket_mask + 1], chained */
    uint32_t capacity, free_count, bucket_mask;
    uint64_t hash_seed;
    uint64_t sequence; /* newest given */
    uint32_t live_count, kept_count;
    uint32_t state_counts[REQUESTS_STATES];
    uint64_t live_bytes, kept_bytes;
    struct kept_list unread, read; /* finished: outcome not yet, or already, answered */
    void *(*reallocate)(void *memory, size_t bytes);
};

/* Memory for the tables is the arena's. `hash_seed` keeps bucket choice from clients.
 * STATUS_OUT_OF_MEMORY. */
MUST_USE enum status requests_init(struct requests *requests, struct arena *arena,
                                   uint32_t capacity, uint64_t hash_seed,
                                   void *(*reallocate)(void *memory, size_t bytes));
/* Frees what is left; a zeroed table is accepted. */
void requests_free(struct requests *requests);

struct request *requests_find(const struct requests *requests, struct wire_text id);
/* NULL if that request is gone. */
struct request *requests_named(const struct requests *requests, struct request_name name);

/* A new request in state TOKENIZING with the next sequence. The id must not be there.
 * STATUS_FULL, STATUS_OUT_OF_MEMORY. */
MUST_USE enum status requests_add(struct requests *requests, struct wire_text id,
                                  struct request **out_request);
/* Forgets a request and its memory. */
void requests_remove(struct requests *requests, struct request *request);

/* CHECKs the life cycle. Finishing moves its bytes from live to kept and puts it on `unread`. */
void requests_move(struct requests *requests, struct request *request, enum request_state to);

/* An answer carried the outcome: it is evicted before those that nobody has seen. */
void requests_mark_read(struct requests *requests, struct request *request);

/* Whom to evict first, or NULL. */
struct request *requests_eviction_candidate(const struct requests *requests);

/* realloc with accounting; NULL leaves everything as it was. new_bytes 0 frees and returns NULL. */
void *requests_resize(struct requests *requests, struct request *request, void *memory,
                      size_t old_bytes, size_t new_bytes);

/* Sets prompt tokens. STATUS_OUT_OF_MEMORY without a change. */
MUST_USE enum status requests_set_prompt(struct requests *requests, struct request *request,
                                         const uint32_t *ids, uint32_t id_count);
/* Appends. STATUS_OUT_OF_MEMORY without a change. */
MUST_USE enum status requests_append_token(struct requests *requests, struct request *request,
                                           uint32_t token);
MUST_USE enum status requests_append_text(struct requests *requests, struct request *request,
                                          const char *bytes, size_t length);

/* Invariants 1 to 3; O(capacity). */
bool requests_is_sound(const struct requests *requests);

#endif
