/* A worker without a model: says hello as asked, answers each plan after a fixed time with tokens
 * that are a function of position. For benchmarks of the pair and for hellos that no real worker
 * says.
 *
 * usage: scripted_worker RUN_DIR MODEL STEP_US [NAME=VALUE]...
 *   version=N        both ends of the protocol range      arithmetic=TEXT
 *   layout=N         fingerprint of the shared layouts    tensors=N   first byte of the tensor hash
 *   slots=N context=N blocks=N block_tokens=N             segment=none|unsealed
 *   level=debug   a line per step, as a worker writes it
 * It exits with 0 after SIGTERM, 78 when refused (the reason is on stdout), 75 when fenced or cut
 * off. */
#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/model_file.h"
#include "common/model_shape.h"
#include "common/run_directory.h"
#include "proto/fingerprint.h"
#include "proto/segment_memory.h"
#include "worker/attach.h"
#include "worker/coordinator_port.h"
#include "worker/heartbeat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { POOL_BYTES = 64 << 20, TOKEN_FIRST = 1000, TOKEN_SPREAD = 20000 };

struct script {
    struct run_directory directory;
    char attach_path[SOCKET_PATH_BYTES];
    uint64_t step_ns;
    struct attach_hello hello;
    char arithmetic[64], segment[16];
    struct event_loop loop;
    struct notify notify;
    struct heartbeat heartbeat;
    struct attach attach;
    struct shm shm;
    struct worker_segment_writer writer;
    struct worker_progress progress;
    struct coordinator_port *port;
    struct worker_report report;
    bool leave;
    int exit_code;
};

static void leave_with(struct script *script, int exit_code)
{
    script->leave = true;
    script->exit_code = exit_code;
}

static void end_now(void *context, int signal_number)
{
    (void)signal_number;
    leave_with(context, EXIT_CODE_OK);
}

static bool fill_hello(struct script *script, const char *model)
{
    struct model_file *file;
    struct model_shape shape;
    struct reason why;
    if (model_file_open(model, &file, reason_init(&why)) != STATUS_OK ||
        model_shape_read(file, &shape, &why.text) != STATUS_OK) {
        fprintf(stderr, "scripted_worker: %s\n", why.storage);
        return false;
    }
    model_file_close(file);
    struct kv_geometry geometry =
        model_shape_geometry(&shape, KV_BLOCK_TOKENS_DEFAULT, KV_TYPE_F16, KV_ORDER_CPU);
    script->hello = (struct attach_hello){
        .version_min = PROTOCOL_VERSION_MIN,
        .version_max = PROTOCOL_VERSION_MAX,
        .layout = layout_fingerprint(),
        .build = wire_text_of("scripted"),
        .backend = wire_text_of("scripted"),
        .metadata_hash = shape.metadata_hash,
        .geometry = {.layers = geometry.layers,
                     .kv_heads = geometry.kv_heads,
                     .head_dim = geometry.head_dim,
                     .block_tokens = geometry.block_tokens,
                     .type = geometry.type,
                     .order = geometry.order},
        .blocks = kv_pool_blocks(&geometry, POOL_BYTES),
        .slots = LIMIT_SLOTS,
        .context = shape.context,
        .vocabulary = shape.tokens,
        .step_tokens = LIMIT_STEP_TOKENS,
        .pid = (uint64_t)getpid(),
    };
    return true;
}

static bool apply(struct script *script, const char *argument)
{
    struct attach_hello *hello = &script->hello;
    const char *equals = strchr(argument, '=');
    if (equals == NULL)
        return false;
    size_t length = (size_t)(equals - argument);
    uint64_t number = strtoull(equals + 1, NULL, 0);
    const struct {
        const char *name;
        uint32_t *field;
    } numbers[] = {{"slots", &hello->slots},
                   {"context", &hello->context},
                   {"block_tokens", &hello->geometry.block_tokens}};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (strlen(numbers[i].name) == length && strncmp(argument, numbers[i].name, length) == 0) {
            *numbers[i].field = (uint32_t)number;
            return true;
        }
    if (strncmp(argument, "version=", 8) == 0)
        hello->version_min = hello->version_max = (uint32_t)number;
    else if (strncmp(argument, "layout=", 7) == 0)
        hello->layout = number;
    else if (strncmp(argument, "blocks=", 7) == 0)
        hello->blocks = number;
    else if (strncmp(argument, "tensors=", 8) == 0)
        hello->tensor_hash.bytes[0] = (uint8_t)number;
    else if (strcmp(argument, "level=debug") == 0)
        log_open("scripted", LOG_LEVEL_DEBUG);
    else if (strncmp(argument, "arithmetic=", 11) == 0)
        snprintf(script->arithmetic, sizeof script->arithmetic, "%s", equals + 1);
    else if (strncmp(argument, "segment=", 8) == 0)
        snprintf(script->segment, sizeof script->segment, "%s", equals + 1);
    else
        return false;
    return true;
}

/* The descriptor that goes with the hello. */
static int make_segment(struct script *script)
{
    struct segment_identity identity = {.creator_pid = script->hello.pid};
    struct reason why;
    if (strcmp(script->segment, "none") == 0)
        return -1;
    if (strcmp(script->segment, "unsealed") == 0) {
        int descriptor = memfd_create("unsealed", MFD_CLOEXEC | MFD_ALLOW_SEALING);
        return ftruncate(descriptor, (off_t)worker_segment_bytes()) == 0 ? descriptor : -1;
    }
    if (worker_segment_create(&identity, &script->shm, &script->writer, reason_init(&why)) !=
        STATUS_OK) {
        fprintf(stderr, "scripted_worker: %s\n", why.storage);
        exit(EXIT_CODE_SYSTEM);
    }
    heartbeat_set_segment(&script->heartbeat, &script->writer);
    return script->shm.descriptor;
}

