/* Character classes as Hugging Face's `tokenizers` has them: what the splitting rules of
 * pretokenizers ask about. The tables are generated from that library itself
 * (make_unicode_classes.py), since regex engines differ in their Unicode version and in what counts
 * as a space. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_UNICODE_CLASSES_H
#define TANDEM_COORDINATOR_TOKENIZER_UNICODE_CLASSES_H

#include <stdint.h>

enum unicode_class {
    UNICODE_CLASS_LETTER = 1 << 0, /* \p{L} */
    UNICODE_CLASS_NUMBER = 1 << 1, /* \p{N} of the regex engine */
    UNICODE_CLASS_SPACE = 1 << 2,  /* \s */
    UNICODE_CLASS_DIGIT = 1 << 3,  /* numeric for the Digits pretokenizer */
};

enum {
    UNICODE_CODE_POINTS = 0x110000,
    UNICODE_BLOCK_SHIFT = 7, /* code points per block, as a power of two */
    UNICODE_BLOCK_MASK = (1 << UNICODE_BLOCK_SHIFT) - 1,
    UNICODE_BLOCKS = UNICODE_CODE_POINTS >> UNICODE_BLOCK_SHIFT,
};

extern const uint8_t unicode_block_rows[UNICODE_BLOCKS]; /* row of unicode_class_rows */
extern const uint8_t unicode_class_rows[][1 << UNICODE_BLOCK_SHIFT];

/* Bits of enum unicode_class of a code point below UNICODE_CODE_POINTS. */
static inline uint8_t unicode_classes(uint32_t code_point)
{
    return unicode_class_rows[unicode_block_rows[code_point >> UNICODE_BLOCK_SHIFT]]
                             [code_point & UNICODE_BLOCK_MASK];
}

#endif
