/* `tandem chat`: one message, or a conversation on a terminal. */
#ifndef TANDEM_CLIENT_CLI_CHAT_H
#define TANDEM_CLIENT_CLI_CHAT_H

#include "client/cli/session.h"

enum exit_code chat_run(struct session *session);

#endif
