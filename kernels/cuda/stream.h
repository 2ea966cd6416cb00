/* The persistent step: one kernel that runs all layers of a step of few rows (stream_step.cu). This
 * header says how the weights are spread over its CTAs and what host and device share.
 *
 * Every product of the model is cut into units of row groups (8 weight rows), dealt out evenly in
 * order; the first CTAs own what is left over. The weights of a CTA lie in memory in the order in
 * which it needs them, one run without holes: layer after layer heads, output, pairs, down, then
 * the logits. Groups of a product go through in rounds of up to 16; a round is [k / 8][group of the
 * round][row][8 values]. */
#ifndef TANDEM_KERNELS_CUDA_STREAM_H
#define TANDEM_KERNELS_CUDA_STREAM_H

#include "kernels/cuda/launch.h"

enum {
    STREAM_ROWS_MAX = 4,
    STREAM_STAGE_BYTES = 16384, /* of a slot of the ring */
    STREAM_STEP_BYTES = 256,    /* of a row group, for one step of k 16 */
    STREAM_ROUND_GROUPS = 16,
    STREAM_RESIDUAL_MAX = 8, /* row groups of output and down that a CTA owns */
    STREAM_SEGMENTS_MAX = 32,
    STREAM_ITEMS_MAX = 16, /* of attention, of one CTA */
    STREAM_PARTS_MAX = 8,  /* of an operand, announced one by one */
    STREAM_SHARED_MAX = 227 * 1024,
    STREAM_SCRATCH_BYTES = 11264, /* of attention, in the place of the operand */
};

enum stream_kind {
    STREAM_HEADS,
    STREAM_OUTPUT,
    STREAM_PAIRS,
    STREAM_DOWN,
    STREAM_LOGITS,
    STREAM_KINDS,
};

struct stream_product {
    uint32_t rows;
    uint32_t columns;
    uint32_t
        unit_groups; /* row groups of a unit; the two of a tile of 16 may have to stay together */
    uint32_t units_of_all;   /* units that every CTA owns */
    uint32_t units_of_first; /* so many CTAs, the first ones, own one more */
};

struct stream_shape {
    struct stream_product product[STREAM_KINDS];
    uint32_t ctas;
    uint32_t layers;
    uint64_t share; /* bytes from one CTA's weights to the next one's */
};

/* First row group of CTA `cta`; that of one past the last CTA is one past the last group. */
ON_HOST_AND_DEVICE static inline uint32_t stream_first(const struct stream_product *product,
                                                       uint32_t cta)
{
    const uint32_t more = cta < product->units_of_first ? cta : product->units_of_first;
    return (cta * product->units_of_all + more) * product->unit_groups;
}

ON_HOST_AND_DEVICE static inline uint32_t stream_groups(const struct stream_product *product,
                                                        uint32_t cta)
{
    return (product->units_of_all + (cta < product->units_of_first ? 1 : 0)) * product->unit_groups;
}

/* Row groups of round `round` of `groups`. */
ON_HOST_AND_DEVICE static inline uint32_t stream_round(uint32_t groups, uint32_t round)
{
    const uint32_t left = groups - round * STREAM_ROUND_GROUPS;
    return left < STREAM_ROUND_GROUPS ? left : (uint32_t)STREAM_ROUND_GROUPS;
}

/* Steps of k that a slot of the ring holds for a round of `groups`: 4, 8, 16 or 32, whole slots. */
ON_HOST_AND_DEVICE static inline uint32_t stream_stage_steps(uint32_t groups, uint32_t columns)
{
    uint32_t steps = groups > 8 ? 4 : groups > 4 ? 8 : groups > 2 ? 16 : 32;
    while ((columns / 16 & (steps - 1)) != 0)
        steps /= 2;
    return steps;
}

/* Slots that a round takes in turn. */
ON_HOST_AND_DEVICE static inline uint32_t stream_round_stages(uint32_t groups, uint32_t columns)
{
    return columns / 16 / stream_stage_steps(groups, columns);
}

ON_HOST_AND_DEVICE static inline uint32_t stream_stages(uint32_t groups, uint32_t columns)
{
    const uint32_t full = groups / STREAM_ROUND_GROUPS, rest = groups % STREAM_ROUND_GROUPS;
    return full * stream_round_stages(STREAM_ROUND_GROUPS, columns) +
           (rest > 0 ? stream_round_stages(rest, columns) : 0);
}

