#include "proto/fingerprint.h"

#include "proto/envelope.h"
#include "proto/limits.h"
#include "proto/plan.h"
#include "proto/segment_layout.h"

#include <stddef.h>

/* X(struct, member, offset): every member of every shared struct, at the place where it must stay.
 */
/* clang-format off */
#define LAYOUT_LIST(X) \
    X(kv_geometry, layers, 0) X(kv_geometry, kv_heads, 4) X(kv_geometry, head_dim, 8) \
    X(kv_geometry, block_tokens, 12) X(kv_geometry, type, 16) X(kv_geometry, order, 20) \
    X(segment_section, kind, 0) X(segment_section, stride, 4) X(segment_section, offset, 8) \
    X(segment_section, count, 16) \
    X(segment_extents, geometry, 0) X(segment_extents, slots, 24) X(segment_extents, context, 28) \
    X(segment_extents, logical_blocks, 32) X(segment_extents, vocabulary, 36) \
    X(segment_extents, step_tokens, 40) X(segment_extents, padding, 44) \
    X(segment_extents, pool_blocks, 48) \
    X(segment_identity, instance, 0) X(segment_identity, epoch, 16) \
    X(segment_identity, creator_pid, 24) X(segment_identity, creator_start_time, 32) \
    X(segment_header_fixed, magic, 0) X(segment_header_fixed, layout_version, 8) \
    X(segment_header_fixed, header_bytes, 12) X(segment_header_fixed, total_bytes, 16) \
    X(segment_header_fixed, fingerprint, 24) X(segment_header_fixed, identity, 32) \
    X(segment_header_fixed, extents, 72) X(segment_header_fixed, sections, 128) \
    X(slot_row, generation, 0) X(slot_row, prompt_tokens, 4) X(slot_row, token_limit, 8) \
    X(slot_row, top_k, 12) X(slot_row, seed, 16) X(slot_row, temperature, 24) \
    X(slot_row, top_p, 28) X(slot_row, min_p, 32) X(slot_row, padding, 36) \
    X(worker_progress, phase, 0) X(worker_progress, step, 8) X(worker_progress, layer, 16) \
    X(worker_progress, since_ns, 24) X(worker_progress, done, 32) X(worker_progress, total, 40) \
    X(worker_memory, weights_bytes, 0) X(worker_memory, pool_bytes, 8) \
    X(worker_memory, pool_touched_bytes, 16) X(worker_memory, resident_bytes, 24)

#define SIZE_LIST(X) \
    X(kv_geometry, 24) X(segment_section, 24) X(segment_extents, 56) X(segment_identity, 40) \
    X(segment_header_fixed, 224) X(slot_row, 56) X(worker_progress, 48) X(worker_memory, 32)
/* clang-format on */

#define ASSERT_OFFSET(tag, member, place)                                                          \
    _Static_assert(offsetof(struct tag, member) == (place), #tag "." #member " has moved");
#define ASSERT_SIZE(tag, bytes) _Static_assert(sizeof(struct tag) == (bytes), #tag " has grown");
LAYOUT_LIST(ASSERT_OFFSET)
SIZE_LIST(ASSERT_SIZE)

#define OFFSET_VALUE(tag, member, place)                                                           \
    offsetof(struct tag, member), sizeof(((struct tag *)0)->member),
#define SIZE_VALUE(tag, bytes) sizeof(struct tag),

/* Numbers whose change would let two builds misread each other. */
static const uint64_t values[] = {
    LAYOUT_LIST(OFFSET_VALUE) SIZE_LIST(SIZE_VALUE) SEGMENT_HEADER_BYTES,
    SEGMENT_SECTIONS,
    SEGMENT_ERROR_BYTES,
    SEGMENT_OFFSET_STATE,
    SEGMENT_OFFSET_PUBLISHED_STEP,
    SEGMENT_OFFSET_ALIVE,
    SEGMENT_OFFSET_PROGRESS,
    SEGMENT_OFFSET_MEMORY,
    SEGMENT_OFFSET_ERROR_STATE,
    SEGMENT_OFFSET_ERROR,
    SEGMENT_OFFSET_RESULTS,
    SEGMENT_RESULT_CELLS,
    SEGMENT_RESULT_STRIDE,
    SEGMENT_RESULT_FRAME,
    SEGMENT_STATE_READY,
    SEGMENT_STATE_FENCED,
    KV_TYPE_F16,
    KV_TYPE_F32,
    KV_TYPE_BF16,
    KV_ORDER_CPU,
    KV_ORDER_CUDA,
    PLAN_ROW_SAMPLE,
    PLAN_ROW_FROM_LAST_SAMPLE,
    ROWS_LAYOUT,
    PROTOCOL_VERSION_MAX,
};

uint64_t layout_fingerprint(void)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a over the words */
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        hash = (hash ^ values[i]) * UINT64_C(0x100000001b3);
    return hash ^ hash >> 32;
}
