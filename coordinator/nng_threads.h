/* How many threads of nng run our callbacks. nng starts two a core, up to 16, and wakes a sleeping
 * one for each completion; each send has two. With many answers at a time these threads do little
 * but wake each other and wait for the lock of one socket, and whoever sends waits with them. */
#ifndef TANDEM_COORDINATOR_NNG_THREADS_H
#define TANDEM_COORDINATOR_NNG_THREADS_H

#include <stdint.h>

/* Two: if nng ever blocks one for good, callbacks still run. */
enum { NNG_CALLBACK_THREADS = 2 };

/* Takes threads out of use, for the life of the process, until `keep` are left (at least 1). To be
 * called once, after the first socket was opened. Where the threads cannot be told by their name
 * all stay in use. Returns how many were taken. */
uint32_t nng_threads_limit(uint32_t keep);

#endif
