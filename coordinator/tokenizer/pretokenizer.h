/* Splits text into the pieces within which bytes may merge. Each model names its rule; known rules
 * are hand-written splitters over Unicode 16 classes, others are refused by name, since a wrong
 * rule is wrong in silence. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_PRETOKENIZER_H
#define TANDEM_COORDINATOR_TOKENIZER_PRETOKENIZER_H

#include "common/status.h"
#include "common/text.h"

#include <stddef.h>

/* Length of the first piece of a text of `length` >= 1 bytes of well-formed UTF-8; at least 1. */
typedef size_t (*pretokenizer_splitter)(const char *text, size_t length);

struct pretokenizer {
    const char *name; /* value of the GGUF key tokenizer.ggml.pre */
    pretokenizer_splitter first_piece;
};

/* STATUS_UNSUPPORTED with the names of the known ones in `why`. */
MUST_USE enum status pretokenizer_find(const char *name, size_t length,
                                       const struct pretokenizer **out_pretokenizer,
                                       struct text *why);

#endif
