/* The one list of error codes that a client may see. Numbers and names are part of the protocol:
 * never re-used. */
#ifndef TANDEM_PROTO_ERROR_CODES_H
#define TANDEM_PROTO_ERROR_CODES_H

#include "proto/wire.h"

/* X(enumerator, number, name, text) */
/* clang-format off */
#define ERROR_CODE_LIST(X) \
    X(ERROR_CODE_INVALID_REQUEST, 1, "invalid_request", "a field is missing, unknown, of a wrong type or out of its bounds") \
    X(ERROR_CODE_TOO_LARGE, 2, "too_large", "the text exceeds the prompt limit, or the request can never fit the pool") \
    X(ERROR_CODE_PROMPT_TOO_LONG, 3, "prompt_too_long", "the prompt leaves no room for one token in the context") \
    X(ERROR_CODE_UNAUTHORIZED, 4, "unauthorized", "this peer may not do that") \
    X(ERROR_CODE_RATE_LIMITED, 5, "rate_limited", "too many requests of this client; retry later") \
    X(ERROR_CODE_OVERLOADED, 6, "overloaded", "the queue is full; retry later") \
    X(ERROR_CODE_DRAINING, 7, "draining", "the coordinator is stopping; retry later") \
    X(ERROR_CODE_IDEMPOTENCY_CONFLICT, 8, "idempotency_conflict", "the id is known with another body") \
    X(ERROR_CODE_POISONED, 9, "poisoned", "the request ended several workers and is not tried again") \
    X(ERROR_CODE_NUMERIC_ERROR, 10, "numeric_error", "the model gave a value that is not finite") \
    X(ERROR_CODE_DEADLINE_EXCEEDED, 11, "deadline_exceeded", "deadline_ms passed") \
    X(ERROR_CODE_CANCELLED, 12, "cancelled", "cancelled by a client, or nobody asked for its output") \
    X(ERROR_CODE_JOURNAL_FULL, 13, "journal_full", "the journal cannot take the request") \
    X(ERROR_CODE_UNSUPPORTED_VERSION, 14, "unsupported_version", "the protocol version is not spoken here") \
    X(ERROR_CODE_NOT_FOUND, 15, "not_found", "no request with that id; `instance` tells a restart from a typo") \
    X(ERROR_CODE_INTERNAL, 16, "internal", "a fault of the engine") \
    X(ERROR_CODE_UNSUPPORTED, 17, "unsupported", "this model or version cannot do that")
/* clang-format on */

enum error_code { ERROR_CODE_UNKNOWN = 0, ERROR_CODE_LIST(WIRE_ENUM_MEMBER) };

extern const struct wire_enum error_code_enum;

/* Name as on the wire; "unknown" for any other number. */
const char *error_code_name(enum error_code code);

#endif
