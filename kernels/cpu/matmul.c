/* Work of a matmul: all pairs of panels of all parts times all row tiles. A tile's activations stay
 * in the L2 cache while the panels stream by; with few rows there is one tile and every weight is
 * read from memory once. Each output is one chain over k ascending, so neither tiles nor shares can
 * change a bit. */
#include "kernels/cpu/device.h"
#include "kernels/cpu/fetch.h"
#include "kernels/cpu/matrix.h"
#include "kernels/cpu/prepared.h"

#include "common/check.h"

#include <stdbool.h>
#include <string.h>

enum {
    SHARE_PRODUCTS = 1 << 20,  /* some 10 us: a hundred times what taking a share costs */
    SHARES_PER_THREAD_MIN = 6, /* of small products, which would be too uneven otherwise */
    TILE_BYTES = 480 << 10,    /* of activations: half of an L2 cache */
    TILE_ROWS_MIN = 24,        /* fewer would read the weights too often */
    ROW_UNIT = 4,              /* or a row tile */
    BEHIND_BYTES = 128 << 10,  /* more than a thread reads between two products of a layer */
};

struct matmul_job {
    const struct matmul_args *args;
    const struct cpu_kernels *kernels;
    uint32_t units; /* of all parts */
    uint32_t tiles;
    uint32_t tile_rows; /* of all tiles but the last */
    uint32_t items, shares;
    const uint8_t *const *pieces; /* to fetch meanwhile, dealt to the items in order */
    uint32_t piece_count, piece_bytes;
};

/* Where a panel's columns of the tile go: 16 of each row, or what the matrix has left of them. */
struct panel_place {
    float *first; /* of the tile's first row */
    uint64_t rows, stride;
    uint32_t width;
};

static struct panel_place place_of(const struct matmul_share *share, const struct matrix *matrix,
                                   uint32_t column, float *output)
{
    uint32_t left = matrix->rows - column;
    return (struct panel_place){
        .first = output + column,
        .rows = share->rows,
        .stride = matrix->rows,
        .width = left < PANEL_ROWS ? left : PANEL_ROWS,
    };
}

/* Rows are a matrix apart: their lines come from afar, and arrive while the products are made. */
static void fetch_place(const struct panel_place *place)
{
    for (uint64_t row = 0; row < place->rows; row++)
        __builtin_prefetch(place->first + row * place->stride, 1, 2);
}

static void store_panel(const struct panel_place *place, const float *tile)
{
    for (uint64_t row = 0; row < place->rows; row++) {
        float *to = place->first + row * place->stride;
        const float *from = tile + row * PANEL_ROWS;
        if (place->width == PANEL_ROWS)
            memcpy(to, from, PANEL_ROWS * sizeof *to); /* of a length that the compiler knows */
        else
            memcpy(to, from, place->width * sizeof *to);
    }
}

/* Columns and input of a share of BF16 weights. */
static void take_bf16_rows(const struct matmul_job *job, uint32_t first_row,
                           struct matmul_share *share)
{
    const struct matmul_args *args = job->args;
    const uint8_t *rows = bf16_rows_at(args->prepared, args->columns, args->rows) +
                          first_row * bf16_row_bytes(job->kernels, args->columns);
    share->columns = bf16_columns(args->columns);
    share->input = (const float *)rows;
    share->pairs = (const uint32_t *)rows;
}

/* Of the pieces of a unit those that fall to panel `p` of its `panels`. */
static struct fetch_walk panel_walk(const struct fetch_walk *unit, uint32_t p, uint32_t panels)
{
    struct fetch_walk walk = *unit;
    uint32_t first = unit->pieces * p / panels;
    walk.piece += first;
    walk.pieces = unit->pieces * (p + 1) / panels - first;
    return walk;
}

/* The unit that begins at `panel` for the tile that starts at `first_row`. Pairs write
 * to their place; the kernels of one panel, which keep their chains in memory, to a tile in the L1
 * cache. */
