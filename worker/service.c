#include "worker/service.h"

#include "common/check.h"
#include "common/clock.h"
#include "common/log.h"
#include "common/notify.h"
#include "common/process.h"
#include "proto/segment_memory.h"
#include "worker/attach.h"
#include "worker/coordinator_port.h"
#include "worker/executor.h"
#include "worker/fault_points.h"
#include "worker/heartbeat.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define SPIN_NS               (50 * NS_PER_US) /* for the next plan; none on two cores or fewer */
#define IDLE_UNTIL_DISCARD_NS (3 * NS_PER_S)   /* a running request has always a plan in flight */
#define FAREWELL_NS           (2 * NS_PER_S)   /* for the last report to leave */
#define MEMORY_INTERVAL_NS    NS_PER_S
#define FLIGHT_WATCH_NS       (200 * NS_PER_US) /* between two looks at signals and sockets */

/* A key or value that is read before it was written shows in the answers of a debug build. */
#ifdef NDEBUG
enum { POISON_BLOCKS = false };
#else
enum { POISON_BLOCKS = true };
#endif

/* One attachment. */
struct attachment {
    bool active;
    bool over; /* a plan was refused: later ones are void */
    struct id128 instance;
    uint64_t epoch;
    uint64_t step_done; /* last step answered */
    struct shm shm;     /* the coordinator's segment */
    struct segment_reader segment;
    struct coordinator_port *port;
    struct executor *executor;
    uint64_t begun, collected;
    uint64_t waited_ns[STEPS_IN_FLIGHT]; /* of plans in flight, between arrival and begin */
};

struct worker_service {
    const struct worker_terms *terms;
    struct event_loop loop;
    struct notify notify;
    struct heartbeat heartbeat;
    char attach_path[SOCKET_PATH_BYTES];
    struct attach_hello hello;
    struct attach attach;
    struct shm own_shm;
    struct worker_segment_writer own_segment;
    struct attachment now;
    struct worker_progress progress;
    struct worker_report report; /* 32 KiB */
    uint64_t worked_ns;          /* end of the last step; 0 = the pool was given back since */
    uint64_t memory_ns;          /* when the figures were written */
    uint64_t resident_before;    /* bytes of the process before its first step */
    bool spins;
    uint64_t farewell_ns; /* leaving: at the latest then; 0 = not leaving */
    bool leave;
    enum exit_code exit_code;
};

static void leave_with(struct worker_service *service, enum exit_code exit_code)
{
    service->leave = true;
    service->exit_code = exit_code;
}

/* ---- What the coordinator reads ---- */

static void show_phase(struct worker_service *service, enum worker_phase phase)
{
    service->progress.phase = phase;
    service->progress.since_ns = clock_now_ns();
    worker_segment_write_progress(&service->own_segment, &service->progress);
}

static uint64_t resident_bytes(void)
{
    unsigned long pages = 0;
    FILE *file = fopen("/proc/self/statm", "re");
    if (file == NULL)
        return 0;
    if (fscanf(file, "%*s %lu", &pages) != 1)
        pages = 0;
    fclose(file);
    return (uint64_t)pages * (uint64_t)sysconf(_SC_PAGESIZE);
}

static void show_memory(struct worker_service *service, uint64_t now_ns)
{
    const struct engine *engine = service->terms->engine;
    struct worker_memory memory = {.weights_bytes = engine->model.weights.bytes,
                                   .pool_bytes = engine->pool.bytes,
                                   .resident_bytes = resident_bytes()};
    if (engine->pool.touched && memory.resident_bytes > service->resident_before)
        memory.pool_touched_bytes = memory.resident_bytes - service->resident_before;
    worker_segment_write_memory(&service->own_segment, &memory);
    service->memory_ns = now_ns;
}

static enum status make_segment(struct worker_service *service, struct text *why)
{
    struct segment_identity identity = {.creator_pid = service->hello.pid,
                                        .creator_start_time = service->hello.start_time};
    heartbeat_set_segment(&service->heartbeat, NULL);
    shm_close(&service->own_shm);
    enum status status =
        worker_segment_create(&identity, &service->own_shm, &service->own_segment, why);
    if (status != STATUS_OK)
        return status;
    heartbeat_set_segment(&service->heartbeat, &service->own_segment);
    attach_set_segment(&service->attach, service->own_shm.descriptor);
    show_phase(service, WORKER_PHASE_ATTACHING);
    show_memory(service, clock_now_ns());
    return STATUS_OK;
}

