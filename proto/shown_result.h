/* A result in the worker's segment: the very bytes of its frame, shown before the frame is sent.
 * Who looks in time has it without the way through the threads of nng. Nothing depends on it: the
 * frame follows in any case, and is the truth. */
#ifndef TANDEM_PROTO_SHOWN_RESULT_H
#define TANDEM_PROTO_SHOWN_RESULT_H

#include "common/status.h"
#include "proto/segment.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { SHOWN_RESULT_BYTES = SEGMENT_RESULT_STRIDE - SEGMENT_RESULT_FRAME };

struct shown_result {
    uint64_t step;
    size_t bytes;
    uint8_t frame[SHOWN_RESULT_BYTES];
};

/* One thread. Steps begin with 1. A frame that is too long is not shown. */
void worker_segment_show_result(struct worker_segment_writer *writer, uint64_t step,
                                uint64_t now_ns, const uint8_t *frame, size_t bytes);

/* One look, without a copy. */
bool worker_segment_shows_result(const struct worker_segment_reader *reader, uint64_t step);

/* When this step was shown, by the writer's clock: a hint. 0: it is not. */
uint64_t worker_segment_shown_ns(const struct worker_segment_reader *reader, uint64_t step);

/* A copy, not judged. STATUS_AGAIN: this step is not shown, or was being written. */
MUST_USE enum status worker_segment_read_result(const struct worker_segment_reader *reader,
                                                uint64_t step, struct shown_result *out_result);

#endif
