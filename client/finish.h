/* The outcome of a request, from the protocol to the public header. */
#ifndef TANDEM_CLIENT_FINISH_H
#define TANDEM_CLIENT_FINISH_H

#include "client/tandem.h"
#include "proto/client_messages.h"

void finish_from_message(struct tandem_finish *out_finish, const struct client_finish *message);
enum tandem_state state_from_message(enum request_state state);

#endif
