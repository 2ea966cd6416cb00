/* What a model's tokens are: their bytes, kinds and merges, owned, so that the model file may be
 * closed. Invariants: (1) immutable after vocabulary_init, so any number of threads may read it;
 * (2) every id below `token_count` has bytes, possibly none; (3) no two tokens that text can become
 * have equal bytes; (4) every merge joins the bytes of its two tokens into those of its result. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_VOCABULARY_H
#define TANDEM_COORDINATOR_TOKENIZER_VOCABULARY_H

#include "common/arena.h"
#include "common/status.h"
#include "common/text.h"
#include "coordinator/tokenizer/byte_table.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    VOCABULARY_TOKENS_MAX = 1 << 20,
    VOCABULARY_MERGES_MAX = 1 << 22,
    VOCABULARY_TOKEN_BYTES_MAX = 1024,    /* of one token */
    VOCABULARY_SPECIAL_TOKENS_MAX = 4096, /* control and user-defined ones */
    VOCABULARY_END_TOKENS_MAX = 16,
};

/* "No such token", for optional ids. */
#define VOCABULARY_NO_TOKEN UINT32_MAX

struct byte_view {
    const char *bytes; /* borrowed, not terminated */
    size_t length;
};

/* Numbers of the GGUF key tokenizer.ggml.token_type. */
enum token_type {
    TOKEN_TYPE_NORMAL = 1,
    TOKEN_TYPE_UNKNOWN = 2,
    TOKEN_TYPE_CONTROL =
        3, /* shown as nothing; comes from text only where special tokens are parsed */
    TOKEN_TYPE_USER_DEFINED = 4, /* ordinary text that is always one token */
    TOKEN_TYPE_UNUSED = 5,
    TOKEN_TYPE_BYTE = 6,
};

/* What vocabulary_init builds from; all borrowed for the call. */
struct vocabulary_source {
    const struct byte_view *tokens; /* [token_count] texts in the byte-level alphabet of GPT-2 */
    const uint8_t *types;           /* [token_count] enum token_type */
    const struct byte_view *merges; /* [merge_count] "left right", by rank */
    uint32_t token_count;
    uint32_t merge_count;
    uint32_t begin_token;          /* of a text; or VOCABULARY_NO_TOKEN */
    uint32_t end_token;            /* eos; or VOCABULARY_NO_TOKEN */
    uint32_t end_of_turn_token;    /* eot; or VOCABULARY_NO_TOKEN */
    uint32_t end_of_message_token; /* eom; or VOCABULARY_NO_TOKEN */
    bool add_begin_token;          /* a plain prompt starts with begin_token */
};

/* A rank and its result; the rank is the place in the list of merges. */
struct vocabulary_merge {
    uint32_t rank;
    uint32_t token;
};

struct vocabulary_merge_slot {
    uint64_t pair; /* left token above, right token below */
    struct vocabulary_merge merge;
    /* merge.rank == VOCABULARY_NO_TOKEN: free slot */
};

struct vocabulary_special {
    struct byte_view text; /* owned by the vocabulary */
    uint32_t token;
    bool control;
};

/* Fields may be read; only vocabulary.c writes them. */
struct vocabulary {
    struct arena arena; /* holds everything below */
    uint32_t token_count;
    uint32_t merge_count;
    const uint32_t *byte_offsets; /* [token_count + 1] into token_bytes */
    const char *token_bytes;      /* what each token adds to a text; nothing for control tokens */
    const uint8_t *types;         /* [token_count] */
    const uint8_t *traits;        /* [token_count] bits of enum token_trait */
    uint32_t byte_tokens[256];    /* token of each single byte or VOCABULARY_NO_TOKEN */
    const struct vocabulary_special *specials;
    uint32_t special_count;
    uint32_t begin_token;
    bool add_begin_token;
    uint32_t end_tokens[VOCABULARY_END_TOKENS_MAX];
    uint32_t end_token_count;
    struct vocabulary_merge_slot *merge_slots;
    uint32_t merge_shift;      /* 64 - log2 of the number of slots */
    struct byte_table normals; /* bytes of normal tokens -> id */
};

enum token_trait {
    TOKEN_TRAIT_WHOLE_CHARACTERS = 1 << 0, /* its bytes are well-formed UTF-8 by themselves */
};

/* STATUS_BAD_FILE with the token or merge at fault in `why`, STATUS_TOO_LARGE or
 * STATUS_OUT_OF_MEMORY. Free with vocabulary_free(), which accepts a zeroed one. */
MUST_USE enum status vocabulary_init(struct vocabulary *vocabulary,
                                     const struct vocabulary_source *source, struct text *why);
void vocabulary_free(struct vocabulary *vocabulary);

/* The vocabulary of a model without a tokenizer: ids below `token_count`, whose tokens add nothing
 * to a text, and which of them end a generation (at most VOCABULARY_END_TOKENS_MAX, CHECKed).
 * STATUS_TOO_LARGE or STATUS_OUT_OF_MEMORY. */
MUST_USE enum status vocabulary_init_ids(struct vocabulary *vocabulary, uint32_t token_count,
                                         const uint32_t *end_tokens, uint32_t end_token_count,
                                         struct text *why);

/* Bytes that token `token` (< token_count, CHECKed) adds to a text; empty for control tokens. */
struct byte_view vocabulary_token_bytes(const struct vocabulary *vocabulary, uint32_t token);

/* Normal token of exactly these bytes, VOCABULARY_NO_TOKEN if none. */
uint32_t vocabulary_find(const struct vocabulary *vocabulary, const char *bytes, size_t length);

/* Control or user-defined token of exactly this text, VOCABULARY_NO_TOKEN if none. */
uint32_t vocabulary_find_special(const struct vocabulary *vocabulary, struct byte_view text);

/* Merge of two neighbours; false if they do not merge. */
bool vocabulary_find_merge(const struct vocabulary *vocabulary, uint32_t left, uint32_t right,
                           struct vocabulary_merge *out_merge);

/* Whether generation ends with this token: eos, eot, eom and a short list of control tokens known
 * by their text. */
bool vocabulary_is_end(const struct vocabulary *vocabulary, uint32_t token);

#endif
