/* What the mains of both services say and return when they cannot start: one sentence on stderr for
 * a human at a terminal; the service manager has it in its journal. */
#ifndef TANDEM_COMMON_START_FAILURE_H
#define TANDEM_COMMON_START_FAILURE_H

#include "common/exit_codes.h"
#include "common/status.h"
#include "common/text.h"

/* Both return the exit code. An empty `why` is replaced by the text of `status`. */
int start_failure(const char *program, enum exit_code code, const struct reason *why,
                  enum status status);

/* For a model that could not be opened. STATUS_INVALID is about an option, which `why` names; all
 * else is wrong with the file or directory at `path`, or with the system. */
int start_failure_of_model(const char *program, const char *path, const struct reason *why,
                           enum status status);

#endif
