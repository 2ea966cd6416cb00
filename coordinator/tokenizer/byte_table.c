#include "coordinator/tokenizer/byte_table.h"

#include "common/check.h"

#define XXH_INLINE_ALL
#include <xxhash.h>

#include <stdbool.h>
#include <string.h>

enum { INLINE_BYTES = 8, LOG2_SLOTS_MIN = 4 };

static uint32_t log2_slots(uint32_t capacity)
{
    uint32_t log2 = LOG2_SLOTS_MIN;
    while ((UINT64_C(1) << log2) < 2 * (uint64_t)capacity)
        log2++;
    return log2;
}

size_t byte_table_bytes(uint32_t capacity)
{
    return (sizeof(struct byte_table_slot) << log2_slots(capacity)) + 64;
}

enum status byte_table_init(struct byte_table *table, struct arena *arena, uint32_t capacity)
{
    uint32_t log2 = log2_slots(capacity);
    struct byte_table_slot *slots =
        arena_alloc_array(arena, (size_t)1 << log2, sizeof(struct byte_table_slot));
    if (slots == NULL)
        return STATUS_OUT_OF_MEMORY;
    *table = (struct byte_table){.slots = slots, .shift = 64 - log2, .capacity = capacity};
    return STATUS_OK;
}

static uint64_t load_4(const char *bytes)
{
    uint32_t word;
    memcpy(&word, bytes, sizeof word);
    return word;
}

static uint64_t byte_at(const char *bytes, size_t index)
{
    return (uint64_t)(uint8_t)bytes[index] << (8 * index);
}

/* Overlapping loads instead of a copy of variable length: bytes that are loaded twice fall on the
 * same bits. */
static uint64_t key_of(const char *bytes, size_t length)
{
    if (length > INLINE_BYTES)
        return XXH3_64bits(bytes, length);
    if (length >= 4)
        return load_4(bytes) | load_4(bytes + length - 4) << (8 * (length - 4));
    return byte_at(bytes, 0) | byte_at(bytes, length / 2) | byte_at(bytes, length - 1);
}

static size_t first_slot(const struct byte_table *table, uint64_t key)
{
    uint64_t mixed = key * UINT64_C(0x9e3779b97f4a7c15);
    mixed ^= mixed >> 32;
    return (size_t)((mixed * UINT64_C(0xd6e8feb86659fd93)) >> table->shift);
}

static bool slot_holds(const struct byte_table_slot *slot, uint64_t key, const char *bytes,
                       size_t length)
{
    if (slot->key != key || slot->length != length)
        return false;
    return length <= INLINE_BYTES || memcmp(slot->bytes, bytes, length) == 0;
}

/* The slot that holds the string, or the free one where it would go. At least half of the slots are
 * free. */
static struct byte_table_slot *slot_of(const struct byte_table *table, const char *bytes,
                                       size_t length)
{
    uint64_t key = key_of(bytes, length);
    size_t mask = (SIZE_MAX >> table->shift);
    size_t index = first_slot(table, key);
    while (table->slots[index].length != 0 && !slot_holds(&table->slots[index], key, bytes, length))
        index = (index + 1) & mask;
    return &table->slots[index];
}

enum status byte_table_add(struct byte_table *table, const char *bytes, uint32_t length,
                           uint32_t value)
{
    CHECK(length >= 1);
    struct byte_table_slot *slot = slot_of(table, bytes, length);
    if (slot->length != 0)
        return STATUS_EXISTS;
    if (table->count == table->capacity)
        return STATUS_FULL;
    *slot = (struct byte_table_slot){
        .key = key_of(bytes, length), .bytes = bytes, .length = length, .value = value};
    table->count++;
    return STATUS_OK;
}

uint32_t byte_table_find(const struct byte_table *table, const char *bytes, size_t length)
{
    if (length == 0)
        return BYTE_TABLE_NONE;
    const struct byte_table_slot *slot = slot_of(table, bytes, length);
    return slot->length != 0 ? slot->value : BYTE_TABLE_NONE;
}
