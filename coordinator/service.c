#include "coordinator/service.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/event_loop.h"
#include "common/log.h"
#include "common/notify.h"
#include "common/process.h"
#include "common/random.h"
#include "coordinator/attach_port.h"
#include "coordinator/client_port.h"
#include "coordinator/core.h"
#include "coordinator/nng_threads.h"
#include "coordinator/step_watch.h"
#include "coordinator/tokenizer_pool.h"
#include "coordinator/worker_port.h"
#include "proto/fingerprint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define LAST_WORDS_NS     (500 * NS_PER_MS) /* for answers on their way when we leave */
#define FAREWELL_GRACE_NS (5 * NS_PER_S)    /* for a worker that said it is leaving */

enum {
    CLIENTS_PER_ROUND = 16,  /* requests taken before the worker is looked at again */
    ANSWERS_BEFORE_PLAN = 4, /* that a plan lets pass when the worker has another one */
    ROUNDS_PER_WAIT = 64,    /* rounds before signals and connections are looked at again */
    DEFERRED_MAX = 16,
};

/* What carrying out an output led to. It is told to the core once all outputs are carried out,
 * since an event voids what the remaining outputs point at. */
struct deferred {
    struct segment_writer *attached; /* NULL: the connection is lost */
    uint64_t epoch, connection;
};

struct service {
    const struct service_terms *terms;
    struct event_loop loop;
    struct notify notify;
    struct random chance;
    struct id128 instance;
    struct segment_identity identity;
    struct core *core;
    struct client_port *clients;
    struct attach_port *attach;
    struct worker_port *workers;
    struct step_watch steps;
    struct tokenizer_pool *tokenizers;
    char client_path[SOCKET_PATH_BYTES], attach_path[SOCKET_PATH_BYTES];
    uint64_t epoch, connection;   /* of the attached worker; 0 = none */
    bool farewell;                /* it said that it is leaving */
    struct core_observation seen; /* of its segment */
    struct deferred deferred[DEFERRED_MAX];
    uint32_t deferred_count;
    uint64_t watchdog_ns;
    bool leave;
    enum exit_code exit_code;
};

static void defer(struct service *service, const struct deferred *event)
{
    CHECK(service->deferred_count < DEFERRED_MAX);
    service->deferred[service->deferred_count++] = *event;
}

/* ---- Outputs of the core ---- */

static void start_epoch(struct service *service, const struct core_attach *order)
{
    const struct worker_process *process = attach_port_process(service->attach, order->connection);
    struct epoch_terms terms = {.epoch = order->epoch,
                                .connection = order->connection,
                                .extents = order->extents,
                                .identity = service->identity};
    terms.identity.epoch = order->epoch;
    struct epoch_link link;
    struct reason why;
    enum status status = STATUS_CLOSED;
    text_set(reason_init(&why), "the connection ended");
    if (process != NULL) {
        terms.pid = process->pid;
        terms.uid = process->uid;
        status = worker_port_start(service->workers, &terms, &link, &why.text);
    }
    if (status != STATUS_OK) {
        log_error("epoch_failed", "epoch=%" PRIu64 " reason=\"%s\"", order->epoch, why.storage);
        defer(service, &(struct deferred){.connection = order->connection});
        return;
    }
    service->epoch = order->epoch;
    service->connection = order->connection;
    service->farewell = false;
    service->seen = (struct core_observation){0};
    struct attach_answer answer = {.type = ATTACH_ANSWER_ATTACH};
    answer.attach.instance = service->instance;
    answer.attach.epoch = order->epoch;
    answer.attach.version = order->version;
    answer.attach.url = wire_text_of(link.url);
    attach_port_answer(service->attach, order->connection, &answer, link.segment_descriptor);
    defer(service, &(struct deferred){.attached = link.segment,
                                      .epoch = order->epoch,
                                      .connection = order->connection});
}

static void end_epoch(struct service *service, const struct core_fence *order, uint64_t now_ns)
{
    struct epoch_end end = {.epoch = order->epoch, .kill = true, .kill_at_ns = now_ns};
    bool leaves_itself = service->farewell || order->reason == CORE_FENCE_FATAL;
    if (leaves_itself && order->epoch == service->epoch)
        end.kill_at_ns += FAREWELL_GRACE_NS;
    worker_port_fence(service->workers, order->epoch);
    end.process_known = attach_port_release(service->attach, order->connection, &end.process);
    worker_port_end(service->workers, &end, now_ns);
    if (order->epoch == service->epoch) {
        service->epoch = 0;
        service->connection = 0;
        notify_status(&service->notify, "waiting for a worker");
    }
}

