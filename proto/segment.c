#include "proto/segment.h"

#include "common/check.h"
#include "proto/fingerprint.h"

#include <inttypes.h>
#include <math.h>
#include <stdatomic.h>
#include <string.h>

enum { LAYOUT_VERSION = 1, PAGE = 4096, READ_TRIES = 64 };

static const uint64_t COORDINATOR_MAGIC = UINT64_C(0x4f4f434d45444e54); /* "TNDEMCOO" in memory */
static const uint64_t WORKER_MAGIC = UINT64_C(0x4b52574d45444e54);      /* "TNDEMWRK" in memory */

typedef _Atomic uint64_t atomic_word;
_Static_assert(sizeof(atomic_word) == 8 && ATOMIC_LLONG_LOCK_FREE == 2,
               "words are shared between processes: no hidden lock");
_Static_assert(sizeof(struct segment_header_fixed) <= SEGMENT_OFFSET_STATE,
               "the hot words lie behind the fixed part");
_Static_assert(SEGMENT_OFFSET_ERROR + SEGMENT_ERROR_BYTES <= SEGMENT_HEADER_BYTES + PAGE,
               "the words of the worker fill one page");

static atomic_word *word_at(uint8_t *base, uint64_t offset)
{
    return (atomic_word *)(void *)(base + offset);
}

static const atomic_word *const_word_at(const uint8_t *base, uint64_t offset)
{
    return (const atomic_word *)(const void *)(base + offset);
}

/* ---- Layout ---- */

struct layout {
    struct segment_section sections[SEGMENT_SECTIONS];
    uint64_t total_bytes;
};

static void add_section(struct layout *layout, uint32_t index, enum segment_section_kind kind,
                        uint64_t stride, uint64_t count)
{
    CHECK(stride <= UINT32_MAX);
    layout->sections[index] = (struct segment_section){
        .kind = kind, .stride = (uint32_t)stride, .offset = layout->total_bytes, .count = count};
    layout->total_bytes += (stride * count + PAGE - 1) / PAGE * PAGE;
}

static struct layout coordinator_layout(const struct segment_extents *extents)
{
    struct layout layout = {.total_bytes = SEGMENT_HEADER_BYTES};
    uint64_t row = kv_table_entries(&extents->geometry, extents->logical_blocks, 1);
    add_section(&layout, 0, SEGMENT_SECTION_SLOT_ROWS, sizeof(struct slot_row), extents->slots);
    add_section(&layout, 1, SEGMENT_SECTION_TOKEN_LOGS, sizeof(uint32_t) * extents->context,
                extents->slots);
    add_section(&layout, 2, SEGMENT_SECTION_BLOCK_TABLE, sizeof(int32_t) * row, extents->slots);
    return layout;
}

static struct layout worker_layout(void)
{
    struct layout layout = {.total_bytes = SEGMENT_HEADER_BYTES};
    add_section(&layout, 0, SEGMENT_SECTION_WORKER_WORDS, PAGE, 1);
    CHECK(layout.total_bytes == SEGMENT_OFFSET_RESULTS);
    add_section(&layout, 1, SEGMENT_SECTION_WORKER_RESULTS, SEGMENT_RESULT_STRIDE,
                SEGMENT_RESULT_CELLS);
    return layout;
}

uint64_t coordinator_segment_bytes(const struct segment_extents *extents)
{
    return coordinator_layout(extents).total_bytes;
}

uint64_t worker_segment_bytes(void)
{
    return worker_layout().total_bytes;
}

/* ---- Judgement of extents and rows ---- */

static enum status judge_bound(const char *name, uint64_t value, uint64_t minimum, uint64_t maximum,
                               struct text *why)
{
    if (value >= minimum && value <= maximum)
        return STATUS_OK;
    text_set(why, "%s is %" PRIu64 ", allowed are %" PRIu64 " to %" PRIu64, name, value, minimum,
             maximum);
    return STATUS_INVALID;
}

