/* A whole step of a model as the unit of a device: from token ids to samples, without a way back to
 * the host in between. A backend that is fastest when it sees the step as a whole brings this
 * table; for the others the worker composes it out of the operations of backend.h.
 *
 * Up to STEPS_IN_FLIGHT steps may have begun: the second may take its input tokens from the samples
 * of the first, which then never leave the device. Steps end in the order in which they began. */
#ifndef TANDEM_KERNELS_STEP_H
#define TANDEM_KERNELS_STEP_H

#include "kernels/backend.h"

#include <stdbool.h>

enum { STEPS_IN_FLIGHT = 2 };

/* As token of a row: the slot's last sample. */
#define STEP_TOKEN_LAST_SAMPLE UINT32_MAX

struct step_layer {
    const float *attention_norm; /* [width], backend memory as all below */
    const float *ffn_norm;       /* [width] */
    struct matrix *q;            /* [heads * head_dim][width] */
    struct matrix *k;            /* [kv_heads * head_dim][width] */
    struct matrix *v;
    struct matrix *attention_output; /* [width][heads * head_dim] */
    struct matrix *gate;             /* [ffn_width][width] */
    struct matrix *up;
    struct matrix *down; /* [width][ffn_width] */
};

struct step_model {
    uint32_t layers;
    uint32_t width;
    uint32_t ffn_width;
    uint32_t heads;
    uint32_t kv_heads;
    uint32_t head_dim;
    uint32_t vocabulary; /* rows of the logits */
    uint32_t tokens;     /* ids from here on are never sampled */
    float norm_epsilon;
    const struct step_layer *layer; /* [layers] */
    const float *output_norm;
    struct matrix *embedding;
    struct matrix *output;
    const float *rope_table; /* host [context][cos, sin][head_dim / 2] */
};

/* After each layer, 1 to layers; on the thread that begins or collects. */
typedef void (*step_progress)(void *context, uint32_t layers_done);

/* What tests plant in the one kernel that serves steps of few rows: delays, which change no bit,
 * and races, which the comparison of bits must find. */
enum step_plant {
    STEP_PLANT_DELAYS = 1, /* every CTA is late by chance, before each look and each product */
    STEP_PLANT_EXCHANGE =
        2, /* words that were read stay in their place: the next reader may see them */
    STEP_PLANT_OPERAND = 4, /* an operand is announced before it is stored */
    STEP_PLANT_RING = 8,    /* a slot of the ring is given back before it was used */
};

struct step_options {
    struct step_model model; /* what it points to is borrowed */
    struct kv_geometry geometry;
    void *pool; /* borrowed backend memory */
    uint32_t slots;
    uint32_t context;
    uint32_t logical_blocks;
    uint32_t rows;    /* of a step, at most */
    uint32_t samples; /* of a step, at most */
    bool hash_logits;
    bool separate_kernels;  /* for tests: not the one kernel that serves steps of few rows */
    uint32_t planted;       /* for tests: enum step_plant, races in that kernel */
    step_progress progress; /* or NULL */
    void *progress_context;
};

/* One step; host memory, borrowed until step_begin returns. Rows of one slot follow each other at
 * consecutive positions. */
struct step_batch {
    uint32_t row_count;
    uint32_t sample_count;
    const uint32_t *tokens;    /* [row] or STEP_TOKEN_LAST_SAMPLE */
    const uint32_t *positions; /* [row] */
    const uint32_t *slots;     /* [row] */
    const uint32_t *sample_rows;
    const uint32_t *sample_positions;
    const struct sampling *sampling;
};

struct step_sample {
    uint32_t token;
    float logprob;
    uint32_t errors; /* enum row_error */
    uint64_t logits_hash;
};

/* On the clock of the device, from which no other time follows. */
struct step_span {
    uint64_t begun_ns, ended_ns;
};

struct step; /* opaque; used by one thread */

struct step_operations {
    /* Takes all memory. STATUS_OUT_OF_MEMORY or STATUS_UNSUPPORTED (a shape) with the reason. */
    enum status (*open)(struct backend *backend, const struct step_options *options,
                        struct step **out_step, struct text *why) MUST_USE;
    void (*close)(struct step *step); /* accepts NULL; waits for steps in flight */

    /* Entries of the block table, for steps that begin from now on. */
    void (*map_blocks)(struct step *step, uint32_t first_entry, const int32_t *blocks,
                       uint32_t count);

    /* At most STEPS_IN_FLIGHT may have begun and not been collected. STATUS_DEVICE_LOST. */
    enum status (*begin)(struct step *step, const struct step_batch *batch) MUST_USE;

    /* Whether collect() would not wait. */
    bool (*ready)(struct step *step);

    /* Waits for the oldest step. out_errors[row] gets the row_error bits. STATUS_DEVICE_LOST. */
    enum status (*collect)(struct step *step, struct step_sample *out_samples,
                           uint32_t *out_errors) MUST_USE;

    /* When the device began and ended the step collected last. */
    void (*span)(const struct step *step, struct step_span *out_span);

    /* The logits of sample `first` and following of the step collected last, while no other is in
     * flight: [count][vocabulary]. For comparisons with an oracle. */
    enum status (*logits)(struct step *step, uint32_t first, uint32_t count,
                          float *out_logits) MUST_USE;
};

#endif
