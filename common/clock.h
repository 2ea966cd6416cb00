/* Time of the ports. The core never calls this: it is handed `now_ns`. */
#ifndef TANDEM_COMMON_CLOCK_H
#define TANDEM_COMMON_CLOCK_H

#include <stdint.h>

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  UINT64_C(1000000000)

/* CLOCK_MONOTONIC; comparable between processes of one host. */
uint64_t clock_now_ns(void);

#endif