static void tell_standby(struct service *service, const struct core_standby *order)
{
    struct attach_answer answer = {.type = ATTACH_ANSWER_STANDBY};
    answer.standby.instance = service->instance;
    answer.standby.position = order->position;
    attach_port_answer(service->attach, order->connection, &answer, -1);
}

static void tell_refused(struct service *service, const struct core_refuse *order)
{
    struct attach_answer answer = {.type = ATTACH_ANSWER_REFUSED};
    answer.refused.reason = order->reason;
    answer.refused.message = wire_text_of(order->message);
    attach_port_answer(service->attach, order->connection, &answer, -1);
}

static void send_plan(struct service *service, const struct plan *plan)
{
    enum status status = worker_port_send(service->workers, plan->epoch, plan);
    if (status == STATUS_OK)
        return;
    log_warn("plan_unsent", "epoch=%" PRIu64 " step=%" PRIu64 " reason=\"%s\"", plan->epoch,
             plan->step, status_text(status));
    if (plan->epoch == service->epoch)
        defer(service, &(struct deferred){.connection = service->connection});
}

static void carry_out(struct service *service, const struct core_output *output, uint64_t now_ns)
{
    switch (output->kind) {
    case CORE_OUTPUT_ANSWER:
        client_port_answer(service->clients, output->answer.handle, &output->answer.message);
        break;
    case CORE_OUTPUT_TOKENIZE:
        tokenizer_pool_order(service->tokenizers, &output->tokenize);
        break;
    case CORE_OUTPUT_PLAN:
        send_plan(service, output->plan);
        break;
    case CORE_OUTPUT_ATTACH:
        start_epoch(service, &output->attach);
        break;
    case CORE_OUTPUT_STANDBY:
        tell_standby(service, &output->standby);
        break;
    case CORE_OUTPUT_REFUSE:
        tell_refused(service, &output->refuse);
        break;
    case CORE_OUTPUT_FENCE:
        end_epoch(service, &output->fence, now_ns);
        break;
    case CORE_OUTPUT_LOG:
        if (output->log.level <= log_level)
            log_line(output->log.level, output->log.event, "%s", output->log.text);
        break;
    case CORE_OUTPUT_DRAINED:
        service->leave = true;
        break;
    }
}

/* All outputs in order, but that a plan which the worker does not need yet lets a few answers pass:
 * handing it to nng takes as long as handing over an answer, and a client waits for that one. */
static void carry_out_all(struct service *service, uint64_t now_ns)
{
    struct core_output output;
    const struct plan *waits = NULL;
    uint32_t passed = 0;
    while (core_next_output(service->core, &output)) {
        bool passes = output.kind == CORE_OUTPUT_ANSWER && passed < ANSWERS_BEFORE_PLAN;
        if (waits != NULL && !passes) {
            send_plan(service, waits);
            waits = NULL;
        }
        if (output.kind == CORE_OUTPUT_PLAN && output.can_wait) {
            waits = output.plan;
            passed = 0;
            continue;
        }
        passed++;
        carry_out(service, &output, now_ns);
    }
    if (waits != NULL)
        send_plan(service, waits);
}

/* After each event of the core: all outputs, then what they led to, until nothing is left. */
static void settle(struct service *service, uint64_t now_ns)
{
    for (;;) {
        carry_out_all(service, now_ns);
        if (service->deferred_count == 0)
            return;
        struct deferred event = service->deferred[0];
        service->deferred_count--;
        memmove(&service->deferred[0], &service->deferred[1],
                service->deferred_count * sizeof event);
        if (event.attached != NULL && event.epoch == service->epoch)
            core_worker_attached(service->core, event.epoch, event.attached, now_ns);
        else if (event.attached == NULL)
            core_worker_lost(service->core, event.connection, now_ns);
    }
}

/* ---- Events of the ports ---- */

/* A worker is gone. What it was computing may be to blame; if it was not computing, nothing is. */
static void tell_lost(struct service *service, uint64_t connection, uint64_t now_ns)
{
    const struct worker_segment_reader *segment = attach_port_segment(service->attach, connection);
    struct worker_progress progress = {.phase = WORKER_PHASE_STEP};
    if (segment != NULL && worker_segment_read_progress(segment, &progress) == STATUS_OK &&
        progress.phase != WORKER_PHASE_STEP)
        core_worker_left(service->core, connection, now_ns);
    else
        core_worker_lost(service->core, connection, now_ns);
}

