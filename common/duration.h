/* Units of time. Durations are unsigned nanoseconds. */
#ifndef TANDEM_COMMON_DURATION_H
#define TANDEM_COMMON_DURATION_H

#include <stdint.h>

#define NS_PER_US UINT64_C(1000)
#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  UINT64_C(1000000000)

#endif