static enum status judge_consistency(const struct segment_extents *extents, struct text *why)
{
    uint32_t needed = kv_blocks_for(&extents->geometry, extents->context);
    if (extents->logical_blocks != needed) {
        text_set(why, "a slot has %" PRIu32 " logical blocks, its context needs %" PRIu32,
                 extents->logical_blocks, needed);
        return STATUS_INVALID;
    }
    if (extents->pool_blocks % extents->geometry.layers != 0) {
        text_set(why, "%" PRIu64 " blocks are no multiple of %" PRIu32 " layers",
                 extents->pool_blocks, extents->geometry.layers);
        return STATUS_INVALID;
    }
    uint64_t bytes = coordinator_segment_bytes(extents);
    if (bytes >> 20 >= LIMIT_SEGMENT_MEBIBYTES) {
        text_set(why,
                 "%" PRIu32 " slots of %" PRIu32 " positions take a segment of %" PRIu64
                 " bytes, allowed are %d MiB; lower slots or context",
                 extents->slots, extents->context, bytes, LIMIT_SEGMENT_MEBIBYTES);
        return STATUS_INVALID;
    }
    return STATUS_OK;
}

enum status segment_extents_judge(const struct segment_extents *extents, struct text *why)
{
    const struct kv_geometry *geometry = &extents->geometry;
    const struct {
        const char *name;
        uint64_t value, minimum, maximum;
    } bounds[] = {
        {"layers", geometry->layers, 1, LIMIT_LAYERS},
        {"kv heads", geometry->kv_heads, 1, LIMIT_KV_HEADS},
        {"head size", geometry->head_dim, 1, LIMIT_HEAD_DIM_MAX},
        {"block tokens", geometry->block_tokens, 1, LIMIT_BLOCK_TOKENS_MAX},
        {"kv type", geometry->type, KV_TYPE_F16, KV_TYPE_BF16},
        {"kv order", geometry->order, KV_ORDER_CPU, KV_ORDER_CUDA},
        {"slots", extents->slots, 1, LIMIT_SLOTS},
        {"context", extents->context, 2, LIMIT_CONTEXT_TOKENS},
        {"vocabulary", extents->vocabulary, 1, LIMIT_VOCABULARY},
        {"step tokens", extents->step_tokens, 1, LIMIT_STEP_TOKENS},
        {"pool blocks", extents->pool_blocks, 1, LIMIT_POOL_BLOCKS},
        {"padding", extents->padding, 0, 0},
    };
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        enum status status =
            judge_bound(bounds[i].name, bounds[i].value, bounds[i].minimum, bounds[i].maximum, why);
        if (status != STATUS_OK)
            return status;
    }
    return judge_consistency(extents, why);
}

bool slot_row_is_valid(const struct slot_row *row, const struct segment_extents *extents)
{
    return row->generation != 0 && row->prompt_tokens >= 1 &&
           row->prompt_tokens < row->token_limit && row->token_limit <= extents->context &&
           row->top_k <= LIMIT_VOCABULARY && isfinite(row->temperature) && row->temperature >= 0 &&
           row->temperature <= LIMIT_TEMPERATURE && row->top_p > 0 && row->top_p <= 1 &&
           row->min_p >= 0 && row->min_p <= 1;
}

struct plan_bounds segment_plan_bounds(const struct segment_extents *extents)
{
    struct plan_bounds bounds = {extents->slots, extents->context, extents->step_tokens};
    return bounds;
}

/* ---- Header ---- */

static void write_header(uint8_t *base, uint64_t magic, const struct layout *layout,
                         const struct segment_identity *identity,
                         const struct segment_extents *extents)
{
    struct segment_header_fixed header = {
        .magic = magic,
        .layout_version = LAYOUT_VERSION,
        .header_bytes = SEGMENT_HEADER_BYTES,
        .total_bytes = layout->total_bytes,
        .fingerprint = layout_fingerprint(),
        .identity = *identity,
    };
    if (extents != NULL)
        header.extents = *extents;
    memcpy(header.sections, layout->sections, sizeof header.sections);
    memcpy(base, &header, sizeof header);
    atomic_store_explicit(word_at(base, SEGMENT_OFFSET_STATE), SEGMENT_STATE_READY,
                          memory_order_release);
}

