/* What the kernels of the CUDA backend share on the host: arguments and launchers. Device pointers
 * only, unless a comment says "mapped" (host memory that the device reads and writes). A launcher
 * enqueues on `stream`, takes no memory and never waits. */
#ifndef TANDEM_KERNELS_CUDA_LAUNCH_H
#define TANDEM_KERNELS_CUDA_LAUNCH_H

#include "kernels/ops.h"

#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>

/* How the rows of a product stand in its packed tiles of 16. */
enum pack_order {
    PACK_PLAIN = 1, /* as they are */
    PACK_HEADS,     /* tile row i and i + 8: dims j and j + head_dim / 2 of one head */
    PACK_PAIRS,     /* tile row i and i + 8: gate j and up j */
};

/* Weights of one product: several matrices of a model that share their input, row after row. */
struct product {
    const __nv_bfloat16 *values; /* [rows][columns] */
    const uint4 *packed;         /* [tile][columns / 16][lane]: what a lane gives to one step */
    uint32_t rows;
    uint32_t columns;
    uint32_t tiles;
    uint32_t order;    /* enum pack_order */
    uint32_t head_dim; /* of PACK_HEADS */
};

/* Natural row of row `row` of tile `tile`; product.rows and more: padding. */
ON_HOST_AND_DEVICE static inline uint32_t product_row(const struct product *product, uint32_t tile,
                                                      uint32_t row)
{
    uint32_t low = row % 8, high = row / 8;
    if (product->order == PACK_PAIRS)
        return high * (product->rows / 2) + tile * 8 + low;
    if (product->order == PACK_HEADS) {
        uint32_t head_tiles = product->head_dim / 16;
        return tile / head_tiles * product->head_dim + high * (product->head_dim / 2) +
               tile % head_tiles * 8 + low;
    }
    return tile * 16 + row;
}

/* Counts of the step in hand. */
struct step_counts {
    uint32_t rows;
    uint32_t samples;
};

/* Where the rows of a step stand, and where their keys and values go. */
struct kv_target {
    struct kv_geometry geometry;
    uint8_t *pool;
    const int32_t *table; /* [slot][layer][logical] */
    uint32_t logical_blocks;
    uint32_t layer;
    uint32_t heads;
    const uint32_t *positions; /* [row] */
    const uint32_t *slots;     /* [row] */
    const float *rope;         /* [position][cos, sin][head_dim / 2] */
    __nv_bfloat16 *queries;    /* [row][heads][head_dim], rotated */
    uint32_t *row_errors;      /* mapped [row] */
};

/* ---- Products of few rows: matmul_few.cu ---- */

enum { FEW_ROWS_MAX = 32 };

enum few_output {
    FEW_TO_HEADS = 1, /* rotate, queries out, keys and values into the pool */
    FEW_TO_RESIDUAL,  /* add to the residual stream */
    FEW_TO_GATED,     /* silu(gate) x up, in operand order */
    FEW_TO_LOGITS,    /* fp32, natural order */
    FEW_TO_ROWS,      /* bf16, natural order */
};

struct few_args {
    struct product product;
    uint32_t output;       /* enum few_output */
    uint32_t row_tiles;    /* 1, 2 or 4: tiles of 8 rows */
    uint32_t operand_rows; /* of the operand: 1 to 8 for one tile, else 8 a tile */
    const uint32_t *count; /* rows that are there */
    bool settled; /* the kernel before this one wrote nothing of: count, kv, residual_out */
    const __nv_bfloat16 *operand;  /* in operand order; NULL: normalise `residual` */
    const __nv_bfloat16 *residual; /* [row][columns] */
    const uint32_t *rows_taken;    /* or NULL: row i is rows_taken[i] of `residual` */
    const float *norm_weight;
    float norm_epsilon;
    struct kv_target kv;         /* FEW_TO_HEADS */
    __nv_bfloat16 *residual_out; /* FEW_TO_RESIDUAL: [row][rows of the product] */
    __nv_bfloat16 *gated;        /* FEW_TO_GATED */
    float *logits;               /* FEW_TO_LOGITS */
    __nv_bfloat16 *rows_out;     /* FEW_TO_ROWS */
    volatile uint32_t *progress; /* mapped, or NULL; gets progress_value when the kernel begins */
    uint32_t progress_value;
};

