/* Whole steps on a device: the logits of a request are the same bits alone and in every batch, for
 * every chunking, decoded or prefilled, wherever its blocks lie, and in two steps in flight.
 * usage: step_test [small|least]   small: one shape; least: a few steps of it, for slow tools */
#include "step_model.h"

#include <stdbool.h>

enum { LENGTH = 300, ROWS = 600 };

static int failures;
static struct world_batch batch;
static struct step_sample samples[WORLD_SAMPLES];
static const struct sampling GREEDY = {.top_p = 1};

static void expect(bool good, const char *what, uint32_t number)
{
    printf("%s %s %u\n", good ? "ok  " : "FAIL", what, number);
    failures += !good;
}

static uint32_t token_of(const struct step_world *world, uint32_t stream, uint32_t position)
{
    struct random random = {stream * 1000003u + position};
    return random_below(&random, world->shape.vocabulary);
}

/* Prefills `length` tokens of `stream` into `slot`; the sample after the last one. */
static struct step_sample prefill(struct step_world *world, uint32_t slot, uint32_t stream,
                                  uint32_t length, uint32_t chunk)
{
    for (uint32_t first = 0; first < length; first += chunk) {
        uint32_t count = length - first < chunk ? length - first : chunk;
        batch_start(&batch);
        for (uint32_t i = 0; i < count; i++)
            batch_row(&batch, slot, first + i, token_of(world, stream, first + i));
        batch_sample(&batch, &GREEDY);
        batch_run(world, &batch, samples);
    }
    return samples[0];
}

static void test_chunks(struct step_world *world, uint64_t whole)
{
    static const uint32_t chunks[] = {1, 7, 16, 31, 33, 64, 100, 256};
    for (uint32_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        world_map(world, 1);
        struct step_sample sample = prefill(world, 1, 5, LENGTH, chunks[i]);
        expect(sample.logits_hash == whole, "chunks of", chunks[i]);
    }
}

/* The stream's next token beside others of other lengths, at a row of its own. */
static void test_batches(struct step_world *world, uint64_t alone)
{
    static const uint32_t sizes[] = {2, 8, 9, 16, 17, 32, 33, 48, 49, 64, 65, 96, 97, 128};
    for (uint32_t slot = 0; slot < world->slots; slot++)
        world_map(world, slot);
    for (uint32_t slot = 0; slot < world->slots; slot++)
        (void)prefill(world, slot, slot == 3 ? 5 : 100 + slot, slot == 3 ? LENGTH : 3 + slot * 2,
                      ROWS);
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes && sizes[i] <= world->slots; i++) {
        for (uint32_t turn = 0; turn < 2; turn++) {
            uint32_t mine = turn == 0 ? 1 : sizes[i] - 1, other = 4;
            batch_start(&batch);
            for (uint32_t row = 0; row < sizes[i]; row++) {
                uint32_t slot = row == mine ? 3 : other++ % world->slots;
                slot = slot == 3 && row != mine ? other++ % world->slots : slot;
                uint32_t position = slot == 3 ? LENGTH : 3 + slot * 2;
                if (row < 2 && row != mine && sizes[i] == world->slots)
                    slot = row;
                position = slot == 3 ? LENGTH : 3 + slot * 2;
                batch_row(&batch, slot, position, token_of(world, slot == 3 ? 5 : 100 + slot, 999));
                batch_sample(&batch, &GREEDY);
            }
            batch_run(world, &batch, samples);
            expect(samples[mine].logits_hash == alone, "batch of", sizes[i]);
        }
    }
    batch_start(&batch); /* beside a chunk of another request */
    batch_row(&batch, 3, LENGTH, token_of(world, 5, 999));
    batch_sample(&batch, &GREEDY);
    for (uint32_t i = 0; i < 200; i++)
        batch_row(&batch, 1, i, token_of(world, 101, i));
    batch_sample(&batch, &GREEDY);
    batch_run(world, &batch, samples);
    expect(samples[0].logits_hash == alone, "beside a chunk of", 200);
}

/* Positions at borders of blocks, tiles, segments and of the ways that attention takes. */
static const uint32_t BORDERS[] = {0,   1,   14,  15,  16,  17,   31,   32,   33,   62,  63,
                                   64,  65,  127, 128, 191, 192,  254,  255,  256,  257, 258,
                                   511, 512, 513, 767, 768, 1023, 1024, 1025, 1279, 1280};
enum {
    BORDER_COUNT = sizeof BORDERS / sizeof *BORDERS,
    BORDER_LENGTH = 1281,
    PERSISTENT_ROWS = 4,
    FEW_ROWS = 8, /* that separate kernels of their own serve, where there is no other way */
};

