#include "coordinator/worker_state.h"

#include "common/check.h"
#include "proto/fingerprint.h"

#include <inttypes.h>
#include <string.h>

void worker_state_init(struct worker_state *state, const struct worker_limits *limits)
{
    *state = (struct worker_state){.limits = *limits};
}

static bool refuse(struct worker_decision *decision, enum attach_refusal reason)
{
    decision->welcome = WORKER_REFUSE;
    decision->reason = reason;
    return false;
}

static bool judge_version(const struct attach_hello *hello, struct worker_decision *decision)
{
    struct text *why = reason_init(&decision->message);
    if (hello->version_max < PROTOCOL_VERSION_MIN || hello->version_min > PROTOCOL_VERSION_MAX) {
        text_format(why,
                    "the worker speaks protocol %u to %u, the coordinator %u to %u; "
                    "install the same release of both",
                    hello->version_min, hello->version_max, PROTOCOL_VERSION_MIN,
                    PROTOCOL_VERSION_MAX);
        return refuse(decision, ATTACH_REFUSAL_VERSION);
    }
    if (hello->layout != layout_fingerprint()) {
        text_format(why,
                    "shared memory layout %016" PRIx64 " of the worker, %016" PRIx64
                    " of the coordinator; install the same release of both",
                    hello->layout, layout_fingerprint());
        return refuse(decision, ATTACH_REFUSAL_VERSION);
    }
    return true;
}

static bool judge_model(const struct worker_state *state, const struct attach_hello *hello,
                        struct worker_decision *decision)
{
    struct text *why = reason_init(&decision->message);
    char theirs[ID128_TEXT_BYTES], ours[ID128_TEXT_BYTES];
    const struct id128 *differs = NULL, *expected = NULL;
    if (!id128_equal(&hello->metadata_hash, &state->limits.metadata_hash)) {
        differs = &hello->metadata_hash;
        expected = &state->limits.metadata_hash;
    } else if (state->pinned && !id128_equal(&hello->tensor_hash, &state->tensor_hash)) {
        differs = &hello->tensor_hash;
        expected = &state->tensor_hash;
    }
    if (differs == NULL)
        return true;
    text_format(why, "%s hash %s of the worker's model, %s expected; give both the same file",
                expected == &state->tensor_hash ? "tensor" : "metadata",
                id128_format(differs, theirs), id128_format(expected, ours));
    return refuse(decision, ATTACH_REFUSAL_MODEL);
}

static bool judge_arithmetic(const struct worker_state *state, const struct attach_hello *hello,
                             struct worker_decision *decision)
{
    size_t length = strlen(state->arithmetic);
    if (!state->pinned || (hello->arithmetic.length == length &&
                           memcmp(hello->arithmetic.bytes, state->arithmetic, length) == 0))
        return true;
    struct text *why = reason_init(&decision->message);
    text_format(why, "arithmetic ");
    text_append_quoted(why, hello->arithmetic.bytes, hello->arithmetic.length, LIMIT_NAME_BYTES);
    text_format(why, " of the worker, \"%s\" expected: it could not continue a stream",
                state->arithmetic);
    return refuse(decision, ATTACH_REFUSAL_ARITHMETIC);
}

static bool judge_geometry(const struct worker_state *state, const struct attach_hello *hello,
                           struct worker_decision *decision)
{
    const struct kv_geometry *ours = &state->limits.extents.geometry;
    const struct {
        const char *name;
        uint32_t theirs, ours;
    } figures[] = {
        {"layers", hello->geometry.layers, ours->layers},
        {"kv_heads", hello->geometry.kv_heads, ours->kv_heads},
        {"head_dim", hello->geometry.head_dim, ours->head_dim},
        {"block_tokens", hello->geometry.block_tokens, ours->block_tokens},
        {"kv_type", hello->geometry.type, ours->type},
        {"vocabulary", hello->vocabulary, state->limits.extents.vocabulary},
    };
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        if (figures[i].theirs == figures[i].ours)
            continue;
        text_format(reason_init(&decision->message), "%s is %u at the worker, %u expected",
                    figures[i].name, figures[i].theirs, figures[i].ours);
        return refuse(decision, ATTACH_REFUSAL_GEOMETRY);
    }
    uint32_t order = hello->geometry.order; /* the backend's own choice */
    if (order == KV_ORDER_CPU || order == KV_ORDER_CUDA)
        return true;
    text_format(reason_init(&decision->message),
                "kv_order is %u at the worker, known are %d and %d", order, KV_ORDER_CPU,
                KV_ORDER_CUDA);
    return refuse(decision, ATTACH_REFUSAL_GEOMETRY);
}

