#include "coordinator/block_table.h"

#include "common/check.h"

static int32_t *entry_of(const struct block_table *table, uint32_t slot, uint32_t layer,
                         uint32_t logical)
{
    DEBUG_CHECK(slot < table->slots && layer < table->geometry.layers &&
                logical < table->logical_blocks);
    return &table->entries[kv_table_index(&table->geometry, table->logical_blocks, slot, layer,
                                          logical)];
}

enum status block_table_init(struct block_table *table, struct arena *arena,
                             const struct kv_geometry *geometry, uint32_t slots,
                             uint32_t logical_blocks)
{
    CHECK(geometry->layers > 0);
    struct block_table made = {
        .geometry = *geometry, .slots = slots, .logical_blocks = logical_blocks};
    size_t count = kv_table_entries(geometry, logical_blocks, slots);
    made.entries = arena_alloc_array(arena, count, sizeof *made.entries);
    if (made.entries == NULL)
        return STATUS_OUT_OF_MEMORY;
    for (size_t i = 0; i < count; i++)
        made.entries[i] = KV_BLOCK_UNMAPPED;
    *table = made;
    return STATUS_OK;
}

int32_t block_table_get(const struct block_table *table, uint32_t slot, uint32_t layer,
                        uint32_t logical)
{
    return *entry_of(table, slot, layer, logical);
}

enum status block_table_map(struct block_table *table, uint32_t slot, uint32_t logical,
                            const int32_t *blocks)
{
    for (uint32_t layer = 0; layer < table->geometry.layers; layer++) {
        if (*entry_of(table, slot, layer, logical) != KV_BLOCK_UNMAPPED)
            return STATUS_EXISTS;
    }
    for (uint32_t layer = 0; layer < table->geometry.layers; layer++)
        *entry_of(table, slot, layer, logical) = blocks[layer];
    return STATUS_OK;
}

const int32_t *block_table_row(const struct block_table *table, uint32_t slot, uint32_t layer)
{
    return entry_of(table, slot, layer, 0);
}

void block_table_clear(struct block_table *table, uint32_t slot, uint32_t count)
{
    CHECK(count <= table->logical_blocks);
    for (uint32_t layer = 0; layer < table->geometry.layers; layer++) {
        int32_t *row = entry_of(table, slot, layer, 0);
        for (uint32_t logical = 0; logical < count; logical++)
            row[logical] = KV_BLOCK_UNMAPPED;
    }
}
