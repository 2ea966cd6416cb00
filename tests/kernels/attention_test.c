/* Paged attention: right against double precision, and the same bits whatever the layout, the batch
 * and the chunks. The names carry the ids of the regression rows that they show. */
#define XXH_INLINE_ALL
#include "common/check.h"
#include "kernels/scene.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>
#include <cmocka.h>

#define ATTENTION_CPU_1 UINT64_C(0xc8cedb0083092bd9)

enum { OUTPUTS_MAX = 16 * 256 };

static const struct scene_options small = {.heads = 9,
                                           .kv_heads = 3,
                                           .head_dim = 64,
                                           .block_tokens = 16,
                                           .type = KV_TYPE_F16,
                                           .layers = 2,
                                           .slots = 2,
                                           .context = 600,
                                           .shuffle = 5};

static uint32_t outputs_of(const struct scene_options *options)
{
    return options->heads * options->head_dim;
}

/* One row over a freshly written sequence. */
static void attend_one(struct backend *backend, const struct scene_options *options, uint32_t layer,
                       struct scene_row row, float *output)
{
    struct scene scene;
    scene_open(&scene, backend, options);
    scene_write(&scene, layer, row.slot, 0, row.position + 1);
    scene_attend(&scene, layer, &row, 1, false, output);
    scene_close(&scene);
}

/* One row on every subject: within the bound, and the bits of the first subject of the family. */
static void check_row_on_all(const char *name, const struct scene_options *options,
                             struct scene_row row)
{
    uint32_t count = outputs_of(options);
    struct expectation *expected = malloc(count * sizeof *expected);
    float *output = malloc(count * sizeof *output), *first = malloc(count * sizeof *first);
    const char *family = NULL;
    CHECK(expected != NULL && output != NULL && first != NULL);
    scene_expect(options, 1, row, expected);
    for (size_t s = 0; s < subject_count; s++) {
        char what[160];
        struct backend *backend = subject_open(&subjects[s]);
        if (backend == NULL)
            continue;
        attend_one(backend, options, 1, row, output);
        backend_close(backend);
        snprintf(what, sizeof what, "%s, position %u, %s", name, row.position, subjects[s].name);
        bool same_family = family != NULL && strcmp(family, subjects[s].family) == 0;
        assert_close(what, output, expected, count);
        if (same_family) {
            assert_same_bits(what, output, first, count * sizeof *output);
        } else {
            family = subjects[s].family;
            memcpy(first, output, count * sizeof *first);
        }
    }
    free(first);
    free(output);
    free(expected);
}

/* The last block is read only as far as the sequence goes: what lies behind is NaN. */
static void s24_s25_every_length_reads_exactly_its_keys(void **state)
{
    static const uint32_t lengths[] = {1,  2,  15,  16,  17,  31,  32,  63,  64, 65,
                                       79, 80, 255, 256, 257, 511, 512, 513, 600};
    (void)state;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++)
        check_row_on_all("length", &small, (struct scene_row){1, lengths[i] - 1});
}

static void s24_lengths_2047_and_2048(void **state)
{
    struct scene_options options = small;
    (void)state;
    options.context = 2048;
    check_row_on_all("long", &options, (struct scene_row){0, 2046});
    check_row_on_all("long", &options, (struct scene_row){0, 2047});
}

/* Head sizes, grouping, pool types: all derived from the geometry. */
static void s2_s21_s29_s32_shapes(void **state)
{
    static const uint32_t shapes[][3] = {{9, 3, 64},  {8, 8, 64}, {4, 2, 128}, {8, 2, 128},
                                         {5, 1, 128}, {7, 1, 40}, {6, 3, 8},   {2, 1, 256},
                                         {3, 3, 96},  {16, 2, 64}};
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        for (uint32_t type = KV_TYPE_F16; type <= KV_TYPE_F32; type++) {
            struct scene_options options = small;
            options.heads = shapes[i][0];
            options.kv_heads = shapes[i][1];
            options.head_dim = shapes[i][2];
            options.type = type;
            options.context = 320;
            check_row_on_all("shape", &options, (struct scene_row){1, 100});
            check_row_on_all("shape", &options, (struct scene_row){0, 300});
        }
    }
}

/* Each query head must read the kv head of its own group: swapping two groups would go unnoticed
 * with equal content. */
static void s21_query_heads_read_their_own_kv_head(void **state)
{
    (void)state;
    struct expectation expected[OUTPUTS_MAX];
    scene_expect(&small, 1, (struct scene_row){1, 40}, expected);
    for (uint32_t head = 3; head < small.heads; head += 3) {
        bool differs = false;
        for (uint32_t dim = 0; dim < small.head_dim; dim++)
            differs = differs || fabs(expected[head * small.head_dim + dim].value -
                                      expected[dim].value) > 0.01;
        assert_true(differs); /* the content tells heads apart */
    }
    check_row_on_all("grouping", &small, (struct scene_row){1, 40});
}

