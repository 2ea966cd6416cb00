/* The worker as a running process: attaches, executes plans, attaches anew when the coordinator was
 * replaced. The engine lives through all of that; what belongs to one attachment (segment, link,
 * executor) is made anew. */
#ifndef TANDEM_WORKER_SERVICE_H
#define TANDEM_WORKER_SERVICE_H

#include "common/exit_codes.h"
#include "common/event_loop.h"
#include "common/run_directory.h"
#include "worker/config.h"
#include "worker/engine.h"

/* Borrowed until worker_service_run returns. */
struct worker_terms {
    const struct worker_config *config;
    const struct run_directory *directory;
    const sigset_t *stop; /* blocked in every thread; read here */
    struct engine *engine;
};

/* 0 after SIGTERM; EXIT_CODE_TEMPORARY when fenced; EXIT_CODE_CONFIGURATION when refused by name.
 * The caller ends the process with it at once, without destructors: threads of nng still run. */
enum exit_code worker_service_run(const struct worker_terms *terms);

#endif
