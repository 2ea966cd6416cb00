/* Time of the ports. The core never calls this: it is handed `now_ns`. */
#ifndef TANDEM_COMMON_CLOCK_H
#define TANDEM_COMMON_CLOCK_H

#include "common/duration.h"

#include <stdint.h>
#include <time.h>

/* CLOCK_MONOTONIC; comparable between processes of one host. */
uint64_t clock_now_ns(void);

/* How long a thread has run, by its clock (pthread_getcpuclockid); UINT64_MAX if it has ended. */
uint64_t clock_ran_ns(clockid_t thread_clock);

#endif
