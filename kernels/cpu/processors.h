/* Which processors this process may use, how many threads of computation they carry, and which
 * memory nodes they belong to. One thread per physical core: two of one core share its multipliers
 * and its caches. */
#ifndef TANDEM_KERNELS_CPU_PROCESSORS_H
#define TANDEM_KERNELS_CPU_PROCESSORS_H

#include "kernels/cpu/pool.h"

#include <sched.h>
#include <stdint.h>

enum { CORES_MAX = CPU_SETSIZE }; /* more than threads */
enum { MEMORY_NODES_MAX = 64 };   /* processors of further ones count as of node 0 */

struct processors {
    uint32_t count;                      /* of cores, 1 to CORES_MAX */
    uint32_t paid;                       /* of them, 1 to count: what the quota pays for */
    uint32_t first_of[CORES_MAX];        /* [core] its first processor that is allowed, ascending */
    uint32_t node_of[CORES_MAX];         /* [core] number of its memory node */
    cpu_set_t on_node[MEMORY_NODES_MAX]; /* [node] its processors that are allowed */
};

/* Cores of this process: within its affinity mask, and of those paid for what the quota of its
 * control group allows. */
void processors_find(struct processors *out_processors);

/* The cores that have a processor in `allowed`, by the system's description of them at `folder`
 * (/sys/devices/system/cpu). A processor that is not described is a core of its own, one without a
 * node is of node 0. */
void processors_cores(const char *folder, const cpu_set_t *allowed,
                      struct processors *out_processors);

/* Whole processors of the quota in a control group's file ("200000 100000" is 2, rounded up); 0
 * where there is none. */
uint32_t processors_quota(const char *path);

#endif