/* Scores that rise and fall by hundreds: the running maximum rescales what came before. */
static void s30_online_softmax_survives_large_scores(void **state)
{
    struct scene_options options = small;
    (void)state;
    for (float amplitude = 4; amplitude <= 64; amplitude *= 4) {
        options.amplitude = amplitude;
        check_row_on_all("amplitude", &options, (struct scene_row){0, 599});
    }
}

/* Prompt rows: all keys of the chunk are in the pool, many of them masked for the early rows,
 * neighbours too. The article's system merged two masked scores to NaN. */
static void masked_neighbours_do_not_reach_a_row(void **state)
{
    enum { LENGTH = 80 };
    (void)state;
    uint32_t count = outputs_of(&small);
    float *together = malloc(LENGTH * count * sizeof *together);
    struct expectation *expected = malloc(LENGTH * count * sizeof *expected);
    struct scene_row rows[LENGTH];
    for (uint32_t i = 0; i < LENGTH; i++) {
        rows[i] = (struct scene_row){1, i};
        scene_expect(&small, 1, rows[i], expected + (size_t)i * count);
    }
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        struct scene scene;
        if (backend == NULL)
            continue;
        scene_open(&scene, backend, &small);
        scene_write(&scene, 1, 1, 0, LENGTH);
        scene_attend(&scene, 1, rows, LENGTH, true, together);
        assert_close("prompt rows", together, expected, (size_t)LENGTH * count);
        scene_close(&scene);
        backend_close(backend);
    }
    free(expected);
    free(together);
}

/* A row of a prompt, computed among all others, equals the same position decoded alone after its
 * keys arrived one by one. 530 rows exceed the memory for split work and take the other path. */
static void s23_prefill_row_equals_decode_row(void **state)
{
    enum { LENGTH = 530 };
    static const uint32_t probes[] = {0, 1, 15, 16, 17, 63, 64, 255, 256, 257, 511, 512, 513, 529};
    struct scene_options options = small;
    (void)state;
    options.context = LENGTH;
    uint32_t count = outputs_of(&options);
    float *together = malloc(LENGTH * count * sizeof *together), alone[OUTPUTS_MAX];
    struct scene_row rows[LENGTH];
    for (uint32_t i = 0; i < LENGTH; i++)
        rows[i] = (struct scene_row){1, i};
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        struct scene prompt, decode;
        if (backend == NULL)
            continue;
        scene_open(&prompt, backend, &options);
        scene_write(&prompt, 1, 1, 0, LENGTH);
        scene_attend(&prompt, 1, rows, LENGTH, false, together);
        scene_open(&decode, backend, &options);
        uint32_t written = 0;
        for (size_t p = 0; p < sizeof probes / sizeof *probes; p++) {
            while (written <= probes[p]) {
                uint32_t left = probes[p] + 1 - written, piece = left < 37 ? 1 : 31;
                scene_write(&decode, 1, 1, written, piece);
                written += piece;
            }
            scene_attend(&decode, 1, &rows[probes[p]], 1, true, alone);
            assert_same_bits(subjects[s].name, alone, together + (size_t)probes[p] * count,
                             count * sizeof *alone);
        }
        scene_close(&decode);
        scene_close(&prompt);
        backend_close(backend);
    }
    free(together);
}

/* Rows of two sequences, interleaved and in reverse, with a free slot in front: row index and slot
 * are two spaces. */
static void s22_batch_rows_and_slots_are_two_spaces(void **state)
{
    struct scene_options options = small;
    (void)state;
    options.slots = 4;
    options.context = 300;
    static const struct scene_row batch[] = {{3, 299}, {1, 20}, {3, 16}, {1, 0}, {2, 130}};
    enum { ROWS = sizeof batch / sizeof *batch };
    uint32_t count = outputs_of(&options);
    float together[ROWS * 9 * 64], alone[9 * 64];
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        struct scene scene;
        if (backend == NULL)
            continue;
        scene_open(&scene, backend, &options); /* slot 0 stays empty: NaN */
        for (uint32_t slot = 1; slot < options.slots; slot++)
            scene_write(&scene, 0, slot, 0, options.context);
        scene_attend(&scene, 0, batch, ROWS, false, together);
        for (uint32_t row = 0; row < ROWS; row++) {
            struct expectation expected[OUTPUTS_MAX];
            scene_expect(&options, 0, batch[row], expected);
            assert_close(subjects[s].name, together + (size_t)row * count, expected, count);
            scene_attend(&scene, 0, &batch[row], 1, false, alone);
            assert_same_bits(subjects[s].name, alone, together + (size_t)row * count,
                             count * sizeof *alone);
        }
        scene_close(&scene);
        backend_close(backend);
    }
}