ON_HOST_AND_DEVICE static inline uint64_t stream_bytes(uint32_t groups, uint32_t columns)
{
    return (uint64_t)groups * columns * 16;
}

/* Bytes of one layer of CTA `cta`. */
ON_HOST_AND_DEVICE static inline uint64_t stream_layer_bytes(const struct stream_shape *shape,
                                                             uint32_t cta)
{
    uint64_t bytes = 0;
    for (uint32_t kind = 0; kind < STREAM_LOGITS; kind++)
        bytes +=
            stream_bytes(stream_groups(&shape->product[kind], cta), shape->product[kind].columns);
    return bytes;
}

/* Offset of a product's weights; `layer` is that of the logits as well: layers. */
ON_HOST_AND_DEVICE static inline uint64_t stream_offset(const struct stream_shape *shape,
                                                        uint32_t cta, uint32_t layer, uint32_t kind)
{
    uint64_t offset = cta * shape->share + layer * stream_layer_bytes(shape, cta);
    for (uint32_t before = 0; before < kind && kind < STREAM_LOGITS; before++)
        offset += stream_bytes(stream_groups(&shape->product[before], cta),
                               shape->product[before].columns);
    return offset;
}

/* Outputs travel through small buffers that hold STREAM_UNWRITTEN until they are written: readers
 * poll the data itself. No value that is written has these bits: bf16 pairs and fp32 values are
 * results of conversions, whose NaN is 0x7fff and 0x7fffffff. Each buffer exists twice; layers
 * alternate, and who writes one copy makes the other one unwritten. Elements stand as in the
 * operand of a product: [k / 8][row][8]. */
#define STREAM_UNWRITTEN 0xffffffffu

struct stream_exchange {
    uint8_t *base;
    uint32_t bytes;                                /* from one copy to the other */
    uint32_t heads, attended, middle, gated, next; /* offsets in a copy */
    float *partials;  /* [2][row][kv head][segment][query head of the group][head_dim + 2] */
    uint32_t *parity; /* which copy the next step begins with */
};

/* Clocks from the own store to the first look: one that comes too early costs a way to the L2 and
 * back, and slows the stores down. Measured on an H200. */
struct stream_pace {
    uint32_t heads, attended, middle, gated, next;
    uint32_t copies;        /* of weights, in flight */
    uint32_t copies_filled; /* fewer once the ring is well filled */
    uint32_t free_slots;    /* and this many slots are free then, at most */
};

struct stream_args {
    struct stream_shape shape;
    struct stream_exchange exchange;
    struct stream_pace pace;
    struct kv_target kv; /* its layer is not used */
    const uint8_t *weights;
    const float *norms;            /* [2 layers + 1][width]: attention, ffn, ..., output */
    const __nv_bfloat16 *residual; /* [row][width] what the step begins with */
    const struct step_counts *counts;
    float *logits;               /* [row][rows of the logits] */
    volatile uint32_t *progress; /* mapped; layers begun */
    float norm_epsilon;
    float scale;            /* log2(e) / sqrt(head_dim) */
    uint32_t planted;       /* enum step_plant */
    uint32_t slots;         /* of the ring */
    uint32_t operand_bytes; /* with attention's scratch */
};

/* Bytes of shared memory beside ring and operand. */
enum { STREAM_BARRIERS_BYTES = 1024, STREAM_OPERAND_SLACK = 128 };

/* Whether there is a kernel for `rows` (1, 2 or 4) of such a model. */
bool stream_serves(uint32_t rows, uint32_t width, uint32_t head_dim);
/* Fits the ring into shared memory and sets the limits of the kernel. */
cudaError_t stream_prepare(struct stream_args *args, uint32_t rows);
cudaError_t stream_launch(const struct stream_args *args, uint32_t rows, cudaStream_t stream);

/* The weights of one product of one layer into the stream. */
cudaError_t stream_pack(const struct stream_shape *shape, const struct product *product,
                        uint32_t layer, uint32_t kind, uint8_t *weights, cudaStream_t stream);

#endif
