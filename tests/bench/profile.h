/* Where the time of steps goes: a table of operations that calls another one and adds up what each
 * operation took, its barrier included. What is left of a step lies between the operations. */
#ifndef TANDEM_BENCH_PROFILE_H
#define TANDEM_BENCH_PROFILE_H

#include "kernels/backend.h"

/* Puts the clock between `backend` and its callers, from now on. One backend of the process. */
void profile_install(struct backend *backend);

/* Forgets what was counted. */
void profile_clear(void);

/* One line for each operation that was called, as it stands in a step, products apart by shape: ms
 * and calls of a step, part of `seconds`; at the end what lies between them. */
void profile_print(double seconds, uint32_t steps);

#endif
