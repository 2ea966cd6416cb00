/* The coordinator's core under a worker that says anything: results with any field changed, frames
 * of any bytes, refusals and ends at any time, between clients that submit, ask and cancel. The
 * tables are checked after each event (sim/engine.h); afterwards an honest worker comes, everything
 * ends, and a new request gets its undisturbed stream.
 * Input: orders, each a byte and its arguments; see `orders`. */
#include "sim/engine.h"

#include "common/check.h"
#include "common/duration.h"

#include <malloc.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length);

enum { ORDERS_MAX = 120, IDS = 6, PROMPT_BYTES_MAX = 60, FRAME_BYTES_MAX = 400 };

struct reader {
    const uint8_t *at, *end;
};

struct world {
    struct engine engine;
    struct reader input;
    uint64_t gone_epoch; /* newest whose process has ended */
};

static uint32_t next_number(struct reader *reader, size_t width)
{
    uint32_t number = 0;
    for (size_t i = 0; i < width && reader->at < reader->end; i++)
        number |= (uint32_t)*reader->at++ << (8 * i);
    return number;
}

static const char *next_id(struct world *world)
{
    static const char *const ids[IDS] = {"a", "b", "c", "d", "e", "f"};
    return ids[next_number(&world->input, 1) % IDS];
}

/* The port closes the socket of a fenced epoch. */
static void close_epochs(struct world *world)
{
    struct engine *engine = &world->engine;
    if (engine->last_fence.epoch <= world->gone_epoch)
        return;
    world->gone_epoch = engine->last_fence.epoch;
    core_epoch_gone(engine->core, world->gone_epoch, engine->now_ns);
    engine_collect(engine);
}

static void submit(struct world *world)
{
    static const char text[PROMPT_BYTES_MAX + 1] =
        "a prompt that is long enough to fill several blocks of the po";
    char prompt[PROMPT_BYTES_MAX + 1] = {0};
    const char *id = next_id(world);
    memcpy(prompt, text, 1 + next_number(&world->input, 1) % PROMPT_BYTES_MAX);
    struct client_submit submit = engine_prompt(id, prompt, 1 + next_number(&world->input, 1) % 60);
    submit.detach = next_number(&world->input, 1) % 2 == 0;
    (void)engine_submit(&world->engine, &submit);
}

static void poll(struct world *world)
{
    (void)engine_poll(&world->engine, next_id(world), 0, 0);
}

static void cancel(struct world *world)
{
    (void)engine_cancel(&world->engine, next_id(world));
}

static void attach(struct world *world)
{
    const struct attach_hello hello = engine_good_hello(&world->engine);
    if (!world->engine.attached)
        (void)engine_hello(&world->engine, &hello);
}

static void kill_worker(struct world *world)
{
    if (world->engine.attached)
        core_worker_lost(world->engine.core, world->engine.active_connection, world->engine.now_ns);
    engine_collect(&world->engine);
}

static void step(struct world *world)
{
    if (world->engine.plan_count > 0)
        engine_step(&world->engine);
}

/* What a change makes of a result. */
enum verdict {
    ANY,   /* it may be believed: another token, or nothing that counts */
    STALE, /* of another epoch or instance: dropped and counted */
    LIE,   /* not what the plan asked for: the end of the epoch */
};

static enum verdict change_row(struct result_row *row, uint32_t field, uint32_t value)
{
    const struct result_row before = *row;
    switch (field) {
    case 0:
        row->slot = value;
        return row->slot == before.slot ? ANY : LIE;
    case 1:
        row->generation = value;
        return row->generation == before.generation ? ANY : LIE;
    case 2:
        row->position = value;
        return row->position == before.position ? ANY : LIE;
    case 3:
        row->flags = value;
        return ANY;
    case 4:
        memcpy(&row->logprob, &value, sizeof value);
        return ANY;
    default:
        row->token = value % (2 * LETTERS_TOKENS);
        return row->token < LETTERS_TOKENS ? ANY : LIE;
    }
}

static enum verdict change(struct world *world, struct result *result)
{
    uint32_t field = next_number(&world->input, 1), value = next_number(&world->input, 4);
    uint32_t row = field / 16 % 4, rows = result->row_count;
    uint64_t step = result->step;
    switch (field % 16) {
    case 0:
        result->step = value;
        return result->step == step ? ANY : LIE;
    case 1:
        result->epoch ^= value;
        return value == 0 ? ANY : STALE;
    case 2:
        result->instance.bytes[0] ^= (uint8_t)value;
        return (uint8_t)value == 0 ? ANY : STALE;
    case 3:
        result->row_count = value % (LIMIT_SLOTS + 1);
        return result->row_count == rows ? ANY : LIE;
    case 4:
        result->timings.compute_ns = value * UINT64_C(0x100000001);
        return ANY;
    default:
        return row < rows ? change_row(&result->rows[row], field % 16 - 5, value) : ANY;
    }
}

static struct client_stats_answer stats_of(struct engine *engine)
{
    return engine_answer(engine, engine_stats(engine))->message.stats;
}

