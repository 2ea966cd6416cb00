/* The inner loops that exist once per instruction set, and the table that picks a set. Every entry
 * gives the same bits in every table; plain C is the reference. Operations whose loops the compiler
 * vectorizes well enough in plain C (rope, add, gather, embed) have no entry. */
#ifndef TANDEM_KERNELS_CPU_KERNELS_H
#define TANDEM_KERNELS_CPU_KERNELS_H

#include "kernels/ops.h"

#include <stdbool.h>
#include <stdint.h>

/* A row rounded for quantized weights, per block of 32: x = scale * q. */
struct prepared_row {
    int16_t *q;        /* [columns] */
    float *scale;      /* [block] */
    float *scaled_sum; /* [block] scale * (sum of q), rounded once */
    int32_t *zero_sum; /* [block] -Q4_0_ZERO * (sum of q): what the sums of Q4_0 begin with */
};

/* A block of 16 rows, as AMX takes them: q = 256 high + low. The 32 columns lie in groups of 8 in
 * the order 0, 4, 1, 5, 2, 6, 3, 7: that of the bytes of a word of 4-bit weights (matrix.h). */
enum { ROW_TILE = 16 };

struct row_tile_block {
    int8_t high[ROW_TILE][QUANTIZED_BLOCK_WEIGHTS];
    uint8_t low[ROW_TILE][QUANTIZED_BLOCK_WEIGHTS];
    float scale[ROW_TILE], scaled_sum[ROW_TILE];
};

struct fetch_walk;

/* One panel of 16 weight rows, or two that follow each other, times a few activation rows. */
struct matmul_share {
    uint32_t columns;        /* of BF16 weights: bf16_columns() of them */
    uint32_t rows;           /* 1 to MATMUL_TILE_ROWS */
    uint64_t panel_bytes;    /* from one panel to the next */
    const float *input;      /* [row][columns], for float weights; of BF16 weights as round_bf16_row
                                of the same table wrote them: floats, or */
    const uint32_t *pairs;   /* [row][columns / 2] where bf16_bytes is 2 */
    const uint8_t *prepared; /* records of prepared_row_at(), for quantized weights; all from the
                                tile's first row on */
    const struct row_tile_block *row_tiles; /* [row / 16][block], where the table reads them */
    float *output;           /* one panel: [row][16]; two: [row][output_stride], the second panel's
                                16 columns behind the first's */
    uint64_t output_stride;  /* floats; 16 for one panel */
    struct fetch_walk *walk; /* to be walked while the products are made, or NULL (fetch.h) */
};

enum { MATMUL_TILE_ROWS = 128, MATMUL_FEW_ROWS = 3, MATMUL_ROWS_WORTH = 48 };

/* `few` reads the packed weights once per row and is meant for up to MATMUL_FEW_ROWS rows, `many`
 * unpacks them once. */
typedef void (*matmul_panel)(const void *panel, const struct matmul_share *share);

struct matmul_kernels {
    matmul_panel few, many;
    matmul_panel few_pair, many_pair; /* of two panels, many_pair of more than MATMUL_FEW_ROWS rows;
                                         NULL: one panel after the other */
    uint32_t rows_worth;              /* a tile of so many pays; 0: MATMUL_ROWS_WORTH */
};

/* Query rows at consecutive positions of one sequence, one kv head and some or all of its query
 * heads, one segment of keys. Row r sees r keys more than row 0, up to the end of the segment. */
enum { ATTENTION_QUERIES_MAX = 24, ATTENTION_GROUP_KEYS = 8, ATTENTION_LANES = 16 };

struct attention_share {
    const float *queries; /* [row][head][head_dim] ... */
    uint64_t row_stride;  /* ... with so many floats from a row to the next */
    uint32_t rows, heads; /* rows x heads: 1 to ATTENTION_QUERIES_MAX */
    uint32_t head_dim;
    uint32_t keys;       /* of row 0: 1 to ATTENTION_SEGMENT_KEYS, from the segment's start on */
    uint32_t type;       /* enum kv_type */
    uint32_t key_stride; /* elements from one dim to the next in a block's K: block_tokens */
    float scale;         /* log2(e) / sqrt(head_dim) */
    /* For each group of 8 keys that a row sees: K at (dim 0, first key), V at (first key, dim 0).
     */
    const void *group_keys[ATTENTION_SEGMENT_KEYS / ATTENTION_GROUP_KEYS];
    const void *group_values[ATTENTION_SEGMENT_KEYS / ATTENTION_GROUP_KEYS];
    /* Bytes from these keys to those of the next kv head where this thread goes on with them, to be
     * fetched at the end; 0 where it does not. */
    uint64_t next_keys;
    bool fetched;   /* its first tiles, by the share before */
    float *partial; /* [row][head][attention_partial_floats(head_dim)] */
};