static enum status copy_header(const uint8_t *base, uint64_t bytes, uint64_t magic,
                               struct segment_header_fixed *out_header, struct text *why)
{
    if (bytes < SEGMENT_HEADER_BYTES) {
        text_set(why, "the segment has %" PRIu64 " bytes, less than a header", bytes);
        return STATUS_BAD_MESSAGE;
    }
    uint64_t state =
        atomic_load_explicit(const_word_at(base, SEGMENT_OFFSET_STATE), memory_order_acquire);
    struct segment_header_fixed header;
    memcpy(&header, base, sizeof header);
    if (header.magic != magic) {
        text_set(why, "the segment begins with 0x%016" PRIx64 ", expected is 0x%016" PRIx64,
                 header.magic, magic);
        return STATUS_MISMATCH;
    }
    if (header.layout_version != LAYOUT_VERSION || header.fingerprint != layout_fingerprint()) {
        text_set(why,
                 "the segment has layout %" PRIu32 " (0x%016" PRIx64
                 "), this program has %d (0x%016" PRIx64
                 "); start coordinator and worker of the same build",
                 header.layout_version, header.fingerprint, LAYOUT_VERSION, layout_fingerprint());
        return STATUS_MISMATCH;
    }
    if (state == SEGMENT_STATE_FENCED) {
        text_set(why, "the segment is fenced");
        return STATUS_STALE;
    }
    if (state != SEGMENT_STATE_READY || header.header_bytes != SEGMENT_HEADER_BYTES ||
        header.total_bytes != bytes) {
        text_set(why,
                 "the segment is inconsistent: state %" PRIu64 ", header of %" PRIu32
                 " bytes, %" PRIu64 " bytes announced and %" PRIu64 " there",
                 state, header.header_bytes, header.total_bytes, bytes);
        return STATUS_BAD_MESSAGE;
    }
    *out_header = header;
    return STATUS_OK;
}

static enum status judge_sections(const struct segment_header_fixed *header,
                                  const struct layout *layout, struct text *why)
{
    for (uint32_t i = 0; i < SEGMENT_SECTIONS; i++) {
        const struct segment_section *found = &header->sections[i], *due = &layout->sections[i];
        if (found->kind == due->kind && found->stride == due->stride &&
            found->offset == due->offset && found->count == due->count)
            continue;
        text_set(why,
                 "section %" PRIu32 " is kind %" PRIu32 " stride %" PRIu32 " offset %" PRIu64
                 " count %" PRIu64 ", due are %" PRIu32 " %" PRIu32 " %" PRIu64 " %" PRIu64,
                 i, found->kind, found->stride, found->offset, found->count, due->kind, due->stride,
                 due->offset, due->count);
        return STATUS_BAD_MESSAGE;
    }
    if (header->total_bytes == layout->total_bytes)
        return STATUS_OK;
    text_set(why, "the segment has %" PRIu64 " bytes, its sections take %" PRIu64,
             header->total_bytes, layout->total_bytes);
    return STATUS_BAD_MESSAGE;
}

/* ---- Coordinator segment: writer ---- */

void segment_writer_format(struct segment_writer *writer, void *memory,
                           const struct segment_extents *extents,
                           const struct segment_identity *identity)
{
    CHECK(segment_extents_judge(extents, NULL) == STATUS_OK);
    CHECK((uintptr_t)memory % PAGE == 0);
    struct layout layout = coordinator_layout(extents);
    write_header(memory, COORDINATOR_MAGIC, &layout, identity, extents);
    *writer = (struct segment_writer){
        .base = memory,
        .extents = *extents,
        .slot_rows_offset = layout.sections[0].offset,
        .token_logs_offset = layout.sections[1].offset,
        .block_table_offset = layout.sections[2].offset,
    };
}

