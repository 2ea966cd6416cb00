/* The one list of outcomes. Every fallible function returns one of these; STATUS_OK is zero.
 * Judges of outside input (a file, a client, the peer) also fill a `struct text` with the reason.
 */
#ifndef TANDEM_COMMON_STATUS_H
#define TANDEM_COMMON_STATUS_H

#define MUST_USE __attribute__((warn_unused_result))

/* X(name, text): the order is not part of any protocol. */
#define STATUS_LIST(X)                                                                             \
    X(OK, "ok")                                                                                    \
    X(AGAIN, "not now, try again")                                                                 \
    X(FULL, "a bound is reached")                                                                  \
    X(NOT_FOUND, "not found")                                                                      \
    X(EXISTS, "exists already")                                                                    \
    X(INVALID, "invalid argument")                                                                 \
    X(BAD_MESSAGE, "malformed or inconsistent message")                                            \
    X(BAD_FILE, "malformed or inconsistent file")                                                  \
    X(TOO_LARGE, "too large")                                                                      \
    X(STALE, "belongs to an earlier epoch or generation")                                          \
    X(MISMATCH, "both sides differ")                                                               \
    X(UNSUPPORTED, "not supported")                                                                \
    X(PERMISSION, "not permitted")                                                                 \
    X(BUSY, "in use by another process")                                                           \
    X(CLOSED, "the peer is gone")                                                                  \
    X(TIMEOUT, "timed out")                                                                        \
    X(OUT_OF_MEMORY, "out of memory")                                                              \
    X(SYSTEM, "a system call failed")                                                              \
    X(DEVICE_LOST, "the compute device failed")                                                    \
    X(NUMERIC, "a value is not finite")                                                            \
    X(INTERNAL, "internal error")

enum status {
#define STATUS_ENUM(name, text) STATUS_##name,
    STATUS_LIST(STATUS_ENUM)
#undef STATUS_ENUM
        STATUS_COUNT
};

/* Static text for a status; never NULL. */
const char *status_text(enum status status);

#endif
