/* One kernel from attention to attention, for steps of 5 to 64 rows: layer_launch.cu. */
#ifndef TANDEM_KERNELS_CUDA_LAYER_H
#define TANDEM_KERNELS_CUDA_LAYER_H

#include "kernels/cuda/stream.h"

enum {
    LAYER_ROWS_MAX = 64,
    LAYER_EXCHANGED_MAX = 32, /* rows up to which the residual stream goes through an exchange */
    LAYER_GROUPS_MAX = 4,     /* row groups of output, down and heads that a CTA owns */
    LAYER_COLUMNS_MAX = 4096,
    LAYER_INSTANCES = 4, /* for 16, 32, 48, 64 rows */
};

/* Barriers of the grid, in one launch. */
enum layer_barrier {
    LAYER_ADDED_OUTPUT, /* the residual stream is there; not where it is exchanged */
    LAYER_NORMED_FFN,
    LAYER_GATED,
    LAYER_ADDED_DOWN,
    LAYER_NORMED_HEADS,
    LAYER_BARRIERS,
};

/* Where the CTAs of an instance meet; all zeros at the start, never reset. */
struct layer_signals {
    struct {
        uint32_t arrived; /* CTAs, of all launches */
        uint32_t line[31];
    } barrier[LAYER_BARRIERS];
    uint32_t launches; /* complete */
    uint32_t line[31];
};

struct layer_args {
    struct stream_shape shape;
    const uint8_t *weights;
    const float *norms; /* [2 layers + 1][width]: attention, ffn, ..., output */
    uint32_t layer;
    uint32_t rows;                 /* as layer_rows() has it */
    const uint32_t *count;         /* rows that are there */
    const __nv_bfloat16 *attended; /* [k / 8][rows][8] */
    __nv_bfloat16 *residual;       /* [row][width] */
    __nv_bfloat16 *exchange;       /* [2][LAYER_EXCHANGED_MAX][width] after output, after down;
                                      STREAM_UNWRITTEN but for what is on its way to a norm */
    __nv_bfloat16 *normed;         /* [k / 8][rows][8] */
    __nv_bfloat16 *gated;          /* [k / 8][rows][8] */
    __nv_bfloat16 *heads; /* [row][rows of the heads], of the next layer, if there is one */
    struct layer_signals *signals; /* of this number of rows */
    volatile uint32_t *progress;   /* mapped; gets layer + 1 */
    float norm_epsilon;
    uint32_t planted; /* enum step_plant */
};

/* Rows of instance `instance`. */
uint32_t layer_rows(uint32_t instance);
/* Whether the kernel has what CTAs of such a shape own, and all of them can run at once. */
bool layer_serves(const struct stream_shape *shape, uint32_t multiprocessors);
/* Sets the limits of the kernel for these rows. */
cudaError_t layer_prepare(const struct layer_args *args);
cudaError_t layer_launch(const struct layer_args *args, cudaStream_t stream);

#endif
