/* The vocabulary of the core's tests: one token for each byte, so that texts and ids are easy to
 * read; then a few longer ones, and the control tokens. */
#ifndef TANDEM_TESTS_SIM_LETTERS_H
#define TANDEM_TESTS_SIM_LETTERS_H

#include "coordinator/tokenizer/vocabulary.h"

enum {
    LETTERS_AND = 256, /* " and" */
    LETTERS_THE,       /* " the" */
    LETTERS_END,       /* control: ends a text */
    LETTERS_TOKENS,
};

/* CHECKs that it can be made. Free with vocabulary_free. */
void letters_open(struct vocabulary *vocabulary);

#endif
