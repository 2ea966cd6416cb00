/* Everything of a worker that outlives an attachment: backend, weights, KV pool. */
#ifndef TANDEM_WORKER_ENGINE_H
#define TANDEM_WORKER_ENGINE_H

#include "common/status.h"
#include "common/text.h"
#include "kernels/backend.h"
#include "proto/worker_messages.h"
#include "worker/config.h"
#include "worker/kv_pool.h"
#include "worker/model.h"

#include <signal.h>

struct engine {
    struct backend *backend; /* owned, as what follows */
    struct model model;
    struct kv_pool pool;
    uint32_t context; /* positions of a slot that it can serve */
};

/* Opens the device, loads the model (with a bar on a terminal, with log lines elsewhere), reserves
 * the pool. The statuses of backend_open(), model_open() and kv_pool_open(); STATUS_INVALID for
 * options that do not fit the model. A pending signal of `stop` ends the process with code 0 during
 * the load. */
MUST_USE enum status engine_open(const struct worker_config *config, const sigset_t *stop,
                                 struct engine *out_engine, struct text *why);
void engine_close(struct engine *engine);

/* What the worker says of itself; borrows from the engine. */
struct attach_hello engine_hello(const struct engine *engine, const struct worker_config *config);

#endif
