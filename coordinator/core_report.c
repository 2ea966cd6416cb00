#include "common/duration.h"
#include "coordinator/core_state.h"

struct client_stats_answer core_stats(const struct core *core)
{
    const uint32_t *states = core->requests.state_counts;
    const struct blocks *blocks = &core->slots.blocks;
    const struct worker_memory *memory = &core->workers.memory;
    struct client_stats_answer stats = core->stats;
    stats.uptime_ms = (core->now_ns - core->config.started_ns) / NS_PER_MS;
    stats.epoch = core->workers.epoch;
    stats.requests_tokenizing = states[REQUEST_STATE_TOKENIZING];
    stats.requests_queued = states[REQUEST_STATE_QUEUED];
    stats.requests_running = states[REQUEST_STATE_RUNNING];
    stats.requests_preempted = states[REQUEST_STATE_PREEMPTED];
    stats.requests_kept = core->requests.kept_count;
    stats.queue_bytes = core->requests.live_bytes + core->orders.bytes;
    stats.polls_parked = core->calls.polls;
    stats.recomputed_tokens = core->scheduler.recomputed_tokens;
    stats.preemptions = core->scheduler.preemptions;
    stats.plans_in_flight = flights_count(&core->flights);
    stats.slots_total = core->slots.capacity;
    stats.slots_held = core->slots.held_count;
    stats.slots_retiring = core->slots.capacity - core->slots.held_count - core->slots.free_count;
    stats.blocks_total = blocks->total;
    stats.blocks_free = blocks->free_count;
    stats.blocks_held = blocks->held_count;
    stats.blocks_retiring = blocks->retiring_count;
    stats.worker_attached = core->workers.stage != WORKER_NONE;
    stats.workers_standby = core->workers.standby_count;
    stats.epochs_abandoned = core->workers.abandoned_count;
    stats.worker_resident_bytes = memory->resident_bytes;
    stats.worker_weights_bytes = memory->weights_bytes;
    stats.worker_pool_bytes = memory->pool_bytes;
    stats.worker_pool_touched_bytes = memory->pool_touched_bytes;
    return stats;
}

struct client_health_answer core_health(const struct core *core)
{
    const struct {
        bool holds, blocks_work;
        const char *reason;
    } conditions[] = {
        {core->workers.stage == WORKER_NONE, true, "no_worker"},
        {core->workers.stage == WORKER_ATTACHING || core->workers.stage == WORKER_ATTACHED, true,
         "worker_starting"},
        {core->drain != DRAIN_NONE, true, "draining"},
        {core->requests.live_count >= core->config.queue_requests, true, "queue_full"},
        {core->workers.abandoned_count == LIMIT_ABANDONED_EPOCHS, false, "epochs_abandoned"},
    };
    struct client_health_answer health = {
        .live = true,
        .ready = true,
        .draining = core->drain != DRAIN_NONE,
        .instance = core->config.instance,
        .epoch = core->workers.epoch,
        .uptime_ms = (core->now_ns - core->config.started_ns) / NS_PER_MS,
    };
    for (size_t i = 0; i < sizeof conditions / sizeof *conditions; i++) {
        if (!conditions[i].holds)
            continue;
        health.reasons.items[health.reasons.count++] = wire_text_of(conditions[i].reason);
        health.ready = health.ready && !conditions[i].blocks_work;
    }
    return health;
}

struct client_model core_model(const struct core *core)
{
    const struct core_config *config = &core->config;
    return (struct client_model){
        .name = wire_text_of(config->model_name),
        .architecture = wire_text_of(config->model_architecture),
        .metadata_hash = config->metadata_hash,
        .context = config->extents.context,
        .vocabulary = config->extents.vocabulary,
        .chat_template = config->chat_template,
        .ids_only = config->ids_only,
        .arithmetic = wire_text_of(core->workers.arithmetic),
    };
}

struct client_models_answer core_models(const struct core *core)
{
    const struct core_config *config = &core->config;
    return (struct client_models_answer){
        .slots = config->extents.slots,
        .block_tokens = config->extents.geometry.block_tokens,
        .pool_tokens = core->limits.pool_positions,
        .step_tokens = config->extents.step_tokens,
        .prompt_bytes_max = config->prompt_bytes,
        .frame_bytes_max = LIMIT_CLIENT_FRAME_BYTES,
        .queue_requests_max = config->queue_requests,
        .queue_bytes_max = config->queue_bytes,
        .kept_requests_max = config->kept_requests,
        .kept_ms = config->kept_ns / NS_PER_MS,
        .orphan_ms = config->orphan_ns / NS_PER_MS,
        .wait_ms_max = LIMIT_WAIT_MS,
    };
}