/* ---- One attachment ---- */

static void after_layer(void *context, uint32_t layers_done)
{
    struct worker_service *service = context;
    uint64_t now_ns = clock_now_ns();
    fault_point(layers_done == 0 ? FAULT_PLAN_CHECKED : FAULT_LAYER);
    heartbeat_step_layer(&service->heartbeat, layers_done, now_ns);
    service->progress.layer = layers_done;
    service->progress.since_ns = now_ns;
    worker_segment_write_progress(&service->own_segment, &service->progress);
}

static enum status send_report(struct worker_service *service)
{
    return coordinator_port_send(service->now.port, &service->report, &service->own_segment);
}

static void end_attachment(struct worker_service *service)
{
    struct attachment *now = &service->now;
    if (!now->active)
        return;
    coordinator_port_abandon(now->port);
    executor_close(now->executor);
    shm_close(&now->shm);
    *now = (struct attachment){0};
}

/* The hello has said how much this worker can serve: memory is taken for no more. */
static bool fits_the_hello(const struct worker_service *service,
                           const struct segment_extents *extents, struct text *why)
{
    const struct attach_hello *hello = &service->hello;
    if (extents->slots <= hello->slots && extents->context <= hello->context &&
        extents->step_tokens <= hello->step_tokens)
        return true;
    text_set(why,
             "the segment asks for %u slots, %u positions, %u tokens in a step; the hello offered "
             "%u, %u, %u",
             extents->slots, extents->context, extents->step_tokens, hello->slots, hello->context,
             hello->step_tokens);
    return false;
}

static enum status open_attachment(struct worker_service *service,
                                   const struct attach_attach *terms, int descriptor,
                                   struct text *why)
{
    const struct engine *engine = service->terms->engine;
    struct attachment *now = &service->now;
    *now = (struct attachment){.active = true, .instance = terms->instance, .epoch = terms->epoch};
    enum status status = coordinator_segment_open(descriptor, &now->shm, &now->segment, why);
    if (status != STATUS_OK) {
        close(descriptor);
        return status;
    }
    const struct segment_identity *identity = &now->segment.header.identity;
    if (!id128_equal(&identity->instance, &terms->instance) || identity->epoch != terms->epoch) {
        text_set(why, "the segment is of another instance or epoch");
        return STATUS_MISMATCH;
    }
    if (!fits_the_hello(service, &now->segment.header.extents, why))
        return STATUS_MISMATCH;
    struct executor_options options = {.model = &engine->model,
                                       .backend = engine->backend,
                                       .pool = &service->terms->engine->pool,
                                       .segment = &now->segment,
                                       .hash_logits = service->terms->config->debug_logits_hash,
                                       .poison_blocks = POISON_BLOCKS,
                                       .progress = after_layer,
                                       .progress_context = service};
    status = executor_open(&options, &now->executor, why);
    char url[LIMIT_URL_BYTES + 1];
    snprintf(url, sizeof url, "%.*s", (int)terms->url.length, terms->url.bytes);
    if (status == STATUS_OK)
        status = coordinator_port_open(&service->loop, url, &now->port, why);
    return status;
}

