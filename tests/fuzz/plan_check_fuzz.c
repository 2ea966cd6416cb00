/* The worker's judge under a coordinator that writes anything into its segment and plans anything:
 * what is accepted touches only tokens, positions and blocks that exist, no block twice in one
 * plan, and a refused plan changes nothing.
 * Input: orders of a coordinator. 0: a word of the segment behind its header (3 bytes of place, 4
 * of value). 1: a tenant. 2: a block. 3: a row. 4: publish and judge the plan; else a sample of the
 * plan before. */
#include "worker/plan_check.h"

#include "support/segment_fixture.h"

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { SLOTS = 4, CONTEXT = 64, TOKENS = 100, STEP_TOKENS = 40, LAYERS = 2, POOL_BLOCKS = 32 };
enum { ORDERS_MAX = 400, ROWS_MAX = 8 };

static const struct segment_extents EXTENTS = {
    .geometry = {.layers = LAYERS,
                 .kv_heads = 1,
                 .head_dim = 8,
                 .block_tokens = KV_BLOCK_TOKENS_DEFAULT,
                 .type = KV_TYPE_F16,
                 .order = KV_ORDER_CPU},
    .slots = SLOTS,
    .context = CONTEXT,
    .logical_blocks = CONTEXT / KV_BLOCK_TOKENS_DEFAULT,
    .vocabulary = TOKENS,
    .step_tokens = STEP_TOKENS,
    .pool_blocks = POOL_BLOCKS,
};

struct reader {
    const uint8_t *at, *end;
};

struct desk {
    struct segment_fixture segment;
    struct plan_check *check;
    struct slot_state before[SLOTS];
};

static uint32_t next_number(struct reader *reader, size_t width)
{
    uint32_t number = 0;
    for (size_t i = 0; i < width && reader->at < reader->end; i++)
        number |= (uint32_t)*reader->at++ << (8 * i);
    return number;
}

static void poke(struct desk *desk, struct reader *reader)
{
    uint64_t bytes = coordinator_segment_bytes(&EXTENTS);
    uint32_t place = next_number(reader, 3), value = next_number(reader, 4);
    uint64_t words = (bytes - SEGMENT_HEADER_BYTES) / sizeof value;
    memcpy((uint8_t *)desk->segment.memory + SEGMENT_HEADER_BYTES + place % words * sizeof value,
           &value, sizeof value);
}

static void map(struct desk *desk, struct reader *reader)
{
    uint32_t place = next_number(reader, 1);
    uint32_t slot = place % SLOTS, layer = place / SLOTS % LAYERS;
    uint32_t logical = place / SLOTS / LAYERS % EXTENTS.logical_blocks;
    *segment_fixture_raw_block(&desk->segment, slot, layer, logical) =
        (int32_t)next_number(reader, 1) - 4;
}

static void add_row(struct desk *desk, struct reader *reader)
{
    struct plan *plan = &desk->segment.plan;
    struct plan_row row = {.slot = next_number(reader, 1)};
    row.generation = next_number(reader, 1);
    row.first_position = next_number(reader, 1);
    row.count = next_number(reader, 1);
    row.flags = next_number(reader, 1);
    /* What would be right, in most runs. */
    if (row.slot < SLOTS && (row.flags & 0x80) == 0) {
        const struct slot_state *state = plan_check_slot(desk->check, row.slot);
        row.generation = desk->segment.generations[row.slot];
        row.first_position = state->generation == row.generation ? state->cached_length : 0;
        row.flags &= PLAN_ROW_FLAGS_ALL;
    }
    if (plan->row_count < ROWS_MAX)
        plan->rows[plan->row_count++] = row;
}