static int32_t *table_row(struct segment_writer *writer, uint32_t slot, uint32_t layer)
{
    const struct segment_extents *extents = &writer->extents;
    CHECK(writer->base != NULL && slot < extents->slots && layer < extents->geometry.layers);
    int32_t *table = (int32_t *)(void *)(writer->base + writer->block_table_offset);
    return table + kv_table_index(&extents->geometry, extents->logical_blocks, slot, layer, 0);
}

void segment_write_slot_row(struct segment_writer *writer, uint32_t slot,
                            const struct slot_row *row)
{
    const struct segment_extents *extents = &writer->extents;
    CHECK(writer->base != NULL && slot < extents->slots);
    CHECK(slot_row_is_valid(row, extents));
    struct slot_row *rows = (struct slot_row *)(void *)(writer->base + writer->slot_rows_offset);
    rows[slot] = *row;
    uint32_t entries = kv_blocks_for(&extents->geometry, row->token_limit);
    for (uint32_t layer = 0; layer < extents->geometry.layers; layer++) {
        int32_t *entry = table_row(writer, slot, layer);
        for (uint32_t i = 0; i < entries; i++)
            entry[i] = KV_BLOCK_UNMAPPED;
    }
}

void segment_write_tokens(struct segment_writer *writer, uint32_t slot, uint32_t first_position,
                          const uint32_t *tokens, uint32_t count)
{
    const struct segment_extents *extents = &writer->extents;
    CHECK(writer->base != NULL && slot < extents->slots);
    CHECK((uint64_t)first_position + count <= extents->context);
    uint32_t *logs = (uint32_t *)(void *)(writer->base + writer->token_logs_offset);
    if (count > 0)
        memcpy(logs + (uint64_t)slot * extents->context + first_position, tokens,
               (size_t)count * sizeof *tokens);
}

void segment_write_block(struct segment_writer *writer, uint32_t slot, uint32_t layer,
                         uint32_t logical, int32_t block)
{
    CHECK(logical < writer->extents.logical_blocks);
    CHECK(block >= KV_BLOCK_UNMAPPED && block < (int64_t)writer->extents.pool_blocks);
    table_row(writer, slot, layer)[logical] = block;
}

void segment_publish_step(struct segment_writer *writer, uint64_t step)
{
    CHECK(writer->base != NULL);
    atomic_word *word = word_at(writer->base, SEGMENT_OFFSET_PUBLISHED_STEP);
    CHECK(step > atomic_load_explicit(word, memory_order_relaxed));
    atomic_store_explicit(word, step, memory_order_release);
}

void segment_fence(struct segment_writer *writer)
{
    CHECK(writer->base != NULL);
    atomic_store_explicit(word_at(writer->base, SEGMENT_OFFSET_STATE), SEGMENT_STATE_FENCED,
                          memory_order_release);
}

/* ---- Coordinator segment: reader ---- */

enum status segment_reader_open(struct segment_reader *reader, const void *memory, uint64_t bytes,
                                struct text *why)
{
    struct segment_header_fixed header;
    enum status status = copy_header(memory, bytes, COORDINATOR_MAGIC, &header, why);
    if (status != STATUS_OK)
        return status;
    if (segment_extents_judge(&header.extents, why) != STATUS_OK)
        return STATUS_BAD_MESSAGE;
    struct layout layout = coordinator_layout(&header.extents);
    status = judge_sections(&header, &layout, why);
    if (status != STATUS_OK)
        return status;
    *reader = (struct segment_reader){
        .base = memory,
        .header = header,
        .slot_rows_offset = layout.sections[0].offset,
        .token_logs_offset = layout.sections[1].offset,
        .block_table_offset = layout.sections[2].offset,
    };
    return STATUS_OK;
}

enum segment_state segment_reader_state(const struct segment_reader *reader)
{
    uint64_t state = atomic_load_explicit(const_word_at(reader->base, SEGMENT_OFFSET_STATE),
                                          memory_order_acquire);
    return state == SEGMENT_STATE_READY ? SEGMENT_STATE_READY : SEGMENT_STATE_FENCED;
}