static void begin_attachment(struct worker_service *service, const struct attach_event *event)
{
    const struct attach_attach *terms = &event->answer.attach;
    struct reason why;
    fault_point(FAULT_AFTER_ATTACH);
    enum status status = open_attachment(service, terms, event->descriptor, reason_init(&why));
    if (status == STATUS_STALE) { /* fenced before we looked */
        leave_with(service, EXIT_CODE_TEMPORARY);
        return;
    }
    if (status != STATUS_OK) {
        log_error("attach_failed", "epoch=%" PRIu64 " reason=\"%s\"", terms->epoch,
                  why.text.length > 0 ? why.storage : status_text(status));
        leave_with(service, status == STATUS_MISMATCH || status == STATUS_BAD_MESSAGE
                                ? EXIT_CODE_CONFIGURATION
                                : EXIT_CODE_TEMPORARY);
        return;
    }
    service->report = (struct worker_report){.type = WORKER_READY};
    service->report.ready.instance = terms->instance;
    service->report.ready.epoch = terms->epoch;
    status = send_report(service);
    CHECK(status != STATUS_FULL); /* the first of its link */
    char instance[ID128_TEXT_BYTES];
    log_info("worker_attached", "epoch=%" PRIu64 " instance=%s", terms->epoch,
             id128_format(&terms->instance, instance));
    notify_status(&service->notify, "attached, epoch %" PRIu64, terms->epoch);
    show_phase(service, WORKER_PHASE_IDLE);
    fault_point(FAULT_AFTER_READY);
}

/* ---- Plans ---- */

static void answer_refused(struct worker_service *service, const struct plan *plan,
                           const struct plan_verdict *verdict, const struct reason *why)
{
    struct worker_refused *refused = &service->report.refused;
    service->report.type = WORKER_REFUSED;
    *refused = (struct worker_refused){.instance = service->now.instance,
                                       .epoch = service->now.epoch,
                                       .step = plan->step,
                                       .has_row = verdict->has_row,
                                       .row = verdict->row,
                                       .reason = verdict->refusal,
                                       .message = wire_text_of(why->storage)};
    log_error("plan_refused", "epoch=%" PRIu64 " step=%" PRIu64 " reason=%s detail=\"%s\"",
              plan->epoch, plan->step, wire_enum_name(&plan_refusal_enum, verdict->refusal),
              why->storage);
    service->now.over = true;
    enum status status = send_report(service);
    if (status != STATUS_OK)
        log_warn("report_unsent", "reason=\"%s\"", status_text(status));
}

static void fail_device(struct worker_service *service, const struct reason *why)
{
    service->report.type = WORKER_FATAL;
    service->report.fatal = (struct worker_fatal){.instance = service->now.instance,
                                                  .epoch = service->now.epoch,
                                                  .reason = WORKER_FATAL_DEVICE,
                                                  .message = wire_text_of(why->storage)};
    log_error("device_lost", "reason=\"%s\"", why->storage);
    worker_segment_write_error(&service->own_segment, why->storage);
    enum status status = send_report(service);
    if (status != STATUS_OK)
        log_warn("report_unsent", "reason=\"%s\"", status_text(status));
    service->now.over = true;
    service->exit_code = EXIT_CODE_INTERNAL;
    service->farewell_ns = clock_now_ns() + FAREWELL_NS;
}

static void finish_step(struct worker_service *service, uint64_t waited_ns)
{
    struct attachment *now = &service->now;
    fault_point(FAULT_SAMPLED);
    service->report.type = WORKER_RESULT;
    service->report.result.timings.wait_ns = waited_ns;
    fault_point(FAULT_BEFORE_RESULT_SENT);
    enum status status = send_report(service);
    if (status != STATUS_OK) {
        /* It cannot be told what it waits for: the epoch is lost, and with it what is cached here.
         */
        log_error("report_unsent", "step=%" PRIu64 " reason=\"%s\"", service->report.result.step,
                  status_text(status));
        leave_with(service, EXIT_CODE_TEMPORARY);
        return;
    }
    now->step_done = service->report.result.step;
    fault_point(FAULT_AFTER_RESULT_SENT);
}

/* What is between a sample and its client, and between two steps of a device, is read from here. */
static void log_step(const struct worker_service *service, uint64_t seen_ns)
{
    struct step_span span;
    executor_span(service->now.executor, &span);
    log_debug("step_ended",
              "step=%" PRIu64 " samples=%u seen_ns=%" PRIu64 " begun_ns=%" PRIu64
              " ended_ns=%" PRIu64,
              service->report.result.step, service->report.result.row_count, seen_ns, span.begun_ns,
              span.ended_ns);
}

static void show_idle(struct worker_service *service)
{
    heartbeat_step_end(&service->heartbeat);
    service->worked_ns = clock_now_ns();
    show_phase(service, WORKER_PHASE_IDLE);
    if (service->worked_ns >= service->memory_ns + MEMORY_INTERVAL_NS)
        show_memory(service, service->worked_ns);
}