/* The worker may know another truth than the core afterwards, so it does not live on. */
static void lie(struct world *world)
{
    static struct result result;
    struct worker_refused refused;
    struct engine *engine = &world->engine;
    if (engine->plan_count == 0)
        return;
    CHECK(scripted_worker_step(&engine->worker, &engine->plans[0], &result, &refused));
    engine->plans[0] = engine->plans[--engine->plan_count];
    enum verdict verdict = change(world, &result);
    struct client_stats_answer before = stats_of(engine);
    core_worker_result(engine->core, &result, engine->now_ns);
    engine_collect(engine);
    struct client_stats_answer after = stats_of(engine);
    CHECK(verdict == ANY || after.completion_tokens == before.completion_tokens);
    CHECK((after.messages_stale != before.messages_stale) == (verdict == STALE));
    CHECK(verdict != STALE || engine->attached);
    CHECK(verdict != LIE || !engine->attached);
    CHECK(verdict != LIE || engine->last_fence.reason == CORE_FENCE_MISMATCH);
    kill_worker(world);
}

static void refuse(struct world *world)
{
    struct engine *engine = &world->engine;
    uint32_t step = next_number(&world->input, 1), row = next_number(&world->input, 1);
    const struct worker_refused refused = {
        .instance = engine->config.instance,
        .epoch = engine->epoch,
        .step = engine->plan_count > 0 && step < 128 ? engine->plans[0].step : step,
        .has_row = row < 200,
        .row = row % 8,
        .reason = PLAN_REFUSAL_TOKEN};
    core_worker_refused(engine->core, &refused, engine->now_ns);
    engine_collect(engine);
}

/* Any frame, as of the current epoch. */
static void say(struct world *world)
{
    static struct worker_report report;
    struct wire_error error;
    struct engine *engine = &world->engine;
    size_t wanted = next_number(&world->input, 2) % FRAME_BYTES_MAX;
    size_t rest = (size_t)(world->input.end - world->input.at);
    size_t length = wanted < rest ? wanted : rest;
    enum status status = worker_report_decode(world->input.at, length, &report, &error);
    world->input.at += length;
    if (status != STATUS_OK) {
        core_worker_nonsense(engine->core, engine->epoch, error.message, engine->now_ns);
    } else if (report.type == WORKER_RESULT) {
        engine->plan_count = 0; /* it may be an answer: two more may follow */
        report.result.instance = engine->config.instance;
        report.result.epoch = engine->epoch;
        core_worker_result(engine->core, &report.result, engine->now_ns);
    } else if (report.type == WORKER_REFUSED) {
        core_worker_refused(engine->core, &report.refused, engine->now_ns);
    } else if (report.type == WORKER_READY) {
        core_worker_ready(engine->core, &report.ready, engine->now_ns);
    } else if (report.type == WORKER_FATAL) {
        core_worker_fatal(engine->core, &report.fatal, engine->now_ns);
    }
    engine_collect(engine);
    kill_worker(world);
}

static void pass(struct world *world)
{
    engine_pass(&world->engine, next_number(&world->input, 2) * NS_PER_MS);
}

static void (*const orders[])(struct world *) = {submit, step,        step,   lie,  say, refuse,
                                                 attach, kill_worker, cancel, poll, pass};

/* Faults stop; every request has its end, and the pair works. */
static void heal(struct world *world)
{
    struct engine *engine = &world->engine;
    uint32_t expected[ENGINE_TOKENS];
    for (uint32_t tries = 0; !engine->attached || engine->plan_count > 0; tries++) {
        CHECK(tries < 1000);
        close_epochs(world);
        attach(world);
        (void)engine_run(engine);
        engine_pass(engine, NS_PER_S);
        if (engine->attached && engine->plan_count == 0)
            break;
    }
    struct client_submit submit = engine_prompt("afterwards", "hello", 20);
    (void)engine_submit(engine, &submit);
    (void)engine_run(engine);
    const struct engine_answer *answer =
        engine_answer(engine, engine_poll(engine, "afterwards", 0, 0));
    uint32_t count = engine_expect(engine, "hello", 7, 20, expected);
    CHECK(answer->message.type == CLIENT_ANSWER_OUTPUT);
    CHECK(answer->message.output.state == REQUEST_STATE_FINISHED);
    CHECK(answer->message.output.tokens.count == count);
    CHECK(memcmp(answer->tokens, expected, count * sizeof *expected) == 0);
    struct client_stats_answer stats = stats_of(engine);
    CHECK(stats.requests_running == 0 && stats.requests_queued == 0);
    CHECK(stats.requests_preempted == 0 && stats.requests_tokenizing == 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t length)
{
    static struct world world;
    /* The engine's record of answers is large and hardly touched: fresh pages, not zeroed ones
     * (a sanitizer's allocator does that anyway, and has no such option). */
    (void)mallopt(M_MMAP_THRESHOLD, 1 << 20);
    memset(&world, 0, sizeof world);
    world.input = (struct reader){bytes, bytes + length};
    engine_init(&world.engine);
    world.engine.config.extents.pool_blocks = 16; /* 128 positions: requests give way */
    engine_start(&world.engine);
    attach(&world);
    for (int i = 0; i < ORDERS_MAX && world.input.at < world.input.end; i++) {
        uint32_t order = next_number(&world.input, 1) % (sizeof orders / sizeof orders[0]);
        orders[order](&world);
        close_epochs(&world);
    }
    heal(&world);
    engine_stop(&world.engine);
    return 0;
}
