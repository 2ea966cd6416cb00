/* The n-th request of the core for memory fails, alone or with all that follow, for every n of each
 * scenario. Whoever asked is told `overloaded`; the tables stay sound (checked after each event by
 * the engine); a neighbour that streams meanwhile loses nothing but what its own growth needed; and
 * once there is memory again everything works as before, to the byte. Nothing is leaked. */
#include "coordinator/core_state.h"
#include "faults/failing_memory.h"
#include "sim/engine.h"

#include "common/check.h"
#include "common/duration.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEIGHBOUR_TOKENS = 60, SUBJECT_TOKENS = 12, REQUESTS_MAX = 10000 };

#define NEIGHBOUR        "neighbour"
#define NEIGHBOUR_PROMPT "the neighbour's prompt"
#define SUBJECT          "subject"
#define SUBJECT_PROMPT   "what the subject asks"

struct world {
    struct engine engine;
    uint64_t handle; /* of the scenario's call, 0 = none */
};

/* `prepare` with memory, `act` without; both leave calls in `handle`. */
struct scenario {
    const char *name;
    void (*prepare)(struct world *world);
    void (*act)(struct world *world);
};

static uint64_t submit_text(struct world *world)
{
    struct client_submit submit = engine_prompt(SUBJECT, SUBJECT_PROMPT, SUBJECT_TOKENS);
    return engine_submit(&world->engine, &submit);
}

static void act_submit_text(struct world *world)
{
    world->handle = submit_text(world);
}

static void act_submit_with_stops(struct world *world)
{
    static const struct wire_text stops[] = {{"never comes", 11}, {"nor this", 8}};
    struct client_submit submit = engine_prompt(SUBJECT, SUBJECT_PROMPT, SUBJECT_TOKENS);
    submit.stop.count = 2;
    memcpy(submit.stop.items, stops, sizeof stops);
    world->handle = engine_submit(&world->engine, &submit);
}

static void act_submit_ids(struct world *world)
{
    uint32_t ids[sizeof SUBJECT_PROMPT];
    uint32_t count = (uint32_t)strlen(SUBJECT_PROMPT);
    for (uint32_t i = 0; i < count; i++)
        ids[i] = (uint8_t)SUBJECT_PROMPT[i];
    struct client_submit submit = engine_prompt(SUBJECT, "", SUBJECT_TOKENS);
    submit.has_prompt = false;
    submit.has_ids = true;
    submit.ids = wire_tokens_of(ids, count);
    world->handle = engine_submit(&world->engine, &submit);
}

static void act_submit_chat(struct world *world)
{
    static const uint8_t message[] = {0x82, 0x01, 0xa4, 'u', 's', 'e', 'r', 0x02, 0xa2, 'h', 'i'};
    struct client_submit submit = engine_prompt(SUBJECT, "", SUBJECT_TOKENS);
    submit.has_prompt = false;
    submit.has_messages = true;
    submit.messages =
        (struct wire_list){.count = 1, .encoded = message, .encoded_bytes = sizeof message};
    world->handle = engine_submit(&world->engine, &submit);
}

static void prepare_held_order(struct world *world)
{
    world->engine.holds_orders = true;
    world->handle = submit_text(world);
}

static void act_tokenized(struct world *world)
{
    memory_spare_others(true);
    engine_tokenize(&world->engine, 0, STATUS_OK);
}

static void prepare_subject(struct world *world)
{
    (void)submit_text(world);
    engine_step(&world->engine);
}

static void act_poll(struct world *world)
{
    world->handle = engine_poll(&world->engine, SUBJECT, 0, 0);
}

static void act_cancel(struct world *world)
{
    world->handle = engine_cancel(&world->engine, SUBJECT);
}

static void act_status(struct world *world)
{
    world->handle = engine_status(&world->engine, SUBJECT);
}

static void act_stats(struct world *world)
{
    world->handle = engine_stats(&world->engine);
}

static void act_submit_again(struct world *world)
{
    world->handle = submit_text(world);
}

/* Tokens, texts and ends of both, with a poll that waits for them. */
static void act_run_to_the_end(struct world *world)
{
    const struct client_next next = {
        .id = wire_text_of(SUBJECT), .hold_tokens = SUBJECT_TOKENS, .max_wait_ms = 20000};
    world->handle = engine_next(&world->engine, &next);
    engine_run(&world->engine);
}

static void act_lose_worker(struct world *world)
{
    engine_kill(&world->engine);
}

