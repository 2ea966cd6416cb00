#include "coordinator/heap.h"

#include "common/check.h"

static bool is_before(struct heap_entry a, struct heap_entry b)
{
    return a.key != b.key ? a.key < b.key : a.item < b.item;
}

static void put(struct heap *heap, uint32_t index, struct heap_entry entry)
{
    heap->entries[index] = entry;
    heap->places[entry.item] = index + 1;
}

static void sift_up(struct heap *heap, uint32_t index)
{
    struct heap_entry entry = heap->entries[index];
    while (index > 0) {
        uint32_t parent = (index - 1) / 2;
        if (!is_before(entry, heap->entries[parent]))
            break;
        put(heap, index, heap->entries[parent]);
        index = parent;
    }
    put(heap, index, entry);
}

static void sift_down(struct heap *heap, uint32_t index)
{
    struct heap_entry entry = heap->entries[index];
    for (;;) {
        uint32_t child = 2 * index + 1;
        if (child >= heap->count)
            break;
        if (child + 1 < heap->count && is_before(heap->entries[child + 1], heap->entries[child]))
            child++;
        if (!is_before(heap->entries[child], entry))
            break;
        put(heap, index, heap->entries[child]);
        index = child;
    }
    put(heap, index, entry);
}

enum status heap_init(struct heap *heap, struct arena *arena, uint32_t capacity)
{
    struct heap made = {.capacity = capacity};
    made.entries = arena_alloc_array(arena, capacity, sizeof *made.entries);
    made.places = arena_alloc_array(arena, capacity, sizeof *made.places);
    if (made.entries == NULL || made.places == NULL)
        return STATUS_OUT_OF_MEMORY;
    *heap = made;
    return STATUS_OK;
}

void heap_set(struct heap *heap, uint32_t item, uint64_t key)
{
    CHECK(item < heap->capacity);
    struct heap_entry entry = {.key = key, .item = item};
    uint32_t index;
    if (heap->places[item] != 0) {
        index = heap->places[item] - 1;
    } else {
        CHECK(heap->count < heap->capacity);
        index = heap->count++;
    }
    put(heap, index, entry);
    sift_up(heap, index);
    sift_down(heap, heap->places[item] - 1);
}

void heap_remove(struct heap *heap, uint32_t item)
{
    CHECK(item < heap->capacity);
    if (heap->places[item] == 0)
        return;
    uint32_t index = heap->places[item] - 1;
    heap->places[item] = 0;
    heap->count--;
    if (index == heap->count)
        return;
    struct heap_entry moved = heap->entries[heap->count];
    put(heap, index, moved);
    sift_up(heap, index);
    sift_down(heap, heap->places[moved.item] - 1);
}

bool heap_contains(const struct heap *heap, uint32_t item)
{
    CHECK(item < heap->capacity);
    return heap->places[item] != 0;
}

const struct heap_entry *heap_first(const struct heap *heap)
{
    return heap->count == 0 ? NULL : &heap->entries[0];
}

uint32_t heap_rank(const struct heap *heap, uint64_t key)
{
    uint32_t rank = 0;
    for (uint32_t i = 0; i < heap->count; i++)
        rank += heap->entries[i].key < key;
    return rank;
}

bool heap_is_sound(const struct heap *heap)
{
    for (uint32_t i = 0; i < heap->count; i++) {
        if (heap->places[heap->entries[i].item] != i + 1)
            return false;
        if (i > 0 && is_before(heap->entries[i], heap->entries[(i - 1) / 2]))
            return false;
    }
    return true;
}
