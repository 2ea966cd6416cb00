/* Zeroed pages from the system, touched on use. */
#ifndef TANDEM_KERNELS_CPU_MEMORY_H
#define TANDEM_KERNELS_CPU_MEMORY_H

#include "common/status.h"

#include <stdint.h>

/* STATUS_OUT_OF_MEMORY. `bytes` may exceed what the machine has as long as it is not all touched.
 */
MUST_USE enum status memory_map(uint64_t bytes, void **out_memory);

/* Accepts NULL; the same size as at memory_map(). */
void memory_unmap(void *memory, uint64_t bytes);

/* Zeroes the whole pages inside the range and gives them back to the system. */
void memory_drop(void *memory, uint64_t bytes);

#endif