static bool judge_capacity(const struct worker_state *state, const struct attach_hello *hello,
                           struct worker_decision *decision)
{
    const struct segment_extents *extents = &state->limits.extents;
    const struct {
        const char *name, *option;
        uint64_t theirs, ours;
    } figures[] = {
        {"blocks", "--kv-pool-bytes", hello->blocks, extents->pool_blocks},
        {"slots", "--slots", hello->slots, extents->slots},
        {"context", "--context", hello->context, extents->context},
        {"step tokens", "--step-tokens", hello->step_tokens, extents->step_tokens},
    };
    for (size_t i = 0; i < sizeof figures / sizeof *figures; i++) {
        if (figures[i].theirs >= figures[i].ours)
            continue;
        text_format(reason_init(&decision->message),
                    "%" PRIu64 " %s at the worker, %" PRIu64
                    " needed; raise its %s or lower the coordinator's",
                    figures[i].theirs, figures[i].name, figures[i].ours, figures[i].option);
        return refuse(decision, ATTACH_REFUSAL_CAPACITY);
    }
    return true;
}

static bool is_known(const struct worker_state *state, uint64_t connection)
{
    if (state->stage != WORKER_NONE && state->active.connection == connection)
        return true;
    for (uint32_t i = 0; i < state->standby_count; i++) {
        if (state->standby[i].connection == connection)
            return true;
    }
    return false;
}

static bool judge_room(const struct worker_state *state, uint64_t connection,
                       struct worker_decision *decision)
{
    struct text *why = reason_init(&decision->message);
    if (is_known(state, connection)) {
        text_format(why, "a second hello on one connection");
        return refuse(decision, ATTACH_REFUSAL_MALFORMED);
    }
    if (state->abandoned_count == LIMIT_ABANDONED_EPOCHS) {
        text_format(why, "%u epochs wait for the end of their processes; at most %u",
                    state->abandoned_count, LIMIT_ABANDONED_EPOCHS);
        return refuse(decision, ATTACH_REFUSAL_ABANDONED);
    }
    if (state->stage != WORKER_NONE && state->standby_count == LIMIT_STANDBY_WORKERS) {
        text_format(why, "%u workers wait already; at most %u", state->standby_count,
                    LIMIT_STANDBY_WORKERS);
        return refuse(decision, ATTACH_REFUSAL_STANDBYS);
    }
    return true;
}

static void pin(struct worker_state *state, const struct attach_hello *hello)
{
    if (state->pinned)
        return;
    CHECK(hello->arithmetic.length < sizeof state->arithmetic);
    state->tensor_hash = hello->tensor_hash;
    memcpy(state->arithmetic, hello->arithmetic.bytes, hello->arithmetic.length);
    state->arithmetic[hello->arithmetic.length] = '\0';
    state->pinned = true;
}

static void activate(struct worker_state *state, struct worker_candidate candidate)
{
    CHECK(state->stage == WORKER_NONE);
    state->epoch++;
    state->stage = WORKER_ATTACHING;
    state->active = candidate;
    state->liveness = (struct worker_liveness){0};
}

void worker_state_hello(struct worker_state *state, uint64_t connection,
                        const struct attach_hello *hello, struct worker_decision *out_decision)
{
    *out_decision = (struct worker_decision){0};
    if (!judge_version(hello, out_decision) || !judge_model(state, hello, out_decision) ||
        !judge_arithmetic(state, hello, out_decision) ||
        !judge_geometry(state, hello, out_decision) ||
        !judge_capacity(state, hello, out_decision) || !judge_room(state, connection, out_decision))
        return;
    pin(state, hello);
    const struct worker_candidate candidate = {
        .connection = connection,
        .version =
            hello->version_max < PROTOCOL_VERSION_MAX ? hello->version_max : PROTOCOL_VERSION_MAX,
        .kv_order = hello->geometry.order,
    };
    if (state->stage != WORKER_NONE) {
        state->standby[state->standby_count++] = candidate;
        out_decision->welcome = WORKER_STAND_BY;
        out_decision->position = state->standby_count;
        return;
    }
    activate(state, candidate);
    out_decision->welcome = WORKER_ATTACH;
}

bool worker_state_attached(struct worker_state *state, uint64_t epoch, uint64_t now_ns)
{
    if (state->stage != WORKER_ATTACHING || epoch != state->epoch)
        return false;
    state->stage = WORKER_ATTACHED;
    state->attached_ns = now_ns;
    state->look_due_ns = now_ns + WORKER_OBSERVE_NS;
    return true;
}

bool worker_state_ready(struct worker_state *state, uint64_t epoch)
{
    if (state->stage != WORKER_ATTACHED || epoch != state->epoch)
        return false;
    state->stage = WORKER_IS_READY;
    return true;
}

bool worker_state_is_ready(const struct worker_state *state)
{
    return state->stage == WORKER_IS_READY;
}

