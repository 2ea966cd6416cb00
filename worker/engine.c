#include "worker/engine.h"

#include "common/clock.h"
#include "common/exit_codes.h"
#include "common/log.h"
#include "common/process.h"
#include "proto/fingerprint.h"

#include <inttypes.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

enum { BAR_CELLS = 30 };

#define LOG_INTERVAL_NS (2 * NS_PER_S)

/* ---- Progress of the load ---- */

struct load_view {
    const sigset_t *stop;
    bool terminal;
    uint64_t started_ns, shown_ns;
    uint32_t shown_percent;
};

static void leave_if_stopped(const struct load_view *view)
{
    struct timespec at_once = {0};
    if (sigtimedwait(view->stop, NULL, &at_once) <= 0)
        return;
    if (view->terminal)
        fputc('\n', stderr);
    log_info("worker_stopped", "exit=0 phase=loading");
    _exit(EXIT_CODE_OK); /* nothing to hand over yet */
}

static void draw_bar(uint32_t percent)
{
    char bar[BAR_CELLS + 1];
    for (uint32_t i = 0; i < BAR_CELLS; i++)
        bar[i] = i * 100 < percent * BAR_CELLS ? '#' : '.';
    bar[BAR_CELLS] = '\0';
    fprintf(stderr, "\rloading the model [%s] %3u %%", bar, percent);
    if (percent == 100)
        fputc('\n', stderr);
    fflush(stderr);
}

static void show_progress(void *context, uint64_t bytes_done, uint64_t bytes_total)
{
    struct load_view *view = context;
    uint64_t now_ns = clock_now_ns();
    uint32_t percent = bytes_total == 0 ? 100 : (uint32_t)(bytes_done * 100 / bytes_total);
    leave_if_stopped(view);
    if (view->terminal) {
        if (percent != view->shown_percent)
            draw_bar(percent);
        view->shown_percent = percent;
    } else if (now_ns >= view->shown_ns + LOG_INTERVAL_NS) {
        log_info("model_loading", "percent=%u", percent);
        view->shown_ns = now_ns;
    }
}

/* ---- Parts ---- */

static enum status open_model(const struct worker_config *config, const sigset_t *stop,
                              struct engine *engine, struct text *why)
{
    uint64_t now_ns = clock_now_ns();
    struct load_view view = {.stop = stop,
                             .terminal = isatty(STDERR_FILENO) == 1,
                             .started_ns = now_ns,
                             .shown_ns = now_ns,
                             .shown_percent = UINT32_MAX};
    enum status status =
        model_open(config->model, engine->backend, show_progress, &view, &engine->model, why);
    if (status != STATUS_OK)
        return status;
    char hash[ID128_TEXT_BYTES];
    log_info("model_loaded", "bytes=%" PRIu64 " ms=%" PRIu64 " backend=%s threads=%u tensors=%s",
             engine->model.weights.bytes, (clock_now_ns() - view.started_ns) / NS_PER_MS,
             engine->backend->name, engine->backend->threads,
             id128_format(&engine->model.weights.tensor_hash, hash));
    return STATUS_OK;
}

static enum status choose_context(const struct worker_config *config, struct engine *engine,
                                  struct text *why)
{
    uint32_t most = engine->model.shape.context;
    if (most > LIMIT_CONTEXT_TOKENS)
        most = LIMIT_CONTEXT_TOKENS;
    if (config->context > most) {
        text_set(why, "--context: %" PRIu64 " exceeds the model's %u; give at most that, or 0",
                 config->context, most);
        return STATUS_INVALID;
    }
    engine->context = most < CONTEXT_TOKENS_DEFAULT ? most : CONTEXT_TOKENS_DEFAULT;
    if (config->context != 0)
        engine->context = (uint32_t)config->context;
    return STATUS_OK;
}

/* The CPU computes with F16 or F32 pools, a device with BF16. */
static enum status open_backend(const struct worker_config *config, struct engine *engine,
                                struct text *why)
{
    bool device_type = config->kv_type == KV_TYPE_BF16;
    struct backend_options options = {
        .kind = config->backend,
        .cpu_isa = config->cpu_isa,
        .threads = (uint32_t)config->threads,
        .pin_threads = config->pin_threads,
        .fault = {config->debug_device_fault, config->debug_fault_step},
    };
    if (options.kind == BACKEND_AUTO && !device_type)
        options.kind = BACKEND_CPU;
    enum status status = backend_open(&options, &engine->backend, why);
    if (status == STATUS_UNSUPPORTED)
        return STATUS_INVALID; /* an option asks for what this machine lacks */
    if (status == STATUS_OK && options.fault.kind != BACKEND_FAULT_NONE &&
        engine->backend->kind != BACKEND_CUDA) {
        text_set(why, "--debug-device-fault: the %s backend has no such faults; give none",
                 engine->backend->name);
        return STATUS_INVALID;
    }
    if (status == STATUS_OK && device_type != (engine->backend->kind == BACKEND_CUDA)) {
        text_set(why, "the %s backend has no KV pool of this type: give --kv-type %s",
                 engine->backend->name, device_type ? "f16 or f32" : "bf16");
        return STATUS_INVALID;
    }
    return status;
}

enum status engine_open(const struct worker_config *config, const sigset_t *stop,
                        struct engine *out_engine, struct text *why)
{
    *out_engine = (struct engine){0};
    enum status status = open_backend(config, out_engine, why);
    if (status == STATUS_OK)
        status = open_model(config, stop, out_engine, why);
    if (status == STATUS_OK)
        status = choose_context(config, out_engine, why);
    if (status == STATUS_OK) {
        struct kv_geometry geometry =
            model_shape_geometry(&out_engine->model.shape, (uint32_t)config->block_tokens,
                                 config->kv_type, out_engine->backend->kv_order);
        status = kv_pool_open(out_engine->backend, &geometry, config->kv_pool_bytes,
                              &out_engine->pool, why);
    }
    if (status != STATUS_OK)
        engine_close(out_engine);
    return status;
}

void engine_close(struct engine *engine)
{
    kv_pool_close(&engine->pool);
    model_close(&engine->model);
    backend_close(engine->backend);
    *engine = (struct engine){0};
}

struct attach_hello engine_hello(const struct engine *engine, const struct worker_config *config)
{
    const struct kv_geometry *geometry = &engine->pool.geometry;
    struct attach_hello hello = {
        .version_min = PROTOCOL_VERSION_MIN,
        .version_max = PROTOCOL_VERSION_MAX,
        .layout = layout_fingerprint(),
        .build = wire_text_of(TANDEM_VERSION),
        .backend = wire_text_of(engine->backend->name),
        .arithmetic = wire_text_of(backend_arithmetic(engine->backend, config->kv_type)),
        .metadata_hash = engine->model.shape.metadata_hash,
        .tensor_hash = engine->model.weights.tensor_hash,
        .geometry = {.layers = geometry->layers,
                     .kv_heads = geometry->kv_heads,
                     .head_dim = geometry->head_dim,
                     .block_tokens = geometry->block_tokens,
                     .type = geometry->type,
                     .order = geometry->order},
        .blocks = engine->pool.blocks,
        .slots = (uint32_t)config->slots,
        .context = engine->context,
        .vocabulary = engine->model.shape.tokens,
        .step_tokens = (uint32_t)config->step_tokens,
        .pid = (uint64_t)getpid(),
    };
    if (process_start_time(getpid(), &hello.start_time) != STATUS_OK)
        hello.start_time = 0; /* for logs only */
    return hello;
}