/* The answer of the oldest plan in flight, which it may wait for. */
static void take_result(struct worker_service *service)
{
    struct attachment *now = &service->now;
    struct reason why;
    uint64_t waited_ns = now->waited_ns[now->collected++ % STEPS_IN_FLIGHT];
    uint64_t seen_ns = clock_now_ns();
    enum status status = executor_collect(now->executor, &service->report.result);
    if (status == STATUS_OK) {
        finish_step(service, waited_ns);
        log_step(service, seen_ns);
    } else {
        text_set(reason_init(&why), "%s", status_text(status));
        fail_device(service, &why);
    }
    if (executor_in_flight(now->executor) == 0 || status != STATUS_OK)
        show_idle(service);
    else
        heartbeat_step_begin(&service->heartbeat, service->progress.step, clock_now_ns());
}

/* All plans in flight to their end. */
static void finish_plans(struct worker_service *service)
{
    while (service->now.executor != NULL && !service->now.over && !service->leave &&
           executor_in_flight(service->now.executor) > 0)
        take_result(service);
}

static void run_plan(struct worker_service *service, const struct coordinator_order *order)
{
    const struct plan *plan = &order->order->plan;
    struct attachment *now = &service->now;
    struct plan_verdict verdict;
    struct reason why;
    uint64_t now_ns = clock_now_ns();
    fault_point(FAULT_PLAN_RECEIVED);
    service->progress.step = plan->step;
    service->progress.layer = 0;
    show_phase(service, WORKER_PHASE_STEP);
    heartbeat_step_begin(&service->heartbeat, plan->step, now_ns);
    now->waited_ns[now->begun++ % STEPS_IN_FLIGHT] = now_ns - order->received_ns;
    enum status status = executor_begin(now->executor, plan, &verdict, reason_init(&why));
    if (status == STATUS_OK) {
        if (executor_ready(now->executor))
            take_result(service);
        return;
    }
    now->begun--;
    if (status == STATUS_BAD_MESSAGE) {
        finish_plans(service);
        answer_refused(service, plan, &verdict, &why);
    } else {
        fail_device(service, &why);
    }
    show_idle(service);
}

/* True: a plan in flight came to its end. Waits a moment for it, or for another order. */
static bool handle_flight(struct worker_service *service)
{
    struct attachment *now = &service->now;
    if (!now->active || now->over || now->executor == NULL ||
        executor_in_flight(now->executor) == 0)
        return false;
    uint64_t end_ns = clock_now_ns() + FLIGHT_WATCH_NS;
    do {
        if (executor_ready(now->executor)) {
            take_result(service);
            return true;
        }
        if (executor_has_room(now->executor) && coordinator_port_waiting(now->port))
            return false;
    } while (clock_now_ns() < end_ns);
    return false;
}

static void begin_farewell(struct worker_service *service)
{
    finish_plans(service);
    service->farewell_ns = clock_now_ns() + FAREWELL_NS;
    if (!service->now.active) {
        leave_with(service, EXIT_CODE_OK);
        return;
    }
    /* Plans that wait are void: the coordinator gives them to the next worker. */
    fault_point(FAULT_BEFORE_DRAINED);
    show_phase(service, WORKER_PHASE_DRAINING);
    service->now.over = true;
    service->report.type = WORKER_DRAINED;
    service->report.drained = (struct worker_drained){.instance = service->now.instance,
                                                      .epoch = service->now.epoch,
                                                      .step = service->now.step_done};
    if (send_report(service) != STATUS_OK)
        leave_with(service, EXIT_CODE_OK);
}

static void take_order(struct worker_service *service, const struct coordinator_order *order)
{
    const struct worker_order *message = order->order;
    const struct attachment *now = &service->now;
    bool is_plan = message->type == WORKER_PLAN;
    const struct id128 *instance = is_plan ? &message->plan.instance : &message->drain.instance;
    uint64_t epoch = is_plan ? message->plan.epoch : message->drain.epoch;
    if (message->type == WORKER_ORDER_NONE || now->over)
        return;
    if (epoch != now->epoch || !id128_equal(instance, &now->instance)) {
        log_warn("order_stale", "epoch=%" PRIu64, epoch);
        return;
    }
    if (is_plan)
        run_plan(service, order);
    else
        begin_farewell(service);
}