/* NULL: nobody is attached. */
static const struct worker_segment_reader *attached_segment(const struct service *service)
{
    return service->epoch == 0 ? NULL : attach_port_segment(service->attach, service->connection);
}

static void take_report(struct service *service, const struct worker_event *event, uint64_t now_ns)
{
    const struct worker_report *report = event->report;
    switch (report->type) {
    case WORKER_READY:
        core_worker_ready(service->core, &report->ready, now_ns);
        notify_status(&service->notify, "serving, epoch %" PRIu64, event->epoch);
        break;
    case WORKER_RESULT:
        core_worker_result(service->core, &report->result, now_ns);
        step_watch_result(&service->steps, attached_segment(service), report->result.step,
                          core_step_due(service->core) == report->result.step + 1, now_ns);
        break;
    case WORKER_REFUSED:
        core_worker_refused(service->core, &report->refused, now_ns);
        break;
    case WORKER_FATAL:
        core_worker_fatal(service->core, &report->fatal, now_ns);
        break;
    case WORKER_DRAINED:
        log_info("worker_drained", "epoch=%" PRIu64 " step=%" PRIu64, event->epoch,
                 report->drained.step);
        service->farewell = true;
        core_worker_left(service->core, event->connection, now_ns);
        break;
    case WORKER_REPORT_NONE:
        break; /* of a later version of the protocol */
    }
}

/* What is shown in the segment comes before what came over nng: there it is the same, later. */
static bool next_of_workers(struct service *service, struct worker_event *out_event)
{
    const struct worker_segment_reader *segment = attached_segment(service);
    uint64_t step = core_step_due(service->core);
    return (segment != NULL && step != 0 &&
            worker_port_shown(service->workers, service->epoch, segment, step, out_event)) ||
           worker_port_next(service->workers, out_event);
}

static bool handle_workers(struct service *service)
{
    struct worker_event event;
    bool any = false;
    while (next_of_workers(service, &event)) {
        uint64_t now_ns = clock_now_ns();
        any = true;
        switch (event.kind) {
        case WORKER_EVENT_REPORT:
            take_report(service, &event, now_ns);
            break;
        case WORKER_EVENT_NONSENSE:
            core_worker_nonsense(service->core, event.epoch, event.why, now_ns);
            break;
        case WORKER_EVENT_UNSENT:
            tell_lost(service, event.connection, now_ns);
            break;
        case WORKER_EVENT_GONE:
            log_debug("epoch_gone", "epoch=%" PRIu64, event.epoch);
            core_epoch_gone(service->core, event.epoch, now_ns);
            break;
        }
        settle(service, now_ns);
    }
    return any;
}

static bool handle_attach(struct service *service)
{
    struct attach_event event;
    bool any = false;
    while (attach_port_next(service->attach, &event)) {
        uint64_t now_ns = clock_now_ns();
        any = true;
        if (event.kind == ATTACH_EVENT_HELLO) {
            core_worker_hello(service->core, event.connection, event.user_allowed, &event.hello,
                              now_ns);
            settle(service, now_ns);
            continue;
        }
        tell_lost(service, event.connection, now_ns);
        settle(service, now_ns);
        /* Of a standby: an attached one was released with its epoch. */
        struct worker_process process;
        if (attach_port_release(service->attach, event.connection, &process))
            worker_process_close(&process);
    }
    return any;
}

static bool handle_tokenized(struct service *service)
{
    struct tokenized_text text;
    bool any = false;
    while (tokenizer_pool_next(service->tokenizers, &text)) {
        uint64_t now_ns = clock_now_ns();
        struct core_tokenized tokenized = {.ticket = text.ticket,
                                           .status = text.status,
                                           .ids = text.ids,
                                           .id_count = text.count,
                                           .why = text.why.storage};
        any = true;
        core_tokenized(service->core, &tokenized, now_ns);
        free(text.ids);
        settle(service, now_ns);
    }
    return any;
}

/* A few at a time, so that many requests never keep a result waiting. */
static bool handle_clients(struct service *service)
{
    struct client_event event;
    for (uint32_t i = 0; i < CLIENTS_PER_ROUND; i++) {
        if (!client_port_next(service->clients, &event))
            return i > 0;
        uint64_t now_ns = clock_now_ns();
        switch (event.kind) {
        case CLIENT_EVENT_REQUEST:
            core_client_request(service->core, event.handle, &event.request,
                                random_next(&service->chance), now_ns);
            break;
        case CLIENT_EVENT_GONE:
            core_client_gone(service->core, event.handle, now_ns);
            break;
        case CLIENT_EVENT_BAD_FRAME:
            core_client_bad_frame(service->core);
            break;
        case CLIENT_EVENT_CROWDED:
            core_answer_oldest_poll(service->core, now_ns);
            break;
        }
        settle(service, now_ns);
    }
    return true;
}

