#include "kernels/cpu/matrix.h"

#include "common/check.h"
#include "common/float16.h"
#include "kernels/cpu/device.h"

#include <stdlib.h>
#include <string.h>

enum { PACKED_COLUMNS = 128, Q8_0_BYTES = 34, Q4_0_BYTES = 18, Q4_1_BYTES = 20, HALF_BYTES = 2 };

/* A panel being packed: the source rows, NULL where the panel is longer than the matrix: its memory
 * is zero and stays so. */
struct panel_source {
    const uint8_t *rows[PANEL_ROWS];
};

/* All three: copies of fixed size, which the compiler turns into a load and a store, and few enough
 * columns at a time for the L1 cache. */
static void pack_words_panel(const struct panel_source *source, uint32_t columns, uint32_t *output)
{
    for (uint64_t first = 0; first < columns; first += PACKED_COLUMNS) {
        uint64_t end = columns - first < PACKED_COLUMNS ? columns : first + PACKED_COLUMNS;
        for (uint32_t r = 0; r < PANEL_ROWS && source->rows[r] != NULL; r++) {
            for (uint64_t k = first; k < end; k++)
                memcpy(&output[k * PANEL_ROWS + r], source->rows[r] + k * sizeof *output,
                       sizeof *output);
        }
    }
}

static void pack_halves_panel(const struct panel_source *source, uint32_t columns, uint16_t *output)
{
    for (uint64_t first = 0; first < columns; first += PACKED_COLUMNS) {
        uint64_t end = columns - first < PACKED_COLUMNS ? columns : first + PACKED_COLUMNS;
        for (uint32_t r = 0; r < PANEL_ROWS && source->rows[r] != NULL; r++) {
            for (uint64_t k = first; k < end; k++)
                memcpy(&output[k * PANEL_ROWS + r], source->rows[r] + k * sizeof *output,
                       sizeof *output);
        }
    }
}

/* Words of two neighbours, the first one in the upper half. */
static void pack_bf16_panel(const struct panel_source *source, uint32_t columns, uint32_t *output)
{
    for (uint64_t first = 0; first < columns; first += PACKED_COLUMNS) {
        uint64_t end = columns - first < PACKED_COLUMNS ? columns : first + PACKED_COLUMNS;
        for (uint32_t r = 0; r < PANEL_ROWS && source->rows[r] != NULL; r++) {
            for (uint64_t k = first; k < end; k += 2) {
                uint16_t pair[2] = {0};
                memcpy(pair, source->rows[r] + k * HALF_BYTES,
                       end - k == 1 ? HALF_BYTES : sizeof pair);
                output[k / 2 * PANEL_ROWS + r] = (uint32_t)pair[0] << 16 | pair[1];
            }
        }
    }
}

/* The low nibbles of bytes 0, 2, 4 and 6 side by side. */
static uint32_t squeeze_nibbles(uint64_t bytes)
{
    uint64_t pairs = bytes & UINT64_C(0x000F000F000F000F);
    pairs = (pairs | pairs >> 12) & UINT64_C(0x000000FF000000FF);
    return (uint32_t)(pairs | pairs >> 24) & 0xFFFFu;
}

/* Word v of a row: nibbles of k = 8v.. in the order that matrix.h shows. The file keeps k and k +
 * 16 in one byte. */
static uint32_t pack_nibbles(const uint8_t *bytes, uint32_t v)
{
    uint64_t eight;
    memcpy(&eight, bytes + 8 * (v % 2), sizeof eight);
    eight >>= v < Q4_WORDS / 2 ? 0 : 4;
    return squeeze_nibbles(eight) | squeeze_nibbles(eight >> 8) << 16;
}

static uint32_t unpack_nibble(uint32_t word, uint32_t i)
{
    return word >> (4 * (i / 2) + 16 * (i % 2)) & 15u;
}

/* Byte of a word that holds k = 4v + i. */
static uint32_t byte_place(uint32_t i)
{
    static const uint8_t places[4] = {0, 2, 1, 3};
    return places[i];
}

static uint32_t pack_bytes(const uint8_t *bytes, uint32_t v)
{
    uint32_t word;
    memcpy(&word, bytes + 4 * v, sizeof word);
    return (word & 0xFF0000FFu) | (word & 0xFF00u) << 8 | (word & 0xFF0000u) >> 8;
}

static void pack_q4_0(const uint8_t *block, uint32_t r, struct panel_block_q4_0 *output)
{
    memcpy(&output->scale[r], block, HALF_BYTES);
    for (uint32_t v = 0; v < Q4_WORDS; v++)
        output->q[v][r] = pack_nibbles(block + HALF_BYTES, v);
}

