/* Memory that runs out at a chosen request. Programs link failing_memory.c with
 * -Wl,--wrap=malloc,--wrap=calloc,... : every request of our own objects goes through it, those
 * inside shared libraries do not. */
#ifndef TANDEM_TESTS_FAULTS_FAILING_MEMORY_H
#define TANDEM_TESTS_FAULTS_FAILING_MEMORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Request number `nth` (from 1) fails from now on, alone or with all that follow. */
void memory_fail_at(uint64_t nth, bool for_good);

/* Ends that. Whether a request failed since. */
bool memory_recovers(void);

/* Blocks taken and pages mapped that were not given back. */
int64_t memory_blocks_held(void);

/* realloc as above, for code that takes a function; everything else of the process is spared. */
void *memory_reallocate(void *memory, size_t bytes);

/* While set, only memory_reallocate() counts and fails. */
void memory_spare_others(bool spared);

#endif
