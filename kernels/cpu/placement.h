/* Which thread computes on which memory node. Threads are dealt to the nodes in proportion to their
 * cores, neighbours to the same one: a thread's part of a product lies beside those of its
 * neighbours, so what the threads of a node read is one stretch of each matrix. */
#ifndef TANDEM_KERNELS_CPU_PLACEMENT_H
#define TANDEM_KERNELS_CPU_PLACEMENT_H

#include "kernels/cpu/processors.h"

#include <stdbool.h>

struct place {
    uint32_t node;        /* its number */
    uint32_t threads_end; /* its threads: from the end of the place before it, or 0, to this */
    cpu_set_t processors; /* on which they may run */
};

struct placement {
    bool kept;      /* there are several nodes: threads stay on theirs, memory is asked for there */
    uint32_t count; /* of places with threads, 1 to MEMORY_NODES_MAX */
    struct place place[MEMORY_NODES_MAX];
    uint32_t core_of[POOL_THREADS_MAX]; /* [thread] a processor, each core once if they suffice */
};

/* `threads` in [1, POOL_THREADS_MAX]. The caller's thread is the first one; its place is the node
 * of `processor`, where it runs, if cores of that node may be used. */
void placement_find(const struct processors *processors, uint32_t threads, uint32_t processor,
                    struct placement *out_placement);

/* The first thread of a place; place = count: all threads. */
uint32_t placement_first_thread(const struct placement *placement, uint32_t place);

#endif
