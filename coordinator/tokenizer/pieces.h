/* Pieces of text that are one token as a whole: most of them, so this is asked before anything is
 * merged. Only tokens that merging their bytes gives back are in: a vocabulary may hold tokens that
 * merging never reaches. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_PIECES_H
#define TANDEM_COORDINATOR_TOKENIZER_PIECES_H

#include "coordinator/tokenizer/bpe.h"
#include "coordinator/tokenizer/byte_table.h"
#include "coordinator/tokenizer/vocabulary.h"

struct pieces {
    struct arena arena;
    struct byte_table table;
};

/* Tries every normal token: about 20 ms for 50,000. Borrows the bytes of the vocabulary for life.
 * STATUS_OUT_OF_MEMORY. */
MUST_USE enum status pieces_init(struct pieces *pieces, const struct vocabulary *vocabulary,
                                 struct bpe_scratch *scratch);
void pieces_free(struct pieces *pieces);

/* Token of a piece, VOCABULARY_NO_TOKEN if it has to be merged. */
static inline uint32_t pieces_find(const struct pieces *pieces, struct byte_view piece)
{
    return byte_table_find(&pieces->table, piece.bytes, piece.length);
}

#endif