static void observe_worker(struct service *service, uint64_t now_ns)
{
    const struct worker_segment_reader *segment = attached_segment(service);
    if (segment == NULL)
        return;
    /* A group that is being written says nothing new. It may be for ever: a worker can be stopped
     * in the middle of a word, and must be found silent all the same. */
    service->seen.alive_ns = worker_segment_alive_ns(segment);
    enum status status = worker_segment_read_progress(segment, &service->seen.progress);
    if (status == STATUS_OK)
        status = worker_segment_read_memory(segment, &service->seen.memory);
    (void)status;
    core_worker_observed(service->core, service->epoch, &service->seen, now_ns);
    settle(service, now_ns);
}

static void tick(struct service *service)
{
    uint64_t now_ns = clock_now_ns();
    if (now_ns >= core_next_deadline_ns(service->core)) {
        observe_worker(service, now_ns);
        core_tick(service->core, now_ns);
        settle(service, now_ns);
    }
    attach_port_tick(service->attach, now_ns);
    worker_port_tick(service->workers, now_ns);
    if (client_port_tick(service->clients, now_ns) != STATUS_OK) {
        service->exit_code = EXIT_CODE_INTERNAL;
        service->leave = true;
    }
    if (service->notify.watchdog_ns != 0 && now_ns >= service->watchdog_ns) {
        notify_watchdog(&service->notify);
        service->watchdog_ns = now_ns + service->notify.watchdog_ns / 2;
    }
}

static uint64_t earliest(uint64_t a_ns, uint64_t b_ns)
{
    return a_ns < b_ns ? a_ns : b_ns;
}

static uint64_t next_deadline_ns(const struct service *service)
{
    uint64_t deadline_ns = core_next_deadline_ns(service->core);
    deadline_ns = earliest(deadline_ns, client_port_next_deadline_ns(service->clients));
    deadline_ns = earliest(deadline_ns, attach_port_next_deadline_ns(service->attach));
    deadline_ns = earliest(deadline_ns, worker_port_next_deadline_ns(service->workers));
    return service->notify.watchdog_ns != 0 ? earliest(deadline_ns, service->watchdog_ns)
                                            : deadline_ns;
}

static void handle_signal(void *context, int signal_number)
{
    struct service *service = context;
    uint64_t now_ns = clock_now_ns();
    log_info("stop_requested", "signal=%d", signal_number);
    notify_stopping(&service->notify);
    core_drain(service->core, now_ns);
    settle(service, now_ns);
}

/* ---- Life ---- */

static void serve(struct service *service)
{
    bool more = false;
    while (!service->leave) {
        uint64_t deadline_ns = more ? 0 : next_deadline_ns(service);
        bool shown =
            !more && step_watch_look(&service->steps, &service->loop, attached_segment(service),
                                     core_step_due(service->core), &deadline_ns);
        if (!shown && event_loop_wait(&service->loop, deadline_ns) != STATUS_OK) {
            log_error("loop_failed", "reason=epoll");
            service->exit_code = EXIT_CODE_SYSTEM;
            return;
        }
        more = true;
        for (uint32_t round = 0; round < ROUNDS_PER_WAIT && more; round++) {
            more = handle_workers(service);
            more |= handle_attach(service);
            more |= handle_tokenized(service);
            more |= handle_clients(service);
        }
        tick(service);
    }
}

/* Nobody comes any more; answers on their way may still go. The workers are not fenced: they find a
 * successor and keep their weights. */
static void say_goodbye(struct service *service)
{
    client_port_stop_listening(service->clients);
    attach_port_stop_listening(service->attach);
    char path[SOCKET_PATH_BYTES];
    if (service->epoch != 0) {
        run_directory_worker_path(service->terms->directory, service->epoch, path);
        unlink(path);
    }
    uint64_t end_ns = clock_now_ns() + LAST_WORDS_NS;
    while (client_port_unsent(service->clients) > 0 && clock_now_ns() < end_ns) {
        struct client_event event;
        bool any = client_port_next(service->clients, &event);
        if (!any && event_loop_wait(&service->loop, clock_now_ns() + NS_PER_MS) != STATUS_OK)
            return;
    }
}

