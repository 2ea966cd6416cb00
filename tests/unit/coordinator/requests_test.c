/* The table of requests: ids, accounting, eviction order, short memory. */
#include "coordinator/requests.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CAPACITY = 20 };

static struct arena arena;
static struct requests requests;
static int allocations_left; /* -1 = enough */

static void *reallocate(void *memory, size_t bytes)
{
    if (allocations_left == 0)
        return NULL;
    if (allocations_left > 0)
        allocations_left--;
    return realloc(memory, bytes);
}

static int set_up(void **state)
{
    (void)state;
    allocations_left = -1;
    assert_int_equal(arena_init(&arena, 1 << 16), STATUS_OK);
    assert_int_equal(requests_init(&requests, &arena, CAPACITY, 1, reallocate), STATUS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    assert_true(requests_is_sound(&requests));
    requests_free(&requests);
    arena_free(&arena);
    return 0;
}

static struct request *add(const char *id)
{
    struct request *request = NULL;
    assert_int_equal(requests_add(&requests, wire_text_of(id), &request), STATUS_OK);
    return request;
}

static void finish(struct request *request)
{
    request->outcome.reason = FINISH_REASON_CANCELLED;
    requests_move(&requests, request, REQUEST_STATE_FINISHED);
}

static void ids_are_found_until_removed(void **state)
{
    (void)state;
    char id[16];
    struct request *all[CAPACITY];
    for (int i = 0; i < CAPACITY; i++) {
        snprintf(id, sizeof id, "id-%d", i);
        all[i] = add(id);
        assert_int_equal(all[i]->sequence, i + 1);
    }
    struct request *none = NULL;
    assert_int_equal(requests_add(&requests, wire_text_of("x"), &none), STATUS_FULL);
    requests_remove(&requests, all[7]);
    for (int i = 0; i < CAPACITY; i++) {
        snprintf(id, sizeof id, "id-%d", i);
        assert_ptr_equal(requests_find(&requests, wire_text_of(id)), i == 7 ? NULL : all[i]);
    }
    assert_null(requests_find(&requests, wire_text_of("id-")));
    assert_true(requests_is_sound(&requests));
}

static void an_id_may_hold_any_bytes(void **state)
{
    (void)state;
    struct wire_text first = {.bytes = "a\0b", .length = 3},
                     second = {.bytes = "a\0c", .length = 3};
    struct request *request;
    assert_int_equal(requests_add(&requests, first, &request), STATUS_OK);
    assert_null(requests_find(&requests, second));
    assert_ptr_equal(requests_find(&requests, first), request);
}

static void a_name_does_not_find_the_next_tenant_of_an_index(void **state)
{
    (void)state;
    struct request *request = add("a");
    const struct request_name name = {request->index, request->sequence};
    assert_ptr_equal(requests_named(&requests, name), request);
    requests_remove(&requests, request);
    assert_null(requests_named(&requests, name));
    struct request *tenant = add("b");
    assert_int_equal(tenant->index, name.index);
    assert_null(requests_named(&requests, name));
}

static void read_outcomes_are_evicted_before_unread_ones(void **state)
{
    (void)state;
    struct request *first = add("first"), *second = add("second"), *third = add("third");
    assert_null(requests_eviction_candidate(&requests));
    finish(second);
    finish(first);
    finish(third);
    assert_ptr_equal(requests_eviction_candidate(&requests), second); /* finished first */
    requests_mark_read(&requests, third);
    requests_mark_read(&requests, third);
    assert_ptr_equal(requests_eviction_candidate(&requests), third);
    requests_remove(&requests, third);
    assert_ptr_equal(requests_eviction_candidate(&requests), second);
    requests_mark_read(&requests, first);
    requests_mark_read(&requests, second);
    assert_ptr_equal(requests_eviction_candidate(&requests), first);
    assert_true(requests_is_sound(&requests));
}

static void bytes_move_from_live_to_kept(void **state)
{
    (void)state;
    struct request *request = add("a");
    const uint32_t prompt[3] = {1, 2, 3};
    assert_int_equal(requests_set_prompt(&requests, request, prompt, 3), STATUS_OK);
    assert_int_equal(requests_append_text(&requests, request, "hello", 5), STATUS_OK);
    uint64_t bytes = request->bytes;
    assert_true(bytes > sizeof *request);
    assert_int_equal(requests.live_bytes, bytes);
    finish(request);
    assert_int_equal(requests.live_bytes, 0);
    assert_int_equal(requests.kept_bytes, bytes);
    requests_remove(&requests, request);
    assert_int_equal(requests.kept_bytes, 0);
}

static void tokens_and_text_grow_without_a_change_of_what_is_there(void **state)
{
    (void)state;
    struct request *request = add("a");
    uint32_t prompt[5] = {10, 11, 12, 13, 14};
    assert_int_equal(requests_set_prompt(&requests, request, prompt, 5), STATUS_OK);
    char text[1000];
    for (uint32_t i = 0; i < 1000; i++) {
        text[i] = (char)('a' + i % 26);
        assert_int_equal(requests_append_token(&requests, request, i), STATUS_OK);
        assert_int_equal(requests_append_text(&requests, request, text + i, 1), STATUS_OK);
    }
    assert_memory_equal(request->tokens, prompt, sizeof prompt);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(request->tokens[5 + i], i);
    assert_memory_equal(request->text, text, sizeof text);
    assert_int_equal(request_known(request), 1005);
}

static void without_memory_nothing_changes(void **state)
{
    (void)state;
    struct request *request = add("a");
    const uint32_t prompt[1] = {1};
    allocations_left = 0;
    struct request *none = NULL;
    assert_int_equal(requests_add(&requests, wire_text_of("b"), &none), STATUS_OUT_OF_MEMORY);
    assert_null(requests_find(&requests, wire_text_of("b")));
    assert_int_equal(requests_set_prompt(&requests, request, prompt, 1), STATUS_OUT_OF_MEMORY);
    assert_int_equal(request->prompt_tokens, 0);
    assert_int_equal(requests_append_text(&requests, request, "x", 1), STATUS_OUT_OF_MEMORY);
    assert_int_equal(request->text_bytes, 0);
    allocations_left = 1;
    assert_int_equal(requests_set_prompt(&requests, request, prompt, 1), STATUS_OK);
    enum status status = STATUS_OK;
    while (status == STATUS_OK) /* until the room is used up */
        status = requests_append_token(&requests, request, 7);
    assert_int_equal(status, STATUS_OUT_OF_MEMORY);
    assert_int_equal(request_known(request), request->token_capacity);
}

/* Tests and debug builds believe this judge. */
static void an_unsound_table_is_noticed(void **state)
{
    (void)state;
    struct request *live = add("live"), *kept = add("kept"), *newer = add("newer");
    finish(kept);
    finish(newer);
    requests_mark_read(&requests, newer);
    assert_true(requests_is_sound(&requests));
    const struct requests sound = requests;
    const struct request sound_live = *live, sound_kept = *kept;
    live->index++;
    assert_false(requests_is_sound(&requests));
    *live = sound_live;
    live->id[0]++; /* another bucket than its id's */
    assert_false(requests_is_sound(&requests));
    *live = sound_live;
    live->bytes++;
    assert_false(requests_is_sound(&requests));
    *live = sound_live;
    live->state = REQUEST_STATE_QUEUED;
    assert_false(requests_is_sound(&requests));
    *live = sound_live;
    kept->outcome_read = true; /* on the list of the unread ones */
    assert_false(requests_is_sound(&requests));
    *kept = sound_kept;
    kept->older_kept = live->index;
    assert_false(requests_is_sound(&requests));
    *kept = sound_kept;
    requests.unread.oldest = live->index; /* which is not finished */
    assert_false(requests_is_sound(&requests));
    requests.unread.oldest = requests.free_list[0]; /* nobody */
    assert_false(requests_is_sound(&requests));
    requests = sound;
    requests.unread.newest = REQUEST_NONE;
    assert_false(requests_is_sound(&requests));
    requests = sound;
    uint32_t *const counts[] = {&requests.live_count, &requests.kept_count, &requests.free_count,
                                &requests.state_counts[REQUEST_STATE_RUNNING]};
    for (size_t i = 0; i < sizeof counts / sizeof counts[0]; i++) {
        ++*counts[i];
        assert_false(requests_is_sound(&requests));
        --*counts[i];
    }
    uint64_t *const bytes[] = {&requests.live_bytes, &requests.kept_bytes};
    for (size_t i = 0; i < sizeof bytes / sizeof bytes[0]; i++) {
        ++*bytes[i];
        assert_false(requests_is_sound(&requests));
        --*bytes[i];
    }
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(ids_are_found_until_removed),
        CASE(an_id_may_hold_any_bytes),
        CASE(a_name_does_not_find_the_next_tenant_of_an_index),
        CASE(read_outcomes_are_evicted_before_unread_ones),
        CASE(bytes_move_from_live_to_kept),
        CASE(tokens_and_text_grow_without_a_change_of_what_is_there),
        CASE(without_memory_nothing_changes),
        CASE(an_unsound_table_is_noticed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
