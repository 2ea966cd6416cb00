/* Arguments of every operation of a backend. Plain structs, taken by value or by const pointer, in
 * the intersection of C11 and C++17.
 *
 * Every pointer in an args struct is backend memory (backend.h: memory_reserve) unless its comment
 * says "host". Matrices of activations are row-major without padding: [row][columns], fp32. A "row"
 * is one token of the step. Rows are independent: no operation lets one row change a bit of
 * another, and no result depends on how many rows there are, on their order or on the number of
 * threads. */
#ifndef TANDEM_KERNELS_OPS_H
#define TANDEM_KERNELS_OPS_H

#include "common/geometry.h"

#include <stdint.h>

/* Types of weights as they stand in a model file. The backend packs them at load in an order of its
 * own. */
enum weight_type {
    WEIGHT_TYPE_F32 = 1,
    WEIGHT_TYPE_F16,
    WEIGHT_TYPE_BF16,
    WEIGHT_TYPE_Q8_0, /* 32 weights: fp16 scale d, 32 x int8 q;             w = d q */
    WEIGHT_TYPE_Q4_0, /* 32 weights: fp16 scale d, 16 bytes of nibbles q;   w = d (q - 8) */
    WEIGHT_TYPE_Q4_1, /* 32 weights: fp16 d, fp16 minimum m, 16 bytes of q; w = d q + m */
    WEIGHT_TYPE_COUNT
};

enum {
    QUANTIZED_BLOCK_WEIGHTS = 32, /* columns of a quantized matrix are a multiple of it */
    MATMUL_PARTS_MAX = 3,
    HEAD_DIM_UNIT = 8,            /* head_dim is a multiple of it ... */
    HEAD_DIM_MAX = 256,           /* ... and at most this */
    ATTENTION_TILE_KEYS = 64,     /* part of the arithmetic: one softmax rescale per tile */
    ATTENTION_SEGMENT_KEYS = 256, /* part of the arithmetic: one merge per segment */
};

/* A weight matrix [rows][columns] (out x in) in backend memory; made by matrix_load(). Backends
 * append fields. */
struct matrix {
    uint32_t type; /* enum weight_type */
    uint32_t rows;
    uint32_t columns;
    uint64_t bytes; /* backend memory that it takes */
};

/* A tensor of a model file, in host memory, row-major, rows without padding. */
struct matrix_source {
    uint32_t type; /* enum weight_type */
    uint32_t rows;
    uint32_t columns;
    const void *bytes; /* host; rows x weight_row_bytes(type, columns) */
    const uint32_t
        *row_order; /* host, or NULL: row r of the matrix is row row_order[r] of the source */
    /* The parts of the product that it is one of (matmul_args), so that a backend may put each
     * where it will be read. Rows all 0: it is multiplied alone. */
    uint32_t part;
    uint32_t part_rows[MATMUL_PARTS_MAX];
};

/* Bytes of one row in a model file; 0 for an unknown type or columns that do not fill blocks. */
static inline uint64_t weight_row_bytes(uint32_t type, uint32_t columns)
{
    uint64_t blocks = columns / QUANTIZED_BLOCK_WEIGHTS;
    int whole = columns % QUANTIZED_BLOCK_WEIGHTS == 0;
    switch (type) {
    case WEIGHT_TYPE_F32:
        return (uint64_t)columns * 4;
    case WEIGHT_TYPE_F16:
    case WEIGHT_TYPE_BF16:
        return (uint64_t)columns * 2;
    case WEIGHT_TYPE_Q8_0:
        return whole ? blocks * 34 : 0;
    case WEIGHT_TYPE_Q4_0:
        return whole ? blocks * 18 : 0;
    case WEIGHT_TYPE_Q4_1:
        return whole ? blocks * 20 : 0;
    default:
        return 0;
    }
}

/* The rows of a step: where each token stands. */
struct row_places {
    const uint32_t *positions; /* [row] absolute position in its sequence */
    const uint32_t *slots;     /* [row] first index of the block table */
};

/* The paged KV pool and the table that leads through it (common/geometry.h). block_tokens is 8, 16,
 * 32 or 64. */
struct kv_view {
    struct kv_geometry geometry;
    void *pool;
    const int32_t *table;    /* [slot][layer][logical block] -> physical block */
    uint32_t logical_blocks; /* innermost extent of the table */
};