static void multiply_panels(const struct matmul_job *job, const struct matmul_part *part,
                            uint32_t panel, uint32_t first_row, struct fetch_walk *walk)
{
    const struct matmul_args *args = job->args;
    const struct matrix *matrix = part->matrix;
    uint32_t panels = panel_count(matrix) - panel;
    panels = panels < UNIT_PANELS ? panels : UNIT_PANELS;
    _Alignas(64) float tile[MATMUL_TILE_ROWS * PANEL_ROWS];
    float *output = part->output + (uint64_t)first_row * matrix->rows;
    uint32_t rows_left = args->rows - first_row, column = panel * PANEL_ROWS;
    struct matmul_share share = {
        .columns = args->columns,
        .rows = rows_left < job->tile_rows ? rows_left : job->tile_rows,
        .panel_bytes = panel_bytes(matrix),
        .input = args->input + (uint64_t)first_row * args->columns,
        .prepared = (const uint8_t *)args->prepared + first_row * prepared_row_bytes(args->columns),
        .walk = walk->pieces > 0 ? walk : NULL,
    };
    if (matrix->type == WEIGHT_TYPE_BF16)
        take_bf16_rows(job, first_row, &share);
    if (has_row_tiles(job->kernels, args->columns, args->rows))
        share.row_tiles =
            row_tile_at(job->kernels, args->prepared, args->columns, args->rows, first_row);
    const struct matmul_kernels *kernels = &job->kernels->matmul[matrix->type];
    bool few = share.rows <= MATMUL_FEW_ROWS;
    matmul_panel multiply = few ? kernels->few : kernels->many;
    matmul_panel multiply_pair = few ? kernels->few_pair : kernels->many_pair;
    if (multiply_pair != NULL && matrix->rows - column >= UNIT_PANELS * PANEL_ROWS) {
        share.output = output + column;
        share.output_stride = matrix->rows;
        multiply_pair(panel_at(matrix, panel), &share);
        return;
    }
    share.output = tile;
    share.output_stride = PANEL_ROWS;
    for (uint32_t p = 0; p < panels; p++) {
        struct fetch_walk part_walk = panel_walk(walk, p, panels);
        share.walk = part_walk.pieces > 0 ? &part_walk : NULL;
        struct panel_place place = place_of(&share, matrix, column + p * PANEL_ROWS, output);
        fetch_place(&place);
        multiply(panel_at(matrix, panel + p), &share);
        store_panel(&place, tile);
    }
}

/* The pieces that fall to an item. */
static struct fetch_walk walk_of(const struct matmul_job *job, uint32_t item)
{
    uint64_t first = (uint64_t)job->piece_count * item / job->items;
    uint64_t last = (uint64_t)job->piece_count * (item + 1) / job->items;
    return (struct fetch_walk){.piece = job->pieces + first,
                               .pieces = (uint32_t)(last - first),
                               .piece_bytes = job->piece_bytes};
}

/* Where an item's panels are. Item = tile x unit of all parts; tiles outermost. */
static const struct matmul_part *find_item(const struct matmul_job *job, uint32_t item,
                                           uint32_t *out_panel)
{
    const struct matmul_part *part = job->args->parts;
    uint32_t unit = item % job->units;
    for (; unit >= unit_count(part->matrix); part++)
        unit -= unit_count(part->matrix);
    *out_panel = unit * UNIT_PANELS;
    return part;
}

static void multiply_items(const struct matmul_job *job, uint32_t begin, uint32_t end)
{
    for (uint32_t item = begin; item < end; item++) {
        uint32_t panel;
        const struct matmul_part *part = find_item(job, item, &panel);
        struct fetch_walk walk = walk_of(job, item);
        multiply_panels(job, part, panel, item / job->units * job->tile_rows, &walk);
    }
}

static uint32_t first_item(const struct matmul_job *job, uint32_t share)
{
    return (uint32_t)((uint64_t)share * job->items / job->shares);
}

