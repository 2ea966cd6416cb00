/* Work of a matmul: all panels of all parts times all row tiles. A tile's activations stay in the
 * L2 cache while the panels stream by; with few rows there is one tile and every weight is read
 * from memory once. Each output is one chain over k ascending, so neither tiles nor shares can
 * change a bit. */
#include "kernels/cpu/device.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/prepared.h"

#include "common/check.h"

#include <string.h>

enum {
    SHARES_PER_THREAD =
        6, /* few enough to amortize taking one, enough for the last ones to even out */
    ROW_UNIT = 4,
};

struct matmul_job {
    const struct matmul_args *args;
    const struct cpu_kernels *kernels;
    uint32_t panels; /* of all parts */
    uint32_t tiles;
    uint32_t tile_rows; /* of all tiles but the last */
};

/* Writes the panel's 16 columns of the tile to the output; the last panel may be longer than the
 * matrix. */
static void store_panel(const float *tile, uint32_t rows, uint32_t width, uint32_t row_stride,
                        float *output)
{
    for (uint32_t row = 0; row < rows; row++)
        memcpy(output + (uint64_t)row * row_stride, tile + (uint64_t)row * PANEL_ROWS,
               width * sizeof *tile);
}

static void multiply_panel(const struct matmul_job *job, const struct matmul_part *part,
                           uint32_t panel, uint32_t first_row)
{
    const struct matmul_args *args = job->args;
    const struct matrix *matrix = part->matrix;
    _Alignas(64) float tile[MATMUL_TILE_ROWS * PANEL_ROWS];
    uint32_t rows_left = args->rows - first_row;
    struct matmul_share share = {
        .columns = args->columns,
        .rows = rows_left < job->tile_rows ? rows_left : job->tile_rows,
        .input = args->input + (uint64_t)first_row * args->columns,
        .prepared = (const uint8_t *)args->prepared + first_row * prepared_row_bytes(args->columns),
        .output = tile,
    };
    const struct matmul_kernels *kernels = &job->kernels->matmul[matrix->type];
    matmul_panel multiply = share.rows <= MATMUL_FEW_ROWS ? kernels->few : kernels->many;
    multiply(panel_at(matrix, panel), &share);
    uint32_t column = panel * PANEL_ROWS;
    uint32_t width = matrix->rows - column < PANEL_ROWS ? matrix->rows - column : PANEL_ROWS;
    store_panel(tile, share.rows, width, matrix->rows,
                part->output + (uint64_t)first_row * matrix->rows + column);
}

/* Item = tile x panel of all parts; tiles outermost. */
static void matmul_items(const void *context, uint32_t begin, uint32_t end)
{
    const struct matmul_job *job = context;
    for (uint32_t item = begin; item < end; item++) {
        uint32_t panel = item % job->panels, part = 0;
        while (panel >= panel_count(job->args->parts[part].matrix)) {
            panel -= panel_count(job->args->parts[part].matrix);
            part++;
        }
        multiply_panel(job, &job->args->parts[part], panel, item / job->panels * job->tile_rows);
    }
}

void cpu_matmul(struct backend *backend, const struct matmul_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    if (args->rows == 0)
        return;
    struct matmul_job job = {.args = args, .kernels = cpu->kernels};
    CHECK(args->part_count >= 1 && args->part_count <= MATMUL_PARTS_MAX);
    for (uint32_t part = 0; part < args->part_count; part++) {
        CHECK(args->parts[part].matrix->columns == args->columns);
        job.panels += panel_count(args->parts[part].matrix);
    }
    job.tiles = (args->rows + MATMUL_TILE_ROWS - 1) / MATMUL_TILE_ROWS;
    uint32_t even = (args->rows + job.tiles - 1) / job.tiles;
    job.tile_rows = (even + ROW_UNIT - 1) / ROW_UNIT * ROW_UNIT;
    job.tiles = (args->rows + job.tile_rows - 1) / job.tile_rows;
    uint32_t items = job.panels * job.tiles;
    uint32_t shares = pool_threads(cpu->pool) * SHARES_PER_THREAD;
    pool_run(cpu->pool, matmul_items, &job, items, (items + shares - 1) / shares);
}