/* What rows are rounded to before they are multiplied; ORed where the weights that share a row
 * differ. */
enum activation_form {
    ACTIVATION_FORM_INTEGERS = 1, /* blocks of integers with a scale, for quantized weights */
    ACTIVATION_FORM_BF16 = 2,     /* for BF16 weights */
    ACTIVATION_FORM_FLOATS = 4,   /* the row as it is, for F32 and F16 weights */
};

/* The form that weights of a type ask for. */
static inline uint32_t weight_type_form(uint32_t type)
{
    if (type == WEIGHT_TYPE_F32 || type == WEIGHT_TYPE_F16)
        return ACTIVATION_FORM_FLOATS;
    return type == WEIGHT_TYPE_BF16 ? ACTIVATION_FORM_BF16 : ACTIVATION_FORM_INTEGERS;
}

/* What is wrong with a row; ORed into row_errors[row] by kv_write and sample. */
enum row_error {
    ROW_ERROR_KV_RANGE = 1, /* a key or value is not finite in the pool's type */
    ROW_ERROR_LOGITS = 2,   /* a logit is NaN or infinite */
};

/* output[row] = row tokens[row] of `table`, dequantized. */
struct embed_args {
    const struct matrix *table; /* [vocabulary][columns]; may be the lm_head too */
    const uint32_t *tokens;     /* [row], each < table->rows */
    uint32_t rows;
    float *output; /* [row][table->columns] */
};

/* output[i] = input[rows_taken[i]]: the rows that go on to lm_head. Input and output do not
 * overlap. */
struct gather_args {
    const float *input;         /* [any][columns] */
    const uint32_t *rows_taken; /* [row] */
    uint32_t rows;
    uint32_t columns;
    float *output; /* [row][columns] */
};

/* output = (input x 1/sqrt(mean of squares + epsilon)) x weight. May be in place. */
struct rmsnorm_args {
    const float *input;  /* [row][columns] */
    const float *weight; /* [columns] */
    uint32_t rows;
    uint32_t columns;
    float epsilon;
    float *output; /* [row][columns] */
};

/* Rounds each row once for the matmuls that share it (q, k, v; gate, up). */
struct prepare_args {
    const float *input; /* [row][columns] */
    uint32_t rows;
    uint32_t columns;
    void *output;   /* prepared_bytes(rows, columns) bytes, in an order of the backend's own; not
                       touched where forms is FLOATS */
    uint32_t forms; /* of enum activation_form; INTEGERS: columns fill blocks */
};

struct matmul_part {
    const struct matrix *matrix; /* columns = matmul_args.columns */
    float *output;               /* [row][matrix->rows] */
};

/* What an attention reads: the keys and values of these rows' sequences in one layer. */
struct kv_reads {
    struct row_places places;
    uint32_t rows;
    uint32_t layer;
    struct kv_view kv;
};

/* Part of a whole, in 65,536ths. */
enum { PART_WHOLE = 1 << 16 };

/* parts[i].output = input x transpose(parts[i].matrix), all parts from one prepared input. No
 * output overlaps the input or another output. */
struct matmul_args {
    const float *input;   /* [row][columns], as it was given to prepare, unchanged since; read
                             where a part's type asks for floats */
    const void *prepared; /* of the same rows, with the forms that the parts' types ask for */
    uint32_t rows;
    uint32_t columns;
    uint32_t part_count; /* 1 to MATMUL_PARTS_MAX */
    struct matmul_part parts[MATMUL_PARTS_MAX];
    /* What an attention will read soon, or NULL. A backend may fetch the part from soon_from to
     * soon_to into its caches while it multiplies; no result depends on it. Host. */
    const struct kv_reads *soon;
    uint32_t soon_from, soon_to; /* of PART_WHOLE */
    /* Matrices that the next product multiplies as many rows with, if known. A backend may fetch
     * some of them while it has nothing else to do; no result depends on it. */
    const struct matrix *next[MATMUL_PARTS_MAX];
    uint32_t next_count;
};

/* Rotates pairs (j, j + rotary_dims / 2) of every head in place; dims from rotary_dims on stay as
 * they are. */
