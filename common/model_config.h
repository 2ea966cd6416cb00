/* Hyperparameters of a llama model out of config.json and generation_config.json of a Hugging Face
 * directory, in the spelling of transformers 4 (rope_theta, rope_scaling, torch_dtype) and 5
 * (rope_parameters, dtype). A key that is absent has the default that transformers gives it for
 * llama, but for the sizes, which must be there, and the end tokens, of which there are none. */
#ifndef TANDEM_COMMON_MODEL_CONFIG_H
#define TANDEM_COMMON_MODEL_CONFIG_H

#include "common/model_sizes.h"
#include "common/status.h"
#include "common/text.h"

#include <stddef.h>

enum { MODEL_CONFIG_END_TOKENS_MAX = 16 };

struct model_config {
    struct model_shape shape; /* all but metadata_hash; `tied_output` as the configuration asks */
    uint32_t end_tokens[MODEL_CONFIG_END_TOKENS_MAX]; /* of both files, without repetition */
    uint32_t end_token_count;
};

/* Contents of the two files, borrowed for the call. */
struct model_config_source {
    const void *config;
    size_t config_bytes;
    const void *generation; /* NULL if there is no such file */
    size_t generation_bytes;
};

/* STATUS_OK, STATUS_BAD_FILE, STATUS_UNSUPPORTED, STATUS_TOO_LARGE or STATUS_OUT_OF_MEMORY; `why`
 * names the file and the key, what it holds and what was expected. */
MUST_USE enum status model_config_read(const struct model_config_source *source,
                                       struct model_config *out_config, struct text *why);

#endif
