/* Which processors this process may use, and how many threads of computation they carry: one per
 * physical core. Two threads of one core share its multipliers and its caches. */
#ifndef TANDEM_KERNELS_CPU_PROCESSORS_H
#define TANDEM_KERNELS_CPU_PROCESSORS_H

#include "kernels/cpu/pool.h"

#include <sched.h>
#include <stdint.h>

struct processors {
    uint32_t count;                      /* 1 to POOL_THREADS_MAX */
    uint32_t first_of[POOL_THREADS_MAX]; /* [core] its first processor that is allowed, ascending */
};

/* Cores of this process: within its affinity mask, and of those no more than the quota of its
 * control group pays for. */
void processors_find(struct processors *out_processors);

/* The cores that have a processor in `allowed`, by the system's description of them at `folder`
 * (/sys/devices/system/cpu). A processor that is not described is a core of its own. */
void processors_cores(const char *folder, const cpu_set_t *allowed,
                      struct processors *out_processors);

/* Whole processors of the quota in a control group's file ("200000 100000" is 2, rounded up); 0
 * where there is none. */
uint32_t processors_quota(const char *path);

#endif
