/* Assertions that stay on. CHECK is for our own mistakes only, never for bytes of a client, a file
 * or the peer. DEBUG_CHECK is for conditions that run per token: on in Debug and sanitizer builds.
 */
#ifndef TANDEM_COMMON_CHECK_H
#define TANDEM_COMMON_CHECK_H

#define CHECK(condition)                                                                           \
    ((condition) ? (void)0 : check_failed(#condition, __FILE__, __LINE__, __func__))

#ifdef NDEBUG
#define DEBUG_CHECK(condition) ((void)sizeof(condition))
#else
#define DEBUG_CHECK(condition) CHECK(condition)
#endif

/* Logs the place and ends the process with EXIT_CODE_INTERNAL (core dump in Debug builds). */
__attribute__((noreturn, cold)) void check_failed(const char *condition, const char *file, int line,
                                                  const char *function);

#endif