static void matmul_shares(const void *context, uint32_t begin, uint32_t end)
{
    const struct matmul_job *job = context;
    for (uint32_t share = begin; share < end; share++)
        multiply_items(job, first_item(job, share), first_item(job, share + 1));
}

/* Bytes of a row as weights of a type read it. */
static uint64_t activation_bytes(const struct matmul_job *job, uint32_t type)
{
    uint32_t columns = job->args->columns;
    switch (weight_type_form(type)) {
    case ACTIVATION_FORM_BF16:
        return bf16_row_bytes(job->kernels, columns);
    case ACTIVATION_FORM_INTEGERS:
        return prepared_row_bytes(columns);
    default:
        return columns * sizeof(float);
    }
}

static uint32_t row_unit(const struct matmul_job *job)
{
    const struct matmul_args *args = job->args;
    return has_row_tiles(job->kernels, args->columns, args->rows) ? ROW_TILE : ROW_UNIT;
}

/* Rows whose activations fit the L2 cache beside two pairs of panels. */
static uint32_t tile_rows_max(const struct matmul_job *job)
{
    uint64_t row_bytes = 1, unit = row_unit(job);
    for (uint32_t part = 0; part < job->args->part_count; part++) {
        uint64_t bytes = activation_bytes(job, job->args->parts[part].matrix->type);
        row_bytes = bytes > row_bytes ? bytes : row_bytes;
    }
    uint64_t rows = TILE_BYTES / row_bytes / unit * unit;
    rows = rows < MATMUL_TILE_ROWS ? rows : MATMUL_TILE_ROWS;
    uint64_t least = (TILE_ROWS_MIN + unit - 1) / unit * unit;
    return (uint32_t)(rows > least ? rows : least);
}

/* Rows that a tile should have at least for the weights of all parts. */
static uint32_t rows_worth(const struct matmul_job *job)
{
    uint32_t worth = 1;
    for (uint32_t part = 0; part < job->args->part_count; part++) {
        uint32_t type = job->args->parts[part].matrix->type;
        uint32_t rows = job->kernels->matmul[type].rows_worth;
        rows = rows != 0 ? rows : MATMUL_ROWS_WORTH;
        worth = rows > worth ? rows : worth;
    }
    return worth;
}

/* As few tiles as the cache allows; where their rows suffice, as many for each thread, so that a
 * row stays with a thread through all operations. */
static void cut_tiles(struct matmul_job *job, uint32_t threads)
{
    uint32_t rows = job->args->rows, most = tile_rows_max(job);
    uint32_t tiles = (rows + most - 1) / most;
    uint32_t alike = (tiles + threads - 1) / threads * threads;
    if (rows / alike >= rows_worth(job))
        tiles = alike;
    uint32_t even = (rows + tiles - 1) / tiles;
    job->tile_rows = (even + row_unit(job) - 1) / row_unit(job) * row_unit(job);
    job->tiles = (rows + job->tile_rows - 1) / job->tile_rows;
}

/* As many shares as keep the threads even at the end, as long as each is worth taking; the same
 * number for each thread, whose own ones are neighbours: it walks through its items from one end to
 * the other, as the prefetch of the processor likes it. */
static void cut_shares(struct matmul_job *job, uint32_t threads)
{
    uint64_t products = (uint64_t)job->args->columns * PANEL_ROWS * UNIT_PANELS * job->tile_rows;
    uint32_t worth = (uint32_t)(SHARE_PRODUCTS / products) + 1; /* items */
    uint32_t most = (job->items + worth - 1) / worth;
    uint32_t least = threads * SHARES_PER_THREAD_MIN;
    uint32_t shares = most > least ? most : least;
    shares = shares < job->items ? shares : job->items;
    job->shares = shares < threads ? shares : shares / threads * threads;
}

