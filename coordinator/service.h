/* The coordinator as a running process: the core in the middle, the ports around it, one loop.
 * Whatever a port reports becomes an event of the core, whatever the core decides is carried out by
 * a port. */
#ifndef TANDEM_COORDINATOR_SERVICE_H
#define TANDEM_COORDINATOR_SERVICE_H

#include "common/exit_codes.h"
#include "common/run_directory.h"
#include "coordinator/config.h"
#include "coordinator/served_model.h"

/* Everything a service is made of; borrowed until service_run returns. */
struct service_terms {
    const struct coordinator_config *config;
    const struct served_model *model;
    const struct worker_users *users;
    const struct run_directory *directory; /* locked by the caller */
};

/* Serves until it was asked to stop and has drained. Call before nng is used: it blocks signals for
 * all threads. */
enum exit_code service_run(const struct service_terms *terms);

#endif
