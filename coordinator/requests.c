#include "coordinator/requests.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>
#define XXH_INLINE_ALL
#include <xxhash.h>

enum { TOKENS_ROOM = 32, TEXT_ROOM = 128 };

static uint32_t bucket_of(const struct requests *requests, const char *id, uint32_t id_length)
{
    return (uint32_t)XXH3_64bits_withSeed(id, id_length, requests->hash_seed) &
           requests->bucket_mask;
}

enum status requests_init(struct requests *requests, struct arena *arena, uint32_t capacity,
                          uint64_t hash_seed, void *(*reallocate)(void *memory, size_t bytes))
{
    uint32_t buckets = 1;
    while (buckets < capacity && buckets < 1u << 31)
        buckets *= 2;
    struct requests made = {
        .capacity = capacity,
        .free_count = capacity,
        .bucket_mask = buckets - 1,
        .hash_seed = hash_seed,
        .unread = {REQUEST_NONE, REQUEST_NONE},
        .read = {REQUEST_NONE, REQUEST_NONE},
        .reallocate = reallocate,
    };
    made.rows = arena_alloc_array(arena, capacity, sizeof *made.rows);
    made.free_list = arena_alloc_array(arena, capacity, sizeof *made.free_list);
    made.buckets = arena_alloc_array(arena, buckets, sizeof *made.buckets);
    if (made.rows == NULL || made.free_list == NULL || made.buckets == NULL)
        return STATUS_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < capacity; i++)
        made.free_list[i] = capacity - 1 - i;
    *requests = made;
    return STATUS_OK;
}

void requests_free(struct requests *requests)
{
    for (uint32_t i = 0; i < requests->capacity; i++) {
        if (requests->rows[i] != NULL)
            requests_remove(requests, requests->rows[i]);
    }
    *requests = (struct requests){0};
}

struct request *requests_find(const struct requests *requests, struct wire_text id)
{
    struct request *request = requests->buckets[bucket_of(requests, id.bytes, id.length)];
    while (request != NULL &&
           (request->id_length != id.length || memcmp(request->id, id.bytes, id.length) != 0))
        request = request->next_in_bucket;
    return request;
}

struct request *requests_named(const struct requests *requests, struct request_name name)
{
    CHECK(name.index < requests->capacity);
    struct request *request = requests->rows[name.index];
    return request != NULL && request->sequence == name.sequence ? request : NULL;
}

static uint64_t *pot_of(struct requests *requests, const struct request *request)
{
    return request_is_finished(request) ? &requests->kept_bytes : &requests->live_bytes;
}

enum status requests_add(struct requests *requests, struct wire_text id,
                         struct request **out_request)
{
    CHECK(id.length > 0 && id.length <= LIMIT_REQUEST_ID_BYTES);
    DEBUG_CHECK(requests_find(requests, id) == NULL);
    if (requests->free_count == 0)
        return STATUS_FULL;
    struct request *request = requests->reallocate(NULL, sizeof *request);
    if (request == NULL)
        return STATUS_OUT_OF_MEMORY;
    *request = (struct request){
        .index = requests->free_list[--requests->free_count],
        .sequence = ++requests->sequence,
        .id_length = id.length,
        .state = REQUEST_STATE_TOKENIZING,
        .slot = SLOT_NONE,
        .deadline_ns = REQUEST_NEVER_NS,
        .older_kept = REQUEST_NONE,
        .newer_kept = REQUEST_NONE,
        .first_call = REQUEST_NONE,
        .bytes = sizeof *request,
    };
    memcpy(request->id, id.bytes, id.length);
    requests->rows[request->index] = request;
    struct request **bucket = &requests->buckets[bucket_of(requests, id.bytes, id.length)];
    request->next_in_bucket = *bucket;
    *bucket = request;
    requests->live_count++;
    requests->live_bytes += request->bytes;
    requests->state_counts[request->state]++;
    *out_request = request;
    return STATUS_OK;
}

static struct kept_list *list_of(struct requests *requests, const struct request *request)
{
    return request->outcome_read ? &requests->read : &requests->unread;
}

static void keep(struct requests *requests, struct request *request)
{
    struct kept_list *list = list_of(requests, request);
    request->older_kept = list->newest;
    request->newer_kept = REQUEST_NONE;
    if (list->newest != REQUEST_NONE)
        requests->rows[list->newest]->newer_kept = request->index;
    else
        list->oldest = request->index;
    list->newest = request->index;
}

static void unkeep(struct requests *requests, struct request *request)
{
    struct kept_list *list = list_of(requests, request);
    if (request->older_kept != REQUEST_NONE)
        requests->rows[request->older_kept]->newer_kept = request->newer_kept;
    else
        list->oldest = request->newer_kept;
    if (request->newer_kept != REQUEST_NONE)
        requests->rows[request->newer_kept]->older_kept = request->older_kept;
    else
        list->newest = request->older_kept;
}

void requests_remove(struct requests *requests, struct request *request)
{
    CHECK(requests->rows[request->index] == request);
    struct request **link =
        &requests->buckets[bucket_of(requests, request->id, request->id_length)];
    while (*link != request)
        link = &(*link)->next_in_bucket;
    *link = request->next_in_bucket;
    if (request_is_finished(request)) {
        unkeep(requests, request);
        requests->kept_count--;
    } else {
        requests->live_count--;
    }
    requests->state_counts[request->state]--;
    *pot_of(requests, request) -= request->bytes;
    requests->rows[request->index] = NULL;
    requests->free_list[requests->free_count++] = request->index;
    free(request->tokens);
    free(request->text);
    free(request->stops);
    free(request);
}