/* Rows at consecutive positions share what they read. Chunks of all lengths over the border of two
 * segments, between rows of other sequences whose positions would fit in: each row has the bits
 * that it has alone. */
static void check_chunks(uint32_t heads)
{
    enum { FIRST = 240, CHUNK_MAX = 40, ROWS_MAX = CHUNK_MAX + 3 };
    struct scene_options options = small;
    options.heads = heads;
    options.slots = 3;
    uint32_t count = outputs_of(&options);
    float *alone = malloc((FIRST + CHUNK_MAX) * count * sizeof *alone);
    float *together = malloc(ROWS_MAX * count * sizeof *together), before[9 * 64], after[9 * 64];
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        struct scene scene;
        if (backend == NULL)
            continue;
        scene_open(&scene, backend, &options);
        for (uint32_t slot = 0; slot < options.slots; slot++)
            scene_write(&scene, 0, slot, 0, FIRST + CHUNK_MAX + 2);
        for (uint32_t position = FIRST; position < FIRST + CHUNK_MAX; position++)
            scene_attend(&scene, 0, &(struct scene_row){1, position}, 1, false,
                         alone + (size_t)position * count);
        for (uint32_t chunk = 1; chunk <= CHUNK_MAX; chunk += chunk < 10 ? 1 : 5) {
            struct scene_row rows[ROWS_MAX] = {{0, FIRST - 1}};
            for (uint32_t i = 0; i < chunk; i++)
                rows[1 + i] = (struct scene_row){1, FIRST + i};
            rows[1 + chunk] = (struct scene_row){2, FIRST + chunk};
            scene_attend(&scene, 0, &rows[0], 1, false, before);
            scene_attend(&scene, 0, &rows[1 + chunk], 1, false, after);
            scene_attend(&scene, 0, rows, chunk + 2, chunk % 2 == 0, together);
            assert_same_bits(subjects[s].name, together, before, count * sizeof *together);
            assert_same_bits(subjects[s].name, together + count, alone + (size_t)FIRST * count,
                             chunk * count * sizeof *together);
            assert_same_bits(subjects[s].name, together + (1 + chunk) * count, after,
                             count * sizeof *together);
        }
        scene_close(&scene);
        backend_close(backend);
    }
    free(together);
    free(alone);
}

/* With one or two query heads to a kv head a block of queries holds several rows. */
static void chunks_between_neighbours_equal_single_rows(void **state)
{
    (void)state;
    for (uint32_t heads = small.kv_heads; heads <= small.heads; heads += small.kv_heads)
        check_chunks(heads);
}

/* More query heads per kv head than are computed together, several segments. */
static void many_query_heads_of_one_kv_head(void **state)
{
    struct scene_options options = small;
    (void)state;
    options.heads = 56;
    options.kv_heads = 2;
    options.head_dim = 16;
    check_row_on_all("many heads", &options, (struct scene_row){1, 77});
    check_row_on_all("many heads", &options, (struct scene_row){0, 599});
}

static void s31_in_place_equals_out_of_place(void **state)
{
    static const struct scene_row rows[] = {{0, 5}, {1, 599}, {0, 300}};
    (void)state;
    float apart[3 * 9 * 64], in_place[3 * 9 * 64];
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        struct scene scene;
        if (backend == NULL)
            continue;
        scene_open(&scene, backend, &small);
        scene_write(&scene, 1, 0, 0, 301);
        scene_write(&scene, 1, 1, 0, 600);
        scene_attend(&scene, 1, rows, 3, false, apart);
        scene_attend(&scene, 1, rows, 3, true, in_place);
        assert_same_bits(subjects[s].name, in_place, apart, sizeof apart);
        scene_close(&scene);
        backend_close(backend);
    }
}

/* Where blocks lie, and how large they are, changes no bit. */
static void s1_s33_block_order_and_size_do_not_matter(void **state)
{
    static const uint32_t block_tokens[] = {16, 8, 32, 64};
    (void)state;
    struct scene_row row = {1, 570};
    float reference[9 * 64], output[9 * 64];
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        struct scene_options options = small;
        if (backend == NULL)
            continue;
        options.shuffle = 0;
        attend_one(backend, &options, 1, row, reference);
        for (uint64_t seed = 1; seed <= 8; seed++) {
            options.shuffle = seed;
            options.block_tokens = block_tokens[seed % 4];
            attend_one(backend, &options, 1, row, output);
            assert_same_bits(subjects[s].name, output, reference, sizeof output);
        }
        backend_close(backend);
    }
}