/* Rows of one step, decoded at `positions` of streams that were prefilled up to there. */
static void decode_at(struct step_world *world, const uint32_t *positions, uint32_t rows,
                      uint64_t *out_hashes)
{
    batch_start(&batch);
    for (uint32_t row = 0; row < rows; row++) {
        batch_row(&batch, row, positions[row], token_of(world, 50 + row, positions[row]));
        batch_sample(&batch, &GREEDY);
    }
    batch_run(world, &batch, samples);
    for (uint32_t row = 0; row < rows; row++)
        out_hashes[row] = samples[row].errors == 0 ? samples[row].logits_hash : row;
}

/* Every number of rows at every border; each step twice, since the second finds what the first
 * left. */
static void collect_borders(struct step_world *world, uint64_t (*out)[FEW_ROWS + 1][FEW_ROWS])
{
    for (uint32_t slot = 0; slot < FEW_ROWS; slot++) {
        world_map(world, slot);
        (void)prefill(world, slot, 50 + slot, BORDER_LENGTH, ROWS);
    }
    for (uint32_t i = 0; i < BORDER_COUNT; i++)
        for (uint32_t rows = 1; rows <= FEW_ROWS; rows++) {
            uint32_t positions[FEW_ROWS];
            for (uint32_t row = 0; row < rows; row++)
                positions[row] = BORDERS[(i + row * 11) % BORDER_COUNT];
            uint64_t again[FEW_ROWS];
            decode_at(world, positions, rows, out[i][rows]);
            decode_at(world, positions, rows, again);
            if (memcmp(again, out[i][rows], rows * sizeof *again) != 0)
                out[i][rows][0] = 1; /* never a hash of the other way */
        }
}

typedef uint64_t border_hashes[BORDER_COUNT][FEW_ROWS + 1][FEW_ROWS];

static uint32_t count_different(border_hashes a, border_hashes b, uint32_t rows)
{
    uint32_t different = 0;
    for (uint32_t i = 0; i < BORDER_COUNT; i++)
        for (uint32_t row = 0; row < rows; row++)
            different += a[i][rows][row] != b[i][rows][row];
    return different;
}

/* The persistent step (and from PERSISTENT_ROWS on products of many rows) against separate kernels
 * of few rows; then with delays by chance, and with races, which this comparison must find. */
static void test_persistent(struct step_world *world, bool races)
{
    static border_hashes one, separate;
    static const struct {
        uint32_t bits;
        const char *name;
    } plants[] = {{STEP_PLANT_DELAYS | STEP_PLANT_EXCHANGE, "race in the exchange found, rows"},
                  {STEP_PLANT_OPERAND, "race in the operand found, rows"},
                  {STEP_PLANT_RING, "race in the ring found, rows"}};
    world->separate_kernels = true;
    world_start(world, ROWS, true);
    collect_borders(world, separate);
    world->separate_kernels = false;
    for (uint32_t late = 0; late < 2; late++) {
        world->planted = late != 0 ? STEP_PLANT_DELAYS : 0;
        world_start(world, ROWS, true);
        collect_borders(world, one);
        for (uint32_t rows = 1; rows <= FEW_ROWS; rows++) {
            uint32_t different = count_different(one, separate, rows);
            expect(different == 0, late != 0 ? "with delays, rows" : "persistent step, rows", rows);
            if (different > 0)
                printf("     %u of %u hashes differ\n", different, BORDER_COUNT * rows);
        }
    }
    for (uint32_t i = 0; races && i < sizeof plants / sizeof *plants; i++) {
        world->planted = plants[i].bits;
        world_start(world, ROWS, true);
        collect_borders(world, one);
        expect(count_different(one, separate, 1) > 0, plants[i].name, 1);
        expect(count_different(one, separate, PERSISTENT_ROWS) > 0, plants[i].name,
               PERSISTENT_ROWS);
        expect(count_different(one, separate, FEW_ROWS) > 0, plants[i].name, FEW_ROWS);
    }
    world->planted = 0;
}

/* Differences of a step of many rows from the same step undisturbed, of several. */
static uint32_t count_disturbed(struct step_world *world, uint32_t planted, uint64_t *undisturbed)
{
    enum { MANY_ROWS = 64, TIMES = 4 };
    uint32_t different = 0;
    world->planted = planted;
    world_start(world, ROWS, true);
    for (uint32_t slot = 0; slot < MANY_ROWS; slot++) {
        world_map(world, slot);
        (void)prefill(world, slot, 200 + slot, 5 + slot * 3, ROWS);
    }
    for (uint32_t time = 0; time < TIMES; time++) {
        batch_start(&batch);
        for (uint32_t row = 0; row < MANY_ROWS; row++) {
            batch_row(&batch, row, 5 + row * 3, token_of(world, 200 + row, 999 + time));
            batch_sample(&batch, &GREEDY);
        }
        batch_run(world, &batch, samples);
        for (uint32_t row = 0; row < MANY_ROWS; row++) {
            uint64_t *hash = &undisturbed[time * MANY_ROWS + row];
            if (planted == 0)
                *hash = samples[row].logits_hash;
            different += samples[row].logits_hash != *hash;
        }
    }
    world->planted = 0;
    return different;
}