uint64_t segment_published_step(const struct segment_reader *reader)
{
    return atomic_load_explicit(const_word_at(reader->base, SEGMENT_OFFSET_PUBLISHED_STEP),
                                memory_order_acquire);
}

void segment_read_slot_row(const struct segment_reader *reader, uint32_t slot,
                           struct slot_row *out_row)
{
    CHECK(slot < reader->header.extents.slots);
    memcpy(out_row, reader->base + reader->slot_rows_offset + (uint64_t)slot * sizeof *out_row,
           sizeof *out_row);
}

void segment_read_tokens(const struct segment_reader *reader, uint32_t slot,
                         uint32_t first_position, uint32_t count, uint32_t *out_tokens)
{
    const struct segment_extents *extents = &reader->header.extents;
    CHECK(slot < extents->slots && (uint64_t)first_position + count <= extents->context);
    uint64_t index = (uint64_t)slot * extents->context + first_position;
    if (count > 0)
        memcpy(out_tokens, reader->base + reader->token_logs_offset + index * sizeof *out_tokens,
               (size_t)count * sizeof *out_tokens);
}

void segment_read_blocks(const struct segment_reader *reader, uint32_t slot, uint32_t layer,
                         uint32_t first_logical, uint32_t count, int32_t *out_blocks)
{
    const struct segment_extents *extents = &reader->header.extents;
    CHECK(slot < extents->slots && layer < extents->geometry.layers);
    CHECK((uint64_t)first_logical + count <= extents->logical_blocks);
    uint64_t index =
        kv_table_index(&extents->geometry, extents->logical_blocks, slot, layer, first_logical);
    if (count > 0)
        memcpy(out_blocks, reader->base + reader->block_table_offset + index * sizeof *out_blocks,
               (size_t)count * sizeof *out_blocks);
}

/* ---- Worker segment ---- */

/* A group of words behind a sequence word. Release on every word keeps the odd mark in front of
 * them, acquire on every load keeps the second look behind them: a reader that meets a word of the
 * next write sees the sequence change. */
static void write_group(uint8_t *base, uint64_t offset, const uint64_t *words, uint32_t count)
{
    atomic_word *sequence = word_at(base, offset);
    uint64_t before = atomic_load_explicit(sequence, memory_order_relaxed);
    atomic_store_explicit(sequence, before + 1, memory_order_relaxed);
    for (uint32_t i = 0; i < count; i++)
        atomic_store_explicit(sequence + 1 + i, words[i], memory_order_release);
    atomic_store_explicit(sequence, before + 2, memory_order_release);
}

static enum status read_group(const uint8_t *base, uint64_t offset, uint64_t *out_words,
                              uint32_t count)
{
    const atomic_word *sequence = const_word_at(base, offset);
    for (int try = 0; try < READ_TRIES; try++) {
        uint64_t before = atomic_load_explicit(sequence, memory_order_acquire);
        uint64_t words[8];
        for (uint32_t i = 0; i < count; i++)
            words[i] = atomic_load_explicit(sequence + 1 + i, memory_order_acquire);
        uint64_t after = atomic_load_explicit(sequence, memory_order_relaxed);
        if (before == after && before % 2 == 0) {
            memcpy(out_words, words, count * sizeof *words);
            return STATUS_OK;
        }
    }
    return STATUS_AGAIN;
}

enum {
    PROGRESS_WORDS = sizeof(struct worker_progress) / sizeof(uint64_t),
    MEMORY_WORDS = sizeof(struct worker_memory) / sizeof(uint64_t),
};
_Static_assert(PROGRESS_WORDS <= 8 && MEMORY_WORDS <= 8, "a group fits its buffer and its line");

const char *worker_phase_name(uint64_t phase)
{
    static const char *const names[] = {"none", "loading", "warming",  "attaching",
                                        "idle", "step",    "draining", "failed"};
    _Static_assert(sizeof names / sizeof names[0] == WORKER_PHASE_COUNT, "a name for each phase");
    return phase < WORKER_PHASE_COUNT ? names[phase] : "unknown";
}

