#include "coordinator/plan_writer.h"

#include "common/check.h"

enum status plan_writer_init(struct plan_writer *writer, struct arena *arena, uint32_t slots)
{
    struct plan_writer made = {.slots = slots};
    made.written = arena_alloc_array(arena, slots, sizeof *made.written);
    if (made.written == NULL)
        return STATUS_OUT_OF_MEMORY;
    *writer = made;
    return STATUS_OK;
}

void plan_writer_attach(struct plan_writer *writer, struct segment_writer *segment)
{
    writer->segment = segment;
    for (uint32_t slot = 0; slot < writer->slots; slot++)
        writer->written[slot] = (struct written_slot){0};
}

static void write_slot_row(struct plan_writer *writer, const struct request *request,
                           const struct plan_row *row)
{
    const struct slot_row content = {
        .generation = row->generation,
        .prompt_tokens = request->prompt_tokens,
        .token_limit = request_token_limit(request),
        .top_k = request->top_k,
        .seed = request->seed,
        .temperature = request->temperature,
        .top_p = request->top_p,
        .min_p = request->min_p,
    };
    segment_write_slot_row(writer->segment, row->slot, &content);
}

static void write_blocks(struct plan_writer *writer, const struct slots *slots, uint32_t slot,
                         uint32_t first, uint32_t end)
{
    for (uint32_t layer = 0; layer < slots->blocks.layers; layer++) {
        for (uint32_t logical = first; logical < end; logical++)
            segment_write_block(writer->segment, slot, layer, logical,
                                block_table_get(&slots->table, slot, layer, logical));
    }
}

void plan_writer_row(struct plan_writer *writer, const struct slots *slots,
                     const struct request *request, const struct plan_row *row)
{
    CHECK(writer->segment != NULL && request->slot == row->slot);
    struct written_slot *written = &writer->written[row->slot];
    if (written->generation != row->generation) {
        write_slot_row(writer, request, row);
        *written = (struct written_slot){.generation = row->generation};
    }
    uint32_t known = request_known(request);
    if (written->tokens < known) {
        segment_write_tokens(writer->segment, row->slot, written->tokens,
                             request->tokens + written->tokens, known - written->tokens);
        written->tokens = known;
    }
    uint32_t blocks = slots->rows[row->slot].logical_blocks;
    if (written->logical_blocks < blocks) {
        write_blocks(writer, slots, row->slot, written->logical_blocks, blocks);
        written->logical_blocks = blocks;
    }
}

void plan_writer_publish(struct plan_writer *writer, const struct plan *plan)
{
    struct plan_bounds bounds = segment_plan_bounds(&writer->segment->extents);
    CHECK(plan_judge(plan, &bounds).refusal == PLAN_REFUSAL_NONE);
    segment_publish_step(writer->segment, plan->step);
}