struct rope_args {
    float *values;             /* [row][heads][head_dim] */
    const uint32_t *positions; /* [row], each < positions of the table */
    const float *table; /* [position][cos, sin][rotary_dims / 2], filled by rope_table_fill() */
    uint32_t rows;
    uint32_t heads;
    uint32_t head_dim;
    uint32_t rotary_dims; /* even, <= head_dim */
};

/* Puts each row's key and value at its position into the pool, rounded to the pool's type. Must
 * come before the attention of the same rows. */
struct kv_write_args {
    const float *keys;   /* [row][kv_heads][head_dim], rotated */
    const float *values; /* [row][kv_heads][head_dim] */
    struct row_places places;
    uint32_t rows;
    uint32_t layer;
    struct kv_view kv;
    uint32_t *row_errors; /* [row] */
};

/* Causal attention of each row over keys 0..position of its slot, read from the pool. Query head h
 * reads kv head h / (heads / kv_heads). output == queries is allowed. */
struct attention_args {
    const float *queries; /* [row][heads][head_dim], rotated */
    struct row_places places;
    uint32_t rows;
    uint32_t layer;
    uint32_t heads; /* a multiple of kv.geometry.kv_heads */
    struct kv_view kv;
    void *scratch; /* attention_scratch_bytes() bytes */
    uint64_t scratch_bytes;
    float *output; /* [row][heads][head_dim] */
};

/* accumulator += addend, elementwise: the residual. */
struct add_args {
    float *accumulator; /* [row][columns] */
    const float *addend;
    uint32_t rows;
    uint32_t columns;
};

/* output = gate / (1 + exp(-gate)) x up, elementwise. May be in place. */
struct silu_mul_args {
    const float *gate; /* [row][columns] */
    const float *up;
    uint32_t rows;
    uint32_t columns;
    float *output;
};

/* residual += addend, output = norm of the residual, then the output rounded for the matmuls. */
struct norm_prepare_args {
    float *residual;     /* [row][columns] */
    const float *addend; /* [row][columns], or NULL: nothing is added; may be the output's memory */
    const float *weight; /* [columns] */
    uint32_t rows;
    uint32_t columns;
    float epsilon;
    float *output;  /* [row][columns]; anything where the forms lack FLOATS */
    void *prepared; /* as prepare_args.output */
    uint32_t forms; /* as prepare_args.forms */
};

/* silu_mul, then its output rounded for the matmul; the output is anything where the forms lack
 * FLOATS. */
struct silu_prepare_args {
    struct silu_mul_args silu;
    void *prepared; /* as prepare_args.output */
    uint32_t forms; /* as prepare_args.forms */
};

/* Rotates queries and keys of the same rows, then kv_write of those keys. */
struct rope_write_args {
    struct rope_args queries, keys;
    struct kv_write_args write; /* write.keys == keys.values */
};

/* How one row is sampled. Temperature 0 is greedy (ties to the lowest id) and ignores the rest.
 * Otherwise: temperature, then the top_k largest, then the smallest set that holds top_p of what is
 * left, then those that have at least min_p of the largest probability; one of the rest is drawn by
 * its probability. A token that ties with the last one of top_k or top_p stays in. */
struct sampling {
    uint64_t seed;
    float temperature; /* >= 0, finite */
    float top_p;       /* (0, 1]; 1 = off */
    float min_p;       /* [0, 1]; 0 = off */
    uint32_t top_k;    /* 0 = off */
};

/* Draws one token per row. The draw depends on (logits of the row, sampling, position) and on
 * nothing else. A row with a NaN or infinite logit gets ROW_ERROR_LOGITS, token 0 and logprob 0. */
struct sample_args {
    const float *logits;             /* [row][columns] */
    const struct sampling *sampling; /* [row] */
    const uint32_t *positions;       /* [row] absolute position of the sampled token */
    uint32_t rows;
    uint32_t columns;
    uint32_t
        vocabulary; /* <= columns; ids from it on are never drawn and do not count in the logprob */
    uint32_t *tokens;     /* [row] */
    float *logprobs;      /* [row] log-softmax of the raw logits at the token */
    uint32_t *row_errors; /* [row] */
};

/* hashes[row] = XXH3-64 of the row's bytes. */
struct hash_args {
    const float *values; /* [row][columns] */
    uint32_t rows;
    uint32_t columns;
    uint64_t *hashes; /* [row] */
};

#endif
