#include "common/clock.h"

static uint64_t to_ns(struct timespec time)
{
    return (uint64_t)time.tv_sec * NS_PER_S + (uint64_t)time.tv_nsec;
}

uint64_t clock_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return to_ns(now);
}

uint64_t clock_ran_ns(clockid_t thread_clock)
{
    struct timespec ran;
    return clock_gettime(thread_clock, &ran) == 0 ? to_ns(ran) : UINT64_MAX;
}
