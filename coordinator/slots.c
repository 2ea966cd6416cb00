#include "coordinator/slots.h"

#include "common/check.h"

enum status slots_init(struct slots *slots, struct arena *arena, const struct slots_config *config)
{
    CHECK(config->slots > 0 && config->slots <= LIMIT_SLOTS);
    struct slots made = {.capacity = config->slots, .free_count = config->slots};
    made.rows = arena_alloc_array(arena, config->slots, sizeof *made.rows);
    made.free_list = arena_alloc_array(arena, config->slots, sizeof *made.free_list);
    made.scratch = arena_alloc_array(arena, config->geometry.layers, sizeof *made.scratch);
    if (made.rows == NULL || made.free_list == NULL || made.scratch == NULL)
        return STATUS_OUT_OF_MEMORY;
    enum status status = block_table_init(&made.table, arena, &config->geometry, config->slots,
                                          config->logical_blocks);
    if (status == STATUS_OK)
        status = blocks_init(&made.blocks, arena, config->pool_blocks, config->geometry.layers,
                             config->shuffle);
    if (status != STATUS_OK)
        return status;
    for (uint32_t i = 0; i < config->slots; i++)
        made.free_list[i] = config->slots - 1 - i; /* slot 0 is taken first */
    for (uint32_t i = 0; i < LIMIT_PLANS_IN_FLIGHT; i++)
        made.retiring[i] = SLOT_NONE;
    *slots = made;
    return STATUS_OK;
}

enum status slots_take(struct slots *slots, uint32_t owner, uint32_t *out_slot)
{
    if (slots->free_count == 0)
        return STATUS_FULL;
    uint32_t index = slots->free_list[--slots->free_count];
    struct slot *slot = &slots->rows[index];
    CHECK(slot->state == SLOT_FREE && slot->logical_blocks == 0);
    CHECK(slot->generation < UINT32_MAX);
    slot->state = SLOT_HELD;
    slot->generation++;
    slot->owner = owner;
    slot->last_step = 0;
    slots->held_count++;
    *out_slot = index;
    return STATUS_OK;
}

uint32_t slots_lacking(const struct slots *slots, uint32_t slot, uint32_t tokens)
{
    uint32_t needed = kv_blocks_for(&slots->table.geometry, tokens);
    uint32_t held = slots->rows[slot].logical_blocks;
    return needed > held ? needed - held : 0;
}

enum status slots_cover(struct slots *slots, uint32_t slot, uint32_t tokens)
{
    struct slot *row = &slots->rows[slot];
    CHECK(row->state == SLOT_HELD);
    uint32_t lacking = slots_lacking(slots, slot, tokens);
    if (blocks_free_logical(&slots->blocks) < lacking)
        return STATUS_FULL;
    for (; lacking > 0; lacking--) {
        CHECK(blocks_take(&slots->blocks, slots->scratch) == STATUS_OK);
        CHECK(block_table_map(&slots->table, slot, row->logical_blocks, slots->scratch) ==
              STATUS_OK);
        row->logical_blocks++;
    }
    return STATUS_OK;
}

void slots_name(struct slots *slots, uint32_t slot, uint64_t step)
{
    struct slot *row = &slots->rows[slot];
    CHECK(row->state == SLOT_HELD && step > slots->answered);
    row->last_step = step;
}

static void reclaim(struct slots *slots, uint32_t slot)
{
    struct slot *row = &slots->rows[slot];
    CHECK(row->state == SLOT_RETIRING);
    for (uint32_t layer = 0; layer < slots->blocks.layers; layer++)
        CHECK(blocks_free(&slots->blocks, block_table_row(&slots->table, slot, layer),
                          row->logical_blocks) == STATUS_OK);
    block_table_clear(&slots->table, slot, row->logical_blocks);
    row->logical_blocks = 0;
    row->state = SLOT_FREE;
    slots->free_list[slots->free_count++] = slot;
}

static void retire(struct slots *slots, uint32_t slot)
{
    struct slot *row = &slots->rows[slot];
    CHECK(row->state == SLOT_HELD);
    for (uint32_t layer = 0; layer < slots->blocks.layers; layer++)
        CHECK(blocks_retire(&slots->blocks, block_table_row(&slots->table, slot, layer),
                            row->logical_blocks) == STATUS_OK);
    row->state = SLOT_RETIRING;
    slots->held_count--;
}

void slots_release(struct slots *slots, uint32_t slot)
{
    struct slot *row = &slots->rows[slot];
    retire(slots, slot);
    if (row->last_step <= slots->answered) {
        reclaim(slots, slot);
        return;
    }
    CHECK(row->last_step - slots->answered <= LIMIT_PLANS_IN_FLIGHT);
    uint32_t *head = &slots->retiring[row->last_step % LIMIT_PLANS_IN_FLIGHT];
    row->next_retiring = *head;
    *head = slot;
}

static void reclaim_list(struct slots *slots, uint32_t *head)
{
    while (*head != SLOT_NONE) {
        uint32_t slot = *head;
        *head = slots->rows[slot].next_retiring;
        reclaim(slots, slot);
    }
}

void slots_answered(struct slots *slots, uint64_t step)
{
    CHECK(step == slots->answered + 1);
    slots->answered = step;
    reclaim_list(slots, &slots->retiring[step % LIMIT_PLANS_IN_FLIGHT]);
}

void slots_clear(struct slots *slots)
{
    for (uint32_t i = 0; i < LIMIT_PLANS_IN_FLIGHT; i++)
        reclaim_list(slots, &slots->retiring[i]);
    for (uint32_t slot = 0; slot < slots->capacity; slot++) {
        if (slots->rows[slot].state == SLOT_HELD) {
            retire(slots, slot);
            reclaim(slots, slot);
        }
    }
    slots->answered = 0;
}

/* Whether exactly the first logical_blocks entries of a slot are mapped, in every layer. */
static bool row_is_sound(const struct slots *slots, uint32_t slot)
{
    const struct slot *row = &slots->rows[slot];
    if (row->state == SLOT_FREE && row->logical_blocks != 0)
        return false;
    for (uint32_t layer = 0; layer < slots->blocks.layers; layer++) {
        for (uint32_t logical = 0; logical < slots->table.logical_blocks; logical++) {
            bool mapped = block_table_get(&slots->table, slot, layer, logical) != KV_BLOCK_UNMAPPED;
            if (mapped != (logical < row->logical_blocks))
                return false;
        }
    }
    return true;
}

bool slots_is_sound(const struct slots *slots)
{
    uint32_t counts[3] = {0};
    uint64_t held = 0, retiring = 0;
    for (uint32_t slot = 0; slot < slots->capacity; slot++) {
        const struct slot *row = &slots->rows[slot];
        counts[row->state]++;
        if (row->state == SLOT_HELD)
            held += (uint64_t)row->logical_blocks * slots->blocks.layers;
        if (row->state == SLOT_RETIRING)
            retiring += (uint64_t)row->logical_blocks * slots->blocks.layers;
        if (row->state == SLOT_RETIRING && row->last_step <= slots->answered)
            return false;
        if (!row_is_sound(slots, slot))
            return false;
    }
    return counts[SLOT_FREE] == slots->free_count && counts[SLOT_HELD] == slots->held_count &&
           held == slots->blocks.held_count && retiring == slots->blocks.retiring_count &&
           blocks_is_balanced(&slots->blocks);
}