static void send_report(struct script *script)
{
    if (coordinator_port_send(script->port, &script->report,
                              script->writer.base != NULL ? &script->writer : NULL) != STATUS_OK)
        leave_with(script, EXIT_CODE_TEMPORARY);
}

static void begin(struct script *script, struct attach_event *event)
{
    const struct attach_attach *terms = &event->answer.attach;
    char url[LIMIT_URL_BYTES + 1];
    struct reason why;
    snprintf(url, sizeof url, "%.*s", (int)terms->url.length, terms->url.bytes);
    close(event->descriptor); /* a script reads no prompt */
    if (coordinator_port_open(&script->loop, url, &script->port, reason_init(&why)) != STATUS_OK) {
        fprintf(stderr, "scripted_worker: %s\n", why.storage);
        leave_with(script, EXIT_CODE_SYSTEM);
        return;
    }
    script->report = (struct worker_report){.type = WORKER_READY};
    script->report.ready.instance = terms->instance;
    script->report.ready.epoch = terms->epoch;
    send_report(script);
    printf("attached epoch=%" PRIu64 "\n", terms->epoch);
    fflush(stdout);
}

static void compute(struct script *script, const struct plan *plan)
{
    uint64_t end_ns = clock_now_ns() + script->step_ns;
    struct result *result = &script->report.result;
    script->progress.phase = WORKER_PHASE_STEP;
    script->progress.step = plan->step;
    worker_segment_write_progress(&script->writer, &script->progress);
    script->report.type = WORKER_RESULT;
    *result = (struct result){.instance = plan->instance, .epoch = plan->epoch, .step = plan->step};
    for (uint32_t i = 0; i < plan->row_count; i++) {
        const struct plan_row *row = &plan->rows[i];
        if ((row->flags & PLAN_ROW_SAMPLE) == 0)
            continue;
        uint32_t position = row->first_position + row->count;
        result->rows[result->row_count++] =
            (struct result_row){.slot = row->slot,
                                .generation = row->generation,
                                .position = position,
                                .token = TOKEN_FIRST + position * 7919 % TOKEN_SPREAD,
                                .logprob = -1.0f};
    }
    result->timings.compute_ns = script->step_ns;
    /* Spins like a processor that computes: a sleep would add the timer's own delay to every step.
     */
    while (clock_now_ns() < end_ns) {
    }
    uint64_t seen_ns = clock_now_ns();
    send_report(script);
    log_debug("step_ended",
              "step=%" PRIu64 " samples=%u seen_ns=%" PRIu64 " begun_ns=%" PRIu64
              " ended_ns=%" PRIu64,
              plan->step, result->row_count, seen_ns, end_ns - script->step_ns, end_ns);
}

static void take_attach_event(struct script *script, struct attach_event *event)
{
    switch (event->kind) {
    case ATTACH_EVENT_ATTACHED:
        begin(script, event);
        break;
    case ATTACH_EVENT_STANDBY:
        printf("standby\n");
        fflush(stdout);
        break;
    case ATTACH_EVENT_REFUSED:
        printf("refused reason=%s\n",
               wire_enum_name(&attach_refusal_enum, event->answer.refused.reason));
        leave_with(script, EXIT_CODE_CONFIGURATION);
        break;
    case ATTACH_EVENT_LOST:
        leave_with(script, EXIT_CODE_TEMPORARY);
        break;
    }
}

static void serve(struct script *script)
{
    while (!script->leave) {
        struct attach_event event;
        struct coordinator_order order;
        struct reason why;
        uint64_t now_ns = clock_now_ns();
        if (event_loop_wait(&script->loop, attach_next_deadline_ns(&script->attach)) != STATUS_OK ||
            attach_tick(&script->attach, now_ns) != STATUS_OK)
            leave_with(script, EXIT_CODE_SYSTEM);
        while (!script->leave && attach_next(&script->attach, &event, now_ns))
            take_attach_event(script, &event);
        while (!script->leave && script->port != NULL &&
               coordinator_port_next(script->port, &order, reason_init(&why)) == STATUS_OK)
            if (order.order->type == WORKER_PLAN)
                compute(script, &order.order->plan);
    }
}

int main(int argc, char **argv)
{
    static struct script script;
    struct reason why;
    if (argc < 4 ||
        run_directory_resolve(&script.directory, argv[1], reason_init(&why)) != STATUS_OK ||
        !fill_hello(&script, argv[2]))
        return EXIT_CODE_USAGE;
    script.step_ns = strtoull(argv[3], NULL, 10) * NS_PER_US;
    snprintf(script.arithmetic, sizeof script.arithmetic, "scripted");
    for (int i = 4; i < argc; i++)
        if (!apply(&script, argv[i]))
            return EXIT_CODE_USAGE;
    script.hello.arithmetic = wire_text_of(script.arithmetic);
    sigset_t stop;
    sigemptyset(&stop);
    sigaddset(&stop, SIGTERM);
    notify_open(&script.notify);
    if (event_loop_open(&script.loop) != STATUS_OK ||
        event_loop_add_signals(&script.loop, &stop, end_now, &script) != STATUS_OK ||
        heartbeat_start(&script.heartbeat, &script.notify) != STATUS_OK)
        return EXIT_CODE_SYSTEM;
    run_directory_path(&script.directory, RUN_ATTACH_NAME, script.attach_path);
    attach_open(&script.attach, &script.loop, script.attach_path, &script.hello);
    attach_set_segment(&script.attach, make_segment(&script));
    serve(&script);
    fflush(stdout);
    _exit(script.exit_code);
}
