/* Matrices in several pieces, as machines with several memory nodes have them: the places are made
 * up here, the memory is that of the one node there is. tests/numa looks at real nodes. */
#include "kernels/cpu/matrix.h"

#include "common/random.h"
#include "kernels/backend.h"
#include "kernels/cpu/device.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

enum { COLUMNS = 64, PARTS = 3, ROWS_MAX = 700, STEP_ROWS_MAX = 40 };

/* Threads of each place, the last one 0. */
static struct backend *open_backend(const uint32_t *threads)
{
    struct backend_options options = {.kind = BACKEND_CPU, .cpu_isa = CPU_ISA_AUTO};
    struct backend *backend = NULL;
    struct placement placement = {.count = 0};
    for (; threads[placement.count] != 0; placement.count++) {
        options.threads += threads[placement.count];
        placement.place[placement.count].threads_end = options.threads;
    }
    assert_int_equal(backend_open(&options, &backend, NULL), STATUS_OK);
    placement.kept = cpu_backend_of(backend)->placement.kept; /* as it closes */
    cpu_backend_of(backend)->placement = placement;
    return backend;
}

static void load_parts(struct backend *backend, const uint32_t *rows, struct matrix **parts)
{
    static float weights[ROWS_MAX * COLUMNS];
    struct random random = {.state = 3};
    for (uint32_t i = 0; i < PARTS; i++) {
        parts[i] = NULL;
        for (uint32_t w = 0; w < rows[i] * COLUMNS; w++)
            weights[w] = (float)random_below(&random, 1000) / 997 - 0.5F;
        struct matrix_source source = {.type = WEIGHT_TYPE_F32,
                                       .rows = rows[i],
                                       .columns = COLUMNS,
                                       .bytes = weights,
                                       .part = i};
        memcpy(source.part_rows, rows, PARTS * sizeof *rows);
        if (rows[i] > 0)
            assert_int_equal(backend->operations->matrix_load(backend, &source, &parts[i]),
                             STATUS_OK);
    }
}

/* Pieces follow each other without a gap and end where the part of a place's last thread ends in
 * the product of all parts. */
static void check_pieces(const struct backend *backend, const uint32_t *rows,
                         struct matrix *const *parts)
{
    const struct cpu_backend *cpu = (const struct cpu_backend *)backend;
    uint32_t units = 0, before = 0;
    for (uint32_t i = 0; i < PARTS; i++)
        units += rows[i] > 0 ? unit_count(parts[i]) : 0;
    for (uint32_t i = 0; i < PARTS; i++) {
        if (rows[i] == 0)
            continue;
        const struct cpu_matrix *matrix = cpu_matrix_of(parts[i]);
        uint32_t panel = 0;
        for (uint32_t p = 0; p < matrix->pieces; p++) {
            const struct panel_piece *piece = &matrix->piece[p];
            assert_int_equal(piece->first, panel);
            for (; panel < piece->end; panel++) {
                uint32_t unit = before + panel / UNIT_PANELS, place = piece->place;
                uint32_t first = placement_first_thread(&cpu->placement, place);
                uint32_t last = cpu->placement.place[place].threads_end;
                assert_true(unit >= cpu_matmul_first_unit(cpu, units, first));
                assert_true(unit < cpu_matmul_first_unit(cpu, units, last));
                assert_ptr_equal(panel_at(parts[i], panel),
                                 piece->panels + (panel - piece->first) * panel_bytes(parts[i]));
            }
        }
        assert_int_equal(panel, panel_count(parts[i]));
        before += unit_count(parts[i]);
    }
}

static void multiply(struct backend *backend, struct matrix *const *parts, uint32_t rows,
                     float *outputs)
{
    static float input[STEP_ROWS_MAX * COLUMNS];
    struct random random = {.state = 4};
    struct matmul_args args = {.input = input, .rows = rows, .columns = COLUMNS};
    for (uint32_t i = 0; i < rows * COLUMNS; i++)
        input[i] = (float)random_below(&random, 1000) / 991 - 0.5F;
    for (uint32_t i = 0; i < PARTS; i++) {
        if (parts[i] == NULL)
            continue;
        args.next[args.next_count++] = parts[i];
        args.parts[args.part_count++] = (struct matmul_part){parts[i], outputs};
        outputs += (uint64_t)rows * parts[i]->rows;
    }
    backend->operations->matmul(backend, &args);
}

/* Places as threads of each; the first is the reference. */
static const uint32_t places[][5] = {{1}, {1, 1}, {2, 1}, {1, 1, 1}, {3, 1, 2}, {4, 4, 4, 4}};

static void pieces_change_no_bit(void **state)
{
    enum { OUTPUTS = PARTS * STEP_ROWS_MAX * ROWS_MAX };
    static const uint32_t shapes[][PARTS] = {{512, 128, 128}, {300, 300, 0}, {700, 0, 0},
                                             {16, 16, 16},    {1, 33, 40},   {15, 0, 0}};
    float *expected = calloc(OUTPUTS, sizeof *expected),
          *outputs = calloc(OUTPUTS, sizeof *outputs);
    (void)state;
    assert_true(expected != NULL && outputs != NULL);
    for (size_t shape = 0; shape < sizeof shapes / sizeof shapes[0]; shape++)
        for (uint32_t rows = 1; rows <= STEP_ROWS_MAX; rows += 13)
            for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
                struct backend *backend = open_backend(places[i]);
                struct matrix *parts[PARTS];
                load_parts(backend, shapes[shape], parts);
                check_pieces(backend, shapes[shape], parts);
                multiply(backend, parts, rows, i == 0 ? expected : outputs);
                if (i > 0)
                    assert_memory_equal(outputs, expected, OUTPUTS * sizeof *outputs);
                for (uint32_t p = 0; p < PARTS; p++)
                    backend->operations->matrix_free(backend, parts[p]);
                for (uint32_t p = 0; p < cpu_backend_of(backend)->placement.count; p++)
                    assert_null(cpu_backend_of(backend)->weights[p].newest);
                backend_close(backend);
            }
    free(expected);
    free(outputs);
}

/* The parts of a product lie in as many pieces as the places that read them: what all belongs to
 * one place is not cut. */
static void a_part_of_one_place_is_one_piece(void **state)
{
    static const uint32_t pair[] = {1, 1, 0}, rows[PARTS] = {512, 256, 256};
    struct backend *backend = open_backend(pair);
    struct matrix *parts[PARTS];
    (void)state;
    load_parts(backend, rows, parts);
    for (uint32_t i = 0; i < PARTS; i++) {
        assert_int_equal(cpu_matrix_of(parts[i])->pieces, 1);
        assert_int_equal(cpu_matrix_of(parts[i])->piece[0].place, i == 0 ? 0 : 1);
        backend->operations->matrix_free(backend, parts[i]);
    }
    backend_close(backend);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_change_no_bit),
        cmocka_unit_test(a_part_of_one_place_is_one_piece),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