/* Few rows keep the memory busy on their own. */
static void list_pieces(struct matmul_job *job, const uint8_t **pieces)
{
    const struct matmul_args *args = job->args;
    if (args->soon == NULL || args->rows <= MATMUL_FEW_ROWS)
        return;
    CHECK(args->soon_from <= args->soon_to && args->soon_to <= PART_WHOLE);
    uint64_t count = fetch_count(args->soon, job->kernels->fetch_bytes);
    uint64_t first = count * args->soon_from / PART_WHOLE;
    uint64_t last = count * args->soon_to / PART_WHOLE;
    job->pieces = pieces;
    job->piece_bytes = (uint32_t)kv_block_bytes(&args->soon->kv.geometry);
    job->piece_count = fetch_list(args->soon, (uint32_t)first, (uint32_t)(last - first), pieces);
}

/* Tiles, units, items and shares. */
static void cut_job(struct matmul_job *job, uint32_t threads)
{
    const struct matmul_args *args = job->args;
    CHECK(args->part_count >= 1 && args->part_count <= MATMUL_PARTS_MAX);
    for (uint32_t part = 0; part < args->part_count; part++) {
        CHECK(args->parts[part].matrix->columns == args->columns);
        job->units += unit_count(args->parts[part].matrix);
    }
    cut_tiles(job, threads);
    job->items = job->units * job->tiles;
    cut_shares(job, threads);
}

/* The first weights of a thread's part of a job, all of one matrix. */
static struct pool_range range_of(const struct matmul_job *job, const struct pool *pool,
                                  uint32_t thread)
{
    uint32_t item = first_item(job, pool_first_share(pool, job->shares, thread)), panel;
    if (item == job->items)
        return (struct pool_range){0};
    const struct matrix *matrix = find_item(job, item, &panel)->matrix;
    uint64_t bytes = (piece_at(matrix, panel)->end - panel) * panel_bytes(matrix);
    return (struct pool_range){panel_at(matrix, panel),
                               bytes < BEHIND_BYTES ? bytes : BEHIND_BYTES};
}

/* What each thread reads first of the next product: with few rows the memory is what they wait for,
 * with more nothing has fetched these before, and it is idle between two products. False where
 * there is nothing to fetch. */
static bool list_ranges(const struct cpu_backend *cpu, const struct matmul_args *args,
                        struct pool_range *ranges)
{
    if (args->next_count == 0)
        return false;
    struct matmul_args next = {
        .rows = args->rows, .columns = args->next[0]->columns, .part_count = args->next_count};
    for (uint32_t i = 0; i < args->next_count; i++)
        next.parts[i].matrix = args->next[i];
    struct matmul_job job = {.args = &next, .kernels = cpu->kernels};
    cut_job(&job, pool_threads(cpu->pool));
    for (uint32_t thread = 0; thread < pool_threads(cpu->pool); thread++)
        ranges[thread] = range_of(&job, cpu->pool, thread);
    return true;
}

/* Where a thread's part begins does not depend on what a unit costs: its shares are as many as each
 * other's or, where units are few, one unit each. */
uint32_t cpu_matmul_first_unit(const struct cpu_backend *cpu, uint32_t units, uint32_t thread)
{
    const struct matmul_args args = {.rows = 1, .columns = 1};
    struct matmul_job job = {
        .args = &args, .units = units, .tiles = 1, .tile_rows = 1, .items = units};
    cut_shares(&job, pool_threads(cpu->pool));
    return first_item(&job, pool_first_share(cpu->pool, job.shares, thread));
}

void cpu_matmul(struct backend *backend, const struct matmul_args *args)
{
    struct cpu_backend *cpu = cpu_backend_of(backend);
    if (args->rows == 0)
        return;
    struct matmul_job job = {.args = args, .kernels = cpu->kernels};
    cut_job(&job, pool_threads(cpu->pool));
    const uint8_t *pieces[FETCH_PIECES_MAX];
    list_pieces(&job, pieces);
    struct pool_range ranges[POOL_THREADS_MAX];
    bool fetching = list_ranges(cpu, args, ranges);
    pool_run_fetching(cpu->pool, matmul_shares, &job, job.shares, 1, fetching ? ranges : NULL);
}
