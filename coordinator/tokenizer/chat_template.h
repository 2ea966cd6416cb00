/* Renders chat messages as the model's template would. Templates are recognised by their exact
 * text; another one is refused by name: a template that is nearly right makes answers that are
 * nearly right. Text of a message stays text: the result tells control tokens of the template from
 * characters that look like them. */
#ifndef TANDEM_COORDINATOR_TOKENIZER_CHAT_TEMPLATE_H
#define TANDEM_COORDINATOR_TOKENIZER_CHAT_TEMPLATE_H

#include "common/status.h"
#include "common/text.h"
#include "coordinator/tokenizer/vocabulary.h"
#include "proto/limits.h"

enum chat_template_kind {
    CHAT_TEMPLATE_NONE = 0,
    CHAT_TEMPLATE_SMOLLM2, /* ChatML with a default system message */
    CHAT_TEMPLATE_COUNT
};

struct chat_template {
    enum chat_template_kind kind;
    uint32_t begin_token, end_token; /* of a message */
};

/* Whether the text ends where the assistant's answer begins. */
enum chat_ending { CHAT_ENDS_WITH_MESSAGE, CHAT_ENDS_WITH_ANSWER_BEGUN };

struct chat_turn {
    struct byte_view role;    /* 1 to LIMIT_CHAT_ROLE_BYTES of a-z, 0-9, '_' and '-' */
    struct byte_view content; /* UTF-8 */
};

/* A run of text, or one control token of the template whose text it is. */
struct chat_segment {
    size_t begin, end; /* bytes of the rendered text */
    uint32_t token;    /* VOCABULARY_NO_TOKEN for text */
};

/* The whole text as the template gives it, and what its parts are. */
struct chat_rendering {
    char *bytes;
    size_t capacity, length;
    struct chat_segment *segments;
    size_t segment_capacity, segment_count;
};

/* Recognises `text` (of the GGUF key tokenizer.chat_template). STATUS_UNSUPPORTED with the reason
 * for another template, or if the vocabulary lacks its control tokens. */
MUST_USE enum status chat_template_recognise(struct byte_view text,
                                             const struct vocabulary *vocabulary,
                                             struct chat_template *out_template, struct text *why);

/* Renders into memory of the caller: `bytes`, `segments` and the capacities are set before, the
 * lengths are set here. STATUS_INVALID (no message, too many, a role that is none or a content that
 * is no UTF-8; `why` names the message). STATUS_TOO_LARGE if it does not fit: the lengths then say
 * what it takes, so a first call without memory measures. */
MUST_USE enum status chat_template_render(const struct chat_template *chat_template,
                                          const struct chat_turn *messages, size_t message_count,
                                          enum chat_ending ending, struct chat_rendering *rendering,
                                          struct text *why);

#endif
