#include "coordinator/blocks.h"

#include "common/check.h"

enum { BLOCK_FREE, BLOCK_HELD, BLOCK_RETIRING, BLOCK_STATES };

enum status blocks_init(struct blocks *blocks, struct arena *arena, uint32_t total, uint32_t layers,
                        struct random *shuffle)
{
    CHECK(layers > 0 && total % layers == 0 && total <= INT32_MAX);
    struct blocks made = {.total = total, .layers = layers, .free_count = total};
    made.free_list = arena_alloc_array(arena, total, sizeof *made.free_list);
    made.states = arena_alloc_array(arena, total, sizeof *made.states);
    if (made.free_list == NULL || made.states == NULL)
        return STATUS_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < total; i++)
        made.free_list[i] = (int32_t)i;
    for (uint32_t i = total; shuffle != NULL && i > 1; i--) {
        uint32_t other = random_below(shuffle, i);
        int32_t block = made.free_list[i - 1];
        made.free_list[i - 1] = made.free_list[other];
        made.free_list[other] = block;
    }
    *blocks = made;
    return STATUS_OK;
}

static void check_sum(const struct blocks *blocks)
{
    DEBUG_CHECK(blocks->free_count + blocks->held_count + blocks->retiring_count == blocks->total);
}

enum status blocks_take(struct blocks *blocks, int32_t *out_blocks)
{
    if (blocks->free_count < blocks->layers)
        return STATUS_FULL;
    for (uint32_t layer = 0; layer < blocks->layers; layer++) {
        int32_t block = blocks->free_list[--blocks->free_count];
        CHECK(blocks->states[block] == BLOCK_FREE);
        blocks->states[block] = BLOCK_HELD;
        out_blocks[layer] = block;
    }
    blocks->held_count += blocks->layers;
    check_sum(blocks);
    return STATUS_OK;
}

/* Moves the whole list from one state to the next; on a misfit what was moved goes back. */
static enum status move(struct blocks *blocks, const int32_t *list, uint32_t count, uint8_t from,
                        uint8_t to)
{
    for (uint32_t i = 0; i < count; i++) {
        int32_t block = list[i];
        if (block < 0 || (uint32_t)block >= blocks->total || blocks->states[block] != from) {
            while (i-- > 0)
                blocks->states[list[i]] = from;
            return STATUS_INVALID;
        }
        blocks->states[block] = to;
    }
    return STATUS_OK;
}

enum status blocks_retire(struct blocks *blocks, const int32_t *list, uint32_t count)
{
    enum status status = move(blocks, list, count, BLOCK_HELD, BLOCK_RETIRING);
    if (status != STATUS_OK)
        return status;
    blocks->held_count -= count;
    blocks->retiring_count += count;
    check_sum(blocks);
    return STATUS_OK;
}

enum status blocks_free(struct blocks *blocks, const int32_t *list, uint32_t count)
{
    enum status status = move(blocks, list, count, BLOCK_RETIRING, BLOCK_FREE);
    if (status != STATUS_OK)
        return status;
    blocks->retiring_count -= count;
    for (uint32_t i = 0; i < count; i++)
        blocks->free_list[blocks->free_count++] = list[i];
    check_sum(blocks);
    return STATUS_OK;
}

uint32_t blocks_free_logical(const struct blocks *blocks)
{
    return blocks->free_count / blocks->layers;
}

uint32_t blocks_soon_logical(const struct blocks *blocks)
{
    return (blocks->free_count + blocks->retiring_count) / blocks->layers;
}

bool blocks_is_balanced(const struct blocks *blocks)
{
    uint32_t counts[BLOCK_STATES] = {0};
    for (uint32_t i = 0; i < blocks->total; i++) {
        if (blocks->states[i] >= BLOCK_STATES)
            return false;
        counts[blocks->states[i]]++;
    }
    for (uint32_t i = 0; i < blocks->free_count; i++) {
        if (blocks->states[blocks->free_list[i]] != BLOCK_FREE)
            return false;
    }
    return counts[BLOCK_FREE] == blocks->free_count && counts[BLOCK_HELD] == blocks->held_count &&
           counts[BLOCK_RETIRING] == blocks->retiring_count &&
           blocks->free_count + blocks->held_count + blocks->retiring_count == blocks->total;
}