static uint32_t tokenizer_threads(const struct coordinator_config *config)
{
    if (config->tokenizer_threads != 0)
        return (uint32_t)config->tokenizer_threads;
    return sysconf(_SC_NPROCESSORS_ONLN) >= 4 ? 2 : 1;
}

static enum status draw_identity(struct service *service)
{
    struct {
        struct id128 instance;
        uint64_t seed;
    } drawn;
    if (getrandom(&drawn, sizeof drawn, 0) != (ssize_t)sizeof drawn)
        return STATUS_SYSTEM;
    service->instance = drawn.instance;
    service->chance.state = drawn.seed;
    service->identity =
        (struct segment_identity){.instance = drawn.instance, .creator_pid = (uint64_t)getpid()};
    return process_start_time(getpid(), &service->identity.creator_start_time);
}

static enum status open_loop(struct service *service)
{
    sigset_t set;
    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGHUP);
    enum status status = event_loop_open(&service->loop);
    if (status == STATUS_OK)
        status = event_loop_add_signals(&service->loop, &set, handle_signal, service);
    return status;
}

static enum status open_core(struct service *service, struct text *why)
{
    const struct service_terms *terms = service->terms;
    struct core_config config = served_model_core_config(terms->model, terms->config);
    config.instance = service->instance;
    config.started_ns = clock_now_ns();
    enum status status = core_create(&config, &service->core, why);
    if (status == STATUS_OK)
        status = tokenizer_pool_open(&terms->model->tokenizer, tokenizer_threads(terms->config),
                                     config.queue_requests + config.calls, &service->loop,
                                     &service->tokenizers);
    return status;
}

static enum status open_ports(struct service *service, struct text *why)
{
    const struct service_terms *terms = service->terms;
    run_directory_path(terms->directory, RUN_CLIENT_NAME, service->client_path);
    run_directory_path(terms->directory, RUN_ATTACH_NAME, service->attach_path);
    enum status status = draw_identity(service);
    if (status == STATUS_OK)
        status = open_loop(service);
    if (status == STATUS_OK)
        status = open_core(service, why);
    if (status == STATUS_OK)
        status = worker_port_open(&service->loop, terms->directory, &service->workers, why);
    if (status == STATUS_OK)
        status = attach_port_open(&service->loop, service->attach_path, terms->users,
                                  &service->attach, why);
    if (status == STATUS_OK)
        status = client_port_open(&service->loop, service->client_path, &service->clients, why);
    return status;
}

static enum exit_code exit_code_of(enum status status)
{
    switch (status) {
    case STATUS_INVALID:
        return EXIT_CODE_USAGE;
    case STATUS_PERMISSION:
        return EXIT_CODE_PERMISSION;
    case STATUS_OUT_OF_MEMORY:
        return EXIT_CODE_TEMPORARY;
    default:
        return EXIT_CODE_SYSTEM;
    }
}

enum exit_code service_run(const struct service_terms *terms)
{
    /* Never freed: the process ends with it, and nng's threads may look at it until then. */
    struct service *service = calloc(1, sizeof *service);
    if (service == NULL) {
        log_error("start_failed", "reason=\"%s\"", status_text(STATUS_OUT_OF_MEMORY));
        return EXIT_CODE_TEMPORARY;
    }
    service->terms = terms;
    notify_open(&service->notify);
    step_watch_open(&service->steps);
    struct reason why;
    enum status status = open_ports(service, reason_init(&why));
    if (status != STATUS_OK) {
        log_error("start_failed", "reason=\"%s\"",
                  why.text.length > 0 ? why.storage : status_text(status));
        return exit_code_of(status);
    }
    char instance[ID128_TEXT_BYTES];
    log_info("coordinator_ready",
             "run_dir=\"%s\" instance=%s model=\"%s\" slots=%u context=%u blocks=%" PRIu64
             " layout=%016" PRIx64,
             terms->directory->path, id128_format(&service->instance, instance), terms->model->name,
             terms->model->extents.slots, terms->model->extents.context,
             terms->model->extents.pool_blocks, layout_fingerprint());
    if (terms->model->ids_only)
        log_info("tokenizer_absent", "model=\"%s\" tokenizer_json=%s requests=ids answers=ids",
                 terms->model->name, terms->model->tokenizer_json ? "ignored" : "absent");
    nng_threads_limit(NNG_CALLBACK_THREADS);
    notify_ready(&service->notify);
    notify_status(&service->notify, "waiting for a worker");
    serve(service);
    say_goodbye(service);
    log_info("coordinator_stopped", "exit=%d", (int)service->exit_code);
    return service->exit_code;
}
