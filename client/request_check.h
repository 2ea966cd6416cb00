/* What a caller of the library handed in, against the bounds of the message tables: the same bounds
 * that the coordinator checks, found before anything is sent. */
#ifndef TANDEM_CLIENT_REQUEST_CHECK_H
#define TANDEM_CLIENT_REQUEST_CHECK_H

#include "client/tandem.h"
#include "proto/client_messages.h"

/* TANDEM_OK, or TANDEM_INVALID with `error` naming field, value and bound. */
enum tandem_result request_check(const struct client_request *request, struct tandem_error *error);

#endif