/* True: one order was carried out and there may be more. */
static bool handle_order(struct worker_service *service)
{
    struct coordinator_order order;
    struct reason why;
    if (!service->now.active || service->now.port == NULL ||
        !executor_has_room(service->now.executor))
        return false;
    enum status status = coordinator_port_next(service->now.port, &order, reason_init(&why));
    if (status == STATUS_AGAIN)
        return false;
    if (status == STATUS_OK) {
        take_order(service, &order);
        return true;
    }
    if (!service->now.over) {
        struct plan none = {.epoch = service->now.epoch};
        struct plan_verdict verdict = {.refusal = PLAN_REFUSAL_MALFORMED};
        answer_refused(service, &none, &verdict, &why);
    }
    return false;
}

/* ---- Attach ---- */

static bool is_temporary(enum attach_refusal reason)
{
    return reason == ATTACH_REFUSAL_STANDBYS || reason == ATTACH_REFUSAL_ABANDONED ||
           reason == ATTACH_REFUSAL_DRAINING;
}

static void take_refusal(struct worker_service *service, const struct attach_refused *refused)
{
    const char *reason = wire_enum_name(&attach_refusal_enum, refused->reason);
    if (is_temporary(refused->reason)) {
        log_info("attach_postponed", "reason=%s", reason);
        return; /* the next try follows by itself */
    }
    log_error("attach_refused", "reason=%s detail=\"%.*s\"", reason, (int)refused->message.length,
              refused->message.bytes);
    leave_with(service, refused->reason == ATTACH_REFUSAL_UID ? EXIT_CODE_PERMISSION
                                                              : EXIT_CODE_CONFIGURATION);
}

static void take_loss(struct worker_service *service)
{
    const struct attachment *now = &service->now;
    if (service->farewell_ns != 0) {
        leave_with(service, service->exit_code); /* it has heard what there was to say */
        return;
    }
    if (now->active && segment_reader_state(&now->segment) == SEGMENT_STATE_FENCED) {
        log_warn("worker_fenced", "epoch=%" PRIu64 " step=%" PRIu64, now->epoch, now->step_done);
        leave_with(service, EXIT_CODE_TEMPORARY);
        return;
    }
    if (now->active)
        log_warn("coordinator_lost", "epoch=%" PRIu64, now->epoch);
    struct reason why;
    end_attachment(service);
    notify_status(&service->notify, "waiting for a coordinator");
    if (make_segment(service, reason_init(&why)) != STATUS_OK) {
        log_error("segment_failed", "reason=\"%s\"", why.storage);
        leave_with(service, EXIT_CODE_TEMPORARY);
    }
}

static void handle_attach(struct worker_service *service)
{
    struct attach_event event;
    uint64_t now_ns = clock_now_ns();
    while (!service->leave && attach_next(&service->attach, &event, now_ns)) {
        switch (event.kind) {
        case ATTACH_EVENT_ATTACHED:
            begin_attachment(service, &event);
            break;
        case ATTACH_EVENT_STANDBY:
            log_info("worker_standby", "position=%u", event.answer.standby.position);
            notify_status(&service->notify, "standby");
            break;
        case ATTACH_EVENT_REFUSED:
            take_refusal(service, &event.answer.refused);
            break;
        case ATTACH_EVENT_LOST:
            take_loss(service);
            break;
        }
    }
}

/* ---- Loop ---- */

static void handle_signal(void *context, int signal_number)
{
    struct worker_service *service = context;
    log_info("stop_requested", "signal=%d", signal_number);
    notify_stopping(&service->notify);
    if (service->farewell_ns != 0)
        leave_with(service, service->exit_code); /* the second time: now */
    else
        begin_farewell(service);
}

static bool in_flight(const struct worker_service *service)
{
    const struct attachment *now = &service->now;
    return now->active && !now->over && now->executor != NULL &&
           executor_in_flight(now->executor) > 0;
}

