/* The first page of a foreign segment. What is accepted must be readable at all its ends. */
#include "proto/segment.h"

#include "common/check.h"
#include "common/text.h"
#include "proto/fingerprint.h"
#include "proto/shown_result.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { MEMORY_BYTES = 1 << 20 };

/* Without the right fingerprint nothing else would ever be judged. */
static void put_fingerprint(uint8_t *memory)
{
    uint64_t fingerprint = layout_fingerprint();
    memcpy(memory + offsetof(struct segment_header_fixed, fingerprint), &fingerprint,
           sizeof fingerprint);
}

static void read_ends(const struct segment_reader *reader)
{
    const struct segment_extents *extents = &reader->header.extents;
    struct slot_row row;
    uint32_t token;
    int32_t block;
    segment_read_slot_row(reader, extents->slots - 1, &row);
    segment_read_tokens(reader, extents->slots - 1, extents->context - 1, 1, &token);
    segment_read_blocks(reader, extents->slots - 1, extents->geometry.layers - 1,
                        extents->logical_blocks - 1, 1, &block);
    (void)slot_row_is_valid(&row, extents);
}

/* The cells follow the page of words; whatever step one names, its frame is read. */
static void read_results(const struct worker_segment_reader *worker)
{
    static struct shown_result shown;
    for (uint64_t cell = 0; cell < SEGMENT_RESULT_CELLS; cell++) {
        uint64_t step;
        memcpy(&step, worker->base + SEGMENT_OFFSET_RESULTS + cell * SEGMENT_RESULT_STRIDE,
               sizeof step);
        if (worker_segment_read_result(worker, step, &shown) == STATUS_OK)
            CHECK(shown.step == step && shown.bytes <= sizeof shown.frame);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    static _Alignas(4096) uint8_t memory[MEMORY_BYTES];
    if (length > sizeof memory)
        return 0;
    memset(memory, 0, sizeof memory);
    memcpy(memory, bytes, length);
    put_fingerprint(memory);
    struct segment_header_fixed header;
    memcpy(&header, memory, sizeof header);
    uint64_t size = header.total_bytes <= sizeof memory ? header.total_bytes : sizeof memory;
    struct segment_reader reader;
    struct worker_segment_reader worker;
    struct reason reason;
    if (segment_reader_open(&reader, memory, size, reason_init(&reason)) == STATUS_OK)
        read_ends(&reader);
    else
        CHECK(reason.text.length > 0);
    if (worker_segment_open(&worker, memory, size, reason_init(&reason)) == STATUS_OK) {
        struct worker_progress progress;
        char message[SEGMENT_ERROR_BYTES];
        if (worker_segment_read_progress(&worker, &progress) == STATUS_OK)
            CHECK(worker_phase_name(progress.phase)[0] != '\0');
        worker_segment_read_error(&worker, message);
        CHECK(strlen(message) < sizeof message);
        read_results(&worker);
    }
    return 0;
}
