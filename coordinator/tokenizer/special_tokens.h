/* Finds control and user-defined tokens in a text: leftmost, and the longest of those that begin
 * there. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_SPECIAL_TOKENS_H
#define TANDEM_COORDINATOR_TOKENIZER_SPECIAL_TOKENS_H

#include "coordinator/tokenizer/vocabulary.h"

/* What becomes of the text of a control token. User-defined tokens are found either way. */
enum special_tokens_use { SPECIAL_TOKENS_AS_TEXT, SPECIAL_TOKENS_PARSED };

struct special_node; /* of a trie */

struct special_tokens {
    struct arena arena;
    const struct special_node *nodes;    /* node 0 is the root */
    bool begins[256];                    /* a token begins with this byte */
    const struct vocabulary *vocabulary; /* borrowed for life */
};

struct special_match {
    size_t begin, end; /* bytes of the text */
    uint32_t token;    /* VOCABULARY_NO_TOKEN: none, begin = end = length of the text */
};

MUST_USE enum status special_tokens_init(struct special_tokens *specials,
                                         const struct vocabulary *vocabulary);
void special_tokens_free(struct special_tokens *specials);

/* First match at or after `from`. With SPECIAL_TOKENS_AS_TEXT a control token that would match is
 * passed over whole, as Hugging Face's `encode_special_tokens` does. */
struct special_match special_tokens_next(const struct special_tokens *specials,
                                         struct byte_view text, size_t from,
                                         enum special_tokens_use use);

#endif