/* The same logical block of two layers is two physical blocks. */
static void s11_layers_do_not_share_blocks(void **state)
{
    (void)state;
    struct scene_row row = {0, 33};
    float output[9 * 64];
    struct expectation expected[OUTPUTS_MAX];
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        struct scene scene;
        if (backend == NULL)
            continue;
        scene_open(&scene, backend, &small);
        for (uint32_t layer = 0; layer < small.layers; layer++)
            scene_write(&scene, layer, 0, 0, 34);
        for (uint32_t layer = 0; layer < small.layers; layer++) {
            scene_expect(&small, layer, row, expected);
            scene_attend(&scene, layer, &row, 1, false, output);
            assert_close(subjects[s].name, output, expected, 9 * 64);
        }
        scene_close(&scene);
        backend_close(backend);
    }
}

/* A block that served another sequence keeps that one's values behind the new one's end. */
static void s16_a_reused_block_shows_nothing_of_its_past(void **state)
{
    (void)state;
    struct scene_row row = {1, 20};
    float fresh[9 * 64], reused[9 * 64];
    for (size_t s = 0; s < subject_count; s++) {
        struct backend *backend = subject_open(&subjects[s]);
        struct scene scene;
        if (backend == NULL)
            continue;
        attend_one(backend, &small, 0, row, fresh);
        scene_open(&scene, backend, &small);
        uint64_t blocks = scene.kv.logical_blocks;
        memcpy(scene.table + small.layers * blocks, scene.table, blocks * sizeof *scene.table);
        backend->operations->upload(backend, (void *)(uintptr_t)scene.kv.table, scene.table,
                                    small.slots * small.layers * blocks * sizeof *scene.table);
        scene_write(&scene, 0, 0, 0, 600); /* slot 0 used the blocks that slot 1 now has */
        scene_write(&scene, 0, 1, 0, 21);
        scene_attend(&scene, 0, &row, 1, false, reused);
        assert_same_bits(subjects[s].name, reused, fresh, sizeof fresh);
        scene_close(&scene);
        backend_close(backend);
    }
}

/* Sums over threads in another order would show here: many segments, many repetitions. */
static void s27_repetition_gives_the_same_bits(void **state)
{
    struct scene_options options = small;
    (void)state;
    options.context = 2048;
    struct scene_row row = {0, 2047};
    float first[9 * 64], again[9 * 64];
    struct backend *backend = subject_open(&subjects[subject_count - 1]);
    struct scene scene;
    if (backend == NULL)
        return;
    scene_open(&scene, backend, &options);
    scene_write(&scene, 0, 0, 0, 2048);
    scene_attend(&scene, 0, &row, 1, false, first);
    for (int turn = 0; turn < 60; turn++) {
        scene_attend(&scene, 0, &row, 1, true, again);
        assert_same_bits("repetition", again, first, sizeof first);
    }
    scene_close(&scene);
    backend_close(backend);
}

/* Bits of attention over 1 to 600 keys: see ARITHMETIC_CPU_1 in operations_test.c. */
static void attention_has_fixed_bits(void **state)
{
    static const uint32_t positions[] = {0, 15, 16, 63, 64, 255, 256, 300, 599};
    enum { COUNT = sizeof positions / sizeof *positions };
    uint64_t hashes[COUNT];
    float output[9 * 64];
    (void)state;
    struct backend *backend = subject_open(&subjects[0]);
    for (int i = 0; i < COUNT; i++) {
        attend_one(backend, &small, 0, (struct scene_row){0, positions[i]}, output);
        hashes[i] = XXH3_64bits(output, sizeof output);
    }
    backend_close(backend);
    assert_int_equal(XXH3_64bits(hashes, sizeof hashes), ATTENTION_CPU_1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(s24_s25_every_length_reads_exactly_its_keys),
        cmocka_unit_test(s24_lengths_2047_and_2048),
        cmocka_unit_test(s2_s21_s29_s32_shapes),
        cmocka_unit_test(s21_query_heads_read_their_own_kv_head),
        cmocka_unit_test(s30_online_softmax_survives_large_scores),
        cmocka_unit_test(masked_neighbours_do_not_reach_a_row),
        cmocka_unit_test(s23_prefill_row_equals_decode_row),
        cmocka_unit_test(s22_batch_rows_and_slots_are_two_spaces),
        cmocka_unit_test(chunks_between_neighbours_equal_single_rows),
        cmocka_unit_test(many_query_heads_of_one_kv_head),
        cmocka_unit_test(s31_in_place_equals_out_of_place),
        cmocka_unit_test(s1_s33_block_order_and_size_do_not_matter),
        cmocka_unit_test(s11_layers_do_not_share_blocks),
        cmocka_unit_test(s16_a_reused_block_shows_nothing_of_its_past),
        cmocka_unit_test(s27_repetition_gives_the_same_bits),
        cmocka_unit_test(attention_has_fixed_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
