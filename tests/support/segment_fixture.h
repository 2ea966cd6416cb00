/* The coordinator's side of an epoch in plain memory: a segment with its writer and reader, a free
 * list of blocks and a plan under construction. Blocks are taken in ascending order, or in a seeded
 * random one. */
#ifndef TANDEM_TESTS_SUPPORT_SEGMENT_FIXTURE_H
#define TANDEM_TESTS_SUPPORT_SEGMENT_FIXTURE_H

#include "common/check.h"
#include "common/random.h"
#include "proto/plan.h"
#include "proto/segment.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

struct segment_fixture {
    void *memory; /* owned */
    struct segment_writer writer;
    struct segment_reader reader;
    int32_t *free_blocks; /* owned; the last one is taken next */
    uint32_t free_count;
    uint32_t *mapped;      /* owned [slots]: logical blocks that the slot's table has */
    uint32_t *generations; /* owned [slots] */
    struct plan plan;
};

static inline void segment_fixture_open(struct segment_fixture *fixture,
                                        const struct segment_extents *extents,
                                        uint64_t shuffle_seed)
{
    const struct segment_identity identity = {.epoch = 7, .creator_pid = 1};
    memset(fixture, 0, sizeof *fixture);
    uint64_t bytes = coordinator_segment_bytes(extents);
    fixture->memory = aligned_alloc(4096, bytes);
    CHECK(fixture->memory != NULL);
    memset(fixture->memory, 0, bytes);
    segment_writer_format(&fixture->writer, fixture->memory, extents, &identity);
    CHECK(segment_reader_open(&fixture->reader, fixture->memory, bytes, NULL) == STATUS_OK);
    fixture->free_count = (uint32_t)extents->pool_blocks;
    fixture->free_blocks = calloc(fixture->free_count, sizeof *fixture->free_blocks);
    fixture->mapped = calloc(extents->slots, sizeof *fixture->mapped);
    fixture->generations = calloc(extents->slots, sizeof *fixture->generations);
    CHECK(fixture->free_blocks != NULL && fixture->mapped != NULL && fixture->generations != NULL);
    for (uint32_t i = 0; i < fixture->free_count; i++)
        fixture->free_blocks[i] = (int32_t)(fixture->free_count - 1 - i);
    struct random random = {.state = shuffle_seed};
    for (uint32_t i = fixture->free_count; shuffle_seed != 0 && i > 1; i--) {
        uint32_t other = random_below(&random, i);
        int32_t block = fixture->free_blocks[i - 1];
        fixture->free_blocks[i - 1] = fixture->free_blocks[other];
        fixture->free_blocks[other] = block;
    }
    fixture->plan.epoch = identity.epoch;
    fixture->plan.step = 1;
}

static inline void segment_fixture_close(struct segment_fixture *fixture)
{
    free(fixture->memory);
    free(fixture->free_blocks);
    free(fixture->mapped);
    free(fixture->generations);
}

static inline int32_t segment_fixture_block(const struct segment_fixture *fixture, uint32_t slot,
                                            uint32_t layer, uint32_t logical)
{
    int32_t block;
    segment_read_blocks(&fixture->reader, slot, layer, logical, 1, &block);
    return block;
}

/* Gives the blocks of the slot's tenant back. */
static inline void segment_fixture_release(struct segment_fixture *fixture, uint32_t slot)
{
    uint32_t layers = fixture->writer.extents.geometry.layers;
    for (uint32_t logical = 0; logical < fixture->mapped[slot]; logical++)
        for (uint32_t layer = 0; layer < layers; layer++)
            fixture->free_blocks[fixture->free_count++] =
                segment_fixture_block(fixture, slot, layer, logical);
    fixture->mapped[slot] = 0;
}

/* The next generation of a slot with these parameters; generation, limits and a greedy default are
 * filled in. */
static inline void segment_fixture_tenant(struct segment_fixture *fixture, uint32_t slot,
                                          const struct slot_row *parameters)
{
    struct slot_row row = {.top_p = 1};
    if (parameters != NULL)
        row = *parameters;
    segment_fixture_release(fixture, slot);
    row.generation = ++fixture->generations[slot];
    row.prompt_tokens = 1;
    if (row.token_limit == 0)
        row.token_limit = fixture->writer.extents.context;
    segment_write_slot_row(&fixture->writer, slot, &row);
}

static inline void segment_fixture_map(struct segment_fixture *fixture, uint32_t slot,
                                       uint32_t tokens)
{
    const struct kv_geometry *geometry = &fixture->writer.extents.geometry;
    for (; fixture->mapped[slot] < kv_blocks_for(geometry, tokens); fixture->mapped[slot]++)
        for (uint32_t layer = 0; layer < geometry->layers; layer++) {
            CHECK(fixture->free_count > 0);
            segment_write_block(&fixture->writer, slot, layer, fixture->mapped[slot],
                                fixture->free_blocks[--fixture->free_count]);
        }
}

/* Appends a row; blocks are mapped as needed. */
static inline void segment_fixture_row(struct segment_fixture *fixture, uint32_t slot,
                                       uint32_t first_position, uint32_t count, uint32_t flags)
{
    segment_fixture_map(fixture, slot, first_position + count);
    fixture->plan.rows[fixture->plan.row_count++] = (struct plan_row){
        .slot = slot,
        .generation = fixture->generations[slot],
        .first_position = first_position,
        .count = count,
        .flags = flags,
    };
}

static inline void segment_fixture_publish(struct segment_fixture *fixture)
{
    segment_publish_step(&fixture->writer, fixture->plan.step);
}

/* Begins the next plan. */
static inline void segment_fixture_next(struct segment_fixture *fixture)
{
    fixture->plan.step++;
    fixture->plan.row_count = 0;
}

/* Where the segment's raw tables lie, for values that the writer would not write. */
static inline struct slot_row *segment_fixture_raw_slot(struct segment_fixture *fixture,
                                                        uint32_t slot)
{
    uint8_t *rows = fixture->writer.base + fixture->writer.slot_rows_offset;
    return (struct slot_row *)(void *)rows + slot;
}

static inline int32_t *segment_fixture_raw_block(struct segment_fixture *fixture, uint32_t slot,
                                                 uint32_t layer, uint32_t logical)
{
    const struct segment_extents *extents = &fixture->writer.extents;
    int32_t *table = (int32_t *)(void *)(fixture->writer.base + fixture->writer.block_table_offset);
    return table +
           kv_table_index(&extents->geometry, extents->logical_blocks, slot, layer, logical);
}

#endif