/* Keys that row `row` of the share sees. */
static inline uint32_t attention_keys_of(const struct attention_share *share, uint32_t row)
{
    uint32_t keys = share->keys + row;
    return keys < ATTENTION_SEGMENT_KEYS ? keys : ATTENTION_SEGMENT_KEYS;
}

/* State of one query head after some keys: O[head_dim], then the largest scaled score and the sum
 * of the probabilities, relative to it. Padded to whole cache lines where head_dim
 * is. */
static inline uint32_t attention_partial_floats(uint32_t head_dim)
{
    return head_dim + ATTENTION_LANES;
}

static inline uint32_t attention_maximum_at(uint32_t head_dim)
{
    return head_dim;
}

static inline uint32_t attention_sum_at(uint32_t head_dim)
{
    return head_dim + 1;
}

struct kv_row_share {
    const float *input; /* [head_dim] */
    uint32_t head_dim;
    uint32_t type;   /* enum kv_type */
    uint32_t stride; /* elements between two dims in the pool */
    void *output;
};

struct cpu_kernels {
    const char *name; /* of the backend, for logs */
    void (*rmsnorm_row)(const float *input, const float *weight, uint32_t columns, float epsilon,
                        float *output);
    void (*prepare_row)(const float *input, uint32_t columns, const struct prepared_row *output);
    /* Row `place` of a row tile, tile[block]. */
    void (*split_row)(const struct prepared_row *row, uint32_t columns, uint32_t place,
                      struct row_tile_block *tile);
    uint32_t row_tiles_from; /* products of so many rows and more read row tiles; 0: none do */
    /* Rounds a row to bf16, columns made even by a zero: floats, or, where bf16_bytes is 2, words
     * of two with the first one in the upper half. */
    void (*round_bf16_row)(const float *input, uint32_t columns, void *output);
    uint32_t bf16_bytes; /* 4 or 2 per element */
    void (*silu_mul_row)(const float *gate, const float *up, uint32_t columns, float *output);
    struct matmul_kernels matmul[WEIGHT_TYPE_COUNT]; /* by enum weight_type */
    uint32_t fetch_bytes; /* of keys and values that are worth fetching during products, at most */
    /* false: a value is not finite in the pool's type (it is written all the same). */
    bool (*kv_write_row)(const struct kv_row_share *share);
    void (*attention_segment)(const struct attention_share *share);
    /* Adds the state of the next segment to the state of the ones before it. */
    void (*attention_merge)(const float *segment, uint32_t head_dim, float *state);
    /* output[dim] = O[dim] / sum */
    void (*attention_finish)(const float *state, uint32_t head_dim, float *output);
    /* Largest of `count` values and the lowest index that has it; false where one is not finite. */
    bool (*sample_scan)(const float *logits, uint32_t count, float *out_largest,
                        uint32_t *out_index);
    /* output[i] = exp((logits[i] - largest) * sharpness) */
    void (*sample_probabilities)(const float *logits, uint32_t count, float largest,
                                 float sharpness, float *output);
    /* Sum of round(probability * 2^40). */
    uint64_t (*sample_weight_sum)(const float *probabilities, uint32_t count);
    /* Exponential variates of ids first_id.. (a multiple of 4), keyed by (seed, position, id). */
    void (*sample_exponentials)(uint64_t seed, uint32_t position, uint32_t first_id, uint32_t count,
                                double *output);
};

extern const struct cpu_kernels cpu_kernels_plain;
extern const struct cpu_kernels cpu_kernels_avx2;
extern const struct cpu_kernels cpu_kernels_avx512;
extern const struct cpu_kernels cpu_kernels_avx512_bf16;
extern const struct cpu_kernels cpu_kernels_amx;

#endif
