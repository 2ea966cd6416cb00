/* A vocabulary from the metadata of a GGUF file; the file may be closed afterwards. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_VOCABULARY_GGUF_H
#define TANDEM_COORDINATOR_TOKENIZER_VOCABULARY_GGUF_H

#include "common/gguf.h"
#include "coordinator/tokenizer/vocabulary.h"

/* STATUS_UNSUPPORTED (a tokenizer that is not byte-level BPE, by name), STATUS_BAD_FILE,
 * STATUS_TOO_LARGE or STATUS_OUT_OF_MEMORY, with the reason. Free with vocabulary_free(). */
MUST_USE enum status vocabulary_from_gguf(const struct gguf *gguf,
                                          struct vocabulary *out_vocabulary, struct text *why);

#endif