static void prepare_lost_worker(struct world *world)
{
    prepare_subject(world);
    engine_kill(&world->engine);
}

static void act_attach(struct world *world)
{
    engine_attach(&world->engine);
    engine_run(&world->engine);
}

/* A second one that needs the room of the pool: somebody must give way. */
static void prepare_tight_pool(struct world *world)
{
    prepare_subject(world);
    struct client_submit submit = engine_prompt("third", "a third prompt that takes room", 90);
    (void)engine_submit(&world->engine, &submit);
}

static void act_preempt(struct world *world)
{
    engine_run(&world->engine);
}

static void act_tokenize(struct world *world)
{
    struct client_request request = {
        .type = CLIENT_TOKENIZE,
        .tokenize = {.has_prompt = true, .prompt = wire_text_of(SUBJECT_PROMPT)}};
    world->handle = engine_call(&world->engine, &request);
}

static void act_detokenize(struct world *world)
{
    static const uint32_t ids[] = {'a', 'b', LETTERS_AND, LETTERS_THE};
    struct client_request request = {.type = CLIENT_DETOKENIZE,
                                     .detokenize = {.ids = wire_tokens_of(ids, 4)}};
    world->handle = engine_call(&world->engine, &request);
}

static void act_time_out(struct world *world)
{
    engine_pass(&world->engine, 10 * NS_PER_S);
}

static const struct scenario scenarios[] = {
    {"submit of text", NULL, act_submit_text},
    {"submit with stop strings", NULL, act_submit_with_stops},
    {"submit of ids", NULL, act_submit_ids},
    {"submit of a chat", NULL, act_submit_chat},
    {"ids come from the tokenizer", prepare_held_order, act_tokenized},
    {"same submit again", prepare_subject, act_submit_again},
    {"next", prepare_subject, act_poll},
    {"cancel", prepare_subject, act_cancel},
    {"status", prepare_subject, act_status},
    {"stats", prepare_subject, act_stats},
    {"tokens up to the finish", prepare_subject, act_run_to_the_end},
    {"preemption", prepare_tight_pool, act_preempt},
    {"the worker is lost", prepare_subject, act_lose_worker},
    {"a worker attaches and recomputes", prepare_lost_worker, act_attach},
    {"tokenize", NULL, act_tokenize},
    {"detokenize", NULL, act_detokenize},
    {"time passes", prepare_subject, act_time_out},
};

static void open_world(struct world *world)
{
    world->handle = 0;
    engine_init(&world->engine);
    world->engine.config.reallocate = memory_reallocate;
    world->engine.config.extents.pool_blocks = 16; /* 128 positions of two layers */
    engine_start(&world->engine);
    engine_attach(&world->engine);
    struct client_submit submit = engine_prompt(NEIGHBOUR, NEIGHBOUR_PROMPT, NEIGHBOUR_TOKENS);
    (void)engine_submit(&world->engine, &submit);
    engine_step(&world->engine);
}

/* Each of the two may have been told `overloaded`, and only that. */
static bool ended_overloaded(const struct client_output *output)
{
    return output->state == REQUEST_STATE_FINISHED && output->has_finish &&
           output->finish.reason == FINISH_REASON_ERROR && output->finish.has_error &&
           output->finish.error.code == ERROR_CODE_OVERLOADED;
}

static void expect_answer(const struct world *world)
{
    const struct engine_answer *answer =
        world->handle == 0 ? NULL : engine_answer(&world->engine, world->handle);
    if (answer == NULL || answer->message.type != CLIENT_ANSWER_ERROR)
        return;
    if (answer->message.error.code != ERROR_CODE_OVERLOADED)
        fail_msg("answered %s", answer->error_message);
}

/* With memory again: the request is as it would be without the failure, or ended overloaded. */
static void expect_stream(struct world *world, const char *id, const char *prompt, uint32_t tokens)
{
    struct engine *engine = &world->engine;
    uint32_t expected[ENGINE_TOKENS];
    const struct engine_answer *answer = engine_answer(engine, engine_poll(engine, id, 0, 0));
    if (answer->message.type == CLIENT_ANSWER_ERROR) {
        assert_int_equal(answer->message.error.code, ERROR_CODE_NOT_FOUND); /* never accepted */
        return;
    }
    const struct client_output *output = &answer->message.output;
    uint32_t count = engine_expect(engine, prompt, 7, tokens, expected);
    assert_int_equal(output->state, REQUEST_STATE_FINISHED);
    if (output->finish.reason != FINISH_REASON_CANCELLED && !ended_overloaded(output)) {
        assert_int_not_equal(output->finish.reason, FINISH_REASON_ERROR);
        assert_int_equal(output->tokens.count, count);
        assert_int_equal(output->text.length, count); /* a byte is a token */
    }
    for (uint32_t i = 0; i < output->text.length; i++)
        assert_int_equal((uint8_t)answer->text[i], expected[i]);
    assert_true(output->tokens.count <= count);
    assert_memory_equal(answer->tokens, expected, output->tokens.count * sizeof *expected);
}

