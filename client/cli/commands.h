/* The commands of `tandem` but for chat. Each tells its errors and returns the exit code. */
#ifndef TANDEM_CLIENT_CLI_COMMANDS_H
#define TANDEM_CLIENT_CLI_COMMANDS_H

#include "client/cli/session.h"

enum exit_code command_generate(struct session *session);
enum exit_code command_status(struct session *session);
enum exit_code command_cancel(struct session *session);
enum exit_code command_health(struct session *session);
enum exit_code command_stats(struct session *session);
enum exit_code command_models(struct session *session);
enum exit_code command_tokenize(struct session *session);
enum exit_code command_detokenize(struct session *session);

#endif