bool worker_state_lost(struct worker_state *state, uint64_t connection)
{
    for (uint32_t i = 0; i < state->standby_count; i++) {
        if (state->standby[i].connection != connection)
            continue;
        state->standby_count--;
        memmove(state->standby + i, state->standby + i + 1,
                (state->standby_count - i) * sizeof *state->standby);
        return false;
    }
    return state->stage != WORKER_NONE && state->active.connection == connection;
}

void worker_state_fenced(struct worker_state *state)
{
    CHECK(state->stage != WORKER_NONE);
    CHECK(state->abandoned_count < LIMIT_ABANDONED_EPOCHS);
    state->stage = WORKER_NONE;
    state->abandoned[state->abandoned_count++] = state->epoch;
    state->memory = (struct worker_memory){0};
}

bool worker_state_promote(struct worker_state *state)
{
    if (state->stage != WORKER_NONE || state->standby_count == 0 ||
        state->abandoned_count == LIMIT_ABANDONED_EPOCHS)
        return false;
    struct worker_candidate candidate = state->standby[0];
    state->standby_count--;
    memmove(state->standby, state->standby + 1, state->standby_count * sizeof *state->standby);
    activate(state, candidate);
    return true;
}

void worker_state_epoch_gone(struct worker_state *state, uint64_t epoch)
{
    for (uint32_t i = 0; i < state->abandoned_count; i++) {
        if (state->abandoned[i] == epoch) {
            state->abandoned[i] = state->abandoned[--state->abandoned_count];
            return;
        }
    }
}

static uint64_t stall_limit(const struct worker_state *state)
{
    uint64_t limit = state->layer_ns_average * WORKER_STALL_LAYERS;
    return limit > WORKER_STALL_NS_MIN ? limit : WORKER_STALL_NS_MIN;
}

static bool has_moved(const struct worker_progress *before, const struct worker_progress *after)
{
    return before->phase != after->phase || before->step != after->step ||
           before->layer != after->layer || before->since_ns != after->since_ns;
}

enum core_fence_reason worker_state_observe(struct worker_state *state,
                                            const struct core_observation *observation,
                                            uint32_t plans, uint64_t now_ns)
{
    struct worker_liveness *liveness = &state->liveness;
    uint64_t passed = liveness->seen_ns == 0 ? 0 : now_ns - liveness->seen_ns;
    if (passed > WORKER_LOOK_NS_MAX)
        passed = WORKER_LOOK_NS_MAX;
    bool is_alive = observation->alive_ns != liveness->alive_ns;
    bool moves = plans == 0 || has_moved(&liveness->progress, &observation->progress);
    liveness->silent_ns = is_alive ? 0 : liveness->silent_ns + passed;
    liveness->stalled_ns = moves ? 0 : liveness->stalled_ns + passed;
    liveness->alive_ns = observation->alive_ns;
    liveness->progress = observation->progress;
    liveness->seen_ns = now_ns;
    state->memory = observation->memory;
    state->look_due_ns = now_ns + WORKER_OBSERVE_NS;
    if (liveness->silent_ns >= WORKER_SILENT_NS)
        return CORE_FENCE_SILENT;
    return liveness->stalled_ns >= stall_limit(state) ? CORE_FENCE_HUNG : 0;
}

void worker_state_step_done(struct worker_state *state, uint64_t compute_ns)
{
    uint64_t layer_ns = compute_ns / state->limits.extents.geometry.layers;
    if (layer_ns > WORKER_STALL_NS_MIN)
        layer_ns = WORKER_STALL_NS_MIN; /* a number from the peer must not switch the watch off */
    state->layer_ns_average =
        state->layer_ns_average == 0
            ? layer_ns
            : state->layer_ns_average - state->layer_ns_average / 8 + layer_ns / 8;
    state->liveness.stalled_ns = 0;
}

void worker_state_plan_sent(struct worker_state *state)
{
    state->liveness.stalled_ns = 0;
}

enum core_fence_reason worker_state_tick(struct worker_state *state, uint64_t now_ns)
{
    if (state->look_due_ns <= now_ns)
        state->look_due_ns = now_ns + WORKER_OBSERVE_NS;
    if (state->stage == WORKER_ATTACHED && now_ns - state->attached_ns >= WORKER_READY_NS)
        return CORE_FENCE_NEVER_READY;
    return 0;
}

uint64_t worker_state_deadline_ns(const struct worker_state *state)
{
    if (state->stage != WORKER_ATTACHED && state->stage != WORKER_IS_READY)
        return CORE_NO_DEADLINE;
    return state->look_due_ns;
}

struct segment_extents worker_state_extents(const struct worker_state *state)
{
    struct segment_extents extents = state->limits.extents;
    extents.geometry.order = state->active.kv_order;
    return extents;
}
