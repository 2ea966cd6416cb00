/* Products of 5 to 192 rows with the weights in the order of the persistent step: wide.cu. */
#ifndef TANDEM_KERNELS_CUDA_WIDE_H
#define TANDEM_KERNELS_CUDA_WIDE_H

#include "kernels/cuda/stream.h"

enum { WIDE_ROWS_MAX = 192 };

struct wide_args {
    struct stream_shape shape;
    const uint8_t *weights;
    uint32_t layer, kind;             /* enum stream_kind; STREAM_LOGITS with layer = layers */
    uint32_t rows;                    /* as wide_rows() has it */
    const uint32_t *count;            /* rows that are there */
    const __nv_bfloat16 *activations; /* [k / 8][rows][8] */
    __nv_bfloat16 *gated;             /* STREAM_PAIRS: [row][ffn_width] silu(gate) x up */
    bool out_blocks;                  /* of `gated`: [k / 8][rows][8] instead */
    float *logits;                    /* STREAM_LOGITS: [row][rows of the product] */
    __nv_bfloat16 *rows_out;          /* other kinds: [row][rows of the product] */
    uint32_t stage_steps, slots;      /* of the ring: wide_launch() decides */
};

/* Rows of the activations for `rows` rows; 0: too many. */
uint32_t wide_rows(uint32_t rows);
/* Sets the limits of the kernels; once at start. */
cudaError_t wide_prepare();
cudaError_t wide_launch(const struct wide_args *args, cudaStream_t stream);

#endif
