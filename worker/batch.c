#include "worker/batch.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

enum status batch_init(struct batch *batch, uint32_t row_capacity, uint32_t sample_capacity)
{
    *batch = (struct batch){
        .row_capacity = row_capacity,
        .sample_capacity = sample_capacity,
        .tokens = calloc(row_capacity, sizeof *batch->tokens),
        .positions = calloc(row_capacity, sizeof *batch->positions),
        .slots = calloc(row_capacity, sizeof *batch->slots),
        .sample_rows = calloc(sample_capacity, sizeof *batch->sample_rows),
        .sample_positions = calloc(sample_capacity, sizeof *batch->sample_positions),
        .sampling = calloc(sample_capacity, sizeof *batch->sampling),
    };
    if (batch->tokens != NULL && batch->positions != NULL && batch->slots != NULL &&
        batch->sample_rows != NULL && batch->sample_positions != NULL && batch->sampling != NULL)
        return STATUS_OK;
    batch_free(batch);
    return STATUS_OUT_OF_MEMORY;
}

void batch_free(struct batch *batch)
{
    free(batch->tokens);
    free(batch->positions);
    free(batch->slots);
    free(batch->sample_rows);
    free(batch->sample_positions);
    free(batch->sampling);
    *batch = (struct batch){0};
}

void batch_clear(struct batch *batch)
{
    batch->row_count = 0;
    batch->sample_count = 0;
}

void batch_add_rows(struct batch *batch, uint32_t slot, uint32_t first_position,
                    const uint32_t *tokens, uint32_t count)
{
    CHECK(count <= batch->row_capacity - batch->row_count);
    uint32_t row = batch->row_count;
    memcpy(batch->tokens + row, tokens, count * sizeof *tokens);
    for (uint32_t i = 0; i < count; i++) {
        batch->positions[row + i] = first_position + i;
        batch->slots[row + i] = slot;
    }
    batch->row_count += count;
}

void batch_add_sample(struct batch *batch, const struct sampling *sampling)
{
    CHECK(batch->sample_count < batch->sample_capacity && batch->row_count > 0);
    uint32_t sample = batch->sample_count++;
    uint32_t row = batch->row_count - 1;
    batch->sample_rows[sample] = row;
    batch->sample_positions[sample] = batch->positions[row] + 1;
    batch->sampling[sample] = *sampling;
}

void batch_from_plan(struct batch *batch, const struct plan *plan, const struct plan_check *check)
{
    const uint32_t *tokens = plan_check_tokens(check);
    batch_clear(batch);
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const struct plan_row *row = &plan->rows[i];
        batch_add_rows(batch, row->slot, row->first_position, tokens, row->count);
        tokens += row->count;
        if ((row->flags & PLAN_ROW_SAMPLE) != 0)
            batch_add_sample(batch, &plan_check_slot(check, row->slot)->sampling);
    }
}
