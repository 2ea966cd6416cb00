/* Orders to the tokenizer: their texts stay in place until the answer. */
#include "coordinator/orders.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

static struct arena arena;
static struct orders orders;
static bool has_memory;

static void *reallocate(void *memory, size_t bytes)
{
    return has_memory ? realloc(memory, bytes) : NULL;
}

static int set_up(void **state)
{
    (void)state;
    has_memory = true;
    assert_int_equal(arena_init(&arena, 1 << 14), STATUS_OK);
    assert_int_equal(orders_init(&orders, &arena, 2, reallocate), STATUS_OK);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    orders_free(&orders);
    arena_free(&arena);
    return 0;
}

static void a_text_is_copied_and_its_owner_handed_back(void **state)
{
    (void)state;
    char text[] = "some words";
    struct core_tokenize order = {.text = wire_text_of(text)};
    const struct order owner = {.request = {3, 33}};
    assert_int_equal(orders_add(&orders, &owner, &order), STATUS_OK);
    memset(text, 'x', sizeof text - 1);
    assert_int_equal(order.text.length, 10);
    assert_memory_equal(order.text.bytes, "some words", 10);
    assert_int_equal(orders.bytes, 10);
    struct order back;
    assert_int_equal(orders_take(&orders, order.ticket, &back), STATUS_OK);
    assert_int_equal(back.request.index, 3);
    assert_int_equal(back.request.sequence, 33);
    assert_int_equal(orders.bytes, 0);
    assert_int_equal(orders_take(&orders, order.ticket, &back), STATUS_NOT_FOUND);
}

static void messages_are_copied_as_they_are_encoded(void **state)
{
    (void)state;
    uint8_t encoded[] = {0x81, 1, 2, 3};
    struct core_tokenize order = {
        .messages = {.encoded = encoded, .encoded_bytes = sizeof encoded, .count = 1}};
    const struct order owner = {.request = {REQUEST_NONE, 0}, .call_handle = 5};
    assert_int_equal(orders_add(&orders, &owner, &order), STATUS_OK);
    assert_ptr_not_equal(order.messages.encoded, encoded);
    assert_memory_equal(order.messages.encoded, encoded, sizeof encoded);
}

static void tickets_differ_and_bounds_are_answers(void **state)
{
    (void)state;
    const struct order owner = {.request = {1, 1}};
    struct core_tokenize first = {.text = wire_text_of("a")}, second = first, third = first;
    assert_int_equal(orders_add(&orders, &owner, &first), STATUS_OK);
    has_memory = false;
    assert_int_equal(orders_add(&orders, &owner, &second), STATUS_OUT_OF_MEMORY);
    has_memory = true;
    assert_int_equal(orders_add(&orders, &owner, &second), STATUS_OK);
    assert_int_equal(orders_add(&orders, &owner, &third), STATUS_FULL);
    struct order back;
    assert_int_equal(orders_take(&orders, first.ticket, &back), STATUS_OK);
    assert_int_equal(orders_add(&orders, &owner, &third), STATUS_OK);
    assert_true(third.ticket != first.ticket && third.ticket != second.ticket);
    assert_int_equal(orders_take(&orders, first.ticket, &back), STATUS_NOT_FOUND);
    assert_int_equal(orders_take(&orders, 0, &back), STATUS_NOT_FOUND);
}

int main(void)
{
#define CASE(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(a_text_is_copied_and_its_owner_handed_back),
        CASE(messages_are_copied_as_they_are_encoded),
        CASE(tickets_differ_and_bounds_are_answers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