static void check_accepted(struct desk *desk)
{
    const struct plan *plan = &desk->segment.plan;
    const uint32_t *tokens = plan_check_tokens(desk->check);
    bool taken[POOL_BLOCKS] = {false};
    CHECK(plan->row_count >= 1 && plan_token_count(plan) <= STEP_TOKENS);
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const struct plan_row *row = &plan->rows[i];
        bool may_be_pending = (row->flags & PLAN_ROW_FROM_LAST_SAMPLE) != 0;
        for (uint32_t j = 0; j < row->count; j++, tokens++)
            CHECK(*tokens < TOKENS || (may_be_pending && *tokens == SLOT_TOKEN_PENDING));
        const struct slot_state *state = plan_check_slot(desk->check, row->slot);
        CHECK(state->generation == row->generation && state->token_limit <= CONTEXT);
        CHECK(state->cached_length == row->first_position + row->count);
        CHECK(state->cached_length <= state->token_limit);
        CHECK(state->sampling.top_p > 0 && state->sampling.top_p <= 1);
        CHECK(state->sampling.temperature >= 0);
    }
    for (uint32_t i = 0; i < plan_check_run_count(desk->check); i++) {
        struct block_run run = plan_check_run(desk->check, i);
        CHECK(run.slot < SLOTS && run.layer < LAYERS);
        CHECK(run.first_logical + run.count <= EXTENTS.logical_blocks);
        for (uint32_t j = 0; j < run.count; j++) {
            CHECK(run.blocks[j] >= 0 && run.blocks[j] < POOL_BLOCKS && !taken[run.blocks[j]]);
            taken[run.blocks[j]] = true;
        }
    }
}

static bool is_same(const struct slot_state *a, const struct slot_state *b)
{
    return a->generation == b->generation && a->cached_length == b->cached_length &&
           a->last_sample_position == b->last_sample_position && a->last_token == b->last_token &&
           a->token_limit == b->token_limit && a->sampling.seed == b->sampling.seed;
}

static void judge(struct desk *desk, struct reader *reader)
{
    struct plan *plan = &desk->segment.plan;
    struct plan_verdict verdict;
    struct reason reason;
    uint32_t lie = next_number(reader, 1);
    if (lie != 1 && segment_published_step(&desk->segment.reader) < plan->step)
        segment_fixture_publish(&desk->segment);
    plan->step += lie == 2;
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        desk->before[slot] = *plan_check_slot(desk->check, slot);
    enum status status = plan_check_next(desk->check, plan, &verdict, reason_init(&reason));
    CHECK(status == STATUS_OK || status == STATUS_BAD_MESSAGE);
    CHECK((status == STATUS_OK) == (verdict.refusal == PLAN_REFUSAL_NONE));
    if (status == STATUS_OK) {
        check_accepted(desk);
        segment_fixture_next(&desk->segment);
        return;
    }
    CHECK(reason.text.length > 0);
    for (uint32_t slot = 0; slot < SLOTS; slot++)
        CHECK(is_same(&desk->before[slot], plan_check_slot(desk->check, slot)));
    plan->step -= lie == 2;
    plan->row_count = 0;
}

static void sample(struct desk *desk, struct reader *reader)
{
    uint32_t slot = next_number(reader, 1) % SLOTS, token = next_number(reader, 1) % TOKENS;
    const struct slot_state *state = plan_check_slot(desk->check, slot);
    if (state->generation == 0)
        return;
    plan_check_sampling(desk->check, slot, state->cached_length);
    if (next_number(reader, 1) % 4 != 0) /* else it stays in flight */
        plan_check_sampled(desk->check, slot, state->generation, state->cached_length, token);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    struct reader reader = {bytes, bytes + length};
    struct desk desk;
    segment_fixture_open(&desk.segment, &EXTENTS, 0);
    CHECK(plan_check_open(&desk.segment.reader, &desk.check) == STATUS_OK);
    for (int i = 0; i < ORDERS_MAX && reader.at < reader.end; i++) {
        switch (next_number(&reader, 1) % 6) {
        case 0:
            poke(&desk, &reader);
            break;
        case 1:
            segment_fixture_tenant(&desk.segment, next_number(&reader, 1) % SLOTS, NULL);
            break;
        case 2:
            map(&desk, &reader);
            break;
        case 3:
            add_row(&desk, &reader);
            break;
        case 4:
            judge(&desk, &reader);
            break;
        default:
            sample(&desk, &reader);
            break;
        }
    }
    plan_check_close(desk.check);
    segment_fixture_close(&desk.segment);
    return 0;
}