/* The barriers of the grid and the rings of the kernel that runs whole layers of many rows. */
static void test_many(struct step_world *world)
{
    static uint64_t undisturbed[256];
    (void)count_disturbed(world, 0, undisturbed);
    expect(count_disturbed(world, STEP_PLANT_DELAYS, undisturbed) == 0, "many rows with delays", 0);
    expect(count_disturbed(world, STEP_PLANT_DELAYS | STEP_PLANT_EXCHANGE, undisturbed) > 0,
           "many rows, early barrier found", 0);
    expect(count_disturbed(world, STEP_PLANT_OPERAND, undisturbed) > 0,
           "many rows, race in the operand found", 0);
    expect(count_disturbed(world, STEP_PLANT_RING, undisturbed) > 0,
           "many rows, race in the ring found", 0);
}

enum { NAN_SLOTS = 128, NAN_LENGTH = 4, NAN_STEP = 2 };

/* Decodes the next token of `rows` streams together and counts those whose logits are not what
 * `hashes` says, or, not comparing, notes them there. */
static uint32_t decode_all(struct step_world *world, uint32_t rows, uint64_t *hashes, bool compare)
{
    uint32_t different = 0;
    batch_start(&batch);
    for (uint32_t row = 0; row < rows; row++) {
        batch_row(&batch, row, NAN_LENGTH, token_of(world, 300 + row, NAN_LENGTH));
        batch_sample(&batch, &GREEDY);
    }
    batch_run(world, &batch, samples);
    for (uint32_t row = 0; row < rows; row++) {
        different += compare && samples[row].logits_hash != hashes[row];
        hashes[row] = compare ? hashes[row] : samples[row].logits_hash;
    }
    return different;
}

static void start_all(struct step_world *world)
{
    world_start(world, ROWS, true);
    for (uint32_t slot = 0; slot < NAN_SLOTS; slot++)
        world_map(world, slot);
}

/* All prompts in the one step before the fault. */
static void prefill_all(struct step_world *world)
{
    batch_start(&batch);
    for (uint32_t row = 0; row < NAN_SLOTS * NAN_LENGTH; row++) {
        uint32_t slot = row / NAN_LENGTH, position = row % NAN_LENGTH;
        batch_row(&batch, slot, position, token_of(world, 300 + slot, position));
    }
    batch_run(world, &batch, samples);
}

/* The first row of one step is NaN after the gather: it is told as wrong and is wrong alone, in
 * every way that a step of so many rows is computed; in the next step all is well. */
static void test_nan(const struct step_shape *shape, uint32_t kind)
{
    static const uint32_t sizes[] = {1, 4, 5, 16, 33, 64, 65, NAN_SLOTS};
    static uint64_t hashes[NAN_SLOTS];
    struct step_world world;
    const struct backend_fault fault = {.kind = kind, .step = NAN_STEP};
    world_open_faulty(&world, shape, NAN_SLOTS, 64, fault);
    start_all(&world);
    prefill_all(&world);
    for (uint32_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        start_all(&world);
        (void)decode_all(&world, sizes[i], hashes, false);
        uint32_t different = decode_all(&world, sizes[i], hashes, true), told = 0;
        for (uint32_t row = 1; row < sizes[i]; row++)
            told += samples[row].errors != 0;
        expect(samples[0].errors == ROW_ERROR_LOGITS && different == 1 && told == 0,
               "NaN in one row of", sizes[i]);
        expect(decode_all(&world, sizes[i], hashes, true) == 0 && samples[0].errors == 0,
               "the step after it, rows", sizes[i]);
    }
    world_close(&world);
}

/* Two steps in flight, the token of the second taken from the first. */
static void test_flight(struct step_world *world)
{
    enum { STEPS = 40 };
    static uint32_t errors[WORLD_ROWS];
    const struct step_operations *steps = world->backend->steps;
    uint32_t tokens[STEPS + 1], different = 0;
    world_map(world, 2);
    tokens[0] = prefill(world, 2, 9, 20, ROWS).token;
    for (uint32_t i = 0; i < STEPS; i++) {
        batch_start(&batch);
        batch_row(&batch, 2, 20 + i, tokens[i]);
        batch_sample(&batch, &GREEDY);
        batch_run(world, &batch, samples);
        tokens[i + 1] = samples[0].token;
    }
    different += prefill(world, 2, 9, 20, ROWS).token != tokens[0];
    for (uint32_t i = 0; i <= STEPS; i++) {
        if (i < STEPS) {
            batch_start(&batch);
            batch_row(&batch, 2, 20 + i, STEP_TOKEN_LAST_SAMPLE);
            batch_sample(&batch, &GREEDY);
            world_must(steps->begin(world->step, &batch.view), "begin", NULL);
        }
        if (i == 0)
            continue;
        world_must(steps->collect(world->step, samples, errors), "collect", NULL);
        different += samples[0].token != tokens[i];
    }
    expect(different == 0, "tokens in flight differ:", different);
}

