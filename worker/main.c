/* tandem-worker: reads its options, loads the model, attaches, executes. */
#include "common/log.h"
#include "common/process.h"
#include "common/shm.h"
#include "common/start_failure.h"
#include "proto/fingerprint.h"
#include "worker/config.h"
#include "worker/engine.h"
#include "worker/service.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

struct start {
    struct worker_config config;
    struct options_result options;
    struct run_directory directory;
    struct engine engine;
};

static void print_check(const struct start *start)
{
    const struct engine *engine = &start->engine;
    const struct kv_pool *pool = &engine->pool;
    char metadata[ID128_TEXT_BYTES], tensors[ID128_TEXT_BYTES];
    options_print_effective(&worker_options, &start->config, &start->options, stdout);
    printf("\nversion            %s\n", TANDEM_VERSION);
    printf("layout fingerprint %016" PRIx64 "\n", layout_fingerprint());
    printf("run directory      %s\n", start->directory.path);
    printf("device             %s, %u threads\n", engine->backend->name, engine->backend->threads);
    printf("arithmetic         %s\n", backend_arithmetic(engine->backend, start->config.kv_type));
    printf("model              %u layers, width %u, %u tokens, context %u\n",
           engine->model.shape.layers, engine->model.shape.width, engine->model.shape.tokens,
           engine->model.shape.context);
    printf("model hashes       metadata %s, tensors %s\n",
           id128_format(&engine->model.shape.metadata_hash, metadata),
           id128_format(&engine->model.weights.tensor_hash, tensors));
    printf("weights            %" PRIu64 " bytes\n", engine->model.weights.bytes);
    printf("kv pool            %u blocks of %" PRIu64 " bytes, %" PRIu64 " positions\n",
           pool->blocks, kv_block_bytes(&pool->geometry),
           kv_positions(&pool->geometry, pool->blocks / pool->geometry.layers));
    printf("limits             %" PRIu64 " slots, context %u, %" PRIu64 " tokens a step\n",
           start->config.slots, engine->context, start->config.step_tokens);
}

static void block_stop_signals(sigset_t *out_set)
{
    sigemptyset(out_set);
    sigaddset(out_set, SIGTERM);
    sigaddset(out_set, SIGINT);
    sigaddset(out_set, SIGHUP);
    pthread_sigmask(SIG_BLOCK, out_set, NULL); /* before any thread is made, so in all of them */
}

int main(int argc, char **argv)
{
    static struct start start; /* there is one */
    struct reason why;
    sigset_t stop;
    int exit_code;
    struct options_input input = {.program = &worker_options,
                                  .argc = argc,
                                  .argv = argv,
                                  .config = &start.config,
                                  .config_bytes = sizeof start.config};
    if (!options_start(&input, &start.options, &exit_code))
        return exit_code;
    log_open("worker", (enum log_level)start.config.log_level);
    process_forbid_core_dumps();
    signal(SIGPIPE, SIG_IGN);
    enum status status = worker_config_check(&start.config, reason_init(&why));
    if (status == STATUS_OK)
        status = run_directory_resolve(&start.directory, start.config.run_dir, &why.text);
    if (status != STATUS_OK)
        return start_failure(worker_options.name, EXIT_CODE_USAGE, &why, status);
    status = shm_probe(&why.text);
    if (status != STATUS_OK)
        return start_failure(worker_options.name, EXIT_CODE_SYSTEM, &why, status);
    block_stop_signals(&stop);
    status = engine_open(&start.config, &stop, &start.engine, &why.text);
    if (status != STATUS_OK)
        return start_failure_of_model(worker_options.name, start.config.model, &why, status);
    if (start.options.action == OPTIONS_CHECK) {
        print_check(&start);
        engine_close(&start.engine);
        return EXIT_CODE_OK;
    }
    struct worker_terms terms = {.config = &start.config,
                                 .directory = &start.directory,
                                 .stop = &stop,
                                 .engine = &start.engine};
    /* No destructors: threads of nng and of the backend still run. */
    _exit(worker_service_run(&terms));
}
