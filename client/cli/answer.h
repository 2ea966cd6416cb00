/* One request from submission to its outcome, shown while it grows. */
#ifndef TANDEM_CLIENT_CLI_ANSWER_H
#define TANDEM_CLIENT_CLI_ANSWER_H

#include "client/cli/session.h"

/* All of it, kept for --json and for the history of a conversation. Zeroed is empty; give back with
 * reply_free. */
struct reply {
    char *text; /* NUL-terminated */
    size_t text_bytes;
    uint32_t *ids;
    size_t id_count;
    char id[TANDEM_ID_BYTES_MAX + 1];
    uint64_t seed;
    struct tandem_finish finish; /* its `reason` is "" while there is no outcome */
    bool interrupted;            /* by Ctrl-C */
};

/* Fills what the command line says about sampling and limits. */
void answer_take_arguments(const struct arguments *arguments, struct tandem_request *request);

/* Submits `request` and shows the text (not with --json), progress and figures. Errors are told
 * here. EXIT_CODE_OK, also for an answer that the user interrupted: see reply->interrupted. */
enum exit_code answer_show(struct session *session, const struct tandem_request *request,
                           struct reply *reply);

void reply_free(struct reply *reply);

/* `tandem generate` and the one-shot `tandem chat`: as above, and the JSON object with --json. */
enum exit_code answer_once(struct session *session, const struct tandem_request *request);

#endif