/* Sets the limits of the kernels; once at start. */
cudaError_t few_prepare();
cudaError_t few_launch(const struct few_args *args, uint32_t multiprocessors, cudaStream_t stream);

/* ---- Attention: attention_decode.cu, attention_prefill.cu ---- */

/* Rows of one slot at consecutive positions. */
struct attention_span {
    uint32_t first_row;
    uint32_t first_position;
    uint32_t count;
    uint32_t slot;
};

struct attention_launch {
    struct kv_target kv;
    uint32_t kv_heads;
    float scale;                        /* log2(e) / sqrt(head_dim) */
    const __nv_bfloat16 *products;      /* decoding: [row][q, k, v], unrotated, as the products are;
                                           NULL:      queries and pool are filled */
    const uint32_t *count;              /* decoding: rows that are there */
    const struct attention_span *spans; /* prefill: [span_count]; NULL: one row each */
    uint32_t span_count;                /* prefill */
    uint32_t span_tiles;                /* prefill: tiles of the longest span */
    uint32_t rows;                      /* decoding: of the grid */
    uint32_t splits;                    /* decoding: CTAs over the segments of one row */
    uint32_t multiprocessors;           /* decoding */
    float *partials;                    /* [row][kv head][segment][head_dim + 2][columns] */
    uint32_t *arrivals;                 /* [row][kv head], 0 between launches */
    uint32_t segments_max;
    uint32_t out_rows; /* 0: [row][heads * head_dim], else operand order of so many rows */
    bool out_blocks;   /* of so many rows: [k / 8][row][8] instead */
    __nv_bfloat16 *output;
};

/* Positions of one tile of queries in prefill. */
ON_HOST_AND_DEVICE uint32_t attention_tile_positions(uint32_t head_dim, uint32_t group);
cudaError_t attention_decode_prepare();
cudaError_t attention_prefill_prepare();
cudaError_t attention_decode(const struct attention_launch *launch, cudaStream_t stream);
cudaError_t attention_prefill(const struct attention_launch *launch, cudaStream_t stream);

/* ---- Rows: rows.cu ---- */

struct table_entry {
    uint32_t index;
    int32_t block;
};

struct step_header {
    struct step_counts counts;
    uint32_t decoding; /* rows, first in order, that are alone in their span */
    uint32_t entry_count;
    uint32_t span_count;
};

/* What the host says of a step; all mapped. */
struct step_order {
    struct step_header *header;
    uint32_t *tokens; /* [row]; STEP_TOKEN_FROM_SLOT: the last sample of the row's slot */
    uint32_t *positions;
    uint32_t *slots;
    uint32_t *sample_rows; /* [sample] */
    uint32_t *sample_positions;
    uint32_t *sample_slots;
    struct sampling *sampling;
    struct attention_span *spans;
    struct table_entry *entries;
};

#define STEP_TOKEN_FROM_SLOT UINT32_MAX

struct begin_args {
    struct step_order order;
    uint32_t rows;        /* of the grid */
    uint32_t samples;     /* no fewer than the step has */
    uint32_t entries_max; /* places of order.entries */
    struct step_counts *counts;
    uint32_t *decoding;
    uint32_t *positions;
    uint32_t *slots;
    uint32_t *sample_rows;
    uint32_t *sample_positions;
    uint32_t *sample_slots;
    struct sampling *sampling;
    struct attention_span *spans;
    int32_t *table;
    const uint32_t *slot_tokens; /* [slot] */
    const __nv_bfloat16 *embedding;
    uint32_t width;
    __nv_bfloat16 *residual; /* [row][width] */
    volatile uint64_t *begun_ns;
};
/* Loads the kernels, which a capture cannot. */
cudaError_t rows_prepare();
cudaError_t begin_launch(const struct begin_args *args, cudaStream_t stream);

