/* A step on the device: what step.cu, step_layers.cu and step_check.cu share. */
#ifndef TANDEM_KERNELS_CUDA_STEP_STATE_H
#define TANDEM_KERNELS_CUDA_STEP_STATE_H

#include "kernels/cuda/device.h"
#include "kernels/cuda/layer.h"
#include "kernels/cuda/stream.h"

enum {
    /* faster than other ways up to there (measured) */
    STREAM_ROWS_SERVED = 4, /* by the persistent step */
    FEW_ROWS_SERVED = 8,    /* by the fused products, where there are no streams of weights */
    LIBRARY_ROWS_UNIT = 64, /* up to LIBRARY_ROWS_FINE rows; 128 from there on */
    LIBRARY_ROWS_FINE = 256,
    BUCKETS_MAX = 40,
    PENDING_ENTRIES_MIN = 4096,
    STREAM_INSTANCES = 3, /* of the persistent step: 1, 2, 4 rows */
};

/* Products of one layer, and of the output. */
enum shape_kind { SHAPE_HEADS, SHAPE_OUTPUT, SHAPE_PAIRS, SHAPE_DOWN, SHAPE_LOGITS, SHAPE_COUNT };

/* Device memory, inside one reservation. */
struct step_buffers {
    struct step_counts *counts;
    uint32_t *decoding; /* rows of the decoding part: they come first */
    uint32_t *positions;
    uint32_t *slots;
    uint32_t *sample_rows;
    uint32_t *sample_positions;
    uint32_t *sample_slots;
    struct sampling *sampling;
    struct attention_span *spans;
    int32_t *table;
    float *rope;
    uint32_t *slot_tokens;
    __nv_bfloat16 *residual; /* [row][width] */
    __nv_bfloat16 *normed;   /* [row][width], either order */
    __nv_bfloat16 *products; /* [row][widest product]; also the gated rows in operand order */
    __nv_bfloat16 *queries;  /* [row][heads * head_dim] */
    __nv_bfloat16 *attended; /* [row][heads * head_dim], either order */
    __nv_bfloat16 *gated;    /* [row][ffn_width], either order */
    __nv_bfloat16 *added;    /* [row][width] */
    __nv_bfloat16 *operand;  /* [FEW_ROWS_MAX][widest input] for own products of many rows */
    float *logits;           /* [sample][vocabulary] */
    float *partials;
    uint32_t *arrivals;
    struct sample_partial *sample_partials;
    uint32_t *finished;
    uint32_t *full; /* holds FEW_ROWS_MAX: the count of a product without a step */
};

/* What host and device exchange for one step in flight; pinned host memory, mapped. */
struct exchange {
    struct step_order order;
    struct step_answer answer;
    uint32_t *row_of; /* host only: row of the device -> row of the batch */
    uint64_t *hashes; /* host only [sample] */
    uint32_t rows, samples;
};

/* The persistent step (step_stream.cu). */
struct stream_state {
    struct stream_shape shape;
    void *memory; /* owned, as all below */
    void *weights;
    uint64_t memory_bytes, weights_bytes;
    float *norms;       /* inside memory */
    uint32_t *parities; /* inside memory [instance] */
    uint32_t instances; /* that serve; 0: none */
    struct stream_args args[STREAM_INSTANCES];
    cudaGraphExec_t graphs[STREAM_INSTANCES][STEPS_IN_FLIGHT];
    __nv_bfloat16 *exchange;       /* inside memory, of the layer kernel */
    struct layer_signals *signals; /* inside memory [instance of the layer kernel] */
    bool layers;                   /* the layer kernel serves */
    struct layer_args layer[LAYER_INSTANCES];
};

struct step {
    struct cuda_backend *cuda;
    struct step_options options;
    void *memory;
    uint64_t memory_bytes;
    void *pinned;
    struct step_buffers at;
    struct exchange exchanges[STEPS_IN_FLIGHT];
    volatile uint32_t *progress; /* mapped: layers done of the step that runs */
    uint32_t progress_shown;
    uint64_t begun, collected;
    struct step_span span;       /* of the step collected last */
    struct table_entry *pending; /* host: entries for the next step */
    uint32_t pending_count, pending_capacity;
    uint32_t entries_max; /* of an order */
    uint32_t segments_max;
    uint32_t split_items_max;
    bool library_serves[SHAPE_COUNT]; /* the start check found equal bits */
    uint32_t bucket_count;
    uint32_t buckets[BUCKETS_MAX]; /* rows */
    cudaGraphExec_t graphs[BUCKETS_MAX][STEPS_IN_FLIGHT];
    struct stream_state stream;
    bool library_fails; /* a planted fault */
};

/* Rows that the library is called with for `rows`. */
static inline uint32_t library_rows(uint32_t rows)
{
    const uint32_t unit = rows <= LIBRARY_ROWS_FINE ? LIBRARY_ROWS_UNIT : 2 * LIBRARY_ROWS_UNIT;
    return (rows + unit - 1) / unit * unit;
}

/* What is enqueued: the rows of a step, or of a bucket for a graph. */
struct step_plan {
    uint32_t rows;     /* of the grids */
    uint32_t decoding; /* rows, first in order, of spans of one row */
    uint32_t samples;
    uint32_t span_count;   /* of several rows */
    uint32_t span_tiles;   /* of the longest */
    bool samples_in_order; /* sample i is row i */
    bool persistent;       /* by the persistent step */
    uint32_t fault;        /* enum backend_fault_kind */
    uint32_t exchange;
};

const struct product *step_product(const struct step *step, enum shape_kind kind, uint32_t layer);

/* Where the rows of a step stand, for one layer. */
struct kv_target step_target(const struct step *step, uint32_t layer, uint32_t exchange);
float step_attention_scale(const struct step_model *model);

/* Takes the memory of the persistent step, where it can serve the model. */
MUST_USE enum status step_stream_open(struct step *step);
void step_stream_close(struct step *step);
/* Rows of an instance; 0: there is none. */
uint32_t step_stream_rows(const struct step *step, uint32_t instance);
/* Whether the persistent step serves sampled decodes at these positions [plan.rows]. */
bool step_stream_serves(const struct step *step, const struct step_plan *plan,
                        const uint32_t *positions, uint32_t *out_instance);
/* From the residual stream to the logits. */
MUST_USE enum status step_stream_enqueue(struct step *step, const struct step_plan *plan);

/* Enqueues one step. */
MUST_USE enum status step_enqueue(struct step *step, const struct step_plan *plan);

/* [rows] x product into bf16 or fp32 rows, by the library or by own kernels. */
MUST_USE enum status step_multiply_many(struct step *step, enum shape_kind kind,
                                        const struct product *product, const __nv_bfloat16 *input,
                                        uint32_t rows, void *output);

/* The library's product, for the check. */
MUST_USE enum status step_library(struct step *step, enum shape_kind kind,
                                  const struct product *product, const __nv_bfloat16 *input,
                                  uint32_t rows, void *output);

/* Compares the library with own kernels for every number of rows that it is called with, and sets
 * library_serves. */
MUST_USE enum status step_check(struct step *step);

#endif