void worker_segment_format(struct worker_segment_writer *writer, void *memory,
                           const struct segment_identity *identity)
{
    CHECK((uintptr_t)memory % PAGE == 0);
    struct layout layout = worker_layout();
    writer->base = memory;
    write_header(memory, WORKER_MAGIC, &layout, identity, NULL);
}

void worker_segment_beat(struct worker_segment_writer *writer, uint64_t now_ns)
{
    atomic_store_explicit(word_at(writer->base, SEGMENT_OFFSET_ALIVE), now_ns,
                          memory_order_release);
}

void worker_segment_write_progress(struct worker_segment_writer *writer,
                                   const struct worker_progress *progress)
{
    write_group(writer->base, SEGMENT_OFFSET_PROGRESS, (const uint64_t *)progress, PROGRESS_WORDS);
}

void worker_segment_write_memory(struct worker_segment_writer *writer,
                                 const struct worker_memory *memory)
{
    write_group(writer->base, SEGMENT_OFFSET_MEMORY, (const uint64_t *)memory, MEMORY_WORDS);
}

enum { ERROR_NONE = 0, ERROR_CLAIMED = 1, ERROR_WRITTEN = 2 };

void worker_segment_write_error(struct worker_segment_writer *writer, const char *message)
{
    atomic_word *state = word_at(writer->base, SEGMENT_OFFSET_ERROR_STATE);
    uint64_t none = ERROR_NONE;
    if (!atomic_compare_exchange_strong_explicit(state, &none, ERROR_CLAIMED, memory_order_acquire,
                                                 memory_order_relaxed))
        return;
    size_t length = strnlen(message, SEGMENT_ERROR_BYTES - 1);
    memcpy(writer->base + SEGMENT_OFFSET_ERROR, message, length);
    atomic_store_explicit(state, ERROR_WRITTEN, memory_order_release);
}

enum status worker_segment_open(struct worker_segment_reader *reader, const void *memory,
                                uint64_t bytes, struct text *why)
{
    struct segment_header_fixed header;
    enum status status = copy_header(memory, bytes, WORKER_MAGIC, &header, why);
    if (status != STATUS_OK)
        return status;
    struct layout layout = worker_layout();
    status = judge_sections(&header, &layout, why);
    if (status != STATUS_OK)
        return status;
    *reader = (struct worker_segment_reader){.base = memory, .header = header};
    return STATUS_OK;
}

uint64_t worker_segment_alive_ns(const struct worker_segment_reader *reader)
{
    return atomic_load_explicit(const_word_at(reader->base, SEGMENT_OFFSET_ALIVE),
                                memory_order_acquire);
}

enum status worker_segment_read_progress(const struct worker_segment_reader *reader,
                                         struct worker_progress *out_progress)
{
    return read_group(reader->base, SEGMENT_OFFSET_PROGRESS, (uint64_t *)out_progress,
                      PROGRESS_WORDS);
}

enum status worker_segment_read_memory(const struct worker_segment_reader *reader,
                                       struct worker_memory *out_memory)
{
    return read_group(reader->base, SEGMENT_OFFSET_MEMORY, (uint64_t *)out_memory, MEMORY_WORDS);
}

void worker_segment_read_error(const struct worker_segment_reader *reader,
                               char out[SEGMENT_ERROR_BYTES])
{
    uint64_t state = atomic_load_explicit(const_word_at(reader->base, SEGMENT_OFFSET_ERROR_STATE),
                                          memory_order_acquire);
    size_t length = 0;
    if (state == ERROR_WRITTEN) {
        memcpy(out, reader->base + SEGMENT_OFFSET_ERROR, SEGMENT_ERROR_BYTES - 1);
        length = strnlen(out, SEGMENT_ERROR_BYTES - 1);
    }
    for (size_t i = 0; i < length; i++)
        if (out[i] < 0x20 || out[i] > 0x7e)
            out[i] = '?';
    out[length] = '\0';
}
