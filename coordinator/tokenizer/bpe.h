/* Byte-pair merging of one piece of text. Two regimes with equal results: a linear scan for short
 * pieces, a heap for long ones, O(n log n), so that a megabyte of one character costs no more than
 * a megabyte of prose. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_BPE_H
#define TANDEM_COORDINATOR_TOKENIZER_BPE_H

#include "coordinator/tokenizer/vocabulary.h"

enum {
    BPE_SHORT_BYTES_MAX = 96,     /* pieces up to this length take the linear scan */
    BPE_SCRATCH_BYTES_MAX = 1024, /* pieces beyond this take memory for the call, 28 bytes a byte */
};

struct bpe_symbol {
    uint32_t token;
    uint32_t previous, next; /* places, UINT32_MAX at the ends */
};

/* One per thread; zeroed memory is a valid one. */
struct bpe_scratch {
    struct bpe_symbol symbols[BPE_SCRATCH_BYTES_MAX];
    uint64_t heap[2 * BPE_SCRATCH_BYTES_MAX];
};

/* Ids in memory of the caller. */
struct token_list {
    uint32_t *tokens;
    size_t capacity;
    size_t count;
};

/* Appends the tokens of the piece; bytes without a token are left out. STATUS_OK; STATUS_TOO_LARGE
 * if they do not fit; STATUS_OUT_OF_MEMORY. */
MUST_USE enum status bpe_encode(const struct vocabulary *vocabulary, struct bpe_scratch *scratch,
                                struct byte_view piece, struct token_list *out);

#endif