static void tick(struct worker_service *service)
{
    uint64_t now_ns = clock_now_ns();
    if (service->farewell_ns == 0 && attach_tick(&service->attach, now_ns) != STATUS_OK) {
        log_error("attach_not_permitted", "path=\"%s\"", service->attach_path);
        leave_with(service, EXIT_CODE_PERMISSION);
    }
    if (service->farewell_ns != 0 && now_ns >= service->farewell_ns)
        leave_with(service, service->exit_code);
    if (service->worked_ns != 0 && !in_flight(service) &&
        now_ns >= service->worked_ns + IDLE_UNTIL_DISCARD_NS) {
        service->worked_ns = 0;
        if (service->now.executor != NULL)
            executor_discard(service->now.executor);
        show_memory(service, now_ns);
    }
}

static uint64_t next_deadline_ns(const struct worker_service *service)
{
    uint64_t deadline_ns = service->farewell_ns != 0 ? service->farewell_ns
                                                     : attach_next_deadline_ns(&service->attach);
    if (service->worked_ns != 0 && service->worked_ns + IDLE_UNTIL_DISCARD_NS < deadline_ns)
        deadline_ns = service->worked_ns + IDLE_UNTIL_DISCARD_NS;
    return deadline_ns;
}

static void serve(struct worker_service *service)
{
    bool more = false;
    while (!service->leave) {
        bool flies = in_flight(service);
        if (!more && !flies && service->spins && service->now.port != NULL &&
            service->worked_ns != 0)
            coordinator_port_spin(service->now.port, SPIN_NS);
        uint64_t until_ns = more || flies ? 0 : next_deadline_ns(service);
        if (event_loop_wait(&service->loop, until_ns) != STATUS_OK) {
            log_error("loop_failed", "reason=epoll");
            leave_with(service, EXIT_CODE_SYSTEM);
            return;
        }
        handle_attach(service);
        /* One step between two looks at signals and the attach socket. */
        more = !service->leave && handle_order(service);
        more = (!service->leave && handle_flight(service)) || more;
        if (!service->leave)
            tick(service);
    }
}

static enum status open_service(struct worker_service *service, struct text *why)
{
    run_directory_path(service->terms->directory, RUN_ATTACH_NAME, service->attach_path);
    enum status status = event_loop_open(&service->loop);
    if (status == STATUS_OK)
        status =
            event_loop_add_signals(&service->loop, service->terms->stop, handle_signal, service);
    if (status == STATUS_OK)
        status = heartbeat_start(&service->heartbeat, &service->notify);
    if (status != STATUS_OK)
        return status;
    service->hello = engine_hello(service->terms->engine, service->terms->config);
    attach_open(&service->attach, &service->loop, service->attach_path, &service->hello);
    return make_segment(service, why);
}

enum exit_code worker_service_run(const struct worker_terms *terms)
{
    /* Never freed: it ends with the process, whose other threads look at it until then. */
    struct worker_service *service = calloc(1, sizeof *service);
    struct reason why;
    if (service == NULL) {
        log_error("start_failed", "reason=\"%s\"", status_text(STATUS_OUT_OF_MEMORY));
        return EXIT_CODE_TEMPORARY;
    }
    service->terms = terms;
    service->spins = sysconf(_SC_NPROCESSORS_ONLN) > 2;
    service->resident_before = resident_bytes();
    notify_open(&service->notify);
    enum status status = open_service(service, reason_init(&why));
    if (status != STATUS_OK) {
        log_error("start_failed", "reason=\"%s\"",
                  why.text.length > 0 ? why.storage : status_text(status));
        return status == STATUS_OUT_OF_MEMORY ? EXIT_CODE_TEMPORARY : EXIT_CODE_SYSTEM;
    }
    log_info("worker_ready", "run_dir=\"%s\" backend=%s arithmetic=%s blocks=%" PRIu64,
             terms->directory->path, terms->engine->backend->name,
             backend_arithmetic(terms->engine->backend, terms->config->kv_type),
             service->hello.blocks);
    notify_ready(&service->notify);
    serve(service);
    log_info("worker_stopped", "exit=%d", (int)service->exit_code);
    return service->exit_code;
}
