#include "proto/shown_result.h"

#include "common/check.h"
#include "proto/limits.h"
#include "proto/result.h"

#include <stdatomic.h>
#include <string.h>

typedef _Atomic uint64_t atomic_word;

/* Words of a cell. STEP is 0 while the rest is written. */
enum { STEP, SHOWN_NS, BYTES, FRAME = SEGMENT_RESULT_FRAME / 8 };

_Static_assert(SHOWN_RESULT_BYTES % 8 == 0 && SEGMENT_RESULT_STRIDE % 4096 == 0 &&
                   SEGMENT_RESULT_FRAME > BYTES * 8,
               "a cell is whole words, cells are whole pages");
_Static_assert(SHOWN_RESULT_BYTES >= 512 + sizeof(struct result_row) * LIMIT_SLOTS,
               "the largest result is shown");

static uint64_t offset_of(uint64_t step)
{
    return SEGMENT_OFFSET_RESULTS + step % SEGMENT_RESULT_CELLS * SEGMENT_RESULT_STRIDE;
}

static const atomic_word *cell_of(const struct worker_segment_reader *reader, uint64_t step)
{
    return (const atomic_word *)(const void *)(reader->base + offset_of(step));
}

/* As a group of words: release on every word keeps the 0 in front of them, acquire on every load
 * keeps the second look behind them. */
void worker_segment_show_result(struct worker_segment_writer *writer, uint64_t step,
                                uint64_t now_ns, const uint8_t *frame, size_t bytes)
{
    CHECK(step > 0);
    atomic_word *cell = (atomic_word *)(void *)(writer->base + offset_of(step));
    if (bytes > SHOWN_RESULT_BYTES)
        return;
    atomic_store_explicit(&cell[STEP], 0, memory_order_relaxed);
    atomic_store_explicit(&cell[SHOWN_NS], now_ns, memory_order_release);
    atomic_store_explicit(&cell[BYTES], bytes, memory_order_release);
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = 0;
        memcpy(&word, frame + at, bytes - at < sizeof word ? bytes - at : sizeof word);
        atomic_store_explicit(&cell[FRAME + at / sizeof word], word, memory_order_release);
    }
    atomic_store_explicit(&cell[STEP], step, memory_order_release);
}

bool worker_segment_shows_result(const struct worker_segment_reader *reader, uint64_t step)
{
    return atomic_load_explicit(&cell_of(reader, step)[STEP], memory_order_acquire) == step;
}

uint64_t worker_segment_shown_ns(const struct worker_segment_reader *reader, uint64_t step)
{
    const atomic_word *cell = cell_of(reader, step);
    uint64_t shown_ns = atomic_load_explicit(&cell[SHOWN_NS], memory_order_acquire);
    return worker_segment_shows_result(reader, step) ? shown_ns : 0;
}

enum status worker_segment_read_result(const struct worker_segment_reader *reader, uint64_t step,
                                       struct shown_result *out_result)
{
    const atomic_word *cell = cell_of(reader, step);
    if (!worker_segment_shows_result(reader, step))
        return STATUS_AGAIN;
    uint64_t bytes = atomic_load_explicit(&cell[BYTES], memory_order_acquire);
    if (bytes > SHOWN_RESULT_BYTES)
        return STATUS_AGAIN;
    for (size_t at = 0; at < bytes; at += sizeof(uint64_t)) {
        uint64_t word = atomic_load_explicit(&cell[FRAME + at / sizeof word], memory_order_acquire);
        memcpy(out_result->frame + at, &word, sizeof word);
    }
    if (atomic_load_explicit(&cell[STEP], memory_order_relaxed) != step)
        return STATUS_AGAIN;
    out_result->step = step;
    out_result->bytes = bytes;
    return STATUS_OK;
}