void requests_move(struct requests *requests, struct request *request, enum request_state to)
{
    CHECK(request_may_move(request->state, to));
    requests->state_counts[request->state]--;
    requests->state_counts[to]++;
    if (to == REQUEST_STATE_FINISHED) {
        CHECK(request->outcome.reason != FINISH_REASON_UNKNOWN);
        requests->live_bytes -= request->bytes;
        requests->kept_bytes += request->bytes;
        requests->live_count--;
        requests->kept_count++;
        keep(requests, request);
    }
    request->state = to;
}

void requests_mark_read(struct requests *requests, struct request *request)
{
    CHECK(request_is_finished(request));
    if (request->outcome_read)
        return;
    unkeep(requests, request);
    request->outcome_read = true;
    keep(requests, request);
}

struct request *requests_eviction_candidate(const struct requests *requests)
{
    uint32_t index =
        requests->read.oldest != REQUEST_NONE ? requests->read.oldest : requests->unread.oldest;
    return index == REQUEST_NONE ? NULL : requests->rows[index];
}

void *requests_resize(struct requests *requests, struct request *request, void *memory,
                      size_t old_bytes, size_t new_bytes)
{
    void *made = NULL;
    if (new_bytes == 0) {
        free(memory);
    } else {
        made = requests->reallocate(memory, new_bytes);
        if (made == NULL)
            return NULL;
    }
    request->bytes = request->bytes - old_bytes + new_bytes;
    uint64_t *pot = pot_of(requests, request);
    *pot = *pot - old_bytes + new_bytes;
    return made;
}

enum status requests_set_prompt(struct requests *requests, struct request *request,
                                const uint32_t *ids, uint32_t id_count)
{
    CHECK(request->tokens == NULL && id_count > 0);
    uint32_t capacity = id_count + TOKENS_ROOM;
    uint32_t *tokens =
        requests_resize(requests, request, NULL, 0, capacity * sizeof *request->tokens);
    if (tokens == NULL)
        return STATUS_OUT_OF_MEMORY;
    memcpy(tokens, ids, id_count * sizeof *ids);
    request->tokens = tokens;
    request->token_capacity = capacity;
    request->prompt_tokens = id_count;
    return STATUS_OK;
}

enum status requests_append_token(struct requests *requests, struct request *request,
                                  uint32_t token)
{
    CHECK(!request_is_finished(request));
    uint32_t known = request_known(request);
    if (known == request->token_capacity) {
        uint32_t capacity = known + request->accepted + TOKENS_ROOM;
        uint32_t *tokens =
            requests_resize(requests, request, request->tokens,
                            request->token_capacity * sizeof *tokens, capacity * sizeof *tokens);
        if (tokens == NULL)
            return STATUS_OUT_OF_MEMORY;
        request->tokens = tokens;
        request->token_capacity = capacity;
    }
    request->tokens[known] = token;
    request->accepted++;
    return STATUS_OK;
}

enum status requests_append_text(struct requests *requests, struct request *request,
                                 const char *bytes, size_t length)
{
    if (length == 0)
        return STATUS_OK;
    if (length > UINT32_MAX / 4 - request->text_bytes)
        return STATUS_OUT_OF_MEMORY;
    uint32_t needed = request->text_bytes + (uint32_t)length;
    if (needed > request->text_capacity) {
        uint32_t capacity = needed + needed / 2 + TEXT_ROOM;
        char *text =
            requests_resize(requests, request, request->text, request->text_capacity, capacity);
        if (text == NULL)
            return STATUS_OUT_OF_MEMORY;
        request->text = text;
        request->text_capacity = capacity;
    }
    memcpy(request->text + request->text_bytes, bytes, length);
    request->text_bytes = needed;
    return STATUS_OK;
}

static uint32_t kept_list_length(const struct requests *requests, struct kept_list list, bool read)
{
    uint32_t length = 0, older = REQUEST_NONE;
    for (uint32_t i = list.oldest; i != REQUEST_NONE; i = requests->rows[i]->newer_kept) {
        const struct request *request = requests->rows[i];
        if (request == NULL || !request_is_finished(request) || request->outcome_read != read ||
            request->older_kept != older)
            return UINT32_MAX;
        older = i;
        length++;
    }
    return older == list.newest ? length : UINT32_MAX;
}

bool requests_is_sound(const struct requests *requests)
{
    uint32_t live = 0, kept = 0, states[REQUESTS_STATES] = {0};
    uint64_t live_bytes = 0, kept_bytes = 0;
    for (uint32_t i = 0; i < requests->capacity; i++) {
        const struct request *request = requests->rows[i];
        if (request == NULL)
            continue;
        struct wire_text id = {.bytes = request->id, .length = request->id_length};
        if (request->index != i || requests_find(requests, id) != request)
            return false;
        states[request->state]++;
        if (request_is_finished(request)) {
            kept++;
            kept_bytes += request->bytes;
        } else {
            live++;
            live_bytes += request->bytes;
        }
    }
    uint32_t listed = kept_list_length(requests, requests->unread, false) +
                      kept_list_length(requests, requests->read, true);
    return live == requests->live_count && kept == requests->kept_count && listed == kept &&
           live_bytes == requests->live_bytes && kept_bytes == requests->kept_bytes &&
           requests->free_count + live + kept == requests->capacity &&
           memcmp(states, requests->state_counts, sizeof states) == 0;
}