static void pack_q4_1(const uint8_t *block, uint32_t r, struct panel_block_q4_1 *output)
{
    memcpy(&output->scale[r], block, HALF_BYTES);
    memcpy(&output->minimum[r], block + HALF_BYTES, HALF_BYTES);
    for (uint32_t v = 0; v < Q4_WORDS; v++)
        output->q[v][r] = pack_nibbles(block + 2 * HALF_BYTES, v);
}

static void pack_q8_0(const uint8_t *block, uint32_t r, struct panel_block_q8_0 *output)
{
    memcpy(&output->scale[r], block, HALF_BYTES);
    for (uint32_t v = 0; v < Q8_WORDS; v++)
        output->q[v][r] = pack_bytes(block + HALF_BYTES, v);
}

static void pack_quantized_panel(const struct panel_source *source, uint32_t type, uint32_t blocks,
                                 uint8_t *output)
{
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        const uint8_t *row = source->rows[r];
        for (uint32_t b = 0; row != NULL && b < blocks; b++) {
            if (type == WEIGHT_TYPE_Q4_0)
                pack_q4_0(row + b * Q4_0_BYTES, r, (struct panel_block_q4_0 *)output + b);
            else if (type == WEIGHT_TYPE_Q4_1)
                pack_q4_1(row + b * Q4_1_BYTES, r, (struct panel_block_q4_1 *)output + b);
            else
                pack_q8_0(row + b * Q8_0_BYTES, r, (struct panel_block_q8_0 *)output + b);
        }
    }
}

struct pack_job {
    const struct matrix_source *source;
    struct cpu_matrix *matrix;
};

static struct panel_source panel_source_at(const struct matrix_source *source, uint32_t panel)
{
    struct panel_source rows = {{NULL}};
    uint64_t row_bytes = weight_row_bytes(source->type, source->columns);
    for (uint32_t r = 0; r < PANEL_ROWS; r++) {
        uint64_t row = (uint64_t)panel * PANEL_ROWS + r;
        if (row >= source->rows)
            break;
        if (source->row_order != NULL)
            row = source->row_order[row];
        CHECK(row < source->rows);
        rows.rows[r] = (const uint8_t *)source->bytes + row * row_bytes;
    }
    return rows;
}

static void pack_panels(const void *context, uint32_t begin, uint32_t end)
{
    const struct pack_job *job = context;
    uint32_t type = job->source->type, columns = job->source->columns;
    for (uint32_t panel = begin; panel < end; panel++) {
        struct panel_source rows = panel_source_at(job->source, panel);
        uint8_t *output = panel_at(&job->matrix->base, panel);
        if (type == WEIGHT_TYPE_F32)
            pack_words_panel(&rows, columns, (uint32_t *)output);
        else if (type == WEIGHT_TYPE_BF16)
            pack_bf16_panel(&rows, columns, (uint32_t *)output);
        else if (type == WEIGHT_TYPE_F16)
            pack_halves_panel(&rows, columns, (uint16_t *)output);
        else
            pack_quantized_panel(&rows, type, columns / QUANTIZED_BLOCK_WEIGHTS, output);
    }
}

static uint32_t unit_count_of_rows(uint32_t rows)
{
    const struct matrix matrix = {.rows = rows};
    return unit_count(&matrix);
}

/* Units of a part before unit `unit` of the whole product, of which `before` are of other parts. */
static uint32_t units_until(uint32_t unit, uint32_t before, uint32_t units)
{
    uint32_t own = unit > before ? unit - before : 0;
    return own < units ? own : units;
}

/* Cuts the panels into pieces where the parts of the threads of two nodes meet in the product. */
static void cut_pieces(const struct cpu_backend *cpu, const struct matrix_source *source,
                       struct cpu_matrix *matrix)
{
    uint32_t units = unit_count(&matrix->base), before = 0, together = 0, first = 0;
    CHECK(source->part < MATMUL_PARTS_MAX);
    for (uint32_t i = 0; i < MATMUL_PARTS_MAX; i++) {
        before += i < source->part ? unit_count_of_rows(source->part_rows[i]) : 0;
        together += unit_count_of_rows(source->part_rows[i]);
    }
    together = together > 0 ? together : units;
    CHECK(before + units <= together);
    for (uint32_t place = 0; place < cpu->placement.count; place++) {
        uint32_t thread = cpu->placement.place[place].threads_end;
        uint32_t end = units_until(cpu_matmul_first_unit(cpu, together, thread), before, units);
        end = end < units ? end * UNIT_PANELS : panel_count(&matrix->base);
        if (end > first)
            matrix->piece[matrix->pieces++] =
                (struct panel_piece){.first = first, .end = end, .place = place};
        first = end;
    }
    CHECK(first == panel_count(&matrix->base));
}