/* Blocks that no kernel can cut tiles from are refused by name. */
static void test_refusal(struct step_world *world)
{
    struct reason reason;
    struct step *none = NULL;
    struct step_options options = world_options(world, 64, false);
    options.geometry.block_tokens = 24;
    enum status status =
        world->backend->steps->open(world->backend, &options, &none, reason_init(&reason));
    expect(status == STATUS_UNSUPPORTED && none == NULL && strstr(reason.storage, "24") != NULL,
           "refused, blocks of", options.geometry.block_tokens);
}

/* A prompt, a few decode steps of several rows, a mixed step. */
static void test_least(const struct step_shape *shape)
{
    struct step_world world;
    world_open(&world, shape, 4, 512);
    world_start(&world, 64, false);
    for (uint32_t slot = 0; slot < 4; slot++)
        world_map(&world, slot);
    uint32_t token = prefill(&world, 0, 5, 40, 33).token;
    (void)prefill(&world, 1, 6, 300, 64);
    for (uint32_t i = 0; i < 3; i++) {
        batch_start(&batch);
        batch_row(&batch, 0, 40 + i, i == 0 ? token : STEP_TOKEN_LAST_SAMPLE);
        batch_sample(&batch, &GREEDY);
        batch_row(&batch, 1, 300 + i, i == 0 ? 1 : STEP_TOKEN_LAST_SAMPLE);
        batch_sample(&batch, &GREEDY);
        for (uint32_t row = 0; i == 2 && row < 40; row++)
            batch_row(&batch, 2, row, row);
        batch_run(&world, &batch, samples);
    }
    expect(samples[0].errors == 0 && samples[1].errors == 0, "errors", samples[0].errors);
    for (uint32_t rows = 8; rows <= 60; rows += 26) { /* whole layers by one kernel */
        batch_start(&batch);
        for (uint32_t row = 0; row < rows; row++)
            batch_row(&batch, 3, row, row);
        batch_sample(&batch, &GREEDY);
        batch_run(&world, &batch, samples);
    }
    test_refusal(&world);
    world_close(&world);
}

static void test_shape(const struct step_shape *shape)
{
    struct step_world world;
    world_open(&world, shape, 128, BORDER_LENGTH + 15);
    world_start(&world, ROWS, true);
    printf("shape %s on %s\n", shape->name, world.backend->name);
    world_map(&world, 0);
    uint64_t whole = prefill(&world, 0, 5, LENGTH, LENGTH).logits_hash;
    test_chunks(&world, whole);
    batch_start(&batch);
    batch_row(&batch, 0, LENGTH, token_of(&world, 5, 999));
    batch_sample(&batch, &GREEDY);
    batch_run(&world, &batch, samples);
    uint64_t alone = samples[0].logits_hash;
    world.shuffle = 12347;
    world_map(&world, 0);
    expect(prefill(&world, 0, 5, LENGTH, LENGTH).logits_hash == whole, "shuffled blocks", 0);
    test_batches(&world, alone);
    test_persistent(&world, shape->width >= 1024);
    if (shape->width >= 1024)
        test_many(&world);
    world_start(&world, ROWS, false);
    test_flight(&world);
    test_refusal(&world);
    world_close(&world);
    test_nan(shape, BACKEND_FAULT_NAN);
    test_nan(shape, BACKEND_FAULT_NEGATIVE_NAN);
}

int main(int count, char **arguments)
{
    static const struct step_shape shapes[] = {
        {"tiny", 2, 128, 256, 4, 2, 64, 1000},
        {"smollm2-2-layers", 2, 576, 1536, 9, 3, 64, 49152},
        {"head-dim-128", 2, 1024, 2816, 8, 2, 128, 32000},
        {"llama-1b-2-layers", 2, 2048, 8192, 32, 8, 64, 128256},
    };
    bool small = count > 1 && strcmp(arguments[1], "small") == 0;
    bool least = count > 1 && strcmp(arguments[1], "least") == 0;
    if (least)
        test_least(&shapes[0]);
    for (uint32_t i = 0; i < (least ? 0 : small ? 1 : sizeof shapes / sizeof *shapes); i++)
        test_shape(&shapes[i]);
    printf("steps: %s (%d failures)\n", failures == 0 ? "all good" : "FAILED", failures);
    return failures == 0 ? 0 : 1;
}