/* Everything asked for once more, under another name, and to its end. */
static void expect_life(struct world *world)
{
    struct engine *engine = &world->engine;
    uint32_t expected[ENGINE_TOKENS];
    if (!engine->attached)
        engine_attach(engine);
    while (engine->order_count > 0)
        engine_tokenize(engine, 0, STATUS_OK);
    engine->holds_orders = false;
    struct client_submit submit = engine_prompt("afterwards", SUBJECT_PROMPT, SUBJECT_TOKENS);
    uint64_t handle = engine_submit(engine, &submit);
    assert_int_equal(engine_answer(engine, handle)->message.type, CLIENT_ANSWER_ACCEPTED);
    engine_run(engine);
    expect_stream(world, NEIGHBOUR, NEIGHBOUR_PROMPT, NEIGHBOUR_TOKENS);
    const struct engine_answer *answer =
        engine_answer(engine, engine_poll(engine, "afterwards", 0, 0));
    uint32_t count = engine_expect(engine, SUBJECT_PROMPT, 7, SUBJECT_TOKENS, expected);
    assert_int_equal(answer->message.type, CLIENT_ANSWER_OUTPUT);
    assert_int_equal(answer->message.output.tokens.count, count);
    assert_memory_equal(answer->tokens, expected, count * sizeof *expected);
    assert_false(ended_overloaded(&answer->message.output));
}

/* The scenario of that name is one, unless somebody ended before it came to that. */
static void expect_preemption(struct world *world)
{
    uint64_t handle = engine_stats(&world->engine);
    assert_true(engine_answer(&world->engine, handle)->message.stats.preemptions > 0);
}

/* Whether the n-th request was reached. */
static bool run_once(struct world *world, const struct scenario *scenario, uint64_t nth,
                     bool for_good)
{
    int64_t held = memory_blocks_held();
    open_world(world);
    if (scenario->prepare != NULL)
        scenario->prepare(world);
    memory_spare_others(true);
    memory_fail_at(nth, for_good);
    scenario->act(world);
    bool failed = memory_recovers();
    memory_spare_others(false);
    expect_answer(world);
    if (scenario->act == act_preempt && !failed)
        expect_preemption(world);
    expect_life(world);
    if (strcmp(scenario->name, "submit of a chat") != 0) /* other ids than those of the text */
        expect_stream(world, SUBJECT, SUBJECT_PROMPT, SUBJECT_TOKENS);
    engine_stop(&world->engine);
    assert_int_equal(memory_blocks_held(), held);
    return failed;
}

static void every_request_of_every_scenario_may_fail(void **state)
{
    (void)state;
    static struct world world;
    for (size_t i = 0; i < sizeof scenarios / sizeof scenarios[0]; i++) {
        uint64_t counts[2] = {0};
        for (int for_good = 0; for_good < 2; for_good++)
            while (run_once(&world, &scenarios[i], counts[for_good] + 1, for_good == 1)) {
                counts[for_good]++;
                assert_true(counts[for_good] < REQUESTS_MAX);
            }
        print_message("%s: %llu requests failed alone, %llu with all that follow\n",
                      scenarios[i].name, (unsigned long long)counts[0],
                      (unsigned long long)counts[1]);
    }
}

/* Start-up: core_create either has everything or nothing. */
static void a_core_is_made_whole_or_not_at_all(void **state)
{
    (void)state;
    struct engine engine;
    uint64_t nth = 0;
    bool failed = true;
    while (failed) {
        engine_init(&engine);
        struct segment_extents *extents = &engine.config.extents;
        extents->logical_blocks = kv_blocks_for(&extents->geometry, extents->context);
        engine.config.vocabulary = &engine.vocabulary;
        int64_t held = memory_blocks_held();
        struct reason why;
        nth++;
        memory_fail_at(nth, nth % 2 == 0);
        enum status status = core_create(&engine.config, &engine.core, reason_init(&why));
        failed = memory_recovers();
        assert_int_equal(status, failed ? STATUS_OUT_OF_MEMORY : STATUS_OK);
        if (failed)
            assert_int_equal(memory_blocks_held(), held);
        engine_stop(&engine);
    }
    assert_true(nth > 1);
}

