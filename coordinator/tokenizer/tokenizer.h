/* Text and chats to token ids, exactly as Hugging Face's `tokenizers` has them for the model.
 * A tokenizer is immutable after opening: any number of threads encode at once, each with its own
 * scratch. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_TOKENIZER_H
#define TANDEM_COORDINATOR_TOKENIZER_TOKENIZER_H

#include "common/gguf.h"
#include "coordinator/tokenizer/bpe.h"
#include "coordinator/tokenizer/chat_template.h"
#include "coordinator/tokenizer/pieces.h"
#include "coordinator/tokenizer/pretokenizer.h"
#include "coordinator/tokenizer/special_tokens.h"
#include "coordinator/tokenizer/vocabulary.h"

/* Embedded by the caller; fields may be read. */
struct tokenizer {
    struct vocabulary vocabulary;            /* owned */
    const struct pretokenizer *pretokenizer; /* static */
    struct special_tokens specials;          /* owned */
    struct pieces pieces;                    /* owned */
    struct chat_template
        chat_template; /* kind CHAT_TEMPLATE_NONE: chats are refused with chat_refusal */
    struct reason chat_refusal;
};

/* One per thread, 28 KB; zeroed memory is a valid one. */
struct tokenizer_scratch {
    struct bpe_scratch bpe;
};

/* STATUS_UNSUPPORTED (tokenizer or splitting rule unknown, by name), STATUS_BAD_FILE,
 * STATUS_TOO_LARGE or STATUS_OUT_OF_MEMORY with the reason. A model without a known chat template
 * opens all the same. The file may be closed afterwards. Free with tokenizer_free(), which accepts
 * a zeroed one. */
MUST_USE enum status tokenizer_open(struct tokenizer *tokenizer, const struct gguf *gguf,
                                    struct text *why);
void tokenizer_free(struct tokenizer *tokenizer);

/* Appends the ids of `text` to `out`: at most one id a byte. With SPECIAL_TOKENS_AS_TEXT no control
 * token comes out. A byte for which the model has no token is left out, as in Hugging Face's.
 * STATUS_OK; STATUS_INVALID if the text is no UTF-8 (`why` names the byte); STATUS_TOO_LARGE if
 * `out` is full; STATUS_OUT_OF_MEMORY. On failure the count of `out` is as before. `why` may be
 * NULL. */
MUST_USE enum status tokenizer_encode(const struct tokenizer *tokenizer,
                                      struct tokenizer_scratch *scratch, struct byte_view text,
                                      enum special_tokens_use use, struct token_list *out,
                                      struct text *why);

/* The same for a plain prompt: begins with the model's begin token where the model asks for that.
 */
MUST_USE enum status tokenizer_encode_prompt(const struct tokenizer *tokenizer,
                                             struct tokenizer_scratch *scratch,
                                             struct byte_view text, enum special_tokens_use use,
                                             struct token_list *out, struct text *why);

/* The ids of a chat as the model's template renders it, ready for the answer of the assistant.
 * Nothing inside a message becomes a control token. Also STATUS_UNSUPPORTED if the model's template
 * is not known (`why` says so), and the refusals of chat_template_render(). */
MUST_USE enum status tokenizer_encode_chat(const struct tokenizer *tokenizer,
                                           struct tokenizer_scratch *scratch,
                                           const struct chat_turn *messages, size_t message_count,
                                           struct token_list *out, struct text *why);

#endif
