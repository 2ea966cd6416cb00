/* tandem-coordinator: reads its options, looks at the system and the model, takes the run
 * directory, serves. */
#include "common/log.h"
#include "common/process.h"
#include "common/shm.h"
#include "common/start_failure.h"
#include "coordinator/config.h"
#include "coordinator/run_lock.h"
#include "coordinator/served_model.h"
#include "coordinator/service.h"
#include "proto/fingerprint.h"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

struct start {
    struct coordinator_config config;
    struct options_result options;
    struct worker_users users;
    struct run_directory directory;
    struct served_model model;
    int lock;
};

static void print_check(const struct start *start)
{
    const struct segment_extents *extents = &start->model.extents;
    uint64_t block_bytes = kv_block_bytes(&extents->geometry);
    options_print_effective(&coordinator_options, &start->config, &start->options, stdout);
    printf("\nversion            %s\n", TANDEM_VERSION);
    printf("layout fingerprint %016" PRIx64 "\n", layout_fingerprint());
    printf("run directory      %s\n", start->directory.path);
    printf("model              %s (%s), %u layers, %u tokens, context %u\n", start->model.name,
           start->model.architecture, start->model.shape.layers, extents->vocabulary,
           start->model.shape.context);
    printf("tokenizer          %s\n",
           start->model.ids_only ? "none: ids in, ids out" : "of the file");
    printf("chat template      %s\n", start->model.tokenizer.chat_template.kind != 0
                                          ? "known"
                                          : start->model.tokenizer.chat_refusal.storage);
    printf("kv pool            %" PRIu64 " blocks of %" PRIu64 " bytes, %" PRIu64 " positions\n",
           extents->pool_blocks, block_bytes,
           kv_positions(&extents->geometry, extents->pool_blocks / extents->geometry.layers));
    printf("limits             %u slots, context %u, %u tokens a step\n", extents->slots,
           extents->context, extents->step_tokens);
}

int main(int argc, char **argv)
{
    /* Too large for a stack frame to be comfortable, and there is one. */
    static struct start start;
    struct reason why;
    int exit_code;
    struct options_input input = {.program = &coordinator_options,
                                  .argc = argc,
                                  .argv = argv,
                                  .config = &start.config,
                                  .config_bytes = sizeof start.config};
    if (!options_start(&input, &start.options, &exit_code))
        return exit_code;
    log_open("coordinator", (enum log_level)start.config.log_level);
    process_forbid_core_dumps();
    process_raise_descriptor_limit();
    signal(SIGPIPE, SIG_IGN);
    enum status status = coordinator_config_check(&start.config, &start.users, reason_init(&why));
    if (status == STATUS_OK)
        status = run_directory_resolve(&start.directory, start.config.run_dir, &why.text);
    if (status != STATUS_OK)
        return start_failure(coordinator_options.name, EXIT_CODE_USAGE, &why, status);
    status = shm_probe(&why.text);
    if (status != STATUS_OK)
        return start_failure(coordinator_options.name, EXIT_CODE_SYSTEM, &why, status);
    status = served_model_open(&start.config, &start.model, &why.text);
    if (status != STATUS_OK)
        return start_failure_of_model(coordinator_options.name, start.config.model, &why, status);
    if (start.options.action == OPTIONS_CHECK) {
        print_check(&start);
        return EXIT_CODE_OK;
    }
    status = run_lock_take(&start.directory, &start.lock, &why.text);
    if (status != STATUS_OK)
        return start_failure(coordinator_options.name,
                             status == STATUS_BUSY         ? EXIT_CODE_CONFIGURATION
                             : status == STATUS_PERMISSION ? EXIT_CODE_PERMISSION
                                                           : EXIT_CODE_SYSTEM,
                             &why, status);
    run_lock_clear_sockets(&start.directory);
    struct service_terms terms = {.config = &start.config,
                                  .model = &start.model,
                                  .users = &start.users,
                                  .directory = &start.directory};
    /* No destructors: nng's threads still run. */
    _exit(service_run(&terms));
}