/* Tables of a size for which the arena has to be counted. */
enum { TABLE_ROWS = 40, ARENA_BYTES_MAX = 1 << 20, ARENA_STEP_BYTES = 64 };

union table {
    struct requests requests;
    struct calls calls;
    struct orders orders;
    struct outbox outbox;
    struct heap heap;
    struct slots slots;
    struct blocks blocks;
    struct block_table block_table;
    struct flights flights;
    struct plan_writer plan_writer;
    struct scheduler scheduler;
};

static const struct kv_geometry geometry = {.layers = 2,
                                            .kv_heads = 1,
                                            .head_dim = 8,
                                            .block_tokens = 16,
                                            .type = KV_TYPE_F16,
                                            .order = KV_ORDER_CPU};

static enum status init_requests(union table *table, struct arena *arena)
{
    return requests_init(&table->requests, arena, TABLE_ROWS, 1, realloc);
}

static enum status init_calls(union table *table, struct arena *arena)
{
    return calls_init(&table->calls, arena, TABLE_ROWS);
}

static enum status init_orders(union table *table, struct arena *arena)
{
    return orders_init(&table->orders, arena, TABLE_ROWS, realloc);
}

static enum status init_outbox(union table *table, struct arena *arena)
{
    return outbox_init(&table->outbox, arena, TABLE_ROWS, realloc);
}

static enum status init_heap(union table *table, struct arena *arena)
{
    return heap_init(&table->heap, arena, TABLE_ROWS);
}

static enum status init_slots(union table *table, struct arena *arena)
{
    const struct slots_config config = {.geometry = geometry,
                                        .slots = TABLE_ROWS,
                                        .logical_blocks = 8,
                                        .pool_blocks = 2 * TABLE_ROWS};
    return slots_init(&table->slots, arena, &config);
}

static enum status init_blocks(union table *table, struct arena *arena)
{
    return blocks_init(&table->blocks, arena, TABLE_ROWS, 2, NULL);
}

static enum status init_block_table(union table *table, struct arena *arena)
{
    return block_table_init(&table->block_table, arena, &geometry, TABLE_ROWS, 8);
}

static enum status init_flights(union table *table, struct arena *arena)
{
    return flights_init(&table->flights, arena, TABLE_ROWS);
}

static enum status init_plan_writer(union table *table, struct arena *arena)
{
    return plan_writer_init(&table->plan_writer, arena, TABLE_ROWS);
}

/* Beside the requests and slots that it looks at. */
static enum status init_scheduler(union table *table, struct arena *arena)
{
    static struct requests requests = {.capacity = TABLE_ROWS};
    static struct slots slots = {.capacity = TABLE_ROWS};
    static struct flights flights;
    const struct scheduler_config config = {.requests = &requests,
                                            .slots = &slots,
                                            .flights = &flights,
                                            .step_tokens = 64,
                                            .prefill_chunk = 64};
    return scheduler_init(&table->scheduler, arena, &config);
}

/* Each table says that its arena is too small, whichever of its parts does not fit. */
static void every_table_needs_its_whole_arena(void **state)
{
    (void)state;
    static enum status (*const inits[])(union table *, struct arena *) = {
        init_requests, init_calls,       init_orders,  init_outbox,      init_heap,     init_slots,
        init_blocks,   init_block_table, init_flights, init_plan_writer, init_scheduler};
    for (size_t i = 0; i < sizeof inits / sizeof inits[0]; i++) {
        size_t bytes = 0, refusals = 0;
        enum status status = STATUS_OUT_OF_MEMORY;
        for (; status != STATUS_OK && bytes < ARENA_BYTES_MAX; bytes += ARENA_STEP_BYTES) {
            struct arena arena;
            union table table = {0};
            assert_int_equal(arena_init(&arena, bytes), STATUS_OK);
            status = inits[i](&table, &arena);
            assert_true(status == STATUS_OK || status == STATUS_OUT_OF_MEMORY);
            refusals += status != STATUS_OK;
            arena_free(&arena);
        }
        assert_int_equal(status, STATUS_OK);
        assert_true(refusals > 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_request_of_every_scenario_may_fail),
        cmocka_unit_test(a_core_is_made_whole_or_not_at_all),
        cmocka_unit_test(every_table_needs_its_whole_arena),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