static enum status reserve_pieces(struct cpu_backend *cpu, struct cpu_matrix *matrix)
{
    for (uint32_t i = 0; i < matrix->pieces; i++) {
        struct panel_piece *piece = &matrix->piece[i];
        uint64_t bytes = (piece->end - piece->first) * panel_bytes(&matrix->base);
        void *panels = NULL;
        enum status status = memory_cut(&cpu->weights[piece->place], bytes, &panels);
        if (status != STATUS_OK)
            return status;
        piece->panels = panels;
    }
    return STATUS_OK;
}

enum status cpu_matrix_load(struct backend *backend, const struct matrix_source *source,
                            struct matrix **out_matrix)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    if (weight_row_bytes(source->type, source->columns) == 0 || source->rows == 0)
        return STATUS_UNSUPPORTED;
    struct cpu_matrix *matrix =
        calloc(1, sizeof *matrix + cpu->placement.count * sizeof matrix->piece[0]);
    if (matrix == NULL)
        return STATUS_OUT_OF_MEMORY;
    matrix->base.type = source->type;
    matrix->base.rows = source->rows;
    matrix->base.columns = source->columns;
    matrix->base.bytes = panel_count(&matrix->base) * panel_bytes(&matrix->base);
    cut_pieces(cpu, source, matrix);
    enum status status = reserve_pieces(cpu, matrix);
    if (status != STATUS_OK) {
        cpu_matrix_free(backend, &matrix->base);
        return status;
    }
    struct pack_job job = {source, matrix};
    pool_run(cpu->pool, pack_panels, &job, panel_count(&matrix->base), 1);
    *out_matrix = &matrix->base;
    return STATUS_OK;
}

void cpu_matrix_free(struct backend *backend, struct matrix *matrix)
{
    if (matrix == NULL)
        return;
    struct cpu_matrix *cpu_matrix = (struct cpu_matrix *)matrix;
    for (uint32_t i = 0; i < cpu_matrix->pieces; i++)
        memory_return(&cpu_backend_of(backend)->weights[cpu_matrix->piece[i].place],
                      cpu_matrix->piece[i].panels);
    free(cpu_matrix);
}

static float panel_weight(const struct matrix *matrix, const uint8_t *panel, uint32_t r, uint32_t k)
{
    uint64_t element = (uint64_t)k * PANEL_ROWS + r;
    uint32_t block = k / QUANTIZED_BLOCK_WEIGHTS, i = k % QUANTIZED_BLOCK_WEIGHTS;
    switch (matrix->type) {
    case WEIGHT_TYPE_F32:
        return ((const float *)panel)[element];
    case WEIGHT_TYPE_F16:
        return fp16_to_float(((const uint16_t *)panel)[element]);
    case WEIGHT_TYPE_BF16:
        return bf16_to_float(((const uint16_t *)panel)[bf16_place(r, k)]);
    case WEIGHT_TYPE_Q8_0: {
        const struct panel_block_q8_0 *b = (const struct panel_block_q8_0 *)panel + block;
        int8_t q = (int8_t)(uint8_t)(b->q[i / 4][r] >> (8 * byte_place(i % 4)));
        return fp16_to_float(b->scale[r]) * (float)q;
    }
    case WEIGHT_TYPE_Q4_0: {
        const struct panel_block_q4_0 *b = (const struct panel_block_q4_0 *)panel + block;
        float q = (float)unpack_nibble(b->q[i / 8][r], i % 8) - (float)Q4_0_ZERO;
        return fp16_to_float(b->scale[r]) * q;
    }
    default: {
        const struct panel_block_q4_1 *b = (const struct panel_block_q4_1 *)panel + block;
        float q = (float)unpack_nibble(b->q[i / 8][r], i % 8);
        return fp16_to_float(b->scale[r]) * q + fp16_to_float(b->minimum[r]);
    }
    }
}

void panel_row_to_float(const struct matrix *matrix, uint32_t row, float *output)
{
    const uint8_t *panel = panel_at(matrix, row / PANEL_ROWS);
    for (uint32_t k = 0; k < matrix->columns; k++)
        output[k] = panel_weight(matrix, panel, row % PANEL_ROWS, k);
}