struct norm_args {
    const __nv_bfloat16 *residual; /* [row][columns] */
    const __nv_bfloat16 *addend;   /* or NULL: added to the residual first, which is written back */
    __nv_bfloat16 *residual_out;   /* with addend */
    const uint32_t *rows_taken;    /* or NULL */
    const uint32_t *count;         /* rows that are there */
    const float *weight;           /* or NULL: only add */
    float epsilon;
    uint32_t rows; /* of the grid */
    uint32_t columns;
    uint32_t out_rows; /* 0: [row][columns], else operand order of so many rows */
    bool out_blocks;   /* of so many rows: [column / 8][row][8] instead */
    bool next_early;   /* the next kernel reads nothing but weights before its wait: it may start at
                          once */
    __nv_bfloat16 *output;
    volatile uint32_t *progress;
    uint32_t progress_value;
};
cudaError_t norm_launch(const struct norm_args *args, cudaStream_t stream);

/* products: [row][(heads + 2 kv_heads) * head_dim] */
cudaError_t heads_launch(const struct kv_target *target, const __nv_bfloat16 *products,
                         const uint32_t *count, uint32_t rows, cudaStream_t stream);

/* products: [row][2 width], gate then up; output [row][width] */
struct gate_args {
    const __nv_bfloat16 *products;
    const uint32_t *count;
    uint32_t rows;
    uint32_t width;
    __nv_bfloat16 *output;
};
cudaError_t gate_launch(const struct gate_args *args, cudaStream_t stream);

/* [row][columns] into operand order; zeros past the last. */
struct operand_args {
    const __nv_bfloat16 *rows;
    uint32_t row_count;
    uint32_t columns;
    uint32_t out_rows;
    __nv_bfloat16 *output;
};
cudaError_t operand_launch(const struct operand_args *args, cudaStream_t stream);

/* Packs a product's values; `packed` has product.tiles * columns / 16 * 32 vectors. */
cudaError_t pack_launch(const struct product *product, uint4 *packed, cudaStream_t stream);

/* Values of about unit size with some outliers, for checks. */
cudaError_t fill_launch(__nv_bfloat16 *values, uint64_t count, uint64_t seed, cudaStream_t stream);

/* Adds to *differences how many of the elements differ in their bits. */
cudaError_t compare_launch(const void *a, const void *b, uint64_t words, uint32_t *differences,
                           cudaStream_t stream);

/* ---- Faults for tests: fault.cu ---- */

struct fault_args {
    uint32_t kind; /* enum backend_fault_kind */
    uint32_t width;
    __nv_bfloat16 *residual; /* [row][width] */
};
cudaError_t fault_launch(const struct fault_args *args, cudaStream_t stream);

/* ---- Sampling: sample.cu ---- */

enum { SAMPLE_CHUNK = 8192 };

struct sample_partial {
    float largest;
    float sum;    /* of exp(logit - largest) */
    uint32_t bad; /* a logit is not finite */
    uint32_t pad;
    uint64_t best; /* ordered score and ~id */
};

/* What the host reads; mapped. */
struct step_answer {
    uint32_t *tokens;        /* [sample] */
    float *logprobs;         /* [sample] */
    uint32_t *errors;        /* [sample] enum row_error */
    uint32_t *row_errors;    /* [row] */
    volatile uint64_t *span; /* device_clock_ns() at the first kernel's work and at the end; the
                                end is 0 until all else is here */
};

struct draw_args {
    const float *logits; /* [sample][columns] */
    const struct step_counts *counts;
    const struct sampling *sampling;
    const uint32_t *positions;
    const uint32_t *slots;
    uint32_t samples; /* of the grid */
    uint32_t columns;
    uint32_t vocabulary;
    struct sample_partial *partials; /* [sample][chunk] */
    uint32_t *slot_tokens;
    uint32_t *finished; /* counter, 0 between launches */
    struct step_answer answer;
};
cudaError_t sample_prepare();
cudaError_t sample_launch(const struct draw_args *args, cudaStream_t stream);

/* Launches `kernel` so that it may overlap the one before it. */
template <typename... PARAMETERS, typename... ARGUMENTS>
cudaError_t launch_overlapped(void (*kernel)(PARAMETERS...), dim3 grid, uint32_t threads,
                              uint32_t shared_bytes, cudaStream_t stream, ARGUMENTS... arguments)
{
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = grid;
    config.blockDim = dim3(threads);
    config.dynamicSmemBytes = shared_bytes;
    config.stream = stream;
    config.attrs = &attribute;
    config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, arguments...);
}

#endif
