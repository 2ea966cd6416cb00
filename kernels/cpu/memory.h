/* Zeroed pages from the system, touched on use, and pieces of large runs of them for weights. */
#ifndef TANDEM_KERNELS_CPU_MEMORY_H
#define TANDEM_KERNELS_CPU_MEMORY_H

#include "common/status.h"

#include <stdbool.h>
#include <stdint.h>

/* STATUS_OUT_OF_MEMORY. `bytes` may exceed what the machine has as long as it is not all touched.
 */
MUST_USE enum status memory_map(uint64_t bytes, void **out_memory);

/* Accepts NULL; the same size as at memory_map(). */
void memory_unmap(void *memory, uint64_t bytes);

/* Zeroes the whole pages inside the range and gives them back to the system. */
void memory_drop(void *memory, uint64_t bytes);

/* A stretch of memory that pieces are cut from, one behind the other. Pieces of a few hundred KiB
 * each would never get huge pages; inside a run they do, where the system has them on request: a
 * step that reads all weights then misses the page tables a hundred times less often. */
struct memory_run {
    struct memory_run *previous; /* full */
    uint8_t *base;
    uint64_t bytes, used;
    uint32_t pieces; /* not yet given back */
};

/* Runs for one purpose; zeroed: none yet, pages lie on the node of the thread that touches them
 * first. */
struct memory_runs {
    struct memory_run *newest;
    bool on_node;  /* pages lie on `node`, whoever touches them, as long as it has free ones */
    uint32_t node; /* a system that refuses to be asked leaves them to the touch */
};

/* A piece, aligned to cache lines, cut from the newest run or from one that is put in front of it.
 * STATUS_OUT_OF_MEMORY. Not thread-safe. */
MUST_USE enum status memory_cut(struct memory_runs *runs, uint64_t bytes, void **out_memory);

/* Gives a piece back; the run of the last piece is unmapped. Accepts NULL. */
void memory_return(struct memory_runs *runs, void *memory);

#endif
